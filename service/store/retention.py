"""Streams that retain only the records that a running publication may need again."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import ARRAY, BigInteger, Connection, bindparam, func, select

from service.store import leases, locks, publications, segments
from service.store.database import read_together
from service.store.leases import Lease
from service.store.publications import Publication
from service.store.segments import Segment
from service.store.streams import Stream
from service.store.tables import publications as published
from service.store.tables import streams


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
        if each.state == "running"
    }
    floor = min(needed.values(), default=records)
    unneeded = [each for each in segments.holding(connection, stream.id, 0, floor) if each.stop <= floor]
    if unneeded:
        segments.replace(connection, lease, stream, unneeded, [])
    return Dropped(unneeded, needed)


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
        func.count().filter(published.c.state != "running"),
    )
    .outerjoin(published, published.c.stream_id == streams.c.id)
    .where(streams.c.id == func.any(bindparam("streams", type_=ARRAY(BigInteger))), streams.c.retention == "needed")
    .group_by(streams.c.id)
)
