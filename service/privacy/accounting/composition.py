"""Composition of the publications of one stream, record by record.

A stream's budget is held in (ε, δ), as below, or in ρ: then `zcdp_budget` says how publications add up.

Private: one record of the stream; neighbours differ in the value of one slot (R⊥, paper-audit.md D1). Publications are
mechanisms run beside each other, so their guarantees compose: on each record (Σε, Σδ) over the publications that may
read it, by basic composition, which holds for adaptively chosen mechanisms when each one's cap is fixed before it
starts. Inside one publication charges add in its own currency up to that cap (paper-audit.md L1).

A stream may set slots aside for evaluations (`Slots`). Which slots these are is public and fixed, and each slot is read
by publications of one kind alone. So both kinds compose in parallel: everything here is of one kind, and holds for each
by itself, also where what evaluations released decides which publications start.

The *reserved* loss bounds everybody's loss for ever; the *spent* one is bookkeeping on the way there. Where the budget
is held in ρ, stops give back, and the (ε, δ) of a reserved ρ is bookkeeping too: there the budget is the bound.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from heapq import merge
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Literal

from service.privacy.accounting.zcdp_budget import in_rho
from service.privacy.currency import Currency, round_down, round_up, zcdp_epsilon


@dataclass(frozen=True, kw_only=True)
class PrivacyLoss:
    """(ε, δ), exact; on a stream whose budget is held in ρ a ρ, and neither of them."""

    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    rho: Fraction = Fraction(0)

    def __add__(self, other: "PrivacyLoss") -> "PrivacyLoss":
        return PrivacyLoss(
            epsilon=self.epsilon + other.epsilon, delta=self.delta + other.delta, rho=self.rho + other.rho
        )

    def __sub__(self, other: "PrivacyLoss") -> "PrivacyLoss":
        return PrivacyLoss(
            epsilon=self.epsilon - other.epsilon, delta=self.delta - other.delta, rho=self.rho - other.rho
        )

    @classmethod
    def of(cls, epsilon: Decimal, delta: Decimal, rho: Decimal = Decimal(0)) -> "PrivacyLoss":
        return cls(epsilon=Fraction(epsilon), delta=Fraction(delta), rho=Fraction(rho))

    def within(self, budget: "PrivacyLoss") -> bool:
        return self.epsilon <= budget.epsilon and self.delta <= budget.delta and self.rho <= budget.rho

    def covers(self, other: "PrivacyLoss") -> bool:
        return other.within(self)

    def at_least(self, other: "PrivacyLoss") -> "PrivacyLoss":
        """Return the larger ε, the larger δ and the larger ρ."""
        return PrivacyLoss(
            epsilon=max(self.epsilon, other.epsilon),
            delta=max(self.delta, other.delta),
            rho=max(self.rho, other.rho),
        )

    def at_most(self, other: "PrivacyLoss") -> "PrivacyLoss":
        """Return the smaller ε, the smaller δ and the smaller ρ."""
        return PrivacyLoss(
            epsilon=min(self.epsilon, other.epsilon),
            delta=min(self.delta, other.delta),
            rho=min(self.rho, other.rho),
        )

    def left_of(self, budget: "PrivacyLoss") -> "PrivacyLoss":
        return (budget - self).at_least(PrivacyLoss())

    def shown(self) -> dict[str, float]:
        """Return as numbers to read: the least double whose decimal notation is not below the exact value."""
        return {"epsilon": _shown(self.epsilon, up=True), "delta": _shown(self.delta, up=True)}

    def shown_down(self) -> dict[str, float]:
        """Return the loss as numbers to read, rounded down: for what is left."""
        return {"epsilon": _shown(self.epsilon, up=False), "delta": _shown(self.delta, up=False)}


class Slots(StrEnum):
    """The kind of slots that a publication reads, and charges; TRAINING is all of them where none is set aside."""

    TRAINING = "training"
    EVALUATION = "evaluation"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One publication's part of the budget: its cap (ε, δ) on every record from `start` on, and its currency.

    Only the slots of the kind `slots` pay in a range that it charges.
    running: the whole cap is reserved on all these records. On a stream with units that is so for ever once it has
    charged anything (`unit_ledger`), and a charge counts `factor` times: what is spent is a unit's. `ZcdpComponent` is
    that of a stream whose budget is held in ρ.
    """

    id: int
    currency: Currency
    cap: PrivacyLoss
    start: int
    running: bool
    slots: Slots = Slots.TRAINING
    factor: Fraction = Fraction(1)
    units: bool = False

    def loss(self, amount: Fraction) -> PrivacyLoss:
        """Return charges of this amount, in the publication's currency, as (ε, δ); never more than the cap."""
        return self._alone(amount, self.cap)

    def alone(self, amount: Fraction) -> PrivacyLoss:
        """Return charges of this amount by this publication alone as (ε, δ), for people."""
        return self.loss(amount)

    def held(self, amount: Fraction) -> PrivacyLoss:
        """Return the most that is reserved now on any record, if none was charged more than this amount."""
        return self.cap if self.running else self.reserved_after_end(amount)

    def held_alone(self, amount: Fraction) -> PrivacyLoss:
        """Return what this publication alone reserves, as (ε, δ), for people."""
        return self.held(amount)

    def _alone(self, amount: Fraction, promise: PrivacyLoss) -> PrivacyLoss:
        if not amount:
            return PrivacyLoss()
        amount *= self.factor
        if self.currency is Currency.PURE:
            return PrivacyLoss(epsilon=amount)
        epsilon = Fraction(_zcdp_epsilon(round_up(amount), round_down(promise.delta)))
        return PrivacyLoss(epsilon=min(epsilon, promise.epsilon), delta=promise.delta)

    def reserved_after_end(self, amount: Fraction) -> PrivacyLoss:
        """Return what stays reserved, once it has ended, on a record that was charged this amount.

        Stopping gives back what is unspent: in pure ε everywhere; under zCDP only on records that were never charged,
        because what a record has spent so far, chosen to be looked at now, is no (ε, δ) guarantee (paper-audit.md L1).
        """
        if self.currency is Currency.PURE:
            return self.loss(amount)
        return self.cap if amount else PrivacyLoss()


@dataclass(frozen=True, kw_only=True)
class ZcdpComponent(Component):
    """A `Component` of a stream whose budget is held in ρ (`zcdp_budget`): charges of any currency count as ρ.

    On a stream with units what a slot was charged, `factor` times, is a ρ, or the ε = m·ε_i of a ρ = ε²/2, which is at
    least g·ε_i²/2, since g ≤ m²: so much as `unit_ledger` wants, or more.

    promise: the publication's own (ε, δ). Alone it is told by that, never by what its ρ implies at the stream's δ,
    which may be more: an ε of 0.5 counts as ρ = 0.122, which at δ = 10^-5 implies ε = 2.14. Why the smaller ε holds for
    the publication alone: its charges stay within its cap on every path, and so it keeps its promise, whatever runs
    beside it. Those of a pure one are ε that add up on every path (paper-audit.md L1); their sum needs no δ. Those of a
    Gaussian one imply an ε at its own δ, and its promise bounds that. Sums over publications are ρ, and imply an (ε, δ)
    at the stream's δ (`Budget.implied`): a publication's promise says nothing of them.
    """

    promise: PrivacyLoss

    def loss(self, amount: Fraction) -> PrivacyLoss:
        """Return charges of this amount as a ρ."""
        return PrivacyLoss(rho=in_rho(self.currency, self.factor * amount, units=self.units))

    def reserved_after_end(self, amount: Fraction) -> PrivacyLoss:
        """Return the charged amount as a ρ: only that stays reserved, and all else comes back, record by record."""
        return self.loss(amount)

    def alone(self, amount: Fraction) -> PrivacyLoss:
        """Return as (ε, δ) charges of this amount by the publication alone; never more than its promise."""
        return self._alone(amount, self.promise)

    def held_alone(self, amount: Fraction) -> PrivacyLoss:
        """Return what the publication reserves by itself, as (ε, δ): its promise, or after its end the rest of it.

        After its end, a pure publication reserves its charges. A Gaussian publication with any charge still reserves
        its promise: a reader of releases can choose the stop, and then the ε of its charges does not hold at its δ.
        With a promise of (1, 10^-6) and 1,000 releases that read one record, the best stop needs a δ of 4.7·10^-6.
        """
        wholly = self.running or (self.currency is Currency.ZCDP and amount > 0)
        return self.promise if wholly else self.alone(amount)


@dataclass(frozen=True, kw_only=True)
class Range:
    """The loss that every record of [start, end) has spent, and the loss reserved on it.

    end: None for all records from `start` on, those that come later too.
    """

    start: int
    end: int | None
    spent: PrivacyLoss
    reserved: PrivacyLoss


def add_up(components: Iterable[Component], changes: Iterable[tuple[int, int, Fraction]]) -> Iterator[Range]:
    """Yield the spent and the reserved loss as neighbouring ranges that cover [0, ∞); only one is in memory.

    changes: (record, component, by how much more the component has charged the records from this one on), in the order
    of records, each record and component once.
    """
    known = {component.id: component for component in components}
    charged = dict.fromkeys(known, Fraction(0))
    openings = sorted((component.start, component.id, None) for component in known.values() if component.running)
    start, spent, reserved = 0, PrivacyLoss(), PrivacyLoss()
    events: Iterable[tuple[int, int, Fraction | None]] = merge(openings, changes, key=itemgetter(0))
    for record, here in groupby(events, key=itemgetter(0)):
        before = (spent, reserved)
        for _, identity, change in here:
            component = known[identity]
            if change is None:
                reserved += component.cap
                continue
            old = charged[identity]
            new = charged[identity] = old + change
            spent += component.loss(new) - component.loss(old)
            if not component.running:
                reserved += component.reserved_after_end(new) - component.reserved_after_end(old)
        if (spent, reserved) != before:
            if record > start:
                yield Range(start=start, end=record, spent=before[0], reserved=before[1])
            start = record
    yield Range(start=start, end=None, spent=spent, reserved=reserved)


def outline(pieces: Iterable[tuple[int, int, PrivacyLoss]], grain: int) -> list[tuple[int, int, PrivacyLoss]]:
    """Return the pointwise maximum of pieces (start, end, loss), widened to multiples of `grain`, as ranges."""
    wide = [(start // grain * grain, -(-end // grain) * grain, loss) for start, end, loss in pieces]
    edges = sorted({edge for start, end, _ in wide for edge in (start, end)})
    place = {edge: index for index, edge in enumerate(edges)}
    highest = [PrivacyLoss()] * len(edges)
    for start, end, loss in wide:
        for index in range(place[start], place[end]):
            highest[index] = highest[index].at_least(loss)
    joined: list[tuple[int, int, PrivacyLoss]] = []
    for start, end, loss in zip(edges, edges[1:], highest, strict=False):
        if joined and joined[-1][1:] == (start, loss):
            joined[-1] = (joined[-1][0], end, loss)
        elif loss != PrivacyLoss():
            joined.append((start, end, loss))
    return joined


def align(
    one: Iterable[tuple[int, int, PrivacyLoss]], other: Iterable[tuple[int, int, PrivacyLoss]]
) -> list[tuple[int, int, PrivacyLoss, PrivacyLoss]]:
    """Return the pieces (start, end) on which both are constant, with both; each covers the same records in order."""
    first, second = list(one), list(other)
    edges = sorted({edge for pieces in (first, second) for start, end, _ in pieces for edge in (start, end)})
    together, left, right = [], iter(first), iter(second)
    here, there = next(left, None), next(right, None)
    for start, end in pairwise(edges):
        while here is not None and here[1] <= start:
            here = next(left, None)
        while there is not None and there[1] <= start:
            there = next(right, None)
        losses = [piece[2] if piece is not None and piece[0] <= start else PrivacyLoss() for piece in (here, there)]
        together.append((start, end, losses[0], losses[1]))
    return together


def pointwise_max(
    one: Sequence[tuple[int, int, PrivacyLoss]], other: Sequence[tuple[int, int, PrivacyLoss]]
) -> list[tuple[int, int, PrivacyLoss]]:
    """Return the larger ε and the larger δ of two functions of the same records, neighbours that are equal as one."""
    joint: list[tuple[int, int, PrivacyLoss]] = []
    for start, end, first, second in align(one, other):
        most = first.at_least(second)
        joined = bool(joint) and joint[-1][2] == most
        joint.append((joint.pop()[0] if joined else start, end, most))
    return joint


def worst_from(ranges: Iterable[Range]) -> list[tuple[int, PrivacyLoss]]:
    """Return the largest reserved ε, δ and ρ of any record from each one on, a falling staircase.

    Returns (first record, loss). ranges: in order, covering [0, ∞).
    """
    stairs: list[tuple[int, PrivacyLoss]] = []  # for the ranges read so far
    for stretch in ranges:
        raised: list[tuple[int, PrivacyLoss]] = []
        while stairs and not stairs[-1][1].covers(stretch.reserved):
            begins, before = stairs.pop()
            raised.append((begins, before.at_least(stretch.reserved)))
        for begins, loss in (*reversed(raised), (stretch.start, stretch.reserved)):
            if not stairs or stairs[-1][1] != loss:
                stairs.append((begins, loss))
    return stairs


def worst(losses: Iterable[PrivacyLoss]) -> PrivacyLoss:
    """Return the largest ε, the largest δ and the largest ρ, which is at least what any one record has."""
    most = PrivacyLoss()
    for loss in losses:
        most = most.at_least(loss)
    return most


@dataclass(frozen=True, kw_only=True)
class Holding:
    """The most that a publication may cost any record: its currency, and its filter's capacity and charges.

    capacity: the ε (pure) or ρ it can never pass on any record. pure: of a pure one that has ended, the most it has
    charged any record, else the capacity; 0 for a Gaussian one.
    """

    currency: Currency
    capacity: Fraction
    pure: Fraction


@dataclass(frozen=True, kw_only=True)
class Tighter:
    """An (ε, δ) that holds for every record over all publications, and the three sums it comes from."""

    loss: PrivacyLoss
    how: Literal["sum", "zcdp", "pure_plus_gaussian"]
    pure: Fraction
    zcdp: Fraction
    gaussian: Fraction


def tightest_epsilon(holdings: Iterable[Holding], basic: PrivacyLoss) -> Tighter:
    """Return the least ε that can be shown at the δ of basic composition, for publications chosen beforehand.

    It holds where nobody chose a publication, its (ε, δ) or its start by looking at releases of the stream: only then
    are the kinds and capacities that are added up fixed before the first release. Basic composition needs no such
    thing, so admission adds (Σε, Σδ), and this is for reading.

    With E the sum of the pure ε, G that of the Gaussian ρ and P = G + Σε²/2 (a pure ε is ρ = ε²/2), each counted as
    what is reserved, never as what is spent so far: the least of Σε, ε(P, δ) and E + ε(G, δ) (paper-audit.md L1). The
    last holds because the pure part of the loss is at most E on every path. Each sum is over all publications, which is
    at least that of any one record.
    """
    pure = zcdp = gaussian = Fraction(0)
    for holding in holdings:
        if holding.currency is Currency.PURE:
            pure += holding.pure
            zcdp += holding.capacity**2 / 2
        else:
            gaussian += holding.capacity
    zcdp += gaussian
    bounds: list[tuple[Fraction, Literal["sum", "zcdp", "pure_plus_gaussian"]]] = [(basic.epsilon, "sum")]
    if gaussian and basic.delta:
        delta = round_down(basic.delta)
        bounds.append((Fraction(_zcdp_epsilon(round_up(zcdp), delta)), "zcdp"))
        bounds.append((pure + Fraction(_zcdp_epsilon(round_up(gaussian), delta)), "pure_plus_gaussian"))
    epsilon, how = min(bounds, key=itemgetter(0))
    return Tighter(
        loss=PrivacyLoss(epsilon=epsilon, delta=basic.delta), how=how, pure=pure, zcdp=zcdp, gaussian=gaussian
    )


@lru_cache(maxsize=4096)
def _shown(value: Fraction, *, up: bool) -> float:
    """Return the nearest double whose decimal notation is not on the wrong side of the value: 0.1 shows as 0.1."""
    nearest = float(value)
    written = Fraction(repr(nearest))
    if written >= value if up else written <= value:
        return nearest
    return math.nextafter(nearest, math.inf if up else 0.0)


@lru_cache(maxsize=4096)
def _zcdp_epsilon(rho: float, delta: float) -> float:
    return zcdp_epsilon(rho, delta)
