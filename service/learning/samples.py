"""Reduce the records of a range to those of a secret sample of its slots (`privacy.sampling`).

Where a record is. Slots are drawn, empty ones like others, and only the m records present are at hand here, in an order
that the records do not decide. Number them from 0, and the empty slots of the range from m: for each stream that is a
numbering of its n slots, so a uniform set of h numbers is a uniform set of h slots. Numbers from m on add nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from service.learning.optimization.sums import cut
from service.learning.records import Records
from service.privacy import sampling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.sums import Blocks


def read_sample(records: Records | Blocks, slots: int, drawn: int, features: int) -> Records:
    """Return the records that are in a fresh sample of `drawn` of a range's n = `slots` slots; all if n ≤ `drawn`.

    records: those present of all n slots; of blocks each is read once, whatever is drawn, and no more than the sample
    stays. features: of a record. ValueError for records that have units, whose sample would have to be of units.
    """
    if records.units is not None:
        raise ValueError("the records have units, and a sample of slots does not protect these")
    chosen = sampling.draw(drawn, slots) if drawn < slots else np.arange(slots)
    if isinstance(records, Records):
        return _numbered(records, 0, chosen)
    parts, number = [], 0
    for start, stop in cut(records.slots, features):
        block = records.read(start, stop)
        parts.append(_numbered(block, number, chosen))
        number += len(block.y)
    return Records(x=np.concatenate([part.x for part in parts]), y=np.concatenate([part.y for part in parts]))


def _numbered(records: Records, first: int, chosen: NDArray[np.int64]) -> Records:
    """Return the records with the chosen numbers, in rising order; the first record has the number `first`."""
    low, high = np.searchsorted(chosen, (first, first + len(records.y)))
    return records[chosen[low:high] - first]
