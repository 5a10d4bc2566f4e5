"""Copies the files of numbered records from one place to another, while nothing else writes to either."""

from service.segments.files import SegmentFiles


class PlaceTaken(Exception):
    """There are files of other streams, or of another time, where the copy should go."""


def copy(source: SegmentFiles, target: SegmentFiles) -> int:
    """Copy all segments, then all high-water marks; return the number of segments. It may be done again.

    Raises:
        PlaceTaken: the target has a segment or a mark that the source has not.
        OSError: one of them can't be read or written.
    """
    logs, segments = source.logs(), 0
    if target.logs() - logs:
        raise PlaceTaken("it holds other streams: give an empty one")
    for log in sorted(logs):
        names, there = source.names(log), target.names(log)
        mark, marked = source.high_water_mark(log), target.high_water_mark(log)
        if there - names or marked not in (None, mark):
            raise PlaceTaken("it holds files of another time: give an empty one")
        for name in sorted(names):
            content = source.get(log, name)
            if name in there and target.get(log, name) != content:  # an attempt was stopped while it wrote
                target.delete(log, name)
                there.remove(name)
            if name not in there:
                target.put(log, name, content)
        segments += len(names)
    for log in sorted(logs):
        mark = source.high_water_mark(log)
        if mark is not None and target.high_water_mark(log) is None:
            with target.high_water_mark_lock(log):
                target.put_high_water_mark(log, mark)
    return segments
