"""Publications: what is asked for, how far it is published, and which of them can go on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
    bindparam,
    func,
    insert,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from service.privacy.accounting.composition import Slots
from service.privacy.accounting.obligations import FitSize, Obligations
from service.store import digests, leases, visible_positions
from service.store.database import NEW_PUBLICATION, NEW_RELEASE, any_of, notify, read, read_together, write
from service.store.keys import NameTaken
from service.store.rows import Rows
from service.store.tables import charges as charged
from service.store.tables import erasures, publications, streams
from service.store.tables import releases as released
from service.store.tables import shown as shown_clocks


@dataclass(frozen=True, kw_only=True)
class Publication:
    """`position` and all below it: see tables/publishing.py.

    `stream_promise`, `accounting` and `distrusted` are the stream's.

    `position`, `due`, `version`, `latest`, `state`, `reason` and the worst record's sum are what is committed;
    `visible_…` is what is confirmed too, and only that is shown to anybody.
    """

    id: int
    name: str
    stream_id: int
    stream: str
    start: int
    configuration: dict[str, Any]
    plan: dict[str, Any]
    obligations: dict[str, Any]
    obligations_digest: str
    kind: str
    epsilon: Decimal
    delta: Decimal
    state: str
    reason: str | None
    position: int
    due: int
    version: int
    latest: int | None
    chain: list[int]
    promise: str
    digest: str
    seal: str
    worst_record: int | None
    worst_amount: Decimal
    publish_delay: Decimal
    features_from: int | None
    stream_promise: str
    accounting: str
    distrusted: str | None
    visible_version: int | None
    visible_latest: int | None
    visible_position: int
    visible_due: int
    visible_worst_record: int | None
    visible_worst_amount: Decimal
    visible_state: str
    visible_reason: str | None
    created_at: datetime

    @property
    def owes(self) -> Obligations:
        """Return what it owes, whatever it releases. ValueError, KeyError or TypeError if nobody wrote it there."""
        return Obligations.from_json(self.obligations)

    @property
    def slots(self) -> Slots:
        """Which slots it reads and charges. ValueError if that was never written there."""
        return Slots(self.obligations.get("slots", Slots.TRAINING))

    @property
    def unit_factor(self) -> str | None:
        """How many times a charge of a slot counts for its unit, exactly; None: its stream has no units."""
        unit = self.obligations.get("unit")
        return None if unit is None else unit["factor"]

    @property
    def asks_people(self) -> bool:
        """Whether labels of its records come from people."""
        return self.obligations.get("labelling") is not None


UNIT_FACTOR: ColumnElement[str | None] = publications.c.obligations["unit"]["factor"].as_string().label("unit_factor")
"""`Publication.unit_factor`, in a query"""


@dataclass(frozen=True, kw_only=True)
class NewPublication:
    """A publication that is to be stored. `start`, `due`: absolute record numbers. `publish_delay`: seconds.

    `features_from`: the id of the publication of the stream whose release makes its features.
    """

    name: str
    start: int
    configuration: dict[str, Any]
    plan: dict[str, Any]
    obligations: Obligations
    kind: str
    epsilon: Decimal
    delta: Decimal
    due: int
    publish_delay: Decimal
    features_from: int | None = None


def create(
    connection: Connection, stream: int, new: NewPublication, *, visible: frozenset[str] | None = None
) -> Publication:
    """Store a publication. The caller has checked, under the stream's lock, that the stream's budget can hold it.

    Args:
        visible: names of the streams that the asking key may see; None: every stream. A name that is taken on other
            streams alone is free, or the key would learn that it is taken.

    Raises:
        NameTaken: a publication of a visible stream has this name.
    """
    # One lock for all names: how long a key waits here must tell nothing of the names that others ask for.
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("perennial publication names"))))
    if find(connection, new.name, visible=visible) is not None:
        raise NameTaken(new.name)
    try:
        identity = connection.execute(
            insert(publications)
            .values(
                stream_id=stream,
                **vars(new) | {"obligations": new.obligations.to_json()},
                obligations_digest="",
                promise="",
                digest="",
                seal="",
            )
            .returning(publications.c.id)
        ).scalar_one()
    except IntegrityError as error:
        raise NameTaken(new.name) from error
    visible_positions.begin(connection, identity, due=new.due)
    leases.create(connection, leases.publication(identity))
    if new.obligations.cells is not None:
        leases.create(connection, leases.queries(identity))
    notify(connection, NEW_PUBLICATION, new.name)
    stored = get(connection, identity)  # what is promised is what anybody will read
    promise = promised(stored)
    made = replace(stored, promise=promise, digest=promise)
    connection.execute(
        update(publications)
        .where(publications.c.id == identity)
        .values(promise=promise, digest=promise, seal=state_digest(made), obligations_digest=obligations_digest(made))
    )
    return get(connection, identity)


def promised(publication: Publication) -> str:
    """The digest of what never changes of a publication, and of what its stream promises."""
    content = {
        "id": publication.id,
        "name": publication.name,
        "stream_promise": publication.stream_promise,
        "start": publication.start,
        "configuration": publication.configuration,
        "plan": publication.plan,
        "kind": publication.kind,
        "epsilon": str(Fraction(publication.epsilon)),
        "delta": str(Fraction(publication.delta)),
        "created_at": digests.timestamp(publication.created_at),
    }
    if publication.features_from is not None:  # as no publication could be before there were preparations
        content["features_from"] = publication.features_from
    return digests.of(content)


def obligations_digest(publication: Publication) -> str:
    """Return the digest of a publication's obligations and of its promise. Obligations came later than promises."""
    return digests.of({"promise": publication.promise, "obligations": publication.obligations})


def matches_promise(publication: Publication) -> bool:
    """Return whether configuration and obligations of a publication, which never change, match their stored digests."""
    return (publication.promise, publication.obligations_digest) == (
        promised(publication),
        obligations_digest(publication),
    )


def state_digest(publication: Publication) -> str:
    """Return the digest of all fields of a publication that steps change; stored with it as its seal."""
    content = {name: getattr(publication, name) for name in (*_MOVED, "promise", "state", "reason")}
    return digests.of(content | {"worst_amount": str(Fraction(publication.worst_amount))})


def is_untampered(publication: Publication) -> bool:
    """Return whether the fields that steps change match the stored seal; values that JSON lacks, like NaN, never do."""
    try:
        return publication.seal == state_digest(publication)
    except (ValueError, OverflowError):
        return False


def get(connection: Connection, identity: int) -> Publication:
    return of_row(connection.execute(one(), {"publication": identity}).one())


@cache
def one() -> Select[Any]:
    """Return the query of one publication, which binds `publication`."""
    return select_all().where(publications.c.id == bindparam("publication", type_=BigInteger))


def find(connection: Connection, name: str, *, visible: frozenset[str] | None = None) -> Publication | None:
    """Return the oldest publication of this name on the streams named in `visible`; None: on every stream."""
    bound = {"name": name} if visible is None else {"name": name, "visible": list(visible)}
    rows = read(connection, _OLDEST if visible is None else _OLDEST_VISIBLE, bound)
    return of_row(rows[0]) if rows else None


def of_stream(connection: Connection, stream: int) -> list[Publication]:
    return [of_row(row) for row in read(connection, _OF_STREAM, {"stream": stream})]


def walk(rows: Rows, stream: int) -> Iterator[Publication]:
    """Yield all publications of a stream, the newest first."""
    return map(of_row, rows.of(_NEWEST_FIRST, publications.c.stream_id, stream))


def fit_sizes(connection: Connection, identities: Sequence[int]) -> dict[int, FitSize]:
    """Return the sizes of the fits of some publications, by id."""
    query = select(publications.c.id, _FIT_SIZE).where(publications.c.id == any_of(identities))
    return {row.id: FitSize.from_json(row.fit) for row in connection.execute(query)}


def running_fit_sizes(connection: Connection, only: frozenset[str] | None) -> list[FitSize]:
    """Return the sizes of the fits of all running publications, of the streams in `only`."""
    query = select(_FIT_SIZE).join(shown_clocks, shown_clocks.c.publication_id == publications.c.id)
    query = query.where(shown_clocks.c.state == "running")
    if only is not None:
        query = query.join(streams, streams.c.id == publications.c.stream_id).where(streams.c.name.in_(only))
    return [FitSize.from_json(fit) for fit in connection.execute(query).scalars()]


SLOTS = func.coalesce(publications.c.obligations["slots"].as_string(), Slots.TRAINING.value)
"""Which slots a publication reads and charges, in a query of publications."""
_FIT_SIZE = publications.c.obligations["fit"].label("fit")


def runs(connection: Connection, identity: int) -> bool:
    """Return whether a publication is running."""
    query = select(publications.c.state == "running").where(publications.c.id == identity)
    return bool(connection.scalar(query))


def running_names(connection: Connection) -> set[tuple[str, str]]:
    """Return all running publications, each by its name and its stream's."""
    query = select(publications.c.name, streams.c.name).join(streams, streams.c.id == publications.c.stream_id)
    return {(row[0], row[1]) for row in connection.execute(query.where(publications.c.state == "running"))}


class Seen(NamedTuple):
    """`confirmed`: all that it has charged and released, and its end. `newest_erasure`: of its stream; 0: none."""

    publication: Publication
    confirmed: bool
    newest_erasure: int


def see(connection: Connection, identity: int) -> Seen:
    """Return what one statement sees, for a caller who asks with every request."""
    ((*row, confirmed, erasure),) = read_together(connection, (_SEE, {"publication": identity}))[0]
    return Seen(Publication(**dict(zip(NAMES, row, strict=True))), confirmed, erasure)


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Publication]:
    """Newest first, of the streams in `only`; `before` is the id of the last one of the page before."""
    query = select_all().order_by(publications.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(publications.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [of_row(row) for row in connection.execute(query)]


_MOVED = (
    "position",
    "due",
    "version",
    "latest",
    "chain",
    "digest",
    "worst_record",
    "worst_amount",
)
_MOVE = (
    update(publications)
    .where(publications.c.id == bindparam("of"))
    .values({name: bindparam(name) for name in (*_MOVED, "seal")})
)


def move(connection: Connection, publication: Publication) -> Publication:
    """The schedule's clock goes on to what this tells; last step of publishing. Returns it as it is left."""
    moved = replace(publication, seal=state_digest(publication))
    write(connection, _MOVE, {name: getattr(moved, name) for name in (*_MOVED, "seal")} | {"of": publication.id})
    return moved


def mark_ended(connection: Connection, publication: Publication) -> None:
    """Write the state, reason and seal of a publication that ends."""
    ended = {name: getattr(publication, name) for name in ("state", "reason", "seal")}
    connection.execute(update(publications).where(publications.c.id == publication.id).values(ended))


def notify_readers(connection: Connection, identities: Sequence[int]) -> None:
    """Wake whoever waits for releases of these publications."""
    if identities:
        names = select(publications.c.name).where(publications.c.id == any_of(identities))
        for name in connection.execute(names).scalars():
            notify(connection, NEW_RELEASE, name)


def select_all() -> Select[Any]:
    """Return what makes a `Publication` of each row."""
    stream = (
        streams.c.name.label("stream"),
        streams.c.promise.label("stream_promise"),
        streams.c.accounting,
        streams.c.distrusted,
    )
    newest = (newest_visible().label("visible_version"), newest_visible(role="model").label("visible_latest"))
    return (
        select(publications, *stream, *newest, *visible_positions.columns())
        .join(streams, streams.c.id == publications.c.stream_id)
        .join(shown_clocks, shown_clocks.c.publication_id == publications.c.id)
    )


def newest_visible(*, role: str | None = None) -> ColumnElement[int | None]:
    """The newest release that is confirmed, of one role or any; in a query of publications and their streams."""
    query = select(released.c.version).where(
        released.c.publication_id == publications.c.id, released.c.number <= streams.c.confirmed_releases
    )
    if role is not None:
        query = query.where(released.c.role == role)
    return query.order_by(released.c.version.desc()).limit(1).correlate_except(released).scalar_subquery()


NAMES = select_all().selected_columns.keys()
_NEWEST_FIRST = select_all().order_by(publications.c.id.desc())
_OF_STREAM = _NEWEST_FIRST.where(publications.c.stream_id == bindparam("stream", type_=BigInteger))
_OLDEST = select_all().where(publications.c.name == bindparam("name")).order_by(publications.c.id).limit(1)
_OLDEST_VISIBLE = _OLDEST.where(streams.c.name == func.any(bindparam("visible", type_=ARRAY(Text))))
_UNCONFIRMED = select(charged.c.id).where(
    charged.c.publication_id == publications.c.id,
    charged.c.stream_id == streams.c.id,
    charged.c.id > streams.c.confirmed_charges,
)
_UNRELEASED = select(released.c.version).where(
    released.c.publication_id == publications.c.id, released.c.number > streams.c.confirmed_releases
)
_ERASURE = select(func.coalesce(func.max(erasures.c.id), 0)).where(erasures.c.stream_id == streams.c.id)
_SEE = (
    select_all()
    .add_columns(
        not_(or_(_UNCONFIRMED.exists(), _UNRELEASED.exists(), publications.c.state != shown_clocks.c.state)),
        _ERASURE.scalar_subquery(),
    )
    .where(publications.c.id == bindparam("publication"))
)


def of_row(row: Any) -> Publication:
    """Return the publication of a row of `select_all`."""
    return Publication(**row._asdict())
