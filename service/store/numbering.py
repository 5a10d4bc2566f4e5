"""How a stream's log becomes numbered records: its batches, what of it could not be numbered, and how it went on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache

from sqlalchemy import BigInteger, Connection, Update, bindparam, func, insert, select, update

from service.store import leases, locks, segments, units
from service.store.database import (
    ANY_OF_STREAMS,
    FREE_STREAM,
    NEW_RECORDS,
    notify,
    pipelined,
    read,
    read_together,
    within,
    write,
)
from service.store.segments import Segment
from service.store.streams import ONE, Stream, StreamHalted, of_row
from service.store.tables import dead_letters, entries, resumptions, streams
from service.store.units import UnitCounts


class UnitErased(Exception):
    """A unit was erased while its stream's slots were counted: they have to be counted again."""


SECONDS_TO_SEAL = 60.0  # after which a transaction is ended whose worker hangs in the middle of a pipeline


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """An entry of the log that could not be numbered, and why. `ours`: a batch that was accepted, so it is lost."""

    id: int
    entry: str
    ours: bool
    reason: str
    size: int
    found_at: datetime
    dropped_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An entry of the log that can't be numbered. `sequence` None: it is none of ours."""

    entry: str
    sequence: int | None
    reason: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A halted stream that went on with another log: why it had halted, and what of it is lost.

    `records` were numbered before, the last of them with the batch `entry`. `lost_batches` were accepted after that and
    are gone; None: nobody can know how many.
    """

    reason: str
    records: int
    entry: str
    lost_batches: int | None
    resumed_at: datetime


@dataclass(frozen=True, kw_only=True)
class SealedEntry:
    """A batch of the log and the numbers its records got."""

    entry: str
    sequence: int
    start: int
    stop: int


def seal(
    connection: Connection,
    lease: leases.Lease,
    stream: Stream,
    segment: Segment | None,
    sealed: Sequence[SealedEntry],
    dead: Sequence[Unreadable] = (),
    counts: UnitCounts | None = None,
) -> None:
    """Numbers the records of a segment, in one transaction with what tells where the log was read to.

    dead: what lay between the batches and could not be read; no record gets another number by that. segment: None if
    it was nothing else. counts: of a stream with units, how many of their slots count with this segment.

    Raises:
        LeaseLost: another may be sealing this stream.
        UnitErased: a unit was erased since `counts` was made; nothing was numbered.
        StreamHalted: the position moved under us, which the lease forbids; nothing was numbered.
    """
    read_together(connection, *within(connection, SECONDS_TO_SEAL))
    leases.check(connection, lease)
    if counts is not None and locks.stream(connection, stream.id, seconds=None).units_erased != counts.units_erased:
        raise UnitErased(stream.name)
    last = max([each.entry for each in sealed] + [each.entry for each in dead], key=_order)
    counted = len(sealed) + sum(each.sequence is not None for each in dead)
    bound = {
        "of": stream.id,
        "from_records": stream.records,
        "from_sequence": stream.sealed_sequence,
        "to_records": stream.records if segment is None else segment.stop,
        "to_entry": last,
        "to_sequence": stream.sealed_sequence + counted,
        "added": Decimal(0) if segment is None else Decimal(int(segments.digest(stream.log, segment), 16)),
    }
    if not write(connection, _move(), bound).rowcount:
        raise StreamHalted(stream.name)
    if counts is not None:
        units.write(connection, stream.id, counts)
    if dead:
        connection.execute(insert(dead_letters), [vars(each) | {"stream_id": stream.id} for each in dead])
    if segment is None:
        return
    numbered = [
        {"stream_id": stream.id, "entry": each.entry, "start": each.start, "stop": each.stop} for each in sealed
    ]
    with pipelined(connection):
        segments.store(connection, stream, segment)
        write(connection, _NUMBER, *numbered)
    notify(connection, NEW_RECORDS, stream.name)


_NUMBER = insert(entries).values(numbered_at=func.clock_timestamp())


@cache
def _move() -> Update:
    return (
        update(streams)
        .where(
            streams.c.id == bindparam("of"),
            streams.c.records == bindparam("from_records"),
            streams.c.sealed_sequence == bindparam("from_sequence"),
            streams.c.halted.is_(None),
        )
        .values(
            records=bindparam("to_records"),
            sealed_entry=bindparam("to_entry"),
            sealed_sequence=bindparam("to_sequence"),
            segments_sum=segments.ADDED,
        )
    )


def left(connection: Connection, stream: int, most: int) -> tuple[Stream, list[Segment]]:
    """Return a stream as it is left, and its last few segments, in order; with one round trip."""
    of_stream, newest = read_together(
        connection, (ONE, {"stream": stream}), (segments.NEWEST, {"stream": stream, "limit": most})
    )
    return of_row(of_stream[0]), segments.of_rows(newest)[::-1]


def _order(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


def page_of_dead_letters(connection: Connection, stream: int, *, limit: int, before: int | None) -> list[DeadLetter]:
    """Newest first."""
    columns = [dead_letters.c[name] for name in ("id", "entry", "reason", "size", "found_at", "dropped_at")]
    query = (
        select(*columns, dead_letters.c.sequence.isnot(None).label("ours"))
        .where(dead_letters.c.stream_id == stream)
        .order_by(dead_letters.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(dead_letters.c.id < before)
    return [DeadLetter(**row._asdict()) for row in connection.execute(query)]


def drop_dead_letter(connection: Connection, stream: int, entry: str) -> bool:
    """Return whether there is such an entry; dropping twice is the same as once. Its row stays for ever."""
    mine = (dead_letters.c.stream_id == stream) & (dead_letters.c.entry == entry)
    dropped = func.coalesce(dead_letters.c.dropped_at, func.now())
    return bool(connection.execute(update(dead_letters).where(mine).values(dropped_at=dropped)).rowcount)


def waiting_dead_letters(connection: Connection, identities: Sequence[int]) -> Counter[int]:
    """By stream, how many are not dropped."""
    return Counter(dict(read(connection, _WAITING, {"streams": list(identities)})))


_WAITING = (
    select(dead_letters.c.stream_id, func.count())
    .where((dead_letters.c.stream_id == ANY_OF_STREAMS) & dead_letters.c.dropped_at.is_(None))
    .group_by(dead_letters.c.stream_id)
)


def resume(connection: Connection, seen: Stream, *, sequence: int, lost_batches: int | None) -> Resumption | None:
    """Go on to number a halted stream where it stood, with the batch after `sequence`.

    seen: the stream as its log was asked for. None: it is not halted any more, or was resumed and has halted anew since
    then, so that `sequence` and `lost_batches` are of an earlier halt.
    """
    stream = locks.stream(connection, seen.id)
    if stream.halted is None or _halt(stream) != _halt(seen):
        return None
    halt = {"reason": stream.halted, "records": stream.records, "entry": stream.sealed_entry}
    row = connection.execute(
        insert(resumptions)
        .values(stream_id=stream.id, lost_batches=lost_batches, **halt)
        .returning(*(resumptions.c[name] for name in _RESUMPTION))
    ).one()
    connection.execute(update(streams).where(streams.c.id == stream.id).values(halted=None, sealed_sequence=sequence))
    notify(connection, FREE_STREAM)
    return Resumption(**row._asdict())


def _halt(stream: Stream) -> tuple[str | None, str, int]:
    """Return why a stream halted, and where its numbering stood."""
    return stream.halted, stream.sealed_entry, stream.sealed_sequence


_RESUMPTION = ("reason", "records", "entry", "lost_batches", "resumed_at")
_place = func.row_number().over(partition_by=resumptions.c.stream_id, order_by=resumptions.c.id.desc())
_placed = select(resumptions, _place.label("place")).where(resumptions.c.stream_id == ANY_OF_STREAMS).subquery()
_RESUMPTIONS = (
    select(*(_placed.c[name] for name in ("stream_id", *_RESUMPTION)))
    .where(_placed.c.place <= bindparam("most", type_=BigInteger))
    .order_by(_placed.c.place)
)


def resumptions_of(connection: Connection, identities: Sequence[int], *, most: int) -> dict[int, list[Resumption]]:
    """By stream, newest first; of many the last `most`."""
    by_stream: dict[int, list[Resumption]] = {each: [] for each in identities}
    for stream, *row in read(connection, _RESUMPTIONS, {"streams": list(identities), "most": most}):
        by_stream[stream].append(Resumption(**dict(zip(_RESUMPTION, row, strict=True))))
    return by_stream


def is_forgotten(connection: Connection, stream: Stream, entry: str) -> bool:
    """Return whether a batch is older than all whose numbers are remembered: nobody knows whether it was numbered."""
    oldest = connection.execute(
        select(entries.c.entry).where(entries.c.stream_id == stream.id).order_by(entries.c.start).limit(1)
    ).scalar_one_or_none()
    return stream.entries_from > 0 and oldest is not None and _order(entry) < _order(oldest)


def find_entry(connection: Connection, stream: int, entry: str) -> tuple[int, int] | None:
    """Return the numbers [start, stop) of a batch's records; None: they have none, or it is forgotten."""
    row = connection.execute(
        select(entries.c.start, entries.c.stop).where(entries.c.stream_id == stream, entries.c.entry == entry)
    ).one_or_none()
    return (row.start, row.stop) if row else None
