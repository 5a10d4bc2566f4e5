"""Counts the slots of units before they are numbered: those over the bound come empty into the segment.

Which slots count depends on the order of the pseudonyms alone (`streams.units`). A crash before the numbering leaves
the states as they were, so that whoever comes next finds the same slots counting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from service.store import units
from service.store.units import UnitCounts
from service.streams.units import UnitStates, counting_slots, distinct

if TYPE_CHECKING:
    from service.store.database import Database
    from service.store.streams import Stream
    from service.streams.codec import Columns
    from service.streams.layout import RecordLayout

MAX_RECORDS_AT_ONCE = 2**15
"""So many states are written while the stream's row is locked."""


def most_records(layout: RecordLayout) -> int:
    """Return the most records of one segment."""
    return min(layout.most_records, MAX_RECORDS_AT_ONCE) if layout.units else layout.most_records


def counted(database: Database, stream: Stream, columns: Columns) -> tuple[Columns, UnitCounts | None]:
    """Return the columns of the next segment, and what it changes of units; of a stream without units as they are.

    columns: mapped, from the stream's next record on.
    """
    schema = stream.parsed_schema
    if schema.unit is None:
        return columns, None
    bound = schema.unit.bound
    pseudonyms, places = distinct(columns["unit"])
    with database.transaction() as connection:
        units_erased, before = units.read(connection, stream.id, bound, pseudonyms)
    counts, after = counting_slots(bound, before, places, stream.records)
    changed = after.last != before.last
    states = UnitStates(counted=after.counted[changed], last=after.last[changed])
    over = len(counts) - int(counts.sum())
    changes = UnitCounts(
        units_erased=units_erased,
        pseudonyms=pseudonyms[changed],
        states=states,
        new=before.counted[changed] == 0,
        over=over,
    )
    return _emptied(columns, counts), changes


def _emptied(columns: Columns, counts: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Columns:
    """Return the columns with nothing in the slots that do not count, and a column that says which do."""
    emptied: Columns = {"unit": columns["unit"], "counts": counts.astype(np.uint8)}
    for name in ("x", "y"):
        if name in columns:
            emptied[name] = columns[name].copy()
            emptied[name][~counts] = 0
    return {name: emptied[name] for name in ("x", "y", "unit", "counts") if name in emptied}
