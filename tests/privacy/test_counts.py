"""Noise on whole numbers: of the stated law, at the stated cost, and no larger than the charge asks for."""

import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting import events
from service.privacy.accounting.events import NoisyCounts
from service.privacy.currency import Currency
from service.privacy.noise.additive import Unaffordable
from service.privacy.noise.counts import Change, CountNoise, calibrate
from tests import chance

THIRD = pytest.mark.parametrize(
    ("size", "verdict"), [(1, nullcontext), (chance.TOO_SMALL, chance.is_noticed)], ids=["right", "third"]
)
CHANGES = st.builds(Change, counts=st.integers(1, 64), largest=st.sampled_from([1, 2**20]))


def weight(currency, scale, z):
    return math.exp(-abs(z) / scale) if currency is Currency.PURE else math.exp(-z * z / (2 * scale**2))


@THIRD
@pytest.mark.parametrize("currency", Currency)
def test_noise_has_the_stated_law_and_a_third_less_has_not(currency, size, verdict):
    """A vector of many coordinates, each of which is a draw of its own."""
    noise = calibrate(currency, Change(counts=2, largest=1), charge=0.4, dimension=6000)
    drawn = CountNoise(currency=currency, scale=noise.scale * size, dimension=noise.dimension).sample()
    reach = 400
    weights = np.array([weight(currency, noise.scale, z) for z in range(-reach, reach + 1)])
    assert np.abs(drawn).max() <= reach
    with verdict():
        chance.assert_frequencies(np.bincount(drawn + reach, minlength=2 * reach + 1), weights / weights.sum())


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(Currency), CHANGES, st.floats(1e-3, 20))
def test_the_noise_costs_its_charge_and_no_less(currency, change, charge):
    noise = calibrate(currency, change, charge=charge, dimension=3)
    assert noise.cost(change) <= Fraction(charge)
    smaller = CountNoise(currency=currency, scale=noise.scale * (1 - 2**-50), dimension=3)
    assert smaller.cost(change) > Fraction(charge), "any smaller noise costs more"


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(Currency), CHANGES, st.floats(1e-3, 20))
def test_a_release_costs_what_it_says(currency, change, charge):
    noise = calibrate(currency, change, charge=charge, dimension=3)
    described = NoisyCounts(noise=noise, change=change).to_json()
    assert events.from_json(described).cost(currency, records=1) == noise.cost(change)
    assert events.from_json(described).dimension((1, 3)) == 3
    square = change.l1**2 if currency is Currency.PURE else change.squared_l2
    assert square <= Fraction(described["sensitivity"]) ** 2 <= square * (1 + Fraction(1, 2**50))


@pytest.mark.parametrize("currency", Currency)
def test_the_cost_is_the_loss_of_the_worst_neighbours(currency):
    """By summing over all whole numbers: the pure loss, or the Rényi divergence of order 2 divided by 2."""
    change, scale = Change(counts=3, largest=2), 2.5
    z = np.arange(-300, 301)
    p = np.array([weight(currency, scale, each) for each in z])
    shifted = np.array([weight(currency, scale, each - 2) for each in z])
    p, shifted = p / p.sum(), shifted / shifted.sum()
    seen = (p > 1e-290) & (shifted > 1e-290)
    if currency is Currency.PURE:
        loss = 3 * np.abs(np.log(p[seen] / shifted[seen])).max()
    else:
        loss = 3 * math.log(np.sum(p[seen] ** 2 / shifted[seen])) / 2
    assert loss == pytest.approx(float(CountNoise(currency=currency, scale=scale, dimension=5).cost(change)), rel=1e-9)


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.5])
def test_the_deviation_is_that_of_the_law(currency, scale):
    z = np.arange(-2000, 2001)
    weights = np.array([weight(currency, scale, each) for each in z])
    exact = math.sqrt(float((weights * z**2).sum() / weights.sum()))
    deviation = CountNoise(currency=currency, scale=scale, dimension=1).deviation()
    assert exact <= deviation * (1 + 1e-12)
    assert deviation == pytest.approx(exact, rel=1e-6) or (currency is Currency.ZCDP and scale < 1)


@pytest.mark.parametrize("charge", [0.0, -1.0, math.inf, math.nan])
def test_a_charge_is_positive_and_finite(charge):
    with pytest.raises(ValueError, match="positive finite charge"):
        calibrate(Currency.PURE, Change(counts=2, largest=1), charge=charge, dimension=1)


@pytest.mark.parametrize("currency", Currency)
def test_noise_that_no_double_could_hold_is_refused(currency):
    with pytest.raises(Unaffordable, match="too small"):
        calibrate(currency, Change(counts=2, largest=2**20), charge=1e-30, dimension=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"distribution": "discrete_gaussian"},
        {"scale": 0.0},
        {"change": {"counts": 0, "largest": 1}},
        {"change": {"counts": 2, "largest": 0.5}},
        {"change": None},
    ],
)
def test_a_release_that_states_another_noise_has_no_cost(wrong):
    noise = calibrate(Currency.PURE, Change(counts=2, largest=1), charge=1.0, dimension=4)
    stated = NoisyCounts(noise=noise, change=Change(counts=2, largest=1)).to_json() | wrong
    with pytest.raises(ValueError, match=r"needs|lacks|counts have"):
        events.from_json(stated).cost(Currency.PURE, records=5)
