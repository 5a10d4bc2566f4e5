"""The sum of charges on every record: an exact piecewise-constant function of the record number.

Statement (the ledger theorem, paper-audit.md L1): if every step declares from public information and the past
transcript alone which records it reads and an upper bound on what one of them can lose by it, then a record's whole
loss is the sum over the steps that read it, and the worst record bounds everyone. `ChargesByRecord` is that sum;
`maximum` is that bound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ZERO = Fraction(0)


@dataclass(frozen=True)
class ChargesByRecord:
    """A function of the record number, constant from each breakpoint to the next and for ever after the last.

    `starts` is strictly increasing from 0, `amounts` has as many elements and no two neighbours are equal.
    Immutable; `add` and `+` return a new one. Ranges are half-open, end None is for ever.
    """

    starts: tuple[int, ...] = (0,)
    amounts: tuple[Fraction, ...] = (_ZERO,)

    @staticmethod
    def of(ranges: Iterable[tuple[int, int | None, Fraction | float]]) -> ChargesByRecord:
        """Return the sum of many ranges (start, end or None, amount): O(m log m), amounts exact, ranges may overlap."""
        changes: dict[int, Fraction] = {0: _ZERO}
        for start, end, amount in ranges:
            _check(start, end)
            if end is None or end > start:
                exact = Fraction(amount)
                changes[start] = changes.get(start, _ZERO) + exact
                if end is not None:
                    changes[end] = changes.get(end, _ZERO) - exact
        starts: list[int] = []
        amounts: list[Fraction] = []
        level = _ZERO
        for point in sorted(changes):
            level += changes[point]
            if not amounts or level != amounts[-1]:
                starts.append(point)
                amounts.append(level)
        return ChargesByRecord(tuple(starts), tuple(amounts))

    def add(self, start: int, end: int | None, amount: Fraction | float) -> ChargesByRecord:
        """Return this profile with `amount` more on the records in [start, end)."""
        _check(start, end)
        exact = Fraction(amount)
        if exact == 0 or start == end:
            return self
        first = bisect_right(self.starts, start) - 1  # of the piece that contains `start`
        last = len(self.starts) if end is None else bisect_left(self.starts, end)  # of the first piece after the range
        starts = [start, *self.starts[first + 1 : last]]
        amounts = [amount + exact for amount in self.amounts[first:last]]
        if end is not None and (last == len(self.starts) or self.starts[last] != end):
            starts.append(end)
            amounts.append(self.amounts[last - 1])
        keep = first + (self.starts[first] < start)
        # Only the two edges of the range can have become equal to their neighbours.
        if last < len(self.starts) and self.amounts[last] == amounts[-1]:
            last += 1
        if keep and self.amounts[keep - 1] == amounts[0]:
            del starts[0], amounts[0]
        return ChargesByRecord(
            (*self.starts[:keep], *starts, *self.starts[last:]),
            (*self.amounts[:keep], *amounts, *self.amounts[last:]),
        )

    def __add__(self, other: ChargesByRecord) -> ChargesByRecord:
        return ChargesByRecord.of((*self.ranges(), *other.ranges()))

    @staticmethod
    def sum(profiles: Iterable[ChargesByRecord]) -> ChargesByRecord:
        """Return the pointwise sum."""
        return ChargesByRecord.of(piece for profile in profiles for piece in profile.ranges())

    def at(self, record: int) -> Fraction:
        """Return the amount of one record."""
        _check(record, None)
        return self.amounts[bisect_right(self.starts, record) - 1]

    def maximum(self, start: int = 0, end: int | None = None) -> Fraction:
        """Return the largest amount of any record in [start, end); 0 for an empty range."""
        _check(start, end)
        if start == end:
            return _ZERO
        first = bisect_right(self.starts, start) - 1
        last = len(self.starts) if end is None else bisect_left(self.starts, end)
        return max(self.amounts[first:last])

    def ranges(self) -> Iterator[tuple[int, int | None, Fraction]]:
        """Yield (start, end, amount) in order; together they cover [0, ∞), zeros included; the last end is None."""
        ends = (*self.starts[1:], None)
        yield from zip(self.starts, ends, self.amounts, strict=True)


def covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many records are in at least one of the ranges [start, end)."""
    held = ChargesByRecord.of((start, end, 1) for start, end in ranges)
    return sum(end - start for start, end, times in held.ranges() if end is not None and times)


def _check(start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise ValueError("a range of records starts at 0 or later and does not end before it starts")
