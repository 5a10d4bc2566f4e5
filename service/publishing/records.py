"""Reads any range of numbered records across segments, without what was erased."""

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from service.learning.records import Records
from service.store import labels, segments
from service.store.database import Database
from service.store.segment_files import SegmentFiles
from service.store.streams import Stream


class SegmentsMissing(Exception):
    """Records that a fit needs are not there. Nothing may be published from the rest."""


def read_records(
    database: Database,
    files: SegmentFiles,
    stream: Stream,
    origin: int,
    start: int,
    stop: int,
    *,
    labels_of: int | None = None,
) -> Records:
    """The records of [start, stop), counted from `origin`, that are still there; erased ones contribute nothing.

    labels_of: the publication whose answers are the labels of a stream that has none; NaN where there is no answer.

    Raises:
        SegmentsMissing: the segments do not cover the range.
    """
    start, stop = origin + start, origin + stop
    for attempt in range(3):
        with database.transaction() as connection:
            found = segments.holding(connection, stream.id, start, stop)
            erased = segments.erased(connection, stream.id, start, stop)
            answered = _answered(connection, stream, labels_of, start, stop)
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
            raise SegmentsMissing(f"a segment of stream {stream.name} is not in its folder") from None
        except OSError as error:
            raise SegmentsMissing(f"a segment of stream {stream.name} can't be read ({error.strerror})") from None
        if position != stop:
            raise SegmentsMissing(f"records {position} to {stop} of stream {stream.name} are not there")
        break
    present = np.ones(stop - start, dtype=np.bool_)
    for low, high in erased:
        present[low - start : high - start] = False
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns |= answered
    if not present.all():
        columns = {name: column[present] for name, column in columns.items()}
    y = columns["y"]
    x = columns.get("x", np.zeros((len(y), 0), dtype=np.float32))
    return Records(x=x.astype(np.float32, copy=False), y=y, slots=np.flatnonzero(present) + (start - origin))


def _answered(
    connection: Connection, stream: Stream, publication: int | None, start: int, stop: int
) -> dict[str, NDArray[np.generic]]:
    """The column of labels of a stream that comes without, as far as they were given to a publication."""
    if stream.schema["task"]["kind"] != "unlabelled":
        return {}
    y = np.full(stop - start, np.nan)
    if publication is not None:
        for record, label in labels.answers(connection, publication, start, stop):
            y[record - start] = label
    return {"y": y}
