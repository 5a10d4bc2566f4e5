"""Continual release: base models at doubling counts, updates in between (paper A, Algorithm 4).

| here | paper A | meaning |
|---|---|---|
| base | B | records before the first model; bases at 2^k·B |
| update_every | b_0 | records between updates |
| place 0 | w_g | the base model, fitted near the origin |
| place 1 | w_c | the latest update over 2^j·b_0 records, fitted near w_g |
| place 2 | f^t | an update over the last b_0 records, fitted near w_c |

At time 2^k·B a base is fitted on all records. At time t_g + i·b_0 before the next base (t_g the latest base's time):
if i is a power of two the records since t_g are fitted near w_g, else the last b_0 records near w_c. Any B ≥ 1 and
b_0 ≥ 1; an update that would fall on or after the next base does not happen.

Where it differs from the paper (paper-audit.md 1.3). Each fit is normalised by the records it reads (Algorithm 3 line 2
divides by b_0 always, and Theorem 4 fails). Ranges are half-open. Algorithm 4 as printed trains and releases its bases
itself, and then the paper's e_b = e_u = ε/2 costs a record up to 1.5ε - ε·b_0/B, not the ε of Theorem 4. `shares` has
what each fit is charged instead, and what one record costs, by following it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from service.privacy.currency import Currency
from service.schedules import shares as rules
from service.schedules.schedule import MAX_RECORDS, Fit, Lifetime, Part, Pattern

if TYPE_CHECKING:
    from service.schedules.shares import Shares


@dataclass(frozen=True, kw_only=True)
class Continual:
    """Algorithm 4, with one of three ways to divide the budget of the currency `kind`.

    Fit a base at 16 records, then updates over the 4 newest and over all 8 since the base:

    >>> schedule = Continual(currency=Currency.PURE, base=8, update_every=4)
    >>> [(fit.start, fit.end, str(fit.share)) for time in (16, 20, 24) for fit in schedule.fits(time)]
    [(0, 16, '1/4'), (16, 20, '1/2'), (16, 24, '1/4')]
    """

    currency: Currency
    base: int
    update_every: int
    shares: Literal["equal", "paper", "improving"] = "equal"

    def __post_init__(self) -> None:
        if self.base < 1 or self.update_every < 1:
            raise ValueError("a continual schedule needs base >= 1 and update_every >= 1")

    @cached_property
    def rule(self) -> Shares:
        """Return what each fit is charged."""
        if self.shares == "improving":
            return rules.improving(self.base, self.update_every)
        return {"equal": rules.equal, "paper": rules.papers}[self.shares](self.currency, self.base, self.update_every)

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
        epoch = (time // self.base).bit_length()
        steps, rest = divmod(time - last, self.update_every)
        j = steps.bit_length() - 1
        if time == last:
            start, depth, share = 0, 0, self.rule.base(epoch - 1)
        elif rest:
            return ()
        elif steps == 1 << j:
            start, depth, share = last, 1, self.rule.since_base(epoch, j)
        else:
            start, depth, share = time - self.update_every, 2, self.rule.latest(epoch, j)
        near = depth - 1 if depth else None
        return (Fit(start=start, end=time, near=near, depth=depth, share=share, role="model", window=(0, time)),)

    def needs(self, after: int) -> int:  # noqa: ARG002
        """Return 0: the next base will read everything again."""
        return 0

    def lifetime(self) -> Lifetime:
        """Return the worst record's total, exactly 1 (`paper`: less), with the bases as a closed tail."""
        epoch = self.rule.worst_epoch()
        first = self.base << epoch
        parts = [Part(what=f"bases over {first} records and every doubling", fits=None, share=self.rule.bases(epoch))]
        if epoch:
            count = self._since_base(epoch)
            longest = self.update_every << (count - 1)
            what = f"updates over {self.update_every} records" + (f", doubling up to {longest}" if count > 1 else "")
            share = sum((self.rule.since_base(epoch, j) for j in range(count)), start=Fraction(0))
            parts.append(Part(what=what, fits=count, share=share))
        note = "the paper's constants are valid but not the largest: `equal` uses the whole budget"
        return Lifetime(
            record=first // 2 if epoch else 0, parts=tuple(parts), note=note if self.shares == "paper" else None
        )

    def most_fits(self) -> int:
        """Return the most of any epoch: the bases over 2^k·B records and more, and the updates since its base.

        The first b_0 records of an epoch are in all of these updates, later ones in no more (`shares`).
        """
        bases = (MAX_RECORDS // self.base).bit_length()
        return max((bases, *(bases - epoch + self._since_base(epoch) for epoch in range(1, bases + 1))))

    def patterns(self) -> tuple[Pattern, ...]:
        """Return the base and the updates, each as it is first made."""
        return (self._base_pattern(), *(self._improving_updates() if self.shares == "improving" else self._updates()))

    def _base_pattern(self) -> Pattern:
        cost = "half" if self.currency is Currency.PURE else "a quarter"
        if self.shares == "improving":
            cost = f"{self.rule.base(1) / self.rule.base(0)} of the one before, so that its noise falls"
        return Pattern(
            what="base",
            when=f"at {self.base} records and every doubling, over all records; each doubling costs {cost}",
            records=self.base,
            share=self.rule.base(0),
            near_origin=True,
        )

    def _updates(self) -> tuple[Pattern, ...]:
        cost = "half" if self.currency is Currency.PURE else "a quarter"
        return (
            Pattern(
                what="update",
                when=(
                    f"every {self.update_every} records after a base; the 1st, 2nd, 4th, 8th … reads all records since "
                    f"the base, and each doubling costs {cost}; the others read the last {self.update_every}"
                ),
                records=self.update_every,
                share=self.rule.since_base(1, 0),
                near_origin=False,
            ),
        )

    def _improving_updates(self) -> tuple[Pattern, ...]:
        first, third = (rules.first_epoch(self.base, self.update_every, updates) for updates in (1, 3))
        return (
            Pattern(
                what="update since the base",
                when=(
                    f"the 1st, 2nd, 4th, 8th … of the updates every {self.update_every} records after a base, over all "
                    f"records since it; together they cost what the bases to come leave: 1 - ({self.rule.bases(1)})^k "
                    f"from {self.base}·2^(k-1) to {self.base}·2^k records, which grows towards the whole budget"
                ),
                records=self.update_every,
                share=self.rule.since_base(first, 0),
                near_origin=False,
            ),
            Pattern(
                what="update of the latest records",
                when=(
                    f"the other updates, over the last {self.update_every} records; each costs as much as all updates "
                    "since the base that came before it, which these records are not in"
                ),
                records=self.update_every,
                share=self.rule.latest(third, 1),
                near_origin=False,
            ),
        )

    def _last_base(self, time: int) -> int:
        return self.base << ((time // self.base).bit_length() - 1)

    def _since_base(self, epoch: int) -> int:
        return rules.since_base(self.base, self.update_every, epoch)
