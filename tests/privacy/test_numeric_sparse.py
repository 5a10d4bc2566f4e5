"""The measured answer: its noise is of the stated law, and costs what is said."""

from fractions import Fraction
from math import exp, log

import numpy as np
import pytest
from scipy import stats

from service.privacy.currency import Currency
from service.privacy.noise import numeric_sparse
from service.privacy.noise.sparse_vector import STEPS, Instance
from tests import chance

SCALE = 3.0 * STEPS
FOLLOW = {Currency.PURE: chance.assert_spherical_laplace, Currency.ZCDP: chance.assert_gaussian}
LAWS = {Currency.PURE: stats.laplace(scale=SCALE), Currency.ZCDP: stats.norm(scale=SCALE)}


@pytest.mark.parametrize("currency", Currency)
def test_noise_has_the_stated_law_and_a_third_less_has_not(currency):
    """On 2^20 steps, a continuous law to any test."""
    drawn = [[numeric_sparse.measured(currency, SCALE, 5 * STEPS) - 5 * STEPS] for _ in range(1000)]
    FOLLOW[currency](drawn, scale=SCALE)


@pytest.mark.parametrize("currency", Currency)
def test_an_answer_costs_what_its_law_loses(currency):
    cost = numeric_sparse.cost(currency, SCALE)
    if currency is Currency.PURE:
        assert cost == Fraction(1, 3)
        assert log(exp(-0 / 3) / exp(-1 / 3)) == pytest.approx(float(cost))
    else:
        assert cost == Fraction(1, 18)
        x = np.linspace(-60, 60, 200_001)  # Rényi divergence of order 2 is 2ρ for a Gaussian
        p, q = (stats.norm.pdf(x, loc=at, scale=3) for at in (0, 1))
        assert log(np.sum(p**2 / q) * (x[1] - x[0])) / 2 == pytest.approx(float(cost))


def test_an_instance_and_its_answer_cost_what_the_module_says():
    instance = Instance(opened=7, scale=SCALE)
    e = 3 * STEPS / Fraction(SCALE)
    parts = [
        numeric_sparse.cost_of_opening(currency, instance) + numeric_sparse.cost(currency, SCALE)
        for currency in (Currency.PURE, Currency.ZCDP)
    ]
    assert parts == [e, Fraction(5, 18) * e**2]


@pytest.mark.parametrize("currency", Currency)
def test_noise_stays_within_its_reach(currency):
    reach = numeric_sparse.reach(currency, SCALE, 0.05)
    outside = sum(abs(numeric_sparse.measured(currency, SCALE, 0)) > reach for _ in range(3000))
    chance.assert_no_more(outside, 3000, 0.05)
    assert LAWS[currency].sf(reach * 0.7) * 2 > 0.05, "no wider than it must be"
