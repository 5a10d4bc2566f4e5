"""The δ that nearly exact draws add, and the ε at which it passes 2^-60, computed anew to a hundred digits."""

from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.privacy.noise.additive import SLACK
from service.privacy.noise.sampler_distance import LARGEST_DELTA, added_delta, is_small, largest_epsilon

EXACT = Context(prec=100)
STEP = Decimal("1e-6")
DRAWS = (1, 2, 3, 64, 386, 7296, 2**16, 2**17, 2**30)


def delta(epsilon, draws):
    """(1 + e^ε)·draws·2^-100"""
    grown = EXACT.exp(Decimal(str(epsilon)))
    return EXACT.divide(EXACT.multiply(EXACT.add(grown, Decimal(1)), Decimal(draws)), Decimal(2**100))


@pytest.mark.parametrize("draws", DRAWS)
def test_the_cap_is_where_the_added_delta_passes_two_to_the_minus_sixty(draws):
    cap = largest_epsilon(draws)
    assert delta(cap, draws) <= Decimal(2) ** -60 < delta(cap + STEP, draws)
    assert is_small(Fraction(cap), draws)
    assert not is_small(Fraction(cap + STEP), draws)
    assert float(cap) == pytest.approx(np.log(2.0**40 / draws), abs=2e-6 + draws / 2.0**40)


@given(st.decimals("1e-9", "60", places=9).filter(bool), st.integers(1, 2**40))
def test_the_added_delta_is_rounded_up_by_next_to_nothing(epsilon, draws):
    exact = Fraction(delta(epsilon, draws))
    assert Fraction(SLACK) == Fraction(1, 2**100)
    assert min(Fraction(1), exact) * (1 - Fraction(1, 10**90)) <= added_delta(Fraction(epsilon), draws)
    assert added_delta(Fraction(epsilon), draws) <= exact * (1 + Fraction(1, 10**30))


def test_exact_noise_adds_nothing_at_any_epsilon_and_no_delta_is_more_than_one():
    assert added_delta(Fraction(1000), 0) == 0
    assert is_small(Fraction(1000), 0)
    assert added_delta(Fraction(1000), 1) == 1
    assert Fraction(2) ** -60 == LARGEST_DELTA


def test_draws_that_are_off_by_a_total_variation_cost_what_is_stated():
    """Two laws that are ε apart, each replaced by one within η of it: the worst case reaches (1 + e^ε)·η."""
    epsilon, eta = 1.5, 1e-3
    stated = np.array([[0.6, 0.4], [0.6 / np.exp(epsilon), 1 - 0.6 / np.exp(epsilon)]])
    drawn = stated + np.array([[eta, -eta], [-eta, eta]])
    off = drawn[0, 0] - np.exp(epsilon) * drawn[1, 0]
    assert off == pytest.approx((1 + np.exp(epsilon)) * eta)
