"""Segments: the files of a stream's numbered records, as the record knows them; and what of those was erased.

All digests of a stream's segments add up, modulo 2^256, to what its row says, so that none is put in another's place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Numeric, bindparam, func, insert, select, text, update

from service.store import digests, leases
from service.store.database import ANY_OF_STREAMS, NEW_RECORDS, any_of, notify, read, read_together, write
from service.store.streams import Stream
from service.store.tables import erasures, segments, streams

MODULUS = 2**256  # of the sum of segments' digests


@dataclass(frozen=True, kw_only=True)
class Segment:
    """An immutable file of numbered records [start, stop)."""

    start: int
    stop: int
    file: str
    sha256: bytes


def holding(connection: Connection, stream: int, start: int, stop: int) -> list[Segment]:
    """The segments that hold any of [start, stop), in order."""
    (rows,) = read_together(connection, (_HOLDING, {"stream": stream, "start": start, "stop": stop}))
    return of_rows(rows)


def located(connection: Connection, stream: int, start: int, stop: int) -> tuple[list[Segment], list[tuple[int, int]]]:
    """Return what `holding` and `erased` return, with one round trip for both."""
    bound = {"stream": stream, "start": start, "stop": stop}
    held, gone = read_together(connection, (_HOLDING, bound), (_ERASED, bound | {"asked": True}))
    return (
        of_rows(held),
        [(max(start, low), min(stop, high)) for low, high in gone],
    )


_SEGMENT = select(segments.c.start, segments.c.stop, segments.c.file, segments.c.sha256).where(
    segments.c.stream_id == bindparam("stream", type_=BigInteger)
)
NEWEST = _SEGMENT.order_by(segments.c.start.desc()).limit(bindparam("limit", type_=BigInteger))
"""The last few segments of a stream, in reverse order."""


def of_rows(rows: Sequence[Any]) -> list[Segment]:
    """Return the segments of what such queries return."""
    return [Segment(**row._asdict()) for row in rows]


_START, _STOP = bindparam("start", type_=BigInteger), bindparam("stop", type_=BigInteger)
_HOLDING = _SEGMENT.where(
    segments.c.start < _STOP,
    # The last one at or before `start` may reach into the range; the ones after it do. Both by the key.
    segments.c.start
    >= func.coalesce(
        select(func.max(segments.c.start))
        .where(segments.c.stream_id == bindparam("stream", type_=BigInteger), segments.c.start <= _START)
        .scalar_subquery(),
        0,
    ),
    segments.c.stop > _START,
).order_by(segments.c.start)


def first_from(connection: Connection, stream: int, record: int) -> Segment | None:
    """The first segment that begins at a record or later."""
    row = connection.execute(
        select(segments.c.start, segments.c.stop, segments.c.file, segments.c.sha256)
        .where(segments.c.stream_id == stream, segments.c.start >= record)
        .order_by(segments.c.start)
        .limit(1)
    ).one_or_none()
    return Segment(**row._asdict()) if row else None


def files_of(connection: Connection, stream: int) -> set[str]:
    """The names of all its segments' files."""
    return files_of_each(connection, [stream])[stream]


def files_of_each(connection: Connection, identities: Sequence[int]) -> dict[int, set[str]]:
    """The same by stream, with one query for all of them."""
    files: dict[int, set[str]] = {each: set() for each in identities}
    query = select(segments.c.stream_id, segments.c.file).where(segments.c.stream_id == any_of(identities))
    for stream, file in connection.execute(query):
        files[stream].add(file)
    return files


def replace(
    connection: Connection, lease: leases.Lease, stream: Stream, old: list[Segment], new: Sequence[Segment]
) -> None:
    """Puts segments in the place of those they were made from; none: those are dropped."""
    leases.check(connection, lease)
    connection.execute(
        segments.delete().where(segments.c.stream_id == stream.id, segments.c.start.in_([each.start for each in old]))
    )
    for each in new:
        store(connection, stream, each)
    gone = [MODULUS - int(digest(stream.log, each), 16) for each in old]
    come = [int(digest(stream.log, each), 16) for each in new]
    change = Decimal(sum(gone + come) % MODULUS)
    moved = update(streams).where(streams.c.id == stream.id).values(segments_sum=ADDED)
    connection.execute(moved, {"added": change})


def digest(log: str, segment: Segment) -> str:
    """Return the digest of one segment of the stream with that log."""
    content = vars(segment) | {"log": log, "sha256": segment.sha256.hex()}
    return digests.of(content)


def store(connection: Connection, stream: Stream, segment: Segment) -> None:
    """Writes a segment's row; the sum on the stream's row is the caller's."""
    row = {"stream_id": stream.id, "digest": digest(stream.log, segment), **vars(segment)}
    write(connection, _STORE, row)


_STORE = insert(segments)


ADDED = func.mod(streams.c.segments_sum + bindparam("added", type_=Numeric), Decimal(MODULUS))
"""The sum on the stream's row and the digest `added` more, to update it with."""


def kept_from(connection: Connection, stream: int) -> int:
    """The first record whose bytes are still kept, erased ones aside."""
    return kept_from_of_each(connection, [stream])[stream]


def kept_from_of_each(connection: Connection, identities: Sequence[int]) -> dict[int, int]:
    """The same by stream, with one query for all of them."""
    return dict(read(connection, _KEPT_FROM, {"streams": list(identities)}))


_first = select(func.min(segments.c.start)).where(segments.c.stream_id == streams.c.id).scalar_subquery()
_KEPT_FROM = select(streams.c.id, func.coalesce(_first, streams.c.records)).where(streams.c.id == ANY_OF_STREAMS)


def erase(connection: Connection, stream: int, start: int, stop: int) -> None:
    """From now on these records contribute nothing to any fit that starts later; the sealer deletes their bytes.

    Slots that were erased before are not erased again. The caller holds the stream's lock.
    """
    position = start
    for low, high in (*erased(connection, stream, start, stop), (stop, stop)):
        if position < low:
            connection.execute(insert(erasures).values(stream_id=stream, start=position, stop=low))
        position = high
    name = connection.execute(select(streams.c.name).where(streams.c.id == stream)).scalar_one()
    notify(connection, NEW_RECORDS, name)


_ERASED = text(
    "SELECT lower(range), upper(range) FROM (SELECT unnest(range_agg(int8range(start, stop))) AS range FROM erasures "
    "WHERE stream_id = :stream AND start < :stop AND stop > :start AND (:asked OR deleted_at IS NOT NULL)) AS found "
    "ORDER BY 1"
)


def erased(
    connection: Connection, stream: int, start: int, stop: int, *, deleted: bool = False
) -> list[tuple[int, int]]:
    """Which parts of [start, stop) were erased, apart and in order; or of which parts the bytes are `deleted` too."""
    bound = {"stream": stream, "start": start, "stop": stop, "asked": not deleted}
    (rows,) = read_together(connection, (_ERASED, bound))
    return [(max(start, low), min(stop, high)) for low, high in rows]


class Erased(NamedTuple):
    """How many records of a stream were erased, the last ranges of them, and how many erasures left bytes so far."""

    records: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    waiting: int = 0


_ERASED_OF_EACH = text(
    "SELECT stream, lower(range), upper(range), records, waiting FROM ("
    "  SELECT stream, range, waiting, sum(upper(range) - lower(range)) OVER (PARTITION BY stream) AS records,"
    "    row_number() OVER (PARTITION BY stream ORDER BY range DESC) AS place"
    "  FROM ("
    "    SELECT stream_id AS stream, unnest(range_agg(int8range(start, least(stop, numbered)))) AS range,"
    "      count(*) FILTER (WHERE deleted_at IS NULL) AS waiting"
    "    FROM unnest(CAST(:streams AS bigint[]), CAST(:records AS bigint[])) AS asked(stream, numbered)"
    "    JOIN erasures ON stream_id = stream AND start < numbered GROUP BY stream_id) AS apart) AS counted "
    "WHERE place <= :most ORDER BY stream, range"
)


def erased_of_each(connection: Connection, records: Mapping[int, int], *, most: int) -> dict[int, Erased]:
    """Return by stream what of its records was erased, of many ranges the last `most`; by one query for all streams.

    records: by stream, how many it has.
    """
    values = {"streams": list(records), "records": list(records.values()), "most": most}
    erased_of = dict.fromkeys(records, Erased())
    rows = connection.execute(_ERASED_OF_EACH, values)
    for stream, of_it in groupby(rows, key=itemgetter(0)):
        ranges = list(of_it)
        *_, erased_records, waiting = ranges[0]
        erased_of[stream] = Erased(int(erased_records), tuple((low, high) for _, low, high, *_ in ranges), waiting)
    return erased_of


def undeleted_erasures(connection: Connection, stream: int) -> list[tuple[int, int, int]]:
    """(id, start, stop) of the erasures whose bytes are still in segments, oldest first."""
    rows = connection.execute(
        select(erasures.c.id, erasures.c.start, erasures.c.stop)
        .where(erasures.c.stream_id == stream, erasures.c.deleted_at.is_(None))
        .order_by(erasures.c.id)
    )
    return [(row.id, row.start, row.stop) for row in rows]


def mark_deleted(connection: Connection, lease: leases.Lease, identities: Sequence[int]) -> None:
    leases.check(connection, lease)
    connection.execute(update(erasures).where(erasures.c.id.in_(identities)).values(deleted_at=func.now()))
