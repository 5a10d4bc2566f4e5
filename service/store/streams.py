"""Streams, how far each one is numbered, and what of its log could not be."""

import hashlib
import secrets
from binascii import crc_hqx
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Connection,
    Numeric,
    Select,
    bindparam,
    column,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError

from service.privacy.accounting.budget import Accounting, Budget
from service.privacy.accounting.composition import Slots
from service.store import digests, leases, schema_version
from service.store.database import FREE_STREAM, notify, read, require_writes, write
from service.store.keys import NameTaken
from service.store.tables import publications, streams, unit_secrets
from service.streams.layout import RecordLayout
from service.streams.schema import StreamSchema, stored_schema
from service.streams.slots import EvaluationSlots
from service.streams.units import SECRET_BYTES


class StreamHalted(Exception):
    """Nothing more is numbered on this stream until an operator has looked at it."""


class SecretLost(Exception):
    """Nobody knows any more which unit a record is of: nothing more is accepted."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """`records` are numbered so far; `log` names its keys in the log and its folder of segments.

    The rest is explained in tables/recording.py.
    """

    id: int
    name: str
    log: str
    schema: dict[str, Any]
    place: int
    retention: Literal["keep", "needed"]
    epsilon: Decimal
    delta: Decimal
    accounting: str
    records: int
    sealed_entry: str
    sealed_sequence: int
    halted: str | None
    charges: int
    head: str | None
    distrusted: str | None
    grain: int
    promise: str
    segments_sum: Decimal
    releases: int
    newest_release: str | None
    confirmed_charges: int
    confirmed_releases: int
    marked: bool
    visible_epsilon: Decimal
    visible_delta: Decimal
    visible_rho: Decimal
    evaluation_grain: int
    visible_evaluation_epsilon: Decimal
    visible_evaluation_delta: Decimal
    visible_evaluation_rho: Decimal
    unit_secret_digest: str | None
    units_erased: int
    entries_from: int
    created_at: datetime

    @property
    def all_confirmed(self) -> bool:
        """Return whether the high-water mark holds all charges and releases, so that nobody can lose them unseen."""
        return (self.confirmed_charges, self.confirmed_releases) == (self.charges, self.releases)

    @property
    def parsed_schema(self) -> StreamSchema:
        """The schema, with types. `schema` is the stored JSON, which the promise is about."""
        return stored_schema(self.schema)

    @property
    def budget(self) -> Budget:
        """The most that its publications may cost any one record, for ever."""
        return Budget(epsilon=self.epsilon, delta=self.delta, accounting=Accounting(self.accounting))

    @property
    def evaluation_slots(self) -> EvaluationSlots | None:
        """The slots that it sets aside; None: it sets none aside, or units."""
        period = self.evaluation_period
        return None if period is None or self.schema.get("unit") is not None else EvaluationSlots(period=period)

    @property
    def evaluation_period(self) -> int | None:
        """k, every k-th slot or unit being set aside; None: none is."""
        settings = self.schema.get("evaluation")
        return None if settings is None else int(settings["every"])

    def grain_of(self, slots: Slots) -> int:
        """Return of what the edges of the outline of such slots are multiples."""
        return self.grain if slots is Slots.TRAINING else self.evaluation_grain

    def redrawn(self, slots: Slots, grain: int) -> "Stream":
        """Return the stream with the outline of such slots drawn with that grain."""
        if slots is Slots.TRAINING:
            return replace(self, grain=grain)
        return replace(self, evaluation_grain=grain)

    @cached_property
    def layout(self) -> RecordLayout:
        """How its records are laid out."""
        return self.parsed_schema.layout()


def slot(log: str) -> int:
    """Return the slot that a cluster gives the keys of a log, which carry its name as hash tag."""
    return crc_hqx(log.encode(), 0) % 2**14


def create(
    connection: Connection,
    *,
    name: str,
    log: str,
    schema: dict[str, Any],
    retention: str,
    epsilon: Decimal,
    delta: Decimal,
    accounting: str = Accounting.BASIC,
) -> Stream:
    """Make a stream; one with units gets a secret for their pseudonyms. NameTaken if there is one of this name."""
    secret = secrets.token_bytes(SECRET_BYTES) if schema.get("unit") is not None else None
    try:
        row = connection.execute(
            insert(streams)
            .values(
                name=name,
                log=log,
                schema=schema,
                retention=retention,
                epsilon=epsilon,
                delta=delta,
                accounting=accounting,
                place=slot(log),
                promise="",
                unit_secret_digest=None if secret is None else hashlib.sha256(secret).hexdigest(),
            )
            .returning(streams)
        ).one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    if secret is not None:
        connection.execute(insert(unit_secrets).values(stream_id=row.id, secret=secret))
    leases.create(connection, leases.stream(row.id))
    notify(connection, FREE_STREAM)
    promise = promised(of_row(row))  # of what was stored, as anybody will read it
    connection.execute(update(streams).where(streams.c.id == row.id).values(promise=promise))
    return get(connection, row.id)


def promised(stream: Stream) -> str:
    """The digest of what never changes of a stream: its name, schema, retention, budget and secret of its units."""
    content = {
        "name": stream.name,
        "log": stream.log,
        "schema": stream.schema,
        "retention": stream.retention,
        "epsilon": str(Fraction(stream.epsilon)),
        "delta": str(Fraction(stream.delta)),
        "created_at": digests.timestamp(stream.created_at),
    }
    if stream.accounting != Accounting.BASIC:  # digests of streams from before there was another say nothing of it
        content["accounting"] = stream.accounting
    if stream.unit_secret_digest is not None:
        content["unit_secret"] = stream.unit_secret_digest
    return digests.of(content)


def secret_of_units(connection: Connection, stream: Stream) -> bytes:
    """Return the secret of the pseudonyms of a stream's units. SecretLost if it is not the one that was promised."""
    query = select(unit_secrets.c.secret).where(unit_secrets.c.stream_id == stream.id)
    secret = bytes(connection.execute(query).scalar_one_or_none() or b"")
    if hashlib.sha256(secret).hexdigest() != stream.unit_secret_digest:
        raise SecretLost("the secret of its units is lost, and no other can take its place: restore the database")
    return secret


def find(connection: Connection, name: str) -> Stream | None:
    rows = read(connection, _NAMED, {"name": name})
    return of_row(rows[0]) if rows else None


def get(connection: Connection, identity: int) -> Stream:
    return of_row(connection.execute(ONE, {"stream": identity}).one())


_NAMED = select(streams).where(streams.c.name == bindparam("name"))


ONE = select(streams).where(streams.c.id == bindparam("stream", type_=BigInteger))
OF_PUBLICATION = select(streams).where(
    streams.c.id
    == select(publications.c.stream_id).where(publications.c.id == bindparam("publication")).scalar_subquery()
)
"""The stream of one publication."""
_EACH = select(streams).where(streams.c.id == func.any(bindparam("streams", type_=ARRAY(BigInteger))))


def every(connection: Connection) -> list[Stream]:
    return [of_row(row) for row in connection.execute(select(streams).order_by(streams.c.id))]


def of_each(connection: Connection, identities: Sequence[int]) -> list[Stream]:
    """Some streams, with one query for all of them."""
    return [of_row(row) for row in read(connection, *needed(identities))]


def needed(identities: Sequence[int]) -> tuple[Select[Any], dict[str, Any]]:
    """Return what is to be read of some streams, a row for `of_row` each."""
    return _EACH, {"streams": list(identities)}


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Stream]:
    """Newest first; `before` is the id of the last stream of the page before."""
    query = select(streams).order_by(streams.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(streams.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [of_row(row) for row in connection.execute(query)]


def halt(connection: Connection, identity: int, reason: str) -> None:
    connection.execute(update(streams).where(streams.c.id == identity).values(halted=reason))


_MOVED = ("charges", "head", "grain", "evaluation_grain", "releases", "newest_release")
_MOVE = update(streams).where(streams.c.id == bindparam("of")).values({name: bindparam(name) for name in _MOVED})


def move(connection: Connection, stream: Stream) -> None:
    """Write where the stream's chain of charges and its numbered releases end now."""
    write(connection, _MOVE, {name: getattr(stream, name) for name in _MOVED} | {"of": stream.id})


class Confirmed(NamedTuple):
    """Up to which numbers charges and releases of a stream may be seen, and what its worst record has spent then."""

    stream: int
    charges: int
    releases: int
    epsilon: Decimal
    delta: Decimal
    rho: Decimal
    evaluation_epsilon: Decimal
    """The worst evaluation slot's."""
    evaluation_delta: Decimal
    evaluation_rho: Decimal


def confirm(connection: Connection, confirmed: Sequence[Confirmed]) -> None:
    """Make charges and releases visible; nothing is read.

    Sums never fall, so that whoever is late with an older state changes nothing.
    """
    columns = zip(_BOUND, zip(*confirmed, strict=True), strict=True)
    write(connection, _CONFIRM, {name: list(values) for name, values in columns})


_BOUND = [f"each_{name}" for name in Confirmed._fields]
_TYPES = (*(BigInteger,) * 3, *(Numeric,) * 6)
_confirmed = (
    func.unnest(*(bindparam(name, type_=ARRAY(kind)) for name, kind in zip(_BOUND, _TYPES, strict=True)))
    .table_valued(*map(column, Confirmed._fields, _TYPES))
    .render_derived()
)
_CONFIRM = (
    update(streams)
    .where(
        streams.c.id == _confirmed.c.stream,
        or_(
            streams.c.confirmed_charges < _confirmed.c.charges,
            streams.c.confirmed_releases < _confirmed.c.releases,
            streams.c.marked.is_(False),
        ),
    )
    .values(
        confirmed_charges=func.greatest(streams.c.confirmed_charges, _confirmed.c.charges),
        confirmed_releases=func.greatest(streams.c.confirmed_releases, _confirmed.c.releases),
        visible_epsilon=func.greatest(streams.c.visible_epsilon, _confirmed.c.epsilon),
        visible_delta=func.greatest(streams.c.visible_delta, _confirmed.c.delta),
        visible_rho=func.greatest(streams.c.visible_rho, _confirmed.c.rho),
        visible_evaluation_epsilon=func.greatest(streams.c.visible_evaluation_epsilon, _confirmed.c.evaluation_epsilon),
        visible_evaluation_delta=func.greatest(streams.c.visible_evaluation_delta, _confirmed.c.evaluation_delta),
        visible_evaluation_rho=func.greatest(streams.c.visible_evaluation_rho, _confirmed.c.evaluation_rho),
        marked=True,
    )
)


def distrust(connection: Connection, stream: Stream, reason: str | None) -> bool:
    """Publishes nothing more on it, because its ledger does not verify; None: it does (again). Whether that is news.

    Nothing changes if somebody else has said otherwise since the stream was read.
    """
    if stream.distrusted == reason:
        return False
    changed = connection.execute(
        update(streams)
        .where(streams.c.id == stream.id, streams.c.distrusted.is_not_distinct_from(stream.distrusted))
        .values(distrusted=reason)
    )
    return bool(changed.rowcount)


def ready(connection: Connection) -> None:
    """Check that the tables are there, are those of this version of the service, and can be written.

    Raises:
        SchemaNarrowed: a migration left them to newer versions.
        DatabaseReadOnly: the database takes no writes.
    """
    require_writes(connection)
    connection.execute(text("SELECT 1 FROM streams LIMIT 1"))
    if not schema_version.serves(connection):
        raise schema_version.SchemaNarrowed


def of_row(row: Any) -> Stream:
    """Return the stream of a row of its table."""
    return Stream(**row._asdict())
