"""Continual release: base models at doubling counts, updates in between (paper A, Algorithm 4).

| here | paper A | meaning |
|---|---|---|
| base | B | records before the first model; bases at 2^k·B |
| update_every | b_0 | records between updates |
| depth 0 | w_g | the base model, fitted near the origin |
| depth 1 | w_c | the latest update over 2^j·b_0 records, fitted near w_g |
| depth 2 | f^t | an update over the last b_0 records, fitted near w_c |
| e_b, e_u | ε/2, ε/2 | share of a base of B records, of an update of b_0 records |

At time 2^k·B a base is fitted on all records. At time t_g + i·b_0 before the next base (t_g the latest base's time):
if i is a power of two the records since t_g are fitted near w_g, else the last b_0 records near w_c. Any B ≥ 1 and
b_0 ≥ 1; an update that would fall on or after the next base does not happen.

Where it differs from the paper (mechanisms.md 1.3). Each fit is normalised by the records it reads (Algorithm 3 line 2
divides by b_0 always, and Theorem 4 fails). Ranges are half-open. Algorithm 4 as printed trains and releases its bases
itself, and then e_b = e_u = ε/2 costs a record up to 1.5ε - ε·b_0/B, not the ε of Theorem 4; the shares here are the
largest equal ones with which it is exactly the budget.

What one record costs, by following it. Let r = 1/2 (pure) or 1/4 (ρ), so that a fit of 2^k times the records costs
r^k times the share; e = e_b = e_u.
 - A record among the first B is read by every base: e·(1 + r + r² + …) = e/(1 - r).
 - Epoch k = 1, 2, … is (2^(k-1)·B, 2^k·B]. Its records are read by the bases k, k+1, …: e·r^k/(1 - r), a closed tail.
   Its first b_0 records are read by every update over 2^j·b_0 records there: e·(1 + r + … + r^J), 2^J·b_0 <
   2^(k-1)·B; any other record of the epoch by at most one small update and by fewer of the large ones (from the
   second power on), so by no more.
 - Let A be the largest integer with 2^A < B/b_0. Epoch k has updates from k = 1 - A on, and then J = A + k - 1. So
   its worst total is e·(1 + r^k·(1 - r^A))/(1 - r), or less than e/(1 - r) before. If A ≥ 1 that falls with k: epoch
   1 is the worst. If A ≤ 0 it is at most e/(1 - r): the first B records are the worst.

So the worst record is among the first B or the next b_0, and `_followed` takes the worse of these two. (The tests add
up every fit over every record instead.)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from service.privacy.loss import Kind
from service.schedules.schedule import Fit, Lifetime, Part, Pattern


@dataclass(frozen=True, kw_only=True)
class Continual:
    """Algorithm 4 with equal shares e_b = e_u, the largest that the budget allows, in the currency `kind`."""

    kind: Kind
    base: int
    update_every: int

    def __post_init__(self) -> None:
        if self.base < 1 or self.update_every < 1:
            raise ValueError("a continual schedule needs base >= 1 and update_every >= 1")

    @property
    def unit(self) -> Fraction:
        """The share of a base of `base` records and of an update of `update_every` records."""
        return 1 / self._followed()[1]

    def next_time(self, after: int) -> int:
        """Return the first base or update time > after."""
        if after < self.base:
            return self.base
        last = self._last_base(after)
        update = last + ((after - last) // self.update_every + 1) * self.update_every
        return min(update, 2 * last)

    def fits(self, time: int) -> tuple[Fit, ...]:
        """Return the one fit of that time, or nothing."""
        if time < self.base:
            return ()
        last = self._last_base(time)
        if time == last:
            share = self.unit * self._ratio ** (time // self.base).bit_length() / self._ratio
            return (Fit(start=0, end=time, depth=0, share=share, role="model"),)
        steps, rest = divmod(time - last, self.update_every)
        if rest:
            return ()
        if _is_power_of_two(steps):
            share = self.unit / steps ** self.kind.power()
            return (Fit(start=last, end=time, depth=1, share=share, role="model"),)
        return (Fit(start=time - self.update_every, end=time, depth=2, share=self.unit, role="model"),)

    def window(self, time: int) -> tuple[int, int]:
        """Return [0, time): the model stands for all records so far."""
        return 0, time

    def needs(self, after: int) -> int:  # noqa: ARG002
        """Return 0: the next base will read everything again."""
        return 0

    def lifetime(self) -> Lifetime:
        """Return the worst record's total, exactly 1, with the bases as a closed tail."""
        epoch, total = self._followed()
        unit = 1 / total
        tail = unit * self._ratio**epoch / (1 - self._ratio)
        first = 1 << epoch
        parts = [Part(what=f"bases over {first * self.base} records and every doubling", fits=None, share=tail)]
        if epoch and (count := self._powers(epoch)):
            longest = self.update_every << (count - 1)
            what = f"updates over {self.update_every} records" + (f", doubling up to {longest}" if count > 1 else "")
            parts.append(Part(what=what, fits=count, share=unit * self._updates(epoch)))
        return Lifetime(record=self.base if epoch else 0, parts=tuple(parts))

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the base and the update, each at its smallest and most costly."""
        each = "half" if self.kind is Kind.PURE else "a quarter"
        return (
            Pattern(
                what="base",
                when=f"at {self.base} records and every doubling, over all records; each doubling costs {each}",
                records=self.base,
                share=self.unit,
                near_origin=True,
            ),
            Pattern(
                what="update",
                when=(
                    f"every {self.update_every} records after a base; the 1st, 2nd, 4th, 8th … reads all records since "
                    f"the base, and each doubling costs {each}; the others read the last {self.update_every}"
                ),
                records=self.update_every,
                share=self.unit,
                near_origin=False,
            ),
        )

    @property
    def _ratio(self) -> Fraction:
        return Fraction(1, 2 ** self.kind.power())

    def _last_base(self, time: int) -> int:
        return self.base << ((time // self.base).bit_length() - 1)

    def _powers(self, epoch: int) -> int:
        """Return how many updates of epoch ≥ 1 read all records since its base: i·b_0 < t_g, i a power of two."""
        return (((self.base << (epoch - 1)) - 1) // self.update_every).bit_length()

    def _updates(self, epoch: int) -> Fraction:
        """Return what the updates of an epoch charge to its first records, in units of e_u."""
        return (1 - self._ratio ** self._powers(epoch)) / (1 - self._ratio)

    def _followed(self) -> tuple[int, Fraction]:
        """Return (epoch, total) of the worst record, epoch 0 for the first B, in units of e: see above."""
        tail = 1 / (1 - self._ratio)
        first, second = tail, self._updates(1) + self._ratio * tail
        return (1, second) if second > first else (0, first)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
