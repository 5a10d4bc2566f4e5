"""Which primary holds the log of a stream: the row that says it is what a move to another primary comes down to."""

from sqlalchemy import Connection, select, update

from service.store import leases
from service.store.leases import Lease
from service.store.streams import Stream
from service.store.tables import dead_letters, streams


class NotAsItWas(Exception):
    """The stream was numbered, halted or moved meanwhile."""


def switch(connection: Connection, lease: Lease, stream: Stream, place: int) -> None:
    """Write that the log of a stream is at another place, and take the stream from its sealer.

    lease: of the move. stream: as it was when nothing of its log was left to number.

    Raises:
        LeaseLost: another command may be moving this stream, or it was resumed after it had halted.
        NotAsItWas: see there; nothing was written.
    """
    leases.check(connection, lease)
    leases.revoke(connection, leases.stream(stream.id))
    moved = connection.execute(
        update(streams)
        .where(
            streams.c.id == stream.id,
            streams.c.place.is_not_distinct_from(stream.place),
            streams.c.sealed_sequence == stream.sealed_sequence,
            streams.c.halted.is_not_distinct_from(stream.halted),
        )
        .values(place=place)
    )
    if not moved.rowcount:
        raise NotAsItWas(stream.name)


def dropped_letters(connection: Connection, stream: int) -> list[str]:
    """Return the entries of the dead letters that an operator has dropped."""
    mine = (dead_letters.c.stream_id == stream) & dead_letters.c.dropped_at.is_not(None)
    return list(connection.scalars(select(dead_letters.c.entry).where(mine)))
