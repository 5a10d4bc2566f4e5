"""Multi-resolution release: a model of every dyadic block of the stream (paper A, Algorithm 2).

| here | paper A | meaning |
|---|---|---|
| base | B | records of the smallest blocks |
| level k, number q | k, q | block [(q - 1)·2^k·B, q·2^k·B) |
| share of level 0 | e_b | ε/2 |

At time 2^k·odd·B the blocks of levels 0 … k end, and a model of each is fitted near the origin and released. The
largest comes last: it is the newest version.

The cost of one record. Every record lies in exactly one block of every level, and at equal noise a block of level k
costs e_b·2^-k in pure ε and e_b·4^-k in ρ. So each costs exactly 2·e_b, or (4/3)·e_b in ρ, by the closed sum: e_b = 1/2
or 3/4 is the whole budget, and every record is a worst one (paper-audit.md 1.2, Theorem 1). Levels start at 0 and
blocks are half-open; the paper's closed ones share a record at each edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from service.privacy.currency import Currency
from service.schedules.schedule import MAX_RECORDS, Fit, Lifetime, Part, Pattern


@dataclass(frozen=True, kw_only=True)
class MultiResolution:
    """Algorithm 2 at equal noise, in the currency `kind`.

    >>> schedule = MultiResolution(currency=Currency.PURE, base=8)
    >>> [(fit.start, fit.end, str(fit.share)) for fit in schedule.fits(32)]
    [(24, 32, '1/2'), (16, 32, '1/4'), (0, 32, '1/8')]
    """

    currency: Currency
    base: int

    def __post_init__(self) -> None:
        if self.base < 1:
            raise ValueError("a multi-resolution schedule needs base >= 1")

    def next_time(self, after: int) -> int:
        """Return the next end of a smallest block."""
        return (after // self.base + 1) * self.base

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return a fit for each block that ends there, the smallest first."""
        blocks, rest = divmod(time, self.base)
        if rest or not blocks:
            return ()
        levels = (blocks & -blocks).bit_length()
        return tuple(
            Fit(start=start, end=time, near=None, depth=0, share=self._share(level), role="model", window=(start, time))
            for level in range(levels)
            for start in [time - (self.base << level)]
        )

    def needs(self, after: int) -> int:  # noqa: ARG002
        """Return 0: there is always a larger block to come that starts there."""
        return 0

    def lifetime(self) -> Lifetime:
        """Return what every record costs: one block of each of the infinitely many levels, exactly 1."""
        what = f"the blocks of {self.base} records and of every doubling that it is in, one of each size"
        return Lifetime(record=0, parts=(Part(what=what, fits=None, share=self._share(0) / (1 - self._ratio)),))

    def most_fits(self) -> int:
        """Return how many levels there can be: a record is in one block of each."""
        return (MAX_RECORDS // self.base).bit_length()

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the smallest block, the most costly."""
        cost = "half" if self.currency is Currency.PURE else "a quarter"
        return (
            Pattern(
                what="block",
                when=(
                    f"every {self.base} records over the last {self.base}, every {2 * self.base} over the last "
                    f"{2 * self.base}, and so on for every doubling; each doubling costs {cost}"
                ),
                records=self.base,
                share=self._share(0),
                near_origin=True,
            ),
        )

    @cached_property
    def _ratio(self) -> Fraction:
        return Fraction(1, 2 ** self.currency.power())

    def _share(self, level: int) -> Fraction:
        return (1 - self._ratio) * self._ratio**level
