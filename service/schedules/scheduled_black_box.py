"""Any static private algorithm on a growing data set, run at geometric times (paper C, BBScheduler).

| here | paper C | meaning |
|---|---|---|
| first | n | records before the first run |
| growth | γ | how much the records grow from one run to the next |
| time of run i | t_i | ⌈(1 + γ)^i·n⌉, i = 0, 1, … |
| q | 1/(1 + γ) | |
| the shares of runs i, i + 1, … | Σ_{l ≥ i} ε_l/ε | `tail(i)` |

A run reads all records so far, and what it releases stands until the next. By then less than a share γ/(1 + γ) of the
records is newer than it: any mean over the records of something in [0, 1] has moved by less than that.

Shares (paper-audit.md 3.2), with their closed tails:
 - pure: run i gets γ²(i + 1)q^(i+2); runs i, i + 1, … together q^i·(1 + i·(1 - q)).
 - ρ, r = q²: run i gets (i + 1)²·r^i·(1 - r)³/(1 + r); with m = i + 1, all from run i on together get
   r^i·(m²(1 - r)² + 2mr(1 - r) + r(1 + r))/(1 + r).
Both tails are 1 at i = 0 and fall to 0, so the first n records, which every run reads, are charged exactly the budget,
and any later one less.

Where it differs from the paper. Where rounding up makes several t_i the same (only while n·γ·(1 + γ)^i < 1), the paper
runs the last of these; here that one run gets the shares of them all, so that nothing of the budget is lost. In ρ the
shares are the paper's ε_i as √(2ρ_i), and a Gaussian algorithm may spend ρ_i as it is.

Times and shares are exact rationals. Their numerators grow with i, the logarithm of the time, not with the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from service.privacy.currency import Currency
from service.schedules.black_box import BlackBox
from service.schedules.schedule import MAX_RECORDS


@dataclass(frozen=True, kw_only=True)
class ScheduledBlackBox(BlackBox):
    """BBScheduler: fit all records so far at times that grow by the factor 1 + `growth`.

    >>> schedule = ScheduledBlackBox(currency=Currency.PURE, first=100, growth=Fraction(1, 2))
    >>> [schedule.next_time(after) for after in (0, 100, 150)]
    [100, 150, 225]
    """

    growth: Fraction

    def __post_init__(self) -> None:
        if self.first < 1 or self.growth <= 0:
            raise ValueError("a scheduled black box needs first >= 1 and growth > 0")

    def next_time(self, after: int) -> int:
        """Return the first t_i > after."""
        return math.ceil(self._unrounded(self.run_after(after)))

    def share_from(self, time: int) -> Fraction:
        """Return the shares of all runs that fall on that time or later."""
        return self.tail(self.run_after(time - 1))

    def most_fits(self) -> int:
        """Return how many runs there can be."""
        return self.run_after(MAX_RECORDS)

    def runs(self) -> str:
        """Return which runs read a record, for people."""
        return f"runs over {self.first} records and every growth of them by {self.growth}, over all so far"

    def recurrence(self) -> str:
        """Return when runs happen; at a sensitivity of 1/n the noise of the others follows from the first's."""
        return (
            f"at {self.first} records and whenever they have grown by {self.growth}, over all records{self.kept_near}; "
            "where the sensitivity is inverse to the records, the noise of the i-th run is 1/i of the first's; "
            f"at any time less than {self.growth / (1 + self.growth)} of the records are newer than the release"
        )

    def run_after(self, time: int) -> int:
        """Return the first i with t_i > time. Doubles only guess; what decides is exact."""
        if time < self.first:
            return 0
        guess = max(0, int((math.log(time) - math.log(self.first)) / math.log1p(self.growth)))
        while self._unrounded(guess) <= time:
            guess += 1
        while self._unrounded(guess - 1) > time:
            guess -= 1
        return guess

    def tail(self, run: int) -> Fraction:
        """Return the shares of run i and all later ones together: see the module."""
        q = 1 / (1 + self.growth)
        if self.currency is Currency.PURE:
            return q**run * (1 + run * (1 - q))
        r, m = q**2, run + 1
        return r**run * (m**2 * (1 - r) ** 2 + 2 * m * r * (1 - r) + r * (1 + r)) / (1 + r)

    def _unrounded(self, run: int) -> Fraction:
        return (1 + self.growth) ** run * self.first
