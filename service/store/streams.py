"""Streams, and how far each one is numbered."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from service.store import digests, leases
from service.store.database import NEW_RECORDS, notify
from service.store.keys import NameTaken
from service.store.tables import entries, erasures, segments, streams

MODULUS = 2**256  # of the sum of segments' digests


class StreamHalted(Exception):
    """Nothing more is numbered on this stream until an operator has looked at it."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """`records` are numbered so far; `log` names its keys in the log and its folder of segments.

    The rest is told in tables.py.
    """

    id: int
    name: str
    log: str
    schema: dict[str, Any]
    retention: Literal["keep", "needed"]
    epsilon: Decimal
    delta: Decimal
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
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Segment:
    """An immutable file of numbered records [start, stop)."""

    start: int
    stop: int
    file: str
    sha256: bytes


@dataclass(frozen=True, kw_only=True)
class SealedEntry:
    """A batch of the log and the numbers its records got."""

    entry: str
    sequence: int
    start: int
    stop: int


def create(
    connection: Connection,
    *,
    name: str,
    log: str,
    schema: dict[str, Any],
    retention: str,
    epsilon: Decimal,
    delta: Decimal,
) -> Stream:
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
                promise="",
            )
            .returning(streams)
        ).one()
    except IntegrityError as error:
        raise NameTaken(name) from error
    leases.create(connection, leases.stream(row.id))
    promise = promised(_stream(row))  # of what was stored, as anybody will read it
    connection.execute(update(streams).where(streams.c.id == row.id).values(promise=promise))
    return get(connection, row.id)


def promised(stream: Stream) -> str:
    """The digest of what never changes of a stream: its name, schema, retention and budget."""
    told = {
        "name": stream.name,
        "log": stream.log,
        "schema": stream.schema,
        "retention": stream.retention,
        "epsilon": str(Fraction(stream.epsilon)),
        "delta": str(Fraction(stream.delta)),
        "created_at": digests.timestamp(stream.created_at),
    }
    return digests.of(told)


def find(connection: Connection, name: str) -> Stream | None:
    row = connection.execute(select(streams).where(streams.c.name == name)).one_or_none()
    return _stream(row) if row else None


def get(connection: Connection, identity: int) -> Stream:
    return _stream(connection.execute(select(streams).where(streams.c.id == identity)).one())


def lock(connection: Connection, identity: int) -> Stream:
    """The stream, with its budget, ledger and numbering still until the transaction ends."""
    return _stream(connection.execute(select(streams).where(streams.c.id == identity).with_for_update()).one())


def every(connection: Connection) -> list[Stream]:
    return [_stream(row) for row in connection.execute(select(streams).order_by(streams.c.id))]


def page(connection: Connection, *, limit: int, before: int | None, only: frozenset[str] | None) -> list[Stream]:
    """Newest first; `before` is the id of the last stream of the page before."""
    query = select(streams).order_by(streams.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(streams.c.id < before)
    if only is not None:
        query = query.where(streams.c.name.in_(only))
    return [_stream(row) for row in connection.execute(query)]


def halt(connection: Connection, identity: int, reason: str) -> None:
    connection.execute(update(streams).where(streams.c.id == identity).values(halted=reason))


_MOVE = (
    update(streams)
    .where(streams.c.id == bindparam("of"))
    .values(charges=bindparam("charges"), head=bindparam("head"), grain=bindparam("grain"))
)


def move(connection: Connection, identity: int, *, charges: int, head: str | None, grain: int) -> None:
    """Its chain of charges ends there now."""
    connection.execute(_MOVE, {"of": identity, "charges": charges, "head": head, "grain": grain})


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


def seal(
    connection: Connection, lease: leases.Lease, stream: Stream, segment: Segment, sealed: list[SealedEntry]
) -> None:
    """Numbers the records of a segment, in one transaction with what tells where the log was read to.

    Raises:
        LeaseLost: another may be sealing this stream.
        StreamHalted: the position moved under us, which the lease forbids; nothing was numbered.
    """
    leases.check(connection, lease)
    last = sealed[-1]
    moved = connection.execute(
        update(streams)
        .where(
            streams.c.id == stream.id,
            streams.c.records == segment.start,
            streams.c.sealed_sequence == sealed[0].sequence - 1,
            streams.c.halted.is_(None),
        )
        .values(
            records=segment.stop,
            sealed_entry=last.entry,
            sealed_sequence=last.sequence,
            segments_sum=_added(segment_digest(stream.log, segment)),
        )
    ).rowcount
    if not moved:
        raise StreamHalted(stream.name)
    _store(connection, stream, segment)
    connection.execute(
        insert(entries),
        [{"stream_id": stream.id, "entry": each.entry, "start": each.start, "stop": each.stop} for each in sealed],
    )
    notify(connection, NEW_RECORDS, stream.name)


def find_entry(connection: Connection, stream: int, entry: str) -> tuple[int, int] | None:
    row = connection.execute(
        select(entries.c.start, entries.c.stop).where(entries.c.stream_id == stream, entries.c.entry == entry)
    ).one_or_none()
    return (row.start, row.stop) if row else None


def segments_of(connection: Connection, stream: int, start: int, stop: int) -> list[Segment]:
    """The segments that hold any of [start, stop), in order."""
    query = (
        select(segments.c.start, segments.c.stop, segments.c.file, segments.c.sha256)
        .where(
            segments.c.stream_id == stream,
            segments.c.start < stop,
            # The last one at or before `start` may reach into the range; the ones after it do. Both by the key.
            segments.c.start
            >= func.coalesce(
                select(func.max(segments.c.start))
                .where(segments.c.stream_id == stream, segments.c.start <= start)
                .scalar_subquery(),
                0,
            ),
            segments.c.stop > start,
        )
        .order_by(segments.c.start)
    )
    return [Segment(**row._asdict()) for row in connection.execute(query)]


def segment_from(connection: Connection, stream: int, record: int) -> Segment | None:
    """The first segment that begins at a record or later."""
    row = connection.execute(
        select(segments.c.start, segments.c.stop, segments.c.file, segments.c.sha256)
        .where(segments.c.stream_id == stream, segments.c.start >= record)
        .order_by(segments.c.start)
        .limit(1)
    ).one_or_none()
    return Segment(**row._asdict()) if row else None


def segment_files(connection: Connection, stream: int) -> set[str]:
    """The names of all its segments' files."""
    return set(connection.execute(select(segments.c.file).where(segments.c.stream_id == stream)).scalars())


def newest_segments(connection: Connection, stream: int, limit: int) -> list[Segment]:
    """The last few segments, in order."""
    query = (
        select(segments.c.start, segments.c.stop, segments.c.file, segments.c.sha256)
        .where(segments.c.stream_id == stream)
        .order_by(segments.c.start.desc())
        .limit(limit)
    )
    return [Segment(**row._asdict()) for row in connection.execute(query)][::-1]


def replace_segments(
    connection: Connection, lease: leases.Lease, stream: Stream, old: list[Segment], new: Sequence[Segment]
) -> None:
    """Puts segments in the place of those they were made from; none: those are dropped."""
    leases.check(connection, lease)
    connection.execute(
        segments.delete().where(segments.c.stream_id == stream.id, segments.c.start.in_([each.start for each in old]))
    )
    for each in new:
        _store(connection, stream, each)
    gone = [MODULUS - int(segment_digest(stream.log, each), 16) for each in old]
    come = [int(segment_digest(stream.log, each), 16) for each in new]
    change = f"{sum(gone + come) % MODULUS:x}"
    connection.execute(update(streams).where(streams.c.id == stream.id).values(segments_sum=_added(change)))


def segment_digest(log: str, segment: Segment) -> str:
    """Of one segment. All of a stream's add up, modulo 2^256, to what its row says: none was put in another's place."""
    told = vars(segment) | {"log": log, "sha256": segment.sha256.hex()}
    return digests.of(told)


def _store(connection: Connection, stream: Stream, segment: Segment) -> None:
    digest = segment_digest(stream.log, segment)
    connection.execute(insert(segments).values(stream_id=stream.id, digest=digest, **vars(segment)))


def _added(digest: str) -> ColumnElement[Decimal]:
    return func.mod(streams.c.segments_sum + Decimal(int(digest, 16)), Decimal(MODULUS))


def kept_from(connection: Connection, stream: int) -> int:
    """The first record whose bytes are still kept, erased ones aside."""
    first: int | None = connection.execute(
        select(func.min(segments.c.start)).where(segments.c.stream_id == stream)
    ).scalar_one()
    if first is not None:
        return first
    return get(connection, stream).records


def erase(connection: Connection, stream: int, start: int, stop: int) -> None:
    """From now on these records contribute nothing to any fit that starts later; the sealer deletes their bytes."""
    connection.execute(insert(erasures).values(stream_id=stream, start=start, stop=stop))
    name = connection.execute(select(streams.c.name).where(streams.c.id == stream)).scalar_one()
    notify(connection, NEW_RECORDS, name)


def erased(connection: Connection, stream: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Which parts of [start, stop) were erased."""
    rows = connection.execute(
        select(erasures.c.start, erasures.c.stop).where(
            erasures.c.stream_id == stream, erasures.c.start < stop, erasures.c.stop > start
        )
    )
    return [(max(start, row.start), min(stop, row.stop)) for row in rows]


def undeleted_erasures(connection: Connection, stream: int) -> list[tuple[int, int, int]]:
    """(id, start, stop) of the erasures whose bytes are still in segments, oldest first."""
    rows = connection.execute(
        select(erasures.c.id, erasures.c.start, erasures.c.stop)
        .where(erasures.c.stream_id == stream, erasures.c.deleted_at.is_(None))
        .order_by(erasures.c.id)
    )
    return [(row.id, row.start, row.stop) for row in rows]


def mark_deleted(connection: Connection, lease: leases.Lease, erasure: int) -> None:
    leases.check(connection, lease)
    connection.execute(update(erasures).where(erasures.c.id == erasure).values(deleted_at=func.now()))


def ready(connection: Connection) -> None:
    connection.execute(text("SELECT 1 FROM streams LIMIT 1"))


def _stream(row: Row[Any]) -> Stream:
    return Stream(**row._asdict())
