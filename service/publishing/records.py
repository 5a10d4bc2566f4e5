"""Reads any range of numbered records across segments, without what was erased."""

import numpy as np

from service.learning.records import Records
from service.store import segments
from service.store.database import Database
from service.store.segment_files import SegmentFiles
from service.store.streams import Stream


class SegmentsMissing(Exception):
    """Records that a fit needs are not there. Nothing may be published from the rest."""


def read_records(
    database: Database, files: SegmentFiles, stream: Stream, origin: int, start: int, stop: int
) -> Records:
    """The records of [start, stop), counted from `origin`, that are still there; erased ones contribute nothing.

    Raises:
        SegmentsMissing: the segments do not cover the range.
    """
    start, stop = origin + start, origin + stop
    for attempt in range(3):
        with database.transaction() as connection:
            found = segments.holding(connection, stream.id, start, stop)
            erased = segments.erased(connection, stream.id, start, stop)
        position, parts = start, []
        try:
            for segment in found:
                if segment.start > position:
                    break
                low, high = position - segment.start, min(stop, segment.stop) - segment.start
                parts.append(files.read(stream.log, segment.file, segment.sha256, low, high))
                position = segment.start + high
        except FileNotFoundError:
            if attempt < 2:  # the sealer put another file in its place while we looked
                continue
            raise
        if position != stop:
            raise SegmentsMissing(f"records {position} to {stop} of stream {stream.name} are not there")
        break
    present = np.ones(stop - start, dtype=np.bool_)
    for low, high in erased:
        present[low - start : high - start] = False
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not present.all():
        columns = {name: column[present] for name, column in columns.items()}
    y = columns.get("y", np.zeros(int(present.sum()), dtype=np.float32))
    x = columns.get("x", np.zeros((len(y), 0), dtype=np.float32))
    return Records(x=x.astype(np.float32, copy=False), y=y)
