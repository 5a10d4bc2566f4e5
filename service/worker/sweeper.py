"""Deletes files of a stream that no segment names: those of commits that never came."""

import structlog

from service.log import LogLost
from service.segments.files import FilesReplaced, SegmentFiles
from service.store import leases, segments
from service.store.database import Database
from service.store.leases import Lease
from service.store.streams import Stream

_log = structlog.get_logger(__name__)


class Sweeper:
    """Works on streams whose leases the caller holds."""

    def __init__(self, database: Database, files: SegmentFiles) -> None:
        self._database, self._files = database, files

    def orphans(self, stream: Stream) -> list[str]:
        """Return the files that no segment names."""
        with self._database.transaction() as connection:
            known = segments.files_of(connection, stream.id)
        return self._files.orphans(stream.log, known)

    def sweep(self, lease: Lease, stream: Stream, known: set[str]) -> None:
        """Delete the files that no segment names; `known`: the files that segments named when somebody last looked.

        Another worker may hold the lease since then, and have written more. So the files are listed first, and then the
        segments are read again, under the lease.

        Raises:
            LeaseLost: another worker holds the stream.
            LogLost: files that segments name are missing, while there are others.
        """
        names = self._files.names(stream.log)
        if names <= known:
            return
        with self._database.transaction() as connection:
            leases.check(connection, lease)
            known = segments.files_of(connection, stream.id)
        try:
            swept = self._files.sweep(stream.log, known, names)
        except FilesReplaced as replaced:
            raise LogLost(
                f"the segment folder and the database are of different times: {replaced}. No file is deleted. Put back "
                "the segment folder of the database's time or of a later one, or the newest database if it is the older"
            ) from None
        for orphan in swept:
            _log.info("orphan_swept", stream=stream.name, file=orphan)
