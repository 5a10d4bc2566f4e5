"""Tasks one after another, each in disjoint batches: every record is in one batch, for its whole budget (paper D).

A task is so many records, said in advance: the length of each of the first tasks, the last one being that of all
that follow. A boundary that followed from the records would not be public. A task of n records is ⌈n/batch⌉ batches
whose sizes differ by at most one: batch i of c is records [⌊n·i/c⌋, ⌊n·(i + 1)/c⌋) of the task. After every batch a
model is released, and each record of the batch is charged exactly the whole budget, once.

Before the first task there may be records that an encoder is learnt from, for their whole budget too: a fit by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate

from service.mechanisms.lifelong.task_statistics import Place
from service.schedules.schedule import Fit, Lifetime, Part, Pattern


@dataclass(frozen=True)
class Tasks:
    """Tasks of these `lengths`, the last one again and again, in batches of at most `batch`; None: a task is one.

    They begin after so many records `before`.
    """

    lengths: tuple[int, ...]
    batch: int | None = None
    before: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1 or (self.batch is not None and self.batch < 1):
            raise ValueError("tasks need lengths >= 1, and batch >= 1")

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """Return the first record of each task whose length is listed."""
        return tuple(accumulate(self.lengths[:-1], initial=self.before))

    @cached_property
    def _numbers(self) -> tuple[int, ...]:
        """Return how many batches come before each of those."""
        return (0, *accumulate(self.batches(task) for task in range(len(self.lengths) - 1)))

    @cached_property
    def largest(self) -> int:
        """Return how many records the largest batch of any task has."""
        return max(-(-self.length(task) // self.batches(task)) for task in range(len(self.lengths)))

    @cached_property
    def smallest(self) -> int:
        """Return how many records the smallest batch of any task has."""
        return min(self.length(task) // self.batches(task) for task in range(len(self.lengths)))

    def length(self, task: int) -> int:
        """Return how many records that task has."""
        return self.lengths[min(task, len(self.lengths) - 1)]

    def batches(self, task: int) -> int:
        """Return how many batches that task has."""
        return -(-self.length(task) // (self.batch or self.length(task)))

    def place(self, record: int) -> Place:
        """Return the batch that this record is in, which is not before the first task."""
        listed = bisect_right(self._starts, record) - 1
        length, batches = self.length(listed), self.batches(listed)
        repeated = (record - self._starts[listed]) // length  # 0 for all but the last listed task
        begin = self._starts[listed] + repeated * length
        batch = ((record - begin + 1) * batches - 1) // length
        start, end = (begin + length * number // batches for number in (batch, batch + 1))
        number = self._numbers[listed] + repeated * batches + batch
        return Place(number=number, task=listed + repeated, batch=batch, batches=batches, start=start, end=end)

    def next_time(self, after: int) -> int:
        """Return the next end of a batch, or where tasks begin."""
        return self.before if after < self.before else self.place(after).end

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the batch that ends there, if one does."""
        window = (0, time)
        if 0 < time == self.before:
            return (Fit(start=0, end=time, near=None, depth=0, share=Fraction(1), role="base", window=window),)
        if time <= self.before or (place := self.place(time - 1)).end != time:
            return ()
        return (Fit(start=place.start, end=time, near=None, depth=0, share=Fraction(1), role="model", window=window),)

    def needs(self, after: int) -> int:
        """Return the first record of the batch that is not complete."""
        return 0 if after < self.before else self.place(after).start

    def lifetime(self) -> Lifetime:
        """Return what every record costs: its one batch."""
        what = "the statistics of its batch" + (", or a step of the encoder" if self.before else "")
        return Lifetime(record=0, parts=(Part(what=what, fits=1, share=Fraction(1)),))

    def most_fits(self) -> int:
        """Return 1: a record is in one batch."""
        return 1

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the largest batch of each of the first tasks, and of all that follow."""
        return tuple(self._pattern(task, again=task == len(self.lengths) - 1) for task in range(len(self.lengths)))

    def _pattern(self, task: int, *, again: bool) -> Pattern:
        batches = self.batches(task)
        which = f"task {task + 1}" + (" and all that follow" if again else "")
        return Pattern(
            what="batch",
            when=f"{which}: {batches} of {self.length(task)} records",
            records=-(-self.length(task) // batches),
            share=Fraction(1),
            near_origin=True,
        )
