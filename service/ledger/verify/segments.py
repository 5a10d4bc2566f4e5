"""Segments: their rows, and the files that hold their records."""

from collections.abc import Iterator

from sqlalchemy import select

from service.ledger import high_water_mark
from service.ledger.verify import unit_counts
from service.segments.files import SegmentDamaged, SegmentFiles
from service.store import segments, streams, tables
from service.store.database import Database
from service.store.rows import Rows
from service.store.segments import Segment
from service.store.streams import Stream

_SEGMENTS = select(tables.segments).order_by(tables.segments.c.start)


def rows(stored: Rows, stream: Stream) -> Iterator[str]:
    """Each segment's row is what was written, and together they are those that were sealed, merged and dropped."""
    total = 0
    for row in stored.of(_SEGMENTS, tables.segments.c.stream_id, stream.id):
        segment = Segment(start=row.start, stop=row.stop, file=row.file, sha256=row.sha256)
        if row.digest != segments.digest(stream.log, segment):
            yield f"stream {stream.name}, records {row.start} to {row.stop}: their segment is not what was sealed"
        total += int(row.digest, 16)
    if total % segments.MODULUS != stream.segments_sum:
        yield f"stream {stream.name}: its segments are not those that were sealed; one is missing or another"


def verify_segments(database: Database, files: SegmentFiles) -> Iterator[str]:
    """Check that every segment's file is there and holds what was written to it, while segments come, merge and go.

    And that no stream has come less far than the file beside its segments tells: that its record is not an old one; and
    that those slots of units count which ought to.
    """
    with database.transaction() as connection:
        known = streams.every(connection)
    for stream in known:
        if (against := _against_its_mark(database, files, stream)) is not None:
            yield f"stream {stream.name}: {against}"
        position = 0
        while True:
            with database.transaction() as connection:
                segment = segments.first_from(connection, stream.id, position)
                if segment is None:
                    break
                gone = segments.erased(connection, stream.id, segment.start, segment.stop, deleted=True)
            try:
                files.check(stream.log, segment.file, segment.sha256)
                wrong = _still_there(files, stream, segment, gone)
            except FileNotFoundError:
                wrong = f"its file {segment.file} is missing"
            except OSError as error:
                wrong = f"its file {segment.file} can't be read ({error.strerror})"
            except SegmentDamaged as damaged:
                wrong = str(damaged)
            if wrong is not None:
                with database.transaction() as connection:
                    if segments.first_from(connection, stream.id, position) != segment:
                        continue  # another took its place while we looked
                yield f"stream {stream.name}, records {segment.start} to {segment.stop}: {wrong}"
            position = segment.stop
        yield from unit_counts.recounted(database, files, stream)


def _against_its_mark(database: Database, files: SegmentFiles, stream: Stream) -> str | None:
    """Return why a stream can't be the one that its high-water mark tells of, or why the mark can't be read."""
    try:
        mark = files.high_water_mark(stream.log)
        with database.transaction() as connection:
            return high_water_mark.contradicts(connection, files, mark, streams.get(connection, stream.id))
    except OSError as error:
        return f"the file beside its segments that tells how far it had come can't be read ({error.strerror})"


def _still_there(files: SegmentFiles, stream: Stream, segment: Segment, gone: list[tuple[int, int]]) -> str | None:
    for start, stop in gone:
        rows = files.read(stream.log, segment.file, segment.sha256, start - segment.start, stop - segment.start)
        if any(rows[name].any() for name in rows.keys() & {"x", "y"}):  # whose an erased record was stays public
            return f"records {start} to {stop} were erased, and are still in {segment.file}"
    return None
