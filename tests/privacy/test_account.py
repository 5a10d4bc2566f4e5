"""How publications of one stream add up on each record, against adding them up record by record."""

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.privacy.account import Account, Loss, add_up, worst
from service.privacy.loss import Kind, zcdp_epsilon
from service.privacy.profile import Profile

RECORDS = 30


def account(*charges: tuple[int, int, float], kind: Kind = Kind.PURE, start: int = 0, running: bool = True) -> Account:
    cap = Loss.of(Decimal(1), Decimal("1e-6") if kind is Kind.ZCDP else Decimal(0))
    return Account(kind=kind, cap=cap, start=start, running=running, spent=Profile.of(charges))


charge = st.tuples(st.integers(0, 20), st.integers(1, 9), st.sampled_from([0.25, 0.125, 0.0625])).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)
accounts = st.builds(
    lambda charges, kind, start, running: account(*charges, kind=kind, start=start, running=running),
    st.lists(charge, max_size=2),
    st.sampled_from(Kind),
    st.integers(0, 10),
    st.booleans(),
)


@given(st.lists(accounts, max_size=4))
def test_ranges_cover_every_record_once_and_add_up_as_record_by_record(drawn: list[Account]):
    ranges = add_up(drawn)
    assert ranges[0].start == 0
    assert ranges[-1].end is None
    assert all(before.end == after.start for before, after in pairwise(ranges))
    for record in range(RECORDS):
        (found,) = [each for each in ranges if each.start <= record and (each.end is None or record < each.end)]
        spent = reserved = Loss()
        for each in drawn:
            amount = each.spent.at(record)
            spent += each.loss(amount)
            if each.running:
                reserved += each.cap if record >= each.start else Loss()
            elif each.kind is Kind.PURE:
                reserved += Loss(epsilon=amount)
            elif amount:
                reserved += each.cap
        assert (found.spent, found.reserved) == (spent, reserved)


def test_a_gaussian_amount_means_the_epsilon_of_its_rho_at_its_own_delta():
    loss = account(kind=Kind.ZCDP).loss(Fraction(1, 1000))
    assert loss.delta == Fraction(Decimal("1e-6"))
    assert loss.epsilon == Fraction(zcdp_epsilon(0.001, 1e-6))


def test_nothing_spent_costs_no_delta():
    assert account(kind=Kind.ZCDP).loss(Fraction(0)) == Loss()


def test_stopping_a_gaussian_one_keeps_its_whole_cap_where_it_charged_and_nothing_elsewhere():
    ranges = add_up([account((2, 4, 0.001), kind=Kind.ZCDP, running=False)])
    assert [(each.start, each.reserved.epsilon) for each in ranges] == [(0, 0), (2, 1), (4, 0)]


def test_stopping_a_pure_one_keeps_what_it_spent():
    ranges = add_up([account((2, 4, 0.25), running=False)])
    assert [(each.start, each.reserved.epsilon) for each in ranges] == [(0, 0), (2, Fraction(1, 4)), (4, 0)]


def test_the_worst_is_at_least_every_record():
    assert worst([Loss.of(Decimal(1), Decimal(0)), Loss.of(Decimal(0), Decimal("0.1"))]) == Loss.of(
        Decimal(1), Decimal("0.1")
    )


@pytest.mark.parametrize("text", ["0.1", "1e-6", "0.3", "2", "1e-100", "0.123456789012345"])
def test_a_decimal_budget_is_shown_as_it_was_written(text):
    assert Loss.of(Decimal(text), Decimal(0)).shown()["epsilon"] == float(text)


@given(st.fractions(min_value=0, max_value=10))
def test_what_is_shown_is_never_below_the_exact_value_and_what_is_left_never_above(value: Fraction):
    loss = Loss(epsilon=value)
    assert Fraction(repr(loss.shown()["epsilon"])) >= value
    assert Fraction(repr(loss.shown_down()["epsilon"])) <= value
