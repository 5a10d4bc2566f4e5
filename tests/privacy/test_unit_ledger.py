"""Units' true loss to an operator who starts and stops publications at random, beside the loss that ledgers state.

The true loss is that of noises as they are: each publication draws one of three kinds, and loses what these cost the
unit's own pattern, not what `groups` says at most.
"""

import random
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from math import sqrt, tanh

import numpy as np
import pytest
from scipy.special import log_ndtr

from service.privacy.accounting.carried_groups import carried
from service.privacy.accounting.composition import PrivacyLoss
from service.privacy.accounting.groups import Batching, UnitBound, group_factor, independent, shared
from service.privacy.accounting.unit_ledger import BasicLedger, NoRoom, SlotCharge, UnitPublication, ZcdpLedger
from service.privacy.accounting.zcdp_budget import pure_rho
from service.privacy.currency import capacity
from service.privacy.noise.correlated import Toeplitz

EPSILON, DELTA = Decimal(1), Decimal("1e-6")
FACTOR = Toeplitz(bands=6, decay=0.9)
SLOTS = 20
SHARES = [
    (Decimal(epsilon), Decimal(delta)) for epsilon in ("0.05", "0.2", "0.5", "1") for delta in (0, "2e-7", "1e-6")
]
FEW, MANY = 150, 100_000


@dataclass(frozen=True)
class Noise:
    """How a publication's noise is shared by its batches, and what a pattern costs it."""

    kind: str
    batch: int

    def factor(self, bound):
        match self.kind:
            case "independent":
                return group_factor(independent(Batching(bound=bound, batch=self.batch, one_contribution=False)))
            case "carried":
                return group_factor(carried(FACTOR, Batching(bound=bound, batch=self.batch)))
            case _:
                return group_factor(shared(bound))

    def contributions(self, slots, start):
        """How much of a unit is in each batch of a publication that began with slot `start`."""
        counts = np.bincount((np.array(slots, dtype=np.int64) - start) // self.batch, minlength=SLOTS)
        return np.minimum(counts, 1) if self.kind == "carried" else counts

    def times(self, slots, start):
        """Return what the slots cost together in ρ, over one slot's charge."""
        counts = self.contributions(slots, start)
        match self.kind:
            case "independent":
                return float((counts**2).sum())
            case "carried":
                return float(counts @ products() @ counts)
            case _:
                return float(counts.sum() ** 2)


@cache
def products():
    column = np.append(FACTOR.coefficients, np.zeros(SLOTS))
    shifts = np.array([np.roll(column, b) for b in range(SLOTS)])
    return shifts @ shifts.T / (column @ column)


@cache
def factor_of(noise, bound):
    return noise.factor(bound)


def true_delta(rho, epsilons, unit=1.0):
    """The least δ of a Gaussian of that ρ beside randomised responses: what such a transcript really loses at ε.

    epsilons: multiples of `unit`.
    """
    steps = [round(each / unit) for each in epsilons if each]
    law = np.ones(1)
    for step in steps:
        lie = np.zeros(2 * step)
        law = np.convolve(law, np.array([1.0, *lie[1:], np.exp(step * unit)]) / (1.0 + np.exp(step * unit)))
    left = float(EPSILON) - np.arange(-sum(steps), sum(steps) + 1) * unit
    if not rho:
        return float(law @ np.maximum(0.0, -np.expm1(left)))
    mu = sqrt(2 * rho)
    return float(law @ (np.exp(log_ndtr(mu / 2 - left / mu)) - np.exp(left + log_ndtr(-left / mu - mu / 2))))


@dataclass
class History:
    """A ledger, and what each of its publications really did."""

    ledger: BasicLedger | ZcdpLedger
    noises: list[Noise]
    done: list[int]
    """up to which slot each publication has charged"""

    def start(self, noise, share, slot):
        bound = self.ledger.bound or UnitBound(max_records=1)
        publication = UnitPublication(epsilon=share[0], delta=share[1], factor=factor_of(noise, bound), start=slot)
        try:
            self.ledger = self.ledger.start(publication)
        except NoRoom:
            return
        self.noises.append(noise)
        self.done.append(slot)

    def go_on(self, slot):
        for number, publication in enumerate(self.ledger.publications):
            begin, batch = self.done[number], self.noises[number].batch
            batches = (slot - begin) // batch
            if publication.running and batches:
                charge = SlotCharge(begin, begin + batches * batch, self.ledger.slot_capacity(publication))
                self.ledger = self.ledger.charge(number, charge)
                self.done[number] = charge.end

    def lost(self, slots):
        """Return what a unit has really lost: a ρ of Gaussian noise, and pure ε of publications or of their batches.

        And what all these ε are multiples of.
        """
        rho, epsilons = 0.0, []
        for publication, noise, done in zip(self.ledger.publications, self.noises, self.done, strict=True):
            read = [slot for slot in slots if publication.start <= slot < done]
            amount = float(self.ledger.slot_capacity(publication))
            if publication.delta:
                rho += amount * noise.times(read, publication.start)
            else:
                counts = noise.contributions(read, publication.start)
                each = [counts.sum()] if noise.kind == "shared" else counts[counts > 0]
                epsilons.extend(amount * np.array(each))
        return rho, epsilons, 0.05 / self.ledger.records


def unit(bound, rng):
    """Counting slots of a unit, some of which come in bursts."""
    slots, slot = [], rng.randrange(SLOTS // 2)
    while slot < SLOTS and len(slots) < bound.max_records:
        slots.append(slot)
        slot += bound.min_separation + rng.choice((0, 0, 0, 1, 4))
    return slots


def history(ledger, rng):
    random_history = History(ledger, [], [])
    for slot in range(SLOTS + 1):
        if rng.random() < 0.5:
            random_history.go_on(slot)
        running = [number for number, each in enumerate(random_history.ledger.publications) if each.running]
        if running and rng.random() < 0.25:
            random_history.ledger = random_history.ledger.stop(rng.choice(running))
        if rng.random() < 0.4:
            kind = "independent" if ledger.bound is None else rng.choice(("independent", "carried", "shared"))
            begin = rng.choice((slot, rng.randint(0, slot)))  # it may also read slots of before
            random_history.start(Noise(kind, rng.choice((1, 2, 5))), rng.choice(SHARES), begin)
    return random_history


def bound_of(rng):
    return UnitBound(max_records=rng.choice((1, 2, 3, 5)), min_separation=rng.choice((1, 1, 2, 3)))


def assert_within_basic(seed):
    rng = random.Random(seed)
    bound = bound_of(rng)
    operator = history(BasicLedger(epsilon=EPSILON, delta=DELTA, bound=bound), rng)
    for slots in (unit(bound, rng) for _ in range(2)):
        assert operator.ledger.spent(slots).within(PrivacyLoss.of(EPSILON, DELTA))
        assert true_delta(*operator.lost(slots)) <= float(DELTA) * (1 + 1e-9)


def assert_within_zcdp(seed):
    rng = random.Random(seed)
    bound = bound_of(rng)
    operator = history(ZcdpLedger(epsilon=EPSILON, delta=DELTA, bound=bound), rng)
    for slots in (unit(bound, rng) for _ in range(2)):
        rho, epsilons, unit_of = operator.lost(slots)
        spent = operator.ledger.spent(slots)
        assert rho + sum(each * tanh(each / 2) for each in epsilons) <= float(spent) * (1 + 1e-9)
        assert spent <= operator.ledger.capacity
        assert true_delta(rho, epsilons, unit_of) <= float(DELTA) * (1 + 1e-9)


def assert_within_records(seed):
    rng = random.Random(seed)
    operator = history(ZcdpLedger(epsilon=EPSILON, delta=DELTA), rng)
    spent = operator.ledger.spent_by_slot()
    assert spent.maximum() <= operator.ledger.capacity
    slot = max(range(SLOTS), key=spent.at)
    assert true_delta(*operator.lost([slot])) <= float(DELTA) * (1 + 1e-9)


def test_a_slot_in_a_stopped_gaussian_and_four_in_a_pure_publication_behind_it():
    """m = 5: δ would be 5.9e-4. So what has charged anything counts whole, for ever."""
    bound = UnitBound(max_records=5)
    gaussian = UnitPublication(
        epsilon=EPSILON, delta=DELTA, factor=group_factor(independent(Batching(bound=bound, batch=1)))
    )
    pure = UnitPublication(epsilon=EPSILON, delta=Decimal(0), start=1)
    ledger = BasicLedger(epsilon=EPSILON, delta=DELTA, bound=bound).start(gaussian)
    share = ledger.slot_capacity(gaussian)
    with pytest.raises(NoRoom):
        ledger.charge(0, SlotCharge(0, 1, share)).stop(0).start(pure)
    assert len(ledger.stop(0).start(pure).publications) == 2  # it has charged nothing
    admitted = (
        BasicLedger(epsilon=2 * EPSILON, delta=DELTA, bound=bound).start(gaussian).charge(0, SlotCharge(0, 1, share))
    )
    admitted = admitted.stop(0).start(pure)
    admitted = admitted.charge(1, SlotCharge(1, 5, admitted.slot_capacity(pure)))
    rho, epsilon = (float(each.charged(range(5))) for each in admitted.publications)
    assert float(f"{true_delta(rho, [epsilon], 0.2):.2g}") == 5.9e-4
    spent = admitted.spent(range(5))
    assert spent.delta == Fraction(DELTA)
    assert Fraction(4, 5) < spent.epsilon < Fraction(9, 5)


def test_the_same_under_zcdp_gives_back_what_was_not_charged():
    """The slot that was charged has no room left; those behind it have all, and a unit in both stays within."""
    bound = UnitBound(max_records=5)
    gaussian = UnitPublication(epsilon=EPSILON, delta=Decimal("9e-7"), factor=Fraction(25))
    ledger = ZcdpLedger(epsilon=EPSILON, delta=DELTA, bound=bound).start(gaussian)
    ledger = ledger.charge(0, SlotCharge(0, 1, ledger.slot_capacity(gaussian))).stop(0)
    behind = replace(gaussian, start=1)
    with pytest.raises(NoRoom):
        ledger.start(replace(gaussian, start=0))
    after = ledger.start(behind)
    after = after.charge(1, SlotCharge(1, 5, after.slot_capacity(behind)))
    assert after.spent([0]) == after.spent([1]) == capacity(EPSILON, Decimal("9e-7"))[1] / 5
    assert after.spent(range(5)) == capacity(EPSILON, Decimal("9e-7"))[1]


@pytest.mark.parametrize("ledger", [BasicLedger, ZcdpLedger])
def test_no_slot_is_charged_more_than_its_share_or_by_what_does_not_run(ledger):
    bound, publication = UnitBound(max_records=4), UnitPublication(epsilon=Decimal("0.2"), delta=Decimal(0), start=3)
    running = ledger(epsilon=EPSILON, delta=DELTA, bound=bound).start(publication)
    share = Fraction(1, 20)
    once = running.charge(0, SlotCharge(3, 5, share))
    for refused in (SlotCharge(4, 6, share), SlotCharge(5, 6, share * 2), SlotCharge(2, 3, share)):
        with pytest.raises(NoRoom):
            once.charge(0, refused)
    with pytest.raises(NoRoom):
        once.stop(0).charge(0, SlotCharge(5, 6, share))


def test_pure_charges_count_squares_for_a_unit_and_less_for_a_record():
    publication = UnitPublication(epsilon=Decimal("0.2"), delta=Decimal(0))
    record = ZcdpLedger(epsilon=EPSILON, delta=DELTA).start(publication)
    record = record.charge(0, SlotCharge(0, 1, Fraction(1, 5)))
    assert record.spent([0]) == pure_rho(Fraction(1, 5), units=False) < Fraction(1, 50)
    unit_of_one = ZcdpLedger(epsilon=EPSILON, delta=DELTA, bound=UnitBound(max_records=1)).start(publication)
    unit_of_one = unit_of_one.charge(0, SlotCharge(0, 1, Fraction(1, 5)))
    assert unit_of_one.spent([0]) == pure_rho(Fraction(1, 5), units=True) >= Fraction(1, 50)


HISTORIES = pytest.mark.parametrize("holds", [assert_within_basic, assert_within_zcdp, assert_within_records])


@HISTORIES
def test_nobody_passes_the_budget_whatever_is_started_and_stopped(holds):
    for seed in range(FEW):
        holds(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@HISTORIES
def test_nor_in_very_many_histories(holds):
    for seed in range(FEW, MANY):
        holds(seed)
