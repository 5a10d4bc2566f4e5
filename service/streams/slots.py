"""The slots of a stream that only evaluations read, and how they are numbered.

With a period of k, the slots i ≡ k - 1 (mod k) are the stream's evaluation slots: absolute numbers, fixed for ever.
All other slots are training slots, which evaluations never read. So the partition is public, and each slot is charged
by publications of one kind alone: parallel composition, also where evaluations influence which publications start.

Streams with units set units aside, not slots: every k-th, by pseudonym (`streams.units.set_aside`). There a record's
slot says nothing of who may read it, and n is the number of units that records have.

Publications count slots from their own start; `TrainingSlots` says of such a range which of its slots they may read.

Ranges are half-open. The j-th evaluation slot is the slot number j·k + k - 1, counted from 0; the training slots are
numbered in the same way. Everything here is integer arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class EvaluationSlots:
    """Every `period`-th slot. A stream's setting `every` is at least 2.

    With a period of 1 every slot is evaluated: the view of an evaluation on a stream that sets no slots aside.
    """

    period: int

    def __post_init__(self) -> None:
        if self.period < 1:
            raise ValueError(f"the period of evaluation slots is {self.period}, and must be at least 1")

    def includes(self, slot: int) -> bool:
        """Return whether a slot is an evaluation slot."""
        return slot % self.period == self.period - 1

    @overload
    def before(self, slot: int) -> int: ...
    @overload
    def before(self, slot: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def before(self, slot: int | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """Return how many evaluation slots are below a slot, or below each of several: the number of the next one."""
        return slot // self.period

    def slot(self, number: int) -> int:
        """Return the evaluation slot of that number."""
        return number * self.period + self.period - 1

    def first_from(self, slot: int, *, evaluation: bool) -> int:
        """Return the first slot from `slot` on that is an evaluation slot, or that is none."""
        if evaluation:
            return self.slot(self.before(slot))
        return slot + 1 if self.includes(slot) else slot

    def evaluation(self, start: int, stop: int) -> int:
        """Return how many slots of [start, stop) are evaluation slots. start ≤ stop."""
        return self.before(stop) - self.before(start)

    def training(self, start: int, stop: int) -> int:
        """Return how many slots of [start, stop) are training slots: the n of a fit of that range."""
        return stop - start - self.evaluation(start, stop)

    def least_training(self, length: int) -> int:
        """Return the least n of a range of that length, wherever it starts: the n of a plan."""
        return length - -(-length // self.period)

    def training_before(self, slot: int) -> int:
        """Return how many training slots are below a slot."""
        return self.training(0, slot)

    def training_slot(self, number: int) -> int:
        """Return the training slot of that number. ValueError if every slot is evaluated."""
        if self.period == 1:
            raise ValueError("every slot is evaluated: there is no training slot")
        return number + number // (self.period - 1)

    def in_range(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the evaluation slots of [start, stop), rising."""
        return np.arange(self.slot(self.before(start)), stop, self.period, dtype=np.int64)

    def training_in_range(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the training slots of [start, stop), rising."""
        slots = np.arange(start, stop, dtype=np.int64)
        return slots[~self.among(slots)]

    def among(self, slots: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, as a mask, which of the given slots are evaluation slots."""
        return np.asarray(slots % self.period == self.period - 1)


@dataclass(frozen=True, kw_only=True)
class TrainingSlots:
    """The slots that a publication may fit, counted from its `start`. `evaluation` None: all of them."""

    evaluation: EvaluationSlots | None = None
    start: int = 0

    def count(self, start: int, stop: int) -> int:
        """Return how many slots of [start, stop) are training slots: the n of a fit of that range."""
        if self.evaluation is None:
            return stop - start
        return self.evaluation.training(self.start + start, self.start + stop)

    def least(self, length: int) -> int:
        """Return the least n of a range of that length, wherever it starts."""
        return length if self.evaluation is None else self.evaluation.least_training(length)

    def among(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which slots of [start, stop) are training slots, (stop - start,)."""
        if self.evaluation is None:
            return np.ones(stop - start, dtype=np.bool_)
        return ~self.evaluation.among(np.arange(self.start + start, self.start + stop, dtype=np.int64))


ALL_SLOTS = TrainingSlots()
