"""Publications: what is asked for, how far it is published, and which of them can go on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, not_, or_, select, true, update
from sqlalchemy.exc import IntegrityError

from service.store import digests, labels, leases, parts
from service.store.database import NEW_PUBLICATION, NEW_RELEASE, notify, read_together, within
from service.store.keys import NameTaken
from service.store.leases import Lease, LeaseLost
from service.store.streams import Stream
from service.store.tables import leases as leased
from service.store.tables import publications, streams


@dataclass(frozen=True, kw_only=True)
class Publication:
    """`position` and all below it are told in tables.py. `stream_promise` and `distrusted` are the stream's."""

    id: int
    name: str
    stream_id: int
    stream: str
    start: int
    configuration: dict[str, Any]
    plan: dict[str, Any]
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
    stream_promise: str
    distrusted: str | None
    created_at: datetime

    @property
    def asks_people(self) -> bool:
        """Whether labels of its records come from people."""
        return asks_people(self.plan)


def asks_people(plan: Mapping[str, Any]) -> bool:
    """Whether a publication with this plan asks people for labels."""
    return bool(plan.get("labels", {}).get("from") == "people")


def create(
    connection: Connection,
    *,
    name: str,
    stream: int,
    start: int,
    configuration: dict[str, Any],
    plan: dict[str, Any],
    kind: str,
    epsilon: Decimal,
    delta: Decimal,
    due: int,
) -> Publication:
    """Stores it; whether the stream's budget can hold it is the caller's to check, under the stream's lock."""
    try:
        identity = connection.execute(
            insert(publications)
            .values(
                name=name,
                stream_id=stream,
                start=start,
                configuration=configuration,
                plan=plan,
                kind=kind,
                epsilon=epsilon,
                delta=delta,
                due=due,
                promise="",
                digest="",
                seal="",
            )
            .returning(publications.c.id)
        ).scalar_one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    leases.create(connection, leases.publication(identity))
    notify(connection, NEW_PUBLICATION, name)
    stored = get(connection, identity)  # what is promised is what anybody will read
    promise = promised(stored)
    made = replace(stored, promise=promise, digest=promise)
    connection.execute(
        update(publications)
        .where(publications.c.id == identity)
        .values(promise=promise, digest=promise, seal=sealed(made))
    )
    return get(connection, identity)


def promised(publication: Publication) -> str:
    """The digest of what never changes of a publication, and of what its stream promises."""
    told = {
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
    return digests.of(told)


def sealed(publication: Publication) -> str:
    """The digest of all that does change of a publication, as it is left; whoever looks next can tell if it was."""
    told = {name: getattr(publication, name) for name in (*_MOVED, "promise", "state", "reason")}
    return digests.of(told | {"worst_amount": str(Fraction(publication.worst_amount))})


def as_left(publication: Publication) -> bool:
    """Whether what changes of a publication is as it was left. What has no JSON, like NaN, was never left there."""
    try:
        return publication.seal == sealed(publication)
    except (ValueError, OverflowError):
        return False


def get(connection: Connection, identity: int) -> Publication:
    return _publication(connection.execute(_query().where(publications.c.id == identity)).one())


def lock(connection: Connection, identity: int) -> Publication:
    return _publication(
        connection.execute(_query().where(publications.c.id == identity).with_for_update(of=publications)).one()
    )


def hold(connection: Connection, identity: int, lease: Lease | None, *, seconds: float) -> tuple[Publication, Stream]:
    """What a step is published for, and on; both and the lease stay as they are until the transaction ends.

    It ends within so many seconds, waiting included: of threads that hang together and wait for each other's locks, one
    must not hold them after the other. They are locked in one go, in the order in which everybody else locks them.
    lease None: of who publishes without one, and so must look whether somebody else did.

    Raises:
        LeaseLost: it ran out or is another's.
    """
    asked: dict[str, Any] = {"publication": identity}
    if lease is not None:
        asked |= {"resource": lease.resource, "epoch": lease.epoch}
    *_, rows = read_together(connection, *within(connection, seconds), (_HOLD_ALONE if lease is None else _HOLD, asked))
    if lease is not None and not rows:
        raise LeaseLost(lease.resource)
    row = rows[0]
    mine = len(_NAMES)
    return (
        Publication(**dict(zip(_NAMES, row[:mine], strict=True))),
        Stream(**dict(zip(streams.c.keys(), row[mine:], strict=True))),
    )


def find(connection: Connection, name: str) -> Publication | None:
    row = connection.execute(_query().where(publications.c.name == name)).one_or_none()
    return _publication(row) if row else None


def of_stream(connection: Connection, stream: int) -> list[Publication]:
    query = _query().where(publications.c.stream_id == stream).order_by(publications.c.id.desc())
    return [_publication(row) for row in connection.execute(query)]


class Newest(NamedTuple):
    """`latest`: the newest version of a publication with role `model`, if it has any; `stream`: whose it is."""

    id: int
    stream: str
    latest: int | None


def newest(connection: Connection, name: str) -> Newest | None:
    row = connection.execute(_NEWEST, {"name": name}).one_or_none()
    return Newest(*row) if row else None


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Publication]:
    """Newest first, of the streams in `only`; `before` is the id of the last one of the page before."""
    query = _query().order_by(publications.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(publications.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [_publication(row) for row in connection.execute(query)]


def due(connection: Connection) -> list[Publication]:
    """Running publications whose next step has all it needs, first the one that nobody worked on for longest.

    A lease that is given back ends at that moment; one that is held ends in the future.
    """
    query = (
        _query()
        .join(leased, leased.c.resource == leases.publication_of(publications.c.id))
        .where(
            publications.c.state == "running",
            streams.c.records >= publications.c.due,
            # A step that is due where the last one was taken waits for labels.
            or_(publications.c.due > publications.c.start + publications.c.position, not_(labels.any_open())),
            streams.c.halted.is_(None),
            streams.c.distrusted.is_(None),
        )
        .order_by(leased.c.expires_at)
    )
    return [_publication(row) for row in connection.execute(query)]


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
    .returning(func.pg_notify(NEW_RELEASE, publications.c.name))
)


def move(connection: Connection, publication: Publication) -> Publication:
    """The schedule's clock goes on to what this tells; last step of publishing. Returns it as it is left."""
    moved = replace(publication, seal=sealed(publication))
    connection.execute(_MOVE, {name: getattr(moved, name) for name in (*_MOVED, "seal")} | {"of": publication.id})
    return moved


def end(connection: Connection, identity: int, *, state: str, reason: str | None = None) -> None:
    """`stopped` or `halted`: it publishes nothing more, and what it remembers is deleted.

    What is not as it was left does not become so by this.
    """
    found = lock(connection, identity)
    if found.state != "running":
        return
    parts.forget(connection, identity)
    labels.forget(connection, identity)
    seal = sealed(replace(found, state=state, reason=reason)) if as_left(found) else found.seal
    connection.execute(
        update(publications).where(publications.c.id == identity).values(state=state, reason=reason, seal=seal)
    )
    notify(connection, NEW_RELEASE, found.name)


def _query() -> Select[Any]:
    stream = (streams.c.name.label("stream"), streams.c.promise.label("stream_promise"), streams.c.distrusted)
    return select(publications, *stream).join(streams, streams.c.id == publications.c.stream_id)


_NAMES = _query().selected_columns.keys()
_NEWEST = (
    select(publications.c.id, streams.c.name, publications.c.latest)
    .join(streams, streams.c.id == publications.c.stream_id)
    .where(publications.c.name == bindparam("name"))
)
_HOLD = (
    select(*_query().selected_columns, streams)
    .select_from(leased.join(streams, true()).join(publications, publications.c.stream_id == streams.c.id))
    .where(publications.c.id == bindparam("publication"), *leases.is_held(bindparam("resource"), bindparam("epoch")))
    .with_for_update()
)
_HOLD_ALONE = (
    select(*_query().selected_columns, streams)
    .select_from(streams.join(publications, publications.c.stream_id == streams.c.id))
    .where(publications.c.id == bindparam("publication"))
    .with_for_update()
)


def _publication(row: Row[Any]) -> Publication:
    return Publication(**row._asdict())
