"""Drops what a stream needs no more: segments that no publication wants again, and numbers of old batches."""

import structlog

from service.mechanisms.building import needs
from service.segments.files import SegmentFiles
from service.store import retention
from service.store.database import Database
from service.store.leases import Lease
from service.store.streams import Stream

_log = structlog.get_logger(__name__)

FORGOTTEN_PIECES = 10  # of batches that are forgotten, of a stream in one turn


class Dropper:
    """Works on streams whose leases the caller holds. Methods raise LeaseLost if another has taken it."""

    def __init__(self, database: Database, files: SegmentFiles) -> None:
        self._database, self._files = database, files

    def drop_unneeded(self, lease: Lease, stream: Stream) -> None:
        """Drop the segments that no running publication can want again, where the retention is `needed`."""
        if stream.retention != "needed":
            return
        with self._database.transaction() as connection:
            gone, needed = retention.drop_unneeded(
                connection,
                lease,
                stream,
                lambda publication: (
                    publication.start
                    + needs(stream.schema, publication.configuration, publication.start, publication.position)
                ),
            )
        for segment in gone:
            self._files.delete(stream.log, segment.file)
        if gone:
            _log.info("dropped_unneeded", stream=stream.name, start=gone[0].start, end=gone[-1].stop, needed=needed)

    def forget_entries(self, lease: Lease, stream: Stream) -> None:
        """Forget the numbers of batches that nobody asks for any more, in small pieces."""
        for _ in range(FORGOTTEN_PIECES):
            with self._database.transaction() as connection:
                forgotten = retention.forget_entries(connection, lease, stream.id)
            if forgotten < retention.FORGOTTEN_AT_ONCE:
                return
