"""The exponential mechanism: drawn by its law, whatever doubles make of it, and worth what it is said to cost."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from service.privacy.currency import Currency
from service.privacy.noise import exponential, samplers
from service.privacy.noise.exponential import ExponentialSelection, select
from service.privacy.noise.samplers import below_exp, uniform_below
from tests import chance


def law(errors, rate):
    weights = np.exp(-rate * (np.asarray(errors) - min(errors)).astype(float))
    return weights / weights.sum()


def assert_law(errors, drawn_at, stated, draws):
    """Assert that draws at one rate follow the law of another."""
    counts = np.bincount([select(np.array(errors), drawn_at) for _ in range(draws)], minlength=len(errors))
    chance.assert_frequencies(counts, law(errors, float(stated)))


@pytest.mark.more
@pytest.mark.parametrize(
    ("errors", "rate"),
    [
        ([0, 1, 2, 3, 4, 5], Fraction(1, 2)),
        ([7, 7, 9, 10**6], Fraction(1, 3)),
        ([10**15, 10**15 + 10**12, 10**15 + 3 * 10**12], Fraction(1, 10**12)),
        (list(range(40)), Fraction(1, 20)),
        ([3, 1, 2], Fraction(0)),
    ],
    ids=["steep", "with one that never comes", "large errors", "many", "all alike"],
)
def test_candidates_come_as_often_as_the_law_says(errors, rate):
    assert_law(errors, rate, rate, 4000)


def test_a_scale_a_third_too_small_is_seen():
    with chance.is_noticed():
        assert_law(list(range(20)), Fraction(3, 2) * Fraction(1, 4), Fraction(1, 4), 4000)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.fractions(0, 3, max_denominator=10**9))
def test_the_weights_that_doubles_make_are_never_too_small(errors, rate):
    """Then what decides is exact: a weight below 2^42·exp(-x) could not be mended by keeping it more often."""
    seen = []

    class Spy(samplers.Uniform):
        def below_exp(self, x, factor):
            seen.append((x, factor))
            return len(seen) >= 20

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exponential, "Uniform", Spy)
        select(np.array(errors, dtype=np.int64), rate)
    least = min(errors)
    for x, factor in seen:
        assert x in {rate * (error - least) for error in errors}
        assert below_exp(2**128 - 1, 128, x, factor) is not True  # weight·1 ≥ 2^42·exp(-x), as nearly as 128 bits tell


def test_a_factor_is_compared_exactly():
    assert below_exp(3, 2, Fraction(0), Fraction(2)) is False  # 2·[3/4, 1) is not below 1
    assert below_exp(0, 1, Fraction(0), Fraction(2)) is None
    assert below_exp(0, 2, Fraction(0), Fraction(2)) is True
    assert below_exp(2**63, 64, Fraction(1), Fraction(1, 2)) is True  # 1/4 < 1/e
    assert below_exp(2**63, 64, Fraction(1), Fraction(3, 4)) is False  # 3/8 > 1/e


@pytest.mark.parametrize("end", [1, 2, 5, 256, 257, 1000])
def test_uniform_whole_numbers(end):
    counts = np.bincount([uniform_below(end) for _ in range(20 * end + 500)], minlength=end)
    chance.assert_frequencies(counts, np.full(end, 1 / end))


def renyi(p, q, order):
    return special.logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(-1, 1)), min_size=2, max_size=12),
    st.floats(0.05, 6.0),
    st.sampled_from([1.01, 1.5, 2.0, 4.0, 16.0]),
)
def test_neighbours_lose_no_more_than_is_charged(pairs, scale, order):
    """Errors that a record moves by at most 1: pure ε = 2/scale, and order·ρ with ρ = 1/(2·scale²)."""
    errors, moves = (np.array(each) for each in zip(*pairs, strict=True))
    p, q = law(errors, 1 / scale), law(errors + moves, 1 / scale)
    assert (
        np.abs(np.log(p / q)).max() <= ExponentialSelection(scale=scale, dimension=1).charge(Currency.PURE, 1.0) + 1e-9
    )
    assert (
        renyi(p, q, order) <= order * ExponentialSelection(scale=scale, dimension=1).charge(Currency.ZCDP, 1.0) + 1e-9
    )


def test_the_charge_is_attained():
    """Errors that all but one candidate has moved one way: nearly all of ε shows, so no smaller charge would do."""
    size, scale = 10**6, 0.5
    away = np.full(size, 10.0)
    p, q = law(np.array([0.0, *away]), 1 / scale), law(np.array([1.0, *(away - 1)]), 1 / scale)
    assert np.abs(np.log(p / q)).max() > 0.95 * 2 / scale


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("charge", [1e-6, 0.1, 1.0, 7.3])
@pytest.mark.parametrize("sensitivity", [1.0, 1 / 3, 1e-7])
def test_the_scale_is_the_least_that_the_charge_allows(currency, charge, sensitivity):
    selection = ExponentialSelection.calibrated(currency, sensitivity=sensitivity, charge=charge, dimension=3)
    assert charge * (1 - 1e-12) < selection.charge(currency, sensitivity) <= charge
    less = ExponentialSelection(scale=math.nextafter(selection.scale, 0), dimension=3)
    ratio = Fraction(sensitivity) / Fraction(less.scale)
    assert (2 * ratio if currency is Currency.PURE else ratio**2 / 2) > Fraction(charge)


def test_nothing_to_select_from_is_refused():
    with pytest.raises(ValueError, match="candidates"):
        select(np.array([], dtype=np.int64), Fraction(1))


def test_the_selected_error_is_no_farther_off_than_is_said():
    """McSherry and Talwar 2007, theorem 6: P(error > least + t) ≤ K·e^(-t/scale); here for half of the candidates."""
    selection = ExponentialSelection(scale=2.0, dimension=1)
    off = selection.error_bound(8, 0.01)
    assert 8 * math.exp(-off / 2.0) == pytest.approx(0.01)
