"""How publications of one stream add up on each record, against adding them up record by record."""

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.accounting.composition import (
    Component,
    Holding,
    PrivacyLoss,
    Range,
    add_up,
    align,
    outline,
    pointwise_max,
    tightest_epsilon,
    worst,
    worst_from,
)
from service.privacy.currency import Currency, round_down, round_up, zcdp_epsilon, zcdp_rho

RECORDS = 30


@dataclass(frozen=True)
class Charged:
    component: Component
    spent: ChargesByRecord


def component(
    *charges: tuple[int, int, float], currency: Currency = Currency.PURE, start: int = 0, running: bool = True
) -> Charged:
    cap = PrivacyLoss.of(Decimal(1), Decimal("1e-6") if currency is Currency.ZCDP else Decimal(0))
    return Charged(
        Component(id=0, currency=currency, cap=cap, start=start, running=running), ChargesByRecord.of(charges)
    )


def added_up(drawn: list[Charged]) -> list[Range]:
    changes = []
    for identity, each in enumerate(drawn):
        before = Fraction(0)
        for record, _, amount in each.spent.ranges():
            changes.append((record, identity, amount - before))
            before = amount
    components = [replace(each.component, id=identity) for identity, each in enumerate(drawn)]
    return list(add_up(components, sorted(changes)))


charge = st.tuples(st.integers(0, 20), st.integers(1, 9), st.sampled_from([0.25, 0.125, 0.0625])).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)
components = st.builds(
    lambda charges, currency, start, running: component(*charges, currency=currency, start=start, running=running),
    st.lists(charge, max_size=2),
    st.sampled_from(Currency),
    st.integers(0, 10),
    st.booleans(),
)


@given(st.lists(components, max_size=4))
def test_ranges_cover_every_record_once_and_add_up_as_record_by_record(drawn: list[Charged]):
    ranges = added_up(drawn)
    assert ranges[0].start == 0
    assert ranges[-1].end is None
    assert all(before.end == after.start for before, after in pairwise(ranges))
    for record in range(RECORDS):
        (range_of_record,) = [
            each for each in ranges if each.start <= record and (each.end is None or record < each.end)
        ]
        spent = reserved = PrivacyLoss()
        for each in drawn:
            amount = each.spent.at(record)
            spent += each.component.loss(amount)
            if each.component.running:
                reserved += each.component.cap if record >= each.component.start else PrivacyLoss()
            elif each.component.currency is Currency.PURE:
                reserved += PrivacyLoss(epsilon=amount)
            elif amount:
                reserved += each.component.cap
        assert (range_of_record.spent, range_of_record.reserved) == (spent, reserved)


def test_a_gaussian_amount_means_the_epsilon_of_its_rho_at_its_own_delta():
    loss = component(currency=Currency.ZCDP).component.loss(Fraction(1, 1000))
    assert loss.delta == Fraction(Decimal("1e-6"))
    assert loss.epsilon == Fraction(zcdp_epsilon(0.001, 1e-6))


def test_nothing_spent_costs_no_delta():
    assert component(currency=Currency.ZCDP).component.loss(Fraction(0)) == PrivacyLoss()


def test_stopping_a_gaussian_one_keeps_its_whole_cap_where_it_charged_and_nothing_elsewhere():
    ranges = added_up([component((2, 4, 0.001), currency=Currency.ZCDP, running=False)])
    assert [(each.start, each.reserved.epsilon) for each in ranges] == [(0, 0), (2, 1), (4, 0)]


def test_stopping_a_pure_one_keeps_what_it_spent():
    ranges = added_up([component((2, 4, 0.25), running=False)])
    assert [(each.start, each.reserved.epsilon) for each in ranges] == [(0, 0), (2, Fraction(1, 4)), (4, 0)]


def test_the_worst_is_at_least_every_record():
    assert worst(
        [PrivacyLoss.of(Decimal(1), Decimal(0)), PrivacyLoss.of(Decimal(0), Decimal("0.1"))]
    ) == PrivacyLoss.of(Decimal(1), Decimal("0.1"))


@pytest.mark.parametrize("text", ["0.1", "1e-6", "0.3", "2", "1e-100", "0.123456789012345"])
def test_a_decimal_budget_is_shown_as_it_was_written(text):
    assert PrivacyLoss.of(Decimal(text), Decimal(0)).shown()["epsilon"] == float(text)


@given(st.fractions(min_value=0, max_value=10))
def test_what_is_shown_is_never_below_the_exact_value_and_what_is_left_never_above(value: Fraction):
    loss = PrivacyLoss(epsilon=value)
    assert Fraction(repr(loss.shown()["epsilon"])) >= value
    assert Fraction(repr(loss.shown_down()["epsilon"])) <= value


losses = st.builds(
    lambda epsilon, delta: PrivacyLoss(epsilon=Fraction(epsilon, 4), delta=Fraction(delta, 8)),
    st.integers(0, 3),
    st.integers(0, 2),
)
pieces = st.tuples(st.integers(0, 25), st.integers(1, 5), losses).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)


@given(st.lists(pieces, max_size=8), st.sampled_from([1, 2, 4]))
def test_an_outline_tells_of_each_stretch_the_most_of_any_of_its_records(drawn, grain):
    outlined = outline(drawn, grain)
    for record in range(36):
        cell = range(record // grain * grain, record // grain * grain + grain)
        over = [loss for start, end, loss in drawn if any(start <= each < end for each in cell)]
        assert [loss for start, end, loss in outlined if start <= record < end] == (
            [worst(over)] if worst(over) != PrivacyLoss() else []
        )
    assert all(before[1] < after[0] or before[2] != after[2] for before, after in pairwise(outlined))
    assert all(start % grain == end % grain == 0 for start, end, _ in outlined)


@given(st.lists(components, max_size=4))
def test_the_staircase_is_the_most_of_any_record_from_there_on(drawn: list[Charged]):
    ranges = added_up(drawn)
    stairs = worst_from(iter(ranges))
    assert stairs[0][0] == 0
    for before, after in pairwise(stairs):
        assert before[0] < after[0]
        assert after[1].within(before[1])
        assert after[1] != before[1]
    for record in range(RECORDS):
        (*_, (_, stair)) = [each for each in stairs if each[0] <= record]
        assert stair == worst(each.reserved for each in ranges if each.end is None or each.end > record)


def test_many_gaussian_publications_cost_less_than_their_sum():
    """Sixteen of rho each: their sum is 16 rho, whose epsilon is far below sixteen times that of rho."""
    rho = Fraction(zcdp_rho(1.0, 1e-6))
    basic = PrivacyLoss(epsilon=Fraction(16), delta=Fraction(16, 10**6))
    bound = tightest_epsilon([Holding(currency=Currency.ZCDP, capacity=rho, pure=Fraction(0))] * 16, basic)
    assert bound.how == "zcdp"
    assert (bound.loss.delta, bound.zcdp) == (basic.delta, 16 * rho)
    assert bound.loss.epsilon == Fraction(zcdp_epsilon(round_up(16 * rho), round_down(basic.delta)))
    assert 3 < bound.loss.epsilon < 6


def test_a_large_pure_one_is_added_and_small_ones_are_converted():
    """A pure ε is ρ = ε²/2: the better where it is small, the worse where it is large."""
    rho = Fraction(zcdp_rho(1.0, 1e-6))
    gaussian = [Holding(currency=Currency.ZCDP, capacity=rho, pure=Fraction(0))] * 2
    for epsilon, how in ((Fraction(1, 10), "zcdp"), (Fraction(5), "pure_plus_gaussian")):
        pure = Holding(currency=Currency.PURE, capacity=epsilon, pure=epsilon)
        basic = PrivacyLoss(epsilon=2 + epsilon, delta=Fraction(2, 10**6))
        bound = tightest_epsilon([*gaussian, pure], basic)
        assert bound.how == how
        assert (bound.pure, bound.gaussian, bound.zcdp) == (epsilon, 2 * rho, 2 * rho + epsilon**2 / 2)
        assert bound.loss.epsilon < basic.epsilon


def test_without_a_delta_only_the_sum_holds():
    pure = [Holding(currency=Currency.PURE, capacity=Fraction(1, 10), pure=Fraction(1, 10))] * 100
    bound = tightest_epsilon(pure, PrivacyLoss(epsilon=Fraction(10)))
    assert (bound.how, bound.loss) == ("sum", PrivacyLoss(epsilon=Fraction(10)))


def test_a_delta_is_rounded_as_an_epsilon_is():
    third = PrivacyLoss(epsilon=Fraction(1), delta=Fraction(1, 3))
    up, down = third.shown()["delta"], third.shown_down()["delta"]
    assert Fraction(repr(down)) < third.delta < Fraction(repr(up))
    assert math.nextafter(down, 1.0) == up


def test_where_one_of_two_functions_ends_the_other_goes_on():
    much, little = PrivacyLoss.of(Decimal(2), Decimal(0)), PrivacyLoss.of(Decimal(1), Decimal(0))
    short, long = [(0, 5, much)], [(0, 9, little)]
    assert align(short, long) == [(0, 5, much, little), (5, 9, PrivacyLoss(), little)]
    assert align(long, short) == [(0, 5, little, much), (5, 9, little, PrivacyLoss())]
    assert pointwise_max(short, [*long, (9, 12, much), (12, 20, much)]) == [
        (0, 5, much),
        (5, 9, little),
        (9, 20, much),
    ]
