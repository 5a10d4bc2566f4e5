"""How the publications of one stream add up on each record.

Private: one record of the stream; neighbours differ in the value of one slot (R⊥, mechanisms.md 0). Publications are
mechanisms run beside each other, so their guarantees compose: on each record (Σε, Σδ) over the publications that may
read it, by basic composition, which holds for adaptively chosen mechanisms when each one's cap is fixed before it
starts. Inside one publication charges add in its own currency up to that cap (mechanisms.md 0.3, L1).

What is *reserved* is what bounds everybody for ever; what is *spent* is bookkeeping on the way there.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from service.privacy.loss import Kind, round_up, zcdp_epsilon
from service.privacy.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Loss:
    """(ε, δ), exact."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(epsilon=self.epsilon + other.epsilon, delta=self.delta + other.delta)

    def __sub__(self, other: "Loss") -> "Loss":
        return Loss(epsilon=self.epsilon - other.epsilon, delta=self.delta - other.delta)

    @classmethod
    def of(cls, epsilon: Decimal, delta: Decimal) -> "Loss":
        return cls(epsilon=Fraction(epsilon), delta=Fraction(delta))

    def within(self, budget: "Loss") -> bool:
        return self.epsilon <= budget.epsilon and self.delta <= budget.delta

    def left_of(self, budget: "Loss") -> "Loss":
        return Loss(
            epsilon=max(Fraction(0), budget.epsilon - self.epsilon), delta=max(Fraction(0), budget.delta - self.delta)
        )

    def shown(self) -> dict[str, float]:
        """As numbers to read: the least double whose decimal notation is not below the exact value."""
        return {"epsilon": _shown(self.epsilon, up=True), "delta": _shown(self.delta, up=True)}

    def shown_down(self) -> dict[str, float]:
        """The other way round: for what is left."""
        return {"epsilon": _shown(self.epsilon, up=False), "delta": _shown(self.delta, up=False)}


@dataclass(frozen=True, kw_only=True)
class Account:
    """One publication's: its cap (ε, δ) on every record from `start` on, and what each record was charged so far."""

    kind: Kind
    cap: Loss
    start: int
    running: bool
    spent: Profile

    def loss(self, amount: Fraction) -> Loss:
        """What charges of this amount, in the publication's currency, mean as (ε, δ); never more than the cap."""
        if not amount:
            return Loss()
        if self.kind is Kind.PURE:
            return Loss(epsilon=amount)
        epsilon = Fraction(_zcdp_epsilon(round_up(amount), float(self.cap.delta)))
        return Loss(epsilon=min(epsilon, self.cap.epsilon), delta=self.cap.delta)

    def spent_steps(self) -> Iterator[tuple[int, Loss]]:
        """(record, loss from there on)."""
        for start, _end, amount in self.spent.ranges():
            yield start, self.loss(amount)

    def reserved_steps(self) -> Iterator[tuple[int, Loss]]:
        """(record, loss from there on): the cap while it runs.

        Stopping gives back what is unspent: in pure ε everywhere; under zCDP only on records that were never charged,
        because what a record has spent so far, chosen to be looked at now, is no (ε, δ) guarantee (mechanisms.md 0.3).
        """
        if self.running:
            yield 0, Loss()
            yield self.start, self.cap
        elif self.kind is Kind.PURE:
            yield from self.spent_steps()
        else:
            for start, _end, amount in self.spent.ranges():
                yield start, self.cap if amount else Loss()


@dataclass(frozen=True, kw_only=True)
class Range:
    """What every record of [start, end) has spent, and what is reserved on it. `end` None: all that come later too."""

    start: int
    end: int | None
    spent: Loss
    reserved: Loss


def add_up(accounts: Iterable[Account]) -> list[Range]:
    """Spent and reserved on every record, as neighbouring ranges that cover [0, ∞)."""
    changes: dict[int, tuple[Loss, Loss]] = {0: (Loss(), Loss())}
    for account in accounts:
        for index, steps in enumerate((account.spent_steps(), account.reserved_steps())):
            before = Loss()
            for record, loss in steps:
                change = [Loss(), Loss()]
                change[index] = loss - before
                spent, reserved = changes.get(record, (Loss(), Loss()))
                changes[record] = (spent + change[0], reserved + change[1])
                before = loss
    ranges: list[Range] = []
    spent = reserved = Loss()
    for record in sorted(changes):
        spent, reserved = spent + changes[record][0], reserved + changes[record][1]
        if ranges and (ranges[-1].spent, ranges[-1].reserved) == (spent, reserved):
            continue
        if ranges and ranges[-1].start < record:
            ranges[-1] = Range(**vars(ranges[-1]) | {"end": record})
        ranges.append(Range(start=record, end=None, spent=spent, reserved=reserved))
    return ranges


def worst(losses: Iterable[Loss]) -> Loss:
    """The largest ε and the largest δ, which is at least what any one record has."""
    epsilon = delta = Fraction(0)
    for loss in losses:
        epsilon, delta = max(epsilon, loss.epsilon), max(delta, loss.delta)
    return Loss(epsilon=epsilon, delta=delta)


def _shown(value: Fraction, *, up: bool) -> float:
    """A budget of 0.1 is the decimal 0.1, not the double next to it; so it must also be read as 0.1."""
    nearest = float(value)
    written = Fraction(repr(nearest))
    if written >= value if up else written <= value:
        return nearest
    return math.nextafter(nearest, math.inf if up else 0.0)


@lru_cache(maxsize=4096)
def _zcdp_epsilon(rho: float, delta: float) -> float:
    return zcdp_epsilon(rho, delta)
