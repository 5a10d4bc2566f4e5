"""Publications: what is asked for, how far it is published, and which of them can go on."""

from collections.abc import Collection, Sequence
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
    Row,
    Select,
    Text,
    bindparam,
    func,
    insert,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError

from service.store import attempts, digests, labels, leases, parked, parts, shown
from service.store.database import NEW_PUBLICATION, NEW_RELEASE, any_of, notify, read_together, within
from service.store.keys import NameTaken
from service.store.leases import Lease, LeaseLost
from service.store.streams import Stream
from service.store.tables import charges as charged
from service.store.tables import erasures, publications, streams
from service.store.tables import leases as leased
from service.store.tables import parked as parked_steps
from service.store.tables import releases as released
from service.store.tables import shown as shown_clocks


@dataclass(frozen=True, kw_only=True)
class Publication:
    """`position` and all below it are told in tables.py. `stream_promise` and `distrusted` are the stream's.

    `position`, `due`, `version`, `latest` and the worst record's sum are what is committed; `visible_…` is what is
    confirmed too, and only that is shown to anybody.
    """

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
    publish_delay: Decimal
    stream_promise: str
    distrusted: str | None
    visible_version: int | None
    visible_latest: int | None
    visible_position: int
    visible_due: int
    visible_worst_record: int | None
    visible_worst_amount: Decimal
    created_at: datetime

    @property
    def asks_people(self) -> bool:
        """Whether labels of its records come from people."""
        return bool(self.plan.get("labels", {}).get("from") == "people")


def create(
    connection: Connection,
    *,
    name: str,
    stream: int,
    visible: frozenset[str] | None = None,
    start: int,
    configuration: dict[str, Any],
    plan: dict[str, Any],
    kind: str,
    epsilon: Decimal,
    delta: Decimal,
    due: int,
    publish_delay: Decimal,
    answers_queries: bool = False,
) -> Publication:
    """Store a publication. The caller checks, under the stream's lock, that the stream's budget can hold it.

    Args:
        answers_queries: people ask it queries, so that processes need a lease to answer.
        visible: names of the streams that the asking key may see; None: every stream. A name that is taken on other
            streams alone is free, or the key would learn that it is taken.

    Raises:
        NameTaken: a publication of a visible stream has this name.
    """
    # One lock for all names: how long a key waits here must tell nothing of the names that others ask for.
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtext("perennial publication names"))))
    if find(connection, name, visible=visible) is not None:
        raise NameTaken(name)
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
                publish_delay=publish_delay,
                promise="",
                digest="",
                seal="",
            )
            .returning(publications.c.id)
        ).scalar_one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    shown.begin(connection, identity, due=due)
    leases.create(connection, leases.publication(identity))
    if answers_queries:
        leases.create(connection, leases.queries(identity))
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


def hold(connection: Connection, identity: int, lease: Lease, *, seconds: float) -> tuple[Publication, Stream]:
    """What a step is published for, and on; both and the lease stay as they are until the transaction ends.

    It ends within so many seconds, waiting included: of threads that hang together and wait for each other's locks, one
    must not hold them after the other. They are locked in one go, in the order in which everybody else locks them.

    Raises:
        LeaseLost: it ran out or is another's.
    """
    asked = {"publication": identity, "resource": lease.resource, "owner": lease.owner, "epoch": lease.epoch}
    *_, rows = read_together(connection, *within(connection, seconds), (_HOLD, asked))
    if not rows:
        raise LeaseLost(lease.resource)
    row = rows[0]
    mine = len(_NAMES)
    return (
        Publication(**dict(zip(_NAMES, row[:mine], strict=True))),
        Stream(**dict(zip(streams.c.keys(), row[mine:], strict=True))),
    )


def find(connection: Connection, name: str, *, visible: frozenset[str] | None = None) -> Publication | None:
    """Return the oldest publication of this name on the streams named in `visible`; None: on every stream."""
    query = _query().where(publications.c.name == name).order_by(publications.c.id).limit(1)
    if visible is not None:
        query = query.where(streams.c.name.in_(visible))
    row = connection.execute(query).one_or_none()
    return _publication(row) if row else None


def of_stream(connection: Connection, stream: int) -> list[Publication]:
    query = _query().where(publications.c.stream_id == stream).order_by(publications.c.id.desc())
    return [_publication(row) for row in connection.execute(query)]


class Newest(NamedTuple):
    """`latest`: the newest visible version of a publication with role `model`, if it has any."""

    id: int
    promise: str
    latest: int | None


def newest(connection: Connection, name: str, visible: frozenset[str] | None) -> Newest | None:
    """Return what `find` would find, as far as readers of its newest model ask for it."""
    if visible is None:
        row = connection.execute(_NEWEST, {"name": name}).one_or_none()
    else:
        row = connection.execute(_NEWEST_VISIBLE, {"name": name, "visible": list(visible)}).one_or_none()
    return Newest(*row) if row else None


def plans(connection: Connection, identities: Collection[int]) -> dict[int, dict[str, Any]]:
    """Return the plans of some publications, by id."""
    query = select(publications.c.id, publications.c.plan).where(publications.c.id.in_(identities))
    return {row.id: row.plan for row in connection.execute(query)}


def running_plans(connection: Connection, only: frozenset[str] | None) -> list[dict[str, Any]]:
    """Return the plans of all running publications, of the streams in `only`."""
    query = select(publications.c.plan).where(publications.c.state == "running")
    if only is not None:
        query = query.join(streams, streams.c.id == publications.c.stream_id).where(streams.c.name.in_(only))
    return list(connection.execute(query).scalars())


def runs(connection: Connection, identity: int) -> bool:
    """Return whether a publication is running."""
    query = select(publications.c.state == "running").where(publications.c.id == identity)
    return bool(connection.scalar(query))


def running_names(connection: Connection) -> set[str]:
    """Return the names of all running publications."""
    return set(connection.scalars(select(publications.c.name).where(publications.c.state == "running")))


class Seen(NamedTuple):
    """`confirmed`: all that it has charged and released. `newest_erasure`: of its stream; 0: there is none."""

    publication: Publication
    confirmed: bool
    newest_erasure: int


def see(connection: Connection, identity: int) -> Seen:
    """Return what one statement sees, for a caller who asks with every request."""
    ((*row, confirmed, erasure),) = read_together(connection, (_SEE, {"publication": identity}))[0]
    return Seen(Publication(**dict(zip(_NAMES, row, strict=True))), confirmed, erasure)


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Publication]:
    """Newest first, of the streams in `only`; `before` is the id of the last one of the page before."""
    query = _query().order_by(publications.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(publications.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [_publication(row) for row in connection.execute(query)]


class Due(NamedTuple):
    """A publication whose next step has all it needs, and what is committed of its clock."""

    id: int
    name: str
    stream_id: int
    stream: str
    position: int
    version: int


def due(connection: Connection, *, but: Collection[int] = (), most: int = 1000) -> list[Due]:
    """Running publications whose next step has all it needs, first the one that nobody worked on for longest.

    The next step is the one after those that wait for their tick. A lease that is given back ends at that moment; one
    that is held ends in the future.

    but, most: some publications aside, and so many at most.
    """
    bound = {"but": list(but), "most": most, "steps": parked.MOST_WAITING, "bytes": parked.MOST_BYTES}
    return [Due(*row) for row in connection.execute(_due(), bound)]


def moved(connection: Connection, found: Sequence[int]) -> dict[int, object]:
    """Return by stream what is another whenever other records are needed than before; of those with retention `needed`.

    Each member only grows while those before it stay: how far a stream and its publications are, and how many ended.
    """
    mine = publications.c.stream_id == streams.c.id
    ended = func.count().filter(publications.c.state != "running")
    query = (
        select(streams.c.id, streams.c.records, func.count(publications.c.id), func.sum(publications.c.position), ended)
        .outerjoin(publications, mine)
        .where(streams.c.id == any_of(found), streams.c.retention == "needed")
        .group_by(streams.c.id)
    )
    return {stream: tuple(far) for stream, *far in connection.execute(query)}


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
    moved = replace(publication, seal=sealed(publication))
    connection.execute(_MOVE, {name: getattr(moved, name) for name in (*_MOVED, "seal")} | {"of": publication.id})
    return moved


def end(connection: Connection, identity: int, *, state: str, reason: str | None = None) -> None:
    """`stopped` or `halted`: it publishes nothing more. What it remembers and what waits for its tick is deleted.

    What is not as it was left does not become so by this.
    """
    found = lock(connection, identity)
    if found.state != "running":
        return
    for each in (parts, labels, attempts):
        each.forget(connection, identity)
    parked.drop(connection, identity)
    seal = sealed(replace(found, state=state, reason=reason)) if as_left(found) else found.seal
    connection.execute(
        update(publications).where(publications.c.id == identity).values(state=state, reason=reason, seal=seal)
    )
    notify(connection, NEW_RELEASE, found.name)


def _query() -> Select[Any]:
    stream = (streams.c.name.label("stream"), streams.c.promise.label("stream_promise"), streams.c.distrusted)
    newest = (newest_visible().label("visible_version"), newest_visible(role="model").label("visible_latest"))
    return (
        select(publications, *stream, *newest, *shown.columns())
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


@cache
def _due() -> Select[Any]:
    ahead = (
        select(
            parked_steps.c.publication_id,
            func.max(parked_steps.c.following_due).label("due"),
            or_(
                func.bool_or(parked_steps.c.following_due.is_(None)),
                func.count() >= bindparam("steps"),
                func.sum(func.octet_length(parked_steps.c.content)) >= bindparam("bytes"),
            ).label("full"),
        )
        .group_by(parked_steps.c.publication_id)
        .subquery()
    )
    own = publications.c
    return (
        select(own.id, own.name, own.stream_id, streams.c.name.label("stream"), own.position, own.version)
        .join(streams, streams.c.id == publications.c.stream_id)
        .join(leased, leased.c.resource == leases.publication_of(publications.c.id))
        .outerjoin(ahead, ahead.c.publication_id == publications.c.id)
        .where(
            publications.c.state == "running",
            streams.c.records >= func.coalesce(ahead.c.due, publications.c.due),
            ahead.c.full.isnot(True),
            # A step that is due where the last one was taken waits for labels.
            or_(publications.c.due > publications.c.start + publications.c.position, not_(labels.any_open())),
            streams.c.halted.is_(None),
            streams.c.distrusted.is_(None),
            publications.c.id != func.all(bindparam("but", type_=ARRAY(BigInteger))),
        )
        .order_by(leased.c.expires_at)
        .limit(bindparam("most", type_=BigInteger))
    )


_NAMES = _query().selected_columns.keys()
_NEWEST = (
    select(publications.c.id, publications.c.promise, newest_visible(role="model"))
    .join(streams, streams.c.id == publications.c.stream_id)
    .where(publications.c.name == bindparam("name"))
    .order_by(publications.c.id)
    .limit(1)
)
_NEWEST_VISIBLE = _NEWEST.where(streams.c.name == func.any(bindparam("visible", type_=ARRAY(Text))))
_HOLD = (
    select(*_query().selected_columns, streams)
    .select_from(
        leased.join(streams, true())
        .join(publications, publications.c.stream_id == streams.c.id)
        .join(shown_clocks, shown_clocks.c.publication_id == publications.c.id)
    )
    .where(
        publications.c.id == bindparam("publication"),
        *leases.is_held(bindparam("resource"), bindparam("owner"), bindparam("epoch")),
    )
    .with_for_update(of=(leased, streams, publications))
)


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
    _query()
    .add_columns(not_(or_(_UNCONFIRMED.exists(), _UNRELEASED.exists())), _ERASURE.scalar_subquery())
    .where(publications.c.id == bindparam("publication"))
)


def _publication(row: Row[Any]) -> Publication:
    return Publication(**row._asdict())
