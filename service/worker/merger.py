"""Puts small segments of a stream together, so that a fit opens few files."""

from itertools import takewhile

import numpy as np

from service.segments.files import SegmentFiles
from service.store import segments
from service.store.database import Database
from service.store.leases import Lease, LeaseLost
from service.store.segments import Segment
from service.store.streams import Stream
from service.streams.codec import Columns

MERGED_AT_ONCE = 16
MERGED_VALUES = 2**26  # most numbers of one merged segment: 256 MiB as float32
LARGE_ENOUGH = 4  # the size class of 65,536 records and more: such segments are left alone
NEWEST = MERGED_AT_ONCE * LARGE_ENOUGH  # segments that may be merged


class Merger:
    """Replaces segments of streams whose leases the caller holds. Methods raise LeaseLost if another has taken it."""

    def __init__(self, database: Database, files: SegmentFiles) -> None:
        self._database, self._files = database, files

    def merge(self, lease: Lease, stream: Stream, newest: list[Segment]) -> None:
        """Put many small neighbours among the newest segments into one, so that a fit opens few files.

        Sixteen neighbours of at most one size class, half of them of just that class, become one, like the digits of
        a counter: each record is rewritten about once per class, and a few dozen segments at most stay small. A
        segment larger than memory should hold stays in parts.
        """
        most = MERGED_VALUES // max(1, stream.layout.mapped_features)
        for size_class in range(LARGE_ENOUGH):
            run = list(takewhile(lambda segment: _size_class(segment) <= size_class, reversed(newest)))[::-1]  # noqa: B023
            alike = sum(_size_class(segment) == size_class for segment in run)
            if run and run[-1].stop - run[0].start > most:
                return
            if len(run) >= MERGED_AT_ONCE and 2 * alike >= MERGED_AT_ONCE:
                parts = [self._read(stream, segment) for segment in run]
                self.replace(lease, stream, run, joined(parts))
                return

    def replace(self, lease: Lease, stream: Stream, old: list[Segment], columns: Columns) -> None:
        """Put one segment in the place of neighbours; their files go when nothing names them any more."""
        start, stop = old[0].start, old[-1].stop
        file, sha256 = self._files.write(stream.log, start, stop, columns)
        with self._files.gone_if(LeaseLost, stream.log, file), self._database.transaction() as connection:
            new = Segment(start=start, stop=stop, file=file, sha256=sha256)
            segments.replace(connection, lease, stream, old, [new])
        for segment in old:
            self._files.delete(stream.log, segment.file)

    def _read(self, stream: Stream, segment: Segment) -> Columns:
        return self._files.read(stream.log, segment.file, segment.sha256, 0, segment.stop - segment.start)


def _size_class(segment: Segment) -> int:
    """0 for a few records, one more for each factor of sixteen, until it is large enough."""
    return min(LARGE_ENOUGH, ((segment.stop - segment.start).bit_length() - 1) // 4)


def joined(parts: list[Columns]) -> Columns:
    """Return the records of several parts as those of one, column by column."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
