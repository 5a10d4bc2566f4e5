"""A stream's budget as the ledger counts it: beside the reference of `unit_ledger`, and as numbers to read."""

import random
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import pytest

from service.ledger.reservations import _reserved_from
from service.privacy.accounting import composition
from service.privacy.accounting.budget import Accounting, Budget, cap, component, epsilon_within
from service.privacy.accounting.composition import PrivacyLoss
from service.privacy.accounting.groups import UnitBound
from service.privacy.accounting.unit_ledger import NoRoom, SlotCharge, UnitPublication, ZcdpLedger
from service.privacy.accounting.zcdp_budget import pure_rho
from service.privacy.currency import Currency, capacity

BUDGET = Budget(epsilon=Decimal(2), delta=Decimal("5e-6"), accounting=Accounting.ZCDP)
RECORDS = 20
SHARES = [(Decimal(epsilon), Decimal(delta)) for epsilon in ("0.1", "0.4", "1.4") for delta in (0, "1e-6", "5e-6")]
FEW, MANY = 200, 100_000
UNIT, FACTORS = UnitBound(max_records=3), (Fraction(3), Fraction("4.5"), Fraction(9))


class Operator:
    """Starts and stops publications at random, as the ledger of records in PostgreSQL would let somebody."""

    def __init__(self, rng: random.Random, bound: UnitBound | None = None) -> None:
        self.rng, self.bound = rng, bound
        self.publications: list[SimpleNamespace] = []
        self.charges: list[list[SlotCharge]] = []
        self.reference = ZcdpLedger(epsilon=BUDGET.epsilon, delta=BUDGET.delta, bound=bound)

    def changes(self, which: list[int]) -> list[tuple[int, int, Fraction]]:
        sums: dict[tuple[int, int], Fraction] = {}
        for identity in which:
            for start, end, amount in self.charges[identity]:
                for record, change in ((start, amount), (end, -amount)):
                    sums[record, identity] = sums.get((record, identity), Fraction(0)) + change
        return [(*where, sums[where]) for where in sorted(sums)]

    def components(self) -> list[composition.Component]:
        return [
            component(
                each.accounting,
                identity=identity,
                epsilon=each.epsilon,
                delta=each.delta,
                currency=capacity(each.epsilon, each.delta)[0],
                start=each.start,
                running=each.visible_state == "running",
                unit_factor=each.unit_factor,
            )
            for identity, each in enumerate(self.publications)
        ]

    def stairs(self) -> list[tuple[int, PrivacyLoss]]:
        ended = [each for each in self.components() if not each.running]
        return composition.worst_from(composition.add_up(ended, self.changes([each.id for each in ended])))

    def start(self, record: int) -> None:
        epsilon, delta = self.rng.choice(SHARES)
        held = _reserved_from(self.publications, self.stairs(), record)
        asks = cap("zcdp", epsilon, delta, units=self.bound is not None)
        fits = all((loss + asks).within(BUDGET.limit) for _, loss in held)
        factor, counted = self.factor(delta)
        try:
            new = UnitPublication(epsilon=epsilon, delta=delta, start=record, factor=counted)
            self.reference = self.reference.start(new)
            assert fits, "it was refused where the law has room"
        except NoRoom:
            assert not fits, "it was admitted where the law has no room"
            return
        new = {"accounting": "zcdp", "epsilon": epsilon, "delta": delta, "start": record, "unit_factor": factor}
        self.publications.append(SimpleNamespace(**new, visible_state="running", worst_amount=Decimal(0)))
        self.charges.append([])

    def factor(self, delta: Decimal) -> tuple[str | None, Fraction]:
        """Return a factor as it is stored, m where it is pure, and how often the ρ of a slot counts: m² there."""
        if self.bound is None:
            return None, Fraction(1)
        factor = self.rng.choice(FACTORS) if delta else Fraction(self.bound.max_records)
        return str(factor), factor if delta else factor**2

    def charge(self, identity: int) -> None:
        each = self.publications[identity]
        start = self.rng.randint(each.start, RECORDS)
        share = self.reference.slot_capacity(self.reference.publications[identity])
        charge = SlotCharge(start, start + self.rng.randint(1, 8), share * Fraction(self.rng.choice((1, 2, 4)), 4))
        try:
            self.reference = self.reference.charge(identity, charge)
        except NoRoom:
            return
        self.charges[identity].append(charge)

    def stop(self, identity: int) -> None:
        self.reference = self.reference.stop(identity)
        self.publications[identity].visible_state = "stopped"

    def act(self) -> None:
        running = [identity for identity, each in enumerate(self.publications) if each.visible_state == "running"]
        if not running or self.rng.random() < 0.4:
            self.start(self.rng.randint(0, RECORDS))
        elif self.rng.random() < 0.3:
            self.stop(self.rng.choice(running))
        else:
            self.charge(self.rng.choice(running))


def keep_to_the_law(seed: int, bound: UnitBound | None = None) -> None:
    operator = Operator(random.Random(seed), bound)
    for _ in range(12):
        operator.act()
    spent = operator.reference.spent_by_slot()
    changes = operator.changes(list(range(len(operator.publications))))
    for each in composition.add_up(operator.components(), changes):
        for record in range(each.start, RECORDS + 8 if each.end is None else each.end):
            assert abs(each.spent.rho - spent.at(record)) <= (Fraction(1, 2**40) if bound else 0)
            assert each.spent == PrivacyLoss(rho=each.spent.rho)
            assert each.spent.within(each.reserved)
        assert each.reserved.within(BUDGET.limit)
    if bound is not None:
        slots = operator.rng.sample(range(RECORDS + 8), bound.max_records)
        assert operator.reference.spent(slots) <= BUDGET.limit.rho


def test_whoever_starts_and_stops_no_record_passes_the_budget_and_all_else_comes_back():
    for seed in range(FEW):
        keep_to_the_law(seed)


def test_nor_does_a_unit_whose_records_different_publications_read():
    for seed in range(FEW):
        keep_to_the_law(seed, UNIT)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("bound", [None, UNIT], ids=["records", "units"])
def test_nor_in_very_many_histories(bound):
    for seed in range(FEW, MANY):
        keep_to_the_law(seed, bound)


@pytest.mark.parametrize("delta", [Decimal(0), Decimal("1e-6")])
def test_a_slot_that_is_charged_its_part_counts_what_its_unit_was_promised(delta):
    """And no more, so that a running publication's charges stay within what it reserves."""
    currency, whole = capacity(Decimal(1), delta)
    settings = {"identity": 1, "epsilon": Decimal(1), "delta": delta, "currency": currency, "start": 0, "running": True}
    unit = component("zcdp", **settings, unit_factor="16")
    assert unit.loss(whole / 16) == unit.cap == cap("zcdp", Decimal(1), delta, units=True)
    assert unit.loss(whole / 32).rho == unit.cap.rho / (2 if delta else 4)
    assert unit.reserved_after_end(Fraction(0)) == PrivacyLoss()


@pytest.mark.parametrize("rho", [1e-9, 1e-6, 0.0203, 1.0, 99.0])
def test_an_epsilon_that_takes_no_more_than_a_rho_and_hardly_less(rho):
    epsilon = epsilon_within(rho, BUDGET.delta)
    assert len(epsilon.as_tuple().digits) <= 15
    assert rho * (1 - 1e-9) <= capacity(epsilon, BUDGET.delta)[1] <= rho


@pytest.mark.parametrize(("epsilon", "delta"), SHARES)
def test_a_publication_by_its_epsilon_and_delta_reserves_their_rho(epsilon, delta):
    currency, amount = capacity(epsilon, Decimal(delta))
    expected = amount if currency is Currency.ZCDP else pure_rho(Fraction(epsilon), units=False)
    assert cap("zcdp", epsilon, Decimal(delta)) == PrivacyLoss(rho=expected)


def test_a_rho_for_which_there_is_no_epsilon():
    assert epsilon_within(1e-14, Decimal("1e-6")) == 0


def test_what_is_shown_is_rounded_against_the_budget():
    whole = BUDGET.limit
    assert BUDGET.shown(whole) == {"epsilon": 2.0, "delta": 5e-6, "rho": float(whole.rho)}
    assert BUDGET.shown(PrivacyLoss()) == BUDGET.shown_down(PrivacyLoss()) == {"epsilon": 0, "delta": 0, "rho": 0}
    third = PrivacyLoss(rho=whole.rho / 3)
    more, less = BUDGET.shown(third), BUDGET.shown_down(third)
    assert Fraction(less["rho"]) < third.rho < Fraction(more["rho"])
    assert less["epsilon"] < more["epsilon"]
    assert cap("zcdp", Decimal(str(less["epsilon"])), BUDGET.delta).within(third)
    assert BUDGET.to_json() == {"epsilon": 2, "delta": 5e-6, "accounting": "zcdp", "rho": float(whole.rho)}


def test_a_basic_budget_is_told_as_ever():
    basic = Budget(epsilon=Decimal(2), delta=Decimal("5e-6"))
    assert basic.to_json() == basic.shown(basic.limit) == {"epsilon": 2, "delta": 5e-6}
