"""Retains for a while: records, until no running publication needs them again, and the numbers of batches.

Statement. A batch's numbers are remembered for `ENTRIES_SECONDS` at least, and those of a stream's newest batch for
ever. A week is longer than an `Idempotency-Key` (a day), so that a batch that is sent again finds its numbers, and
longer than `publish_delay` (a day at most), so that no tick depends on a batch that is forgotten: numbered so long
ago, its step appears at the first tick from now on, whatever the time was.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import ARRAY, BigInteger, Connection, bindparam, delete, func, or_, select, update

from service.store import leases, locks, publications, segments
from service.store.database import read_together
from service.store.leases import Lease
from service.store.publications import Publication
from service.store.segments import Segment
from service.store.streams import Stream
from service.store.tables import entries, shown, streams
from service.store.tables import publications as published

ENTRIES_SECONDS = 7 * 86_400
FORGOTTEN_AT_ONCE = 1000  # batches in one transaction


class Dropped(NamedTuple):
    """The segments whose rows are gone, and the first record that each running publication needs, by its name."""

    segments: list[Segment]
    needed: dict[str, int]


def drop_unneeded(
    connection: Connection, lease: Lease, stream: Stream, first_needed: Callable[[Publication], int]
) -> Dropped:
    """Drop the segments that no running publication can need again; their files stay for the caller to delete.

    The stream is locked meanwhile, so that no publication starts on records that are dropped.

    first_needed: the first record that a publication still needs.

    Raises:
        LeaseLost: another worker numbers this stream.
    """
    leases.check(connection, lease)
    records = locks.stream(connection, stream.id).records
    needed = {
        each.name: first_needed(each)
        for each in publications.of_stream(connection, stream.id)
        if each.visible_state == "running"
    }
    floor = min(needed.values(), default=records)
    unneeded = [each for each in segments.holding(connection, stream.id, 0, floor) if each.stop <= floor]
    if unneeded:
        segments.replace(connection, lease, stream, unneeded, [])
    return Dropped(unneeded, needed)


def forget_entries(connection: Connection, lease: Lease, stream: int) -> int:
    """Forget the numbers of the oldest batches of a stream, a few in one transaction; return of how many.

    Raises:
        LeaseLost: another worker numbers this stream.
    """
    bound = {"stream": stream, "most": FORGOTTEN_AT_ONCE}
    oldest = connection.execute(_OLDEST, bound).all()
    old = list(takewhile(lambda entry: entry.is_old, oldest[:-1]))  # the last one, which may be the newest, stays
    if old:
        leases.check(connection, lease)
        locks.stream(connection, stream)
        first = old[-1].stop
        connection.execute(delete(entries).where(entries.c.stream_id == stream, entries.c.start < first))
        connection.execute(update(streams).where(streams.c.id == stream).values(entries_from=first))
    return len(old)


_LONG_AGO = func.clock_timestamp() - timedelta(seconds=ENTRIES_SECONDS)
_OLDEST = (
    select(entries.c.stop, or_(entries.c.numbered_at.is_(None), entries.c.numbered_at < _LONG_AGO).label("is_old"))
    .where(entries.c.stream_id == bindparam("stream"))
    .order_by(entries.c.start)
    .limit(bindparam("most", type_=BigInteger) + 1)
)


def progress_of_each(connection: Connection, identities: Sequence[int]) -> dict[int, object]:
    """Return, of the streams with retention `needed`, a value that changes whenever other records are needed.

    Each member only grows while those before it stay: how far a stream and its publications are, and how many ended.
    """
    (rows,) = read_together(connection, (_PROGRESS, {"streams": list(identities)}))
    return {stream: tuple(far) for stream, *far in rows}


_PROGRESS = (
    select(
        streams.c.id,
        streams.c.records,
        func.count(published.c.id),
        func.sum(published.c.position),
        func.count().filter(shown.c.state != "running"),
    )
    .outerjoin(published, published.c.stream_id == streams.c.id)
    .outerjoin(shown, shown.c.publication_id == published.c.id)
    .where(streams.c.id == func.any(bindparam("streams", type_=ARRAY(BigInteger))), streams.c.retention == "needed")
    .group_by(streams.c.id)
)
