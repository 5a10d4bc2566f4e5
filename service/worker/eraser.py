"""Deletes the bytes of erased records: from segments, from files that no segment names, and from the log."""

from collections.abc import Callable

import numpy as np
import structlog

from service.log import Reader
from service.segments.files import SegmentFiles
from service.store import segments
from service.store.database import Database
from service.store.leases import Lease
from service.store.segments import Segment
from service.store.streams import Stream
from service.worker.merger import Merger
from service.worker.sweeper import Sweeper

_log = structlog.get_logger(__name__)


class Eraser:
    """Works on streams whose leases the caller holds. `forget` has the log's server write its file anew."""

    def __init__(
        self,
        database: Database,
        files: SegmentFiles,
        reader: Reader,
        merger: Merger,
        sweeper: Sweeper,
        forget: Callable[[], None],
    ) -> None:
        self._database, self._files, self._reader = database, files, reader
        self._merger, self._sweeper, self._forget = merger, sweeper, forget

    def delete_erased(self, lease: Lease, stream: Stream) -> None:
        """Writes segments with erased records anew, without their bytes; each once, however much of it is erased.

        A crash on the way leaves what was erased before it, and the rest to whoever comes next: it is all done again.
        """
        with self._database.transaction() as connection:
            waiting = segments.undeleted_erasures(connection, stream.id)
        if not waiting:  # another was quicker, between our look and our lease
            return
        touched = dict[int, Segment]()
        with self._database.transaction() as connection:
            for _, start, stop in waiting:
                touched |= {segment.start: segment for segment in segments.holding(connection, stream.id, start, stop)}
        for old in touched.values():
            columns, there = self._files.read(stream.log, old.file, old.sha256, 0, old.stop - old.start), False
            for _, start, stop in waiting:
                low, high = max(start, old.start) - old.start, min(stop, old.stop) - old.start
                for name in columns.keys() & {"x", "y"}:  # whose an erased record was stays public
                    there |= bool(columns[name][low : max(low, high)].view(np.uint8).any())
                    columns[name][low : max(low, high)] = 0
            if there:
                self._merger.replace(lease, stream, [old], columns)
        # A file that an earlier holder of the lease wrote too late may hold the bytes too.
        if stream.halted is not None and self._sweeper.orphans(stream):
            # But who knows what a stream's files are if its log is not what was numbered: the record may be an old one.
            _log.warning("erased_but_for_orphans", stream=stream.name, files=self._sweeper.orphans(stream))
            return
        self._sweeper.sweep(lease, stream, set())
        self._reader.trim(stream.log, stream.sealed_entry)  # a halted stream's log may still hold numbered batches
        self._forget()
        with self._database.transaction() as connection:
            segments.mark_deleted(connection, lease, [erasure for erasure, _, _ in waiting])
        _log.info("erased", stream=stream.name, erasures=len(waiting))
