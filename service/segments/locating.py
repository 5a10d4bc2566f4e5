"""Says where the records of a range are, by the database, and reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.segments.records import Located, SegmentsMissing, load
from service.store import labels, segments

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from service.learning.records import Records
    from service.segments.files import SegmentFiles
    from service.store.database import Database
    from service.store.streams import Stream


def locate(
    database: Database,
    stream: Stream,
    origin: int,
    start: int,
    stop: int,
    *,
    labels_of: int | None = None,
    evaluates: bool = False,
) -> Located:
    """Return where the records of [start, stop), counted from `origin`, are.

    Args:
        database: where segments, erasures and answers are written down.
        stream: whose records.
        origin: the number of the record that is counted as 0.
        start: the first record, counted from `origin`.
        stop: the record after the last, counted from `origin`.
        labels_of: the publication whose answers are the labels of a stream that has none.
        evaluates: whether the evaluation slots of a stream that sets some aside are read; else its training slots are.

    Raises:
        SegmentsMissing: the segments do not cover the range.
    """
    start, stop = origin + start, origin + stop
    with database.transaction() as connection:
        holding, erased = segments.located(connection, stream.id, start, stop)
        answers = _answers(connection, stream, labels_of, start, stop)
    position, files = start, []
    for segment in holding:
        if segment.start > position:
            break
        low, high = position - segment.start, min(stop, segment.stop) - segment.start
        files.append((segment.file, segment.sha256, low, high))
        position = segment.start + high
    if position != stop:
        raise SegmentsMissing(f"records {position} to {stop} of stream {stream.name} are not there")
    return Located(
        stream=stream.name,
        log=stream.log,
        origin=origin,
        start=start,
        stop=stop,
        files=tuple(files),
        erased=tuple((low, high) for low, high in erased),
        answers=answers,
        period=stream.evaluation_period,
        evaluates=evaluates,
    )


def read_records(
    database: Database,
    files: SegmentFiles,
    stream: Stream,
    origin: int,
    start: int,
    stop: int,
    *,
    labels_of: int | None = None,
    evaluates: bool = False,
) -> Records:
    """Return the records of [start, stop), counted from `origin`, that are still there: see `locate` and `load`."""

    def located() -> Located:
        return locate(database, stream, origin, start, stop, labels_of=labels_of, evaluates=evaluates)

    return load(files, located)


def _answers(
    connection: Connection, stream: Stream, publication: int | None, start: int, stop: int
) -> tuple[tuple[int, int], ...] | None:
    """Return the labels that people gave, of a stream that comes without; None where it comes with them."""
    if stream.layout.labelled:
        return None
    if publication is None:
        return ()
    return tuple(labels.answers(connection, publication, start, stop))
