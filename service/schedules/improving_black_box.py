"""Any static private algorithm on a growing data set, run again and again as records come (paper C, BBImprover).

| here | paper C | meaning |
|---|---|---|
| first | n | records before the first run |
| every | 1 | records between two runs, as long as there have been fewer than DENSE |
| exponent | c | how much faster than 1/√t (in ρ) or 1/t (pure) the ε of a run at time t falls |
| T(t) | | (n/t)^(2c) in ρ, (n/t)^c pure: the share of all runs from the one at time t on |

A run reads all records so far. Run j is at n + j·every; from j = DENSE on only those j are run of which all but the
leading eight binary digits are 0: DENSE/2 = 128 runs for every doubling, so that less than 1/128 of the records is
newer than the release. (The paper runs at every t ≥ n.) Without that, what all runs read would grow with the square of
the time, and so would the bookkeeping: each run leaves some records that it is the first to have read, and it charges
all of them.

Shares. The run at t_j gets T(t_j) - T(t_{j+1}), t_{j+1} being the time of the next: the first n records are charged
exactly the budget (`black_box`). No accuracy of T is needed for that, only that computing it is monotone, which each
step of `share_from` is, being a correctly rounded operation that is monotone in its argument.

Where it differs from the paper (paper-audit.md 3.3). There ρ_t = ρ·(n/t)^(1+2c)/(1 + n/(2c)), whose sum over all t ≥ n
is bounded by an integral; runs so far apart would have 1 + n/(2c·every) there. With a = (t_{j+1} - t_j)/t_j these here
are T(t_j)·(1 - (1 + a)^(-2c)), about 2c·a·(n/t_j)^(2c), which is the same law; but they use up the budget, where the
bound leaves some over, and they follow from whatever the times are. The first run gets no more than by the bound
(c ≤ 1/2), all after the first few more. Pure: ε_t = ε(n/t)^a/(1 + n/(a - 1)) with a = 1 + c likewise. This is valid,
but what a run gains in records it loses in budget: at a sensitivity of 1/t its noise grows as t^c.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache

from service.privacy.currency import Currency
from service.schedules.black_box import BlackBox
from service.schedules.schedule import MAX_RECORDS

_DIGITS = 8  # leading binary digits of j
DENSE = 1 << _DIGITS
# Of T, settings being within their limits, neighbours differ by a share of 2^-47 at least.
_CONTEXT = Context(prec=32, Emax=MAX_EMAX, Emin=MIN_EMIN)


@dataclass(frozen=True, kw_only=True)
class ImprovingBlackBox(BlackBox):
    """BBImprover: fit all records so far at `first` records, then after every `every` more.

    >>> schedule = ImprovingBlackBox(currency=Currency.PURE, first=100, every=50, exponent=Decimal("1.5"))
    >>> [schedule.next_time(after) for after in (0, 100, 150)]
    [100, 150, 200]
    """

    every: int
    exponent: Decimal

    def __post_init__(self) -> None:
        if self.first < 1 or self.every < 1 or self.exponent <= 0:
            raise ValueError("an improving black box needs first >= 1, every >= 1 and exponent > 0")

    def next_time(self, after: int) -> int:
        """Return the time of the first run > after."""
        if after < self.first:
            return self.first
        j = (after - self.first) // self.every + 1
        unit = 1 << _spare(j)
        return self.first + -(-j // unit) * unit * self.every

    def share_from(self, time: int) -> Fraction:
        """Return T(t) = (n/t)^(c·power): 1 at n, never rising with t, see the module."""
        return _power(self.first, time, self.exponent * self.currency.power())

    def most_fits(self) -> int:
        """Return how many runs there can be."""
        last = max(0, MAX_RECORDS - self.first) // self.every
        spare = _spare(last)
        return spare * DENSE // 2 + (last >> spare) + 1

    def runs(self) -> str:
        """Return which runs read a record, for people."""
        return f"runs over {self.first} records and every {self.every} more, later more rarely, over all so far"

    def recurrence(self) -> str:
        """Return when runs happen and how the noise of the first of them changes, for people."""
        if self.currency is Currency.PURE:
            noise = f"grows as t^{self.exponent}, so that more records do not make for less: give privacy.delta"
        else:
            noise = f"falls as 1/t^{Decimal('0.5') - self.exponent}"
        return (
            f"at {self.first} records and every {self.every} after that, from the {DENSE}-th run on "
            f"{DENSE // 2} times for every doubling, over all records{self.kept_near}; where the sensitivity is "
            f"inverse to the records, the noise of the first {DENSE} runs {noise}"
        )


@lru_cache(maxsize=256)
def _power(first: int, time: int, exponent: Decimal) -> Fraction:
    logarithm = _CONTEXT.ln(_CONTEXT.divide(Decimal(first), Decimal(time)))
    return Fraction(_CONTEXT.exp(_CONTEXT.multiply(exponent, logarithm)))


def _spare(j: int) -> int:
    """Return how many binary digits of j there are beyond the leading ones."""
    return max(0, j.bit_length() - _DIGITS)
