"""Finished steps that wait for their public tick.

A step that was drawn is parked until its tick: it has no charge and no number, and nobody is notified. At the tick it
is charged, numbered and released in one transaction, and its row goes. A crash in between draws nothing again: whoever
comes next publishes the same bytes. A parked step is as secret as the records, as it may never be released.

Steps of one publication are a chain: each starts from the position and version that the one before it leaves.

Statement. A tick is less than 2·T after the moment at which its step is parked, T being its publication's
`publish_delay`. So a tick that is more than 2·T ahead was taken while PostgreSQL's clock was ahead. It is then taken
anew, as the first multiple of T from now on (`take_ticks_anew`). The tick and the clock alone decide that; the step
stays as it was drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Numeric,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    update,
)

from service.store import features
from service.store.database import read_together, write
from service.store.publications import Publication
from service.store.tables import entries, parked, publications

MAX_BYTES = 2**26  # of the steps of a publication that wait, and that one transaction publishes, or one step
MAX_WAITING = 512  # steps of a publication; then it waits for their ticks


@dataclass(frozen=True, kw_only=True)
class Parked:
    """A step as it waits. `following_due` and `lineage` are of the state that it leaves."""

    publication_id: int
    position: int
    version: int
    stream_id: int
    tick: datetime
    due_at: datetime | None
    following_due: int | None
    lineage: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class NextTick:
    """A stream's next tick with something to publish, and in how many seconds it is, by the database's clock.

    ahead: in how many seconds the furthest tick is that is to be taken anew; None: none is.
    """

    stream_id: int
    seconds: float
    ahead: float | None


def of_publication(connection: Connection, publication: int) -> list[Parked]:
    """Return the chain of parked steps of a publication, in order."""
    (rows,) = read_together(connection, (CHAIN, {"publication": publication}))
    return [Parked(**row._asdict()) for row in rows]


_MINE = parked.c.publication_id == bindparam("publication", type_=BigInteger)
CHAIN = select(parked).where(_MINE).order_by(parked.c.position, parked.c.version)
"""The parked steps of one publication, in order, each to make a `Parked` of."""


_DELAY = bindparam("delay", type_=Numeric)
_NOW = func.extract("epoch", func.clock_timestamp())


def _first_from(moment: ColumnElement[Any], delay: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the first multiple of a delay that is not before a moment, in seconds."""
    return func.to_timestamp(func.ceil(moment / delay) * delay)


def _known(moment: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return a time; null where it is ahead by more than the delay: a clock wrote it that has been set right since."""
    return case((func.extract("epoch", moment) <= _NOW + _DELAY, moment))


_NUMBERED = (
    select(_known(entries.c.numbered_at))
    .where(entries.c.stream_id == bindparam("stream"), entries.c.start < bindparam("due", type_=BigInteger))
    .order_by(entries.c.start.desc())
    .limit(1)
    .scalar_subquery()
)
_CREATED = bindparam("created_at", type_=entries.c.numbered_at.type)
_FEATURES = select(features.published_at()).where(publications.c.id == bindparam("publication")).scalar_subquery()
_DUE_AT = func.greatest(_NUMBERED, _known(_CREATED), _known(_FEATURES))
# The first multiple of the delay that is not before either the step's due time plus the delay, or now.
_EARLIEST = func.greatest(func.extract("epoch", _DUE_AT) + _DELAY, _NOW)
# Nor before that of the step before it, should the clock have been set back.
_BEFORE = select(func.max(parked.c.tick)).where(parked.c.publication_id == bindparam("publication")).scalar_subquery()
_TICK = select(
    _NUMBERED.label("due_at"),
    func.greatest(_first_from(_EARLIEST, _DELAY), _BEFORE).label("tick"),
)


def tick_of(connection: Connection, publication: Publication, due: int) -> tuple[datetime, datetime | None]:
    """Return the tick of a step that needed the records before `due`, and when the last of those was numbered.

    The tick counts from when all was there that the step needed: its features, too.

    The caller holds the lock of the stream, so that later ticks are those of later transactions.
    """
    bound = {
        "delay": publication.publish_delay,
        "stream": publication.stream_id,
        "due": due,
        "publication": publication.id,
        "created_at": publication.created_at,
    }
    ((row,),) = read_together(connection, (_TICK, bound))
    return row.tick, row.due_at


def put(connection: Connection, step: Parked) -> None:
    """Store a finished step. A second one from the same position and version fails here."""
    write(connection, _PUT, vars(step))


_PUT = insert(parked)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A parked step without its content."""

    stream_id: int
    publication_id: int
    position: int
    version: int
    tick: datetime
    size: int


def due(connection: Connection, streams: Sequence[int], *, limit: int) -> list[Waiting]:
    """Return the first steps of streams whose tick has come, in the order in which they are published."""
    (rows,) = read_together(connection, (_due(), {"streams": list(streams), "limit": limit}))
    waiting: list[Waiting] = []
    for row in rows:
        if waiting and row.size + sum(each.size for each in waiting) > MAX_BYTES:
            break
        waiting.append(Waiting(**row._asdict()))
    return waiting


@cache
def _due() -> Select[Any]:
    columns = [parked.c[name] for name in ("publication_id", "position", "version", "tick")]
    return (
        select(parked.c.stream_id, *columns, func.octet_length(parked.c.content).label("size"))
        .where(_OF_STREAMS, parked.c.tick <= func.clock_timestamp())
        .order_by(parked.c.tick, parked.c.due_at.nulls_first(), *columns[:3])
        .limit(bindparam("limit", type_=BigInteger))
    )


def take(connection: Connection, step: Waiting) -> Parked:
    """Return a parked step and delete its row: it is published now, or never."""
    bound = {"publication": step.publication_id, "at": step.position, "after": step.version}
    (row,) = write(connection, _TAKE, bound).fetchall()
    return Parked(**row._asdict())


_TAKE = (
    delete(parked)
    .where(
        _MINE,
        parked.c.position == bindparam("at", type_=BigInteger),
        parked.c.version == bindparam("after", type_=Integer),
    )
    .returning(parked)
)


def any_due(connection: Connection, stream: int) -> bool:
    """Return whether a step of the stream waits whose tick has come."""
    return bool(with_due(connection, [stream]))


def with_due(connection: Connection, streams: Sequence[int]) -> set[int]:
    """Return those of some streams on which a step waits whose tick has come."""
    (rows,) = read_together(connection, (_WITH_DUE, {"streams": list(streams)}))
    return {row.stream_id for row in rows}


_OF_STREAMS = parked.c.stream_id == func.any(bindparam("streams", type_=ARRAY(BigInteger)))
_WITH_DUE = select(parked.c.stream_id).where(_OF_STREAMS, parked.c.tick <= func.clock_timestamp()).distinct()


def next_ticks(connection: Connection) -> list[NextTick]:
    """Return the next tick of each stream on which a step waits, the earliest first."""
    (rows,) = read_together(connection, (_NEXT_TICKS, {}))
    return [
        NextTick(
            stream_id=row.stream_id,
            seconds=float(row.seconds),
            ahead=None if row.ahead is None else float(row.ahead),
        )
        for row in rows
    ]


_FIRST = func.min(parked.c.tick)
_LEFT = func.extract("epoch", _FIRST - func.clock_timestamp()).label("seconds")
_OF_ITS_PUBLICATION = publications.c.id == parked.c.publication_id
_AHEAD = func.extract("epoch", parked.c.tick) - func.extract("epoch", func.statement_timestamp())
_IS_TOO_FAR = publications.c.publish_delay * 2 < _AHEAD
_NEXT_TICKS = (
    select(parked.c.stream_id, _LEFT, func.max(_AHEAD).filter(_IS_TOO_FAR).label("ahead"))
    .join(publications, _OF_ITS_PUBLICATION)
    .group_by(parked.c.stream_id)
    .order_by(_FIRST)
)


def take_ticks_anew(connection: Connection, stream: int) -> int:
    """Move ticks of a stream that are too far ahead to the first from now on; return how many.

    The caller holds the lock of the stream, so that later ticks are those of later transactions.
    """
    return connection.execute(_TAKE_ANEW, {"stream": stream}).rowcount


_FIRST_FROM_NOW = _first_from(func.extract("epoch", func.statement_timestamp()), publications.c.publish_delay)
_TAKE_ANEW = (
    update(parked)
    .where(parked.c.stream_id == bindparam("stream", type_=BigInteger), _OF_ITS_PUBLICATION, _IS_TOO_FAR)
    .values(tick=_FIRST_FROM_NOW)
)


def drop(connection: Connection, publication: int) -> None:
    """Delete all parked steps of a publication that has ended: nothing of them is charged."""
    connection.execute(delete(parked).where(parked.c.publication_id == publication))
