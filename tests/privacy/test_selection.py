"""Coins have exactly their law and cost what they say they cost, whatever the record."""

from contextlib import nullcontext
from fractions import Fraction
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.noise import selection
from service.privacy.noise.selection import Bernoulli, Exponential, least_threshold
from tests import chance

LAWS = [
    Bernoulli(epsilon=1.0, threshold=0.2),
    Bernoulli(epsilon=0.5, threshold=0.0),
    Exponential(epsilon=1.0, threshold=0.3, norm_bound=1.0),
    Exponential(epsilon=4.0, threshold=0.5, norm_bound=2.0),
]


def probability(law, distance):
    """paper-audit.md 5.1 and paper E's 3.1, in doubles."""
    if law.law == "bernoulli":
        p = exp(law.epsilon) / (1 + exp(law.epsilon))
        return p if distance <= law.threshold else 1 - p
    return exp(-max(law.threshold, distance) * law.epsilon / (law.norm_bound - law.threshold))


def worst(law, most):
    """The largest loss over pairs of distances, found by looking at them all."""
    chances = np.array([probability(law, d) for d in [*np.linspace(0, most, 401), law.threshold]])
    return max(np.ptp(np.log(chances)), np.ptp(np.log1p(-chances)))


@pytest.mark.more
@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize(
    ("planted", "verdict"), [(1.0, nullcontext), (1.5, chance.is_noticed)], ids=["right", "too little noise"]
)
def test_a_slot_is_selected_with_its_probability(law, planted, verdict):
    """And the same test rejects coins that are worth half as much again."""
    tossed = type(law)(**vars(law) | {"epsilon": law.epsilon * planted})
    hits = {d: sum(tossed.select(d) for _ in range(6000)) for d in (0.0, law.threshold, law.threshold + 0.05, 0.9)}
    with verdict():
        for d, seen in hits.items():
            chance.assert_count(seen, 6000, probability(law, d), false_alarm=chance.FALSE_ALARM / 4)


@pytest.mark.more
@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(0.01, 20.0), st.floats(0.001, 0.97), st.floats(0.01, 100.0))
def test_the_loss_is_the_largest_over_all_records(epsilon, share, norm_bound):
    """It is never less, and a bound on it that is never reached would be noise for nothing.

    With a slab that leaves less room, exp(-b·ε/(M - b)) would be zero in doubles.
    """
    law = Exponential(epsilon=epsilon, threshold=share * norm_bound, norm_bound=norm_bound)
    assert float(law.loss()) == pytest.approx(worst(law, norm_bound), rel=1e-6)
    assert law.loss() >= Fraction(epsilon)
    coin = Bernoulli(epsilon=epsilon, threshold=share * norm_bound)
    assert coin.loss() == Fraction(epsilon)
    assert worst(coin, norm_bound) == pytest.approx(epsilon, rel=1e-6)


def test_the_papers_own_setting_costs_more_than_it_says():
    """Section 4.5: b = 0.2, M = 1, ε = 1 (paper-audit.md 5.1)."""
    assert float(Exponential(epsilon=1.0, threshold=0.2, norm_bound=1.0).loss()) == pytest.approx(1.171, abs=5e-4)


@pytest.mark.parametrize(("epsilon", "least"), [(0.5, 0.487), (1.0, 0.2386), (2.0, 0.0597)])
def test_the_least_threshold_is_that_of_mechanisms_md(epsilon, least):
    assert least_threshold(epsilon, 1.0) == pytest.approx(least, rel=1e-3)


@pytest.mark.more
@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(0.01, 20.0), st.floats(1e-3, 1e3))
def test_the_least_threshold_works_and_hardly_a_smaller_one_does(epsilon, norm_bound):
    b = least_threshold(epsilon, norm_bound)
    assert Exponential(epsilon=epsilon, threshold=b, norm_bound=norm_bound).loss() == Fraction(epsilon)
    assert Exponential(epsilon=epsilon, threshold=0.998 * b, norm_bound=norm_bound).loss() > Fraction(epsilon)


def test_a_condition_that_is_only_nearly_met_is_not_met():
    """By less than doubles can tell of ln((1 - q_min)/(1 - q_max))."""
    ratio = log(1 + exp(-1.0))
    b = ratio / (1 + ratio)
    while Exponential(epsilon=1.0, threshold=b, norm_bound=1.0).loss() > 1:
        b = float(np.nextafter(b, 1.0))
    below = float(np.nextafter(b, 0.0))
    beyond = Exponential(epsilon=1.0, threshold=below, norm_bound=1.0).loss()
    assert 1 < beyond < 1 + Fraction(1, 2**50)


def test_farther_than_the_bound_is_as_far_as_the_bound():
    """Rounding a distance changes no promise."""
    law = Exponential(epsilon=1.0, threshold=0.3, norm_bound=1.0)
    chance.assert_count(sum(law.select(30.0) for _ in range(4000)), 4000, law.least())


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_nearest_are_the_likeliest_and_the_farthest_are_not(law):
    assert law.most() == pytest.approx(probability(law, 0.0), rel=1e-12)
    assert law.least() == pytest.approx(probability(law, getattr(law, "norm_bound", 9.0)), rel=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_law_is_recomputed_from_what_is_told_of_it(law):
    assert selection.of(law.described()) == law


@pytest.mark.parametrize(
    "described",
    [
        {"law": "always"},
        {"law": "bernoulli", "epsilon": 0.0, "threshold": 0.2},
        {"law": "exponential", "epsilon": 1.0, "threshold": 1.0, "norm_bound": 1.0},
        {"law": "exponential", "epsilon": 1.0, "threshold": 0.0, "norm_bound": 1.0},
    ],
)
def test_what_is_no_law_is_refused(described):
    with pytest.raises(ValueError, match="select"):
        selection.of(described)


def test_a_least_threshold_that_its_nearest_double_misses_is_raised_by_a_digit():
    """Four digits may be just enough as a decimal, and the double nearest to them a little less."""
    epsilon, norm_bound = 1.0, 0.4221564819521447  # found by search: b lies between the double 0.1007 and 1007/10000
    assert not Fraction(0.1007) >= Fraction(1007, 10000)
    assert least_threshold(epsilon, norm_bound) == 0.1008
