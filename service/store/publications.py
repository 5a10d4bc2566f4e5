"""Publications: what is asked for, how far it is published, and which of them can go on."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.store import leases
from service.store.database import NEW_PUBLICATION, NEW_RELEASE, notify
from service.store.keys import NameTaken
from service.store.tables import leases as leased
from service.store.tables import publications, streams


@dataclass(frozen=True, kw_only=True)
class Publication:
    """`position` and all below it are told in tables.py. `distrusted` is the stream's."""

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
    digest: str | None
    worst_record: int | None
    worst_amount: Decimal
    distrusted: str | None
    created_at: datetime


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
            )
            .returning(publications.c.id)
        ).scalar_one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    leases.create(connection, leases.publication(identity))
    notify(connection, NEW_PUBLICATION, name)
    return get(connection, identity)


def get(connection: Connection, identity: int) -> Publication:
    return _publication(connection.execute(_query().where(publications.c.id == identity)).one())


def lock(connection: Connection, identity: int) -> Publication:
    return _publication(
        connection.execute(_query().where(publications.c.id == identity).with_for_update(of=publications)).one()
    )


def find(connection: Connection, name: str) -> Publication | None:
    row = connection.execute(_query().where(publications.c.name == name)).one_or_none()
    return _publication(row) if row else None


def of_stream(connection: Connection, stream: int) -> list[Publication]:
    query = _query().where(publications.c.stream_id == stream).order_by(publications.c.id.desc())
    return [_publication(row) for row in connection.execute(query)]


def latest_version(connection: Connection, identity: int) -> int | None:
    """The newest version with role `model`."""
    version: int | None = connection.execute(
        select(publications.c.latest).where(publications.c.id == identity)
    ).scalar_one()
    return version


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Publication]:
    """Newest first, of the streams in `only`; `before` is the id of the last one of the page before."""
    query = _query().order_by(publications.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(publications.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [_publication(row) for row in connection.execute(query)]


def due(connection: Connection) -> list[Publication]:
    """Running publications whose next fit has all its records, first the one that nobody worked on for longest.

    A lease that is given back ends at that moment; one that is held ends in the future.
    """
    query = (
        _query()
        .join(leased, leased.c.resource == leases.publication_of(publications.c.id))
        .where(
            publications.c.state == "running",
            streams.c.records >= publications.c.due,
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
    .values({name: bindparam(name) for name in _MOVED})
    .returning(func.pg_notify(NEW_RELEASE, publications.c.name))
)


def move(connection: Connection, publication: Publication) -> None:
    """The schedule's clock goes on to what this tells; last step of publishing."""
    moved = {name: getattr(publication, name) for name in _MOVED}
    connection.execute(_MOVE, moved | {"of": publication.id})


def end(connection: Connection, identity: int, *, state: str, reason: str | None = None) -> None:
    """`stopped` or `halted`: it publishes nothing more."""
    name = connection.execute(
        update(publications)
        .where(publications.c.id == identity, publications.c.state == "running")
        .values(state=state, reason=reason)
        .returning(publications.c.name)
    ).scalar_one_or_none()
    if name is not None:
        notify(connection, NEW_RELEASE, name)


def _query() -> Select[Any]:
    stream = (streams.c.name.label("stream"), streams.c.distrusted)
    return select(publications, *stream).join(streams, streams.c.id == publications.c.stream_id)


def _publication(row: Row[Any]) -> Publication:
    return Publication(**row._asdict())
