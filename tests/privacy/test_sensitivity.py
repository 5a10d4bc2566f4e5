"""The sensitivity of a minimiser is the formula's, rounded up."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.sensitivity import StatisticsWeights, regularized_minimizer, sufficient_statistics

POSITIVE = st.floats(1e-6, 1e6)


@settings(deadline=None, derandomize=True)
@given(POSITIVE, POSITIVE, st.integers(1, 2**50), st.floats(0, 1))
def test_it_is_never_below_the_exact_value(lipschitz, alpha, n, tolerance):
    value = regularized_minimizer(lipschitz=lipschitz, strong_convexity=alpha, records=n, tolerance=tolerance)
    exact = 2 * Fraction(lipschitz) / (Fraction(alpha) * n) + 2 * Fraction(tolerance) / Fraction(alpha)
    assert exact <= Fraction(value) <= exact * (1 + Fraction(2) ** -52)


@pytest.mark.parametrize("bad", [{"lipschitz": 0.0}, {"strong_convexity": -1.0}, {"records": 0}, {"tolerance": -1e-9}])
def test_nonsense_is_refused(bad):
    good = {"lipschitz": 1.0, "strong_convexity": 1.0, "records": 1, "tolerance": 0.0}
    with pytest.raises(ValueError, match="a sensitivity needs"):
        regularized_minimizer(**(good | bad))


def test_that_of_statistics_is_computed_once():
    """Their weights are a class of their own."""
    weights = StatisticsWeights(second=1.0, label=1.0)
    assert isinstance(weights, StatisticsWeights)
    assert sufficient_statistics(**vars(weights), codes=2) is sufficient_statistics(**vars(weights), codes=2)
