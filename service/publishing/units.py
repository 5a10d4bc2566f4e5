"""Finds the records of one unit in a stream, to answer or erase that person. It looks through all its segments."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from service.segments.records import SegmentsMissing
from service.store import erasing, segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.segments.files import SegmentFiles
    from service.store.database import Database
    from service.store.streams import Stream


def counting_slots_of(
    database: Database, files: SegmentFiles, stream: Stream, pseudonym: bytes, records: int
) -> list[int]:
    """Return which of the first `records` slots of a stream count for a unit, rising; dropped ones aside.

    Raises:
        SegmentsMissing: a segment can't be read.
        SegmentDamaged: a segment does not hold what was written to it.
    """
    for attempt in range(3):
        try:
            return [slot for slot in _slots(database, files, stream, pseudonym, records) if slot < records]
        except FileNotFoundError:  # the sealer may have put another file in its place while we looked
            if attempt == 2:
                raise SegmentsMissing(f"a segment of stream {stream.name} is not in its folder") from None
        except OSError as error:
            raise SegmentsMissing(f"a segment of stream {stream.name} can't be read ({error.strerror})") from None
    raise AssertionError


def erase_unit(database: Database, files: SegmentFiles, stream: Stream, pseudonym: bytes) -> list[int]:
    """Erase all records of a unit, and let none of its later ones count; return the slots whose bytes go.

    No later record counts from the first transaction on. A crash before the second one leaves the bytes of earlier
    records: whoever asked had no answer and asks again.
    """
    with database.transaction() as connection:
        records = erasing.close_unit(connection, stream.id, pseudonym)
    slots = counting_slots_of(database, files, stream, pseudonym, records)
    with database.transaction() as connection:
        for start, stop in _ranges(slots):
            erasing.erase(connection, stream.id, start, stop)
    return slots


def _slots(database: Database, files: SegmentFiles, stream: Stream, pseudonym: bytes, records: int) -> Iterator[int]:
    wanted = np.frombuffer(pseudonym, dtype=np.uint8)
    with database.transaction() as connection:
        holding = segments.holding(connection, stream.id, 0, records)
    for each in holding:
        columns = files.read(
            stream.log, each.file, each.sha256, 0, each.stop - each.start, only=frozenset(("unit", "counts"))
        )
        mine = (columns["unit"] == wanted).all(axis=1) & (columns["counts"] == 1)
        yield from (each.start + np.flatnonzero(mine)).tolist()


def _ranges(slots: list[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring slots as ranges [start, stop)."""
    edges = [0, *(place for place, (one, other) in enumerate(pairwise(slots), 1) if other != one + 1), len(slots)]
    for low, high in pairwise(edges):
        if low < high:
            yield slots[low], slots[high - 1] + 1
