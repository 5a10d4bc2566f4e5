"""Reads a secret sample of a range (`privacy.sampling`): all of the range, of which no more than the sample stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from service.learning.records import Records
from service.learning.sums import cut
from service.privacy import sampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from service.streams.slots import TrainingSlots


def read_sample(
    read: Callable[[int, int], Records], training: TrainingSlots, start: int, stop: int, drawn: int, features: int
) -> Records:
    """Return the records in a fresh sample of `drawn` of the training slots of [start, stop), fewer if some are empty.

    Where there are no more training slots than that, the sample is all of them. The range is read piece by piece, each
    of them whatever was drawn, so that reading takes as long for every sample. ValueError if records have units.

    read(start, stop): the records still present. features: of a record; how long the pieces are depends on them.
    """
    slots = training.count(start, stop)
    numbers = np.arange(slots) if slots <= drawn else sampling.draw(drawn, slots)
    chosen = training.numbered(start, numbers)
    pieces = [(start + low, start + high) for low, high in cut(stop - start, features)]
    return _joined([_of_slots(read(*piece), *piece, chosen) for piece in pieces])


def _of_slots(records: Records, start: int, stop: int, chosen: NDArray[np.int64]) -> Records:
    """Return the records of [start, stop) that are in the chosen slots, which rise."""
    if records.units is not None:
        raise ValueError("records have units, and a sample of their slots does not protect these")
    here = np.zeros(stop - start, dtype=np.bool_)
    here[chosen[slice(*np.searchsorted(chosen, (start, stop)))] - start] = True
    return records[here[records.in_slots(start, stop) - start]]


def _joined(parts: list[Records]) -> Records:
    x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y"))
    return Records(x=x, y=y)
