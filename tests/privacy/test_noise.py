"""The noise follows the law it is charged for. Real noise, no seeds.

Each statistical test wrongly fails with probability at most 1e-6, and each has a twin: the same test rejects a scale
that is a third too small.
"""

import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from service.privacy.loss import Kind
from service.privacy.noise import GRID_BITS, Gaussian, SphericalLaplace, add, calibrate

ALARM = 1e-6
DRAWS = 3000


def follows(sample, law):
    return bool(stats.kstest(sample, law.cdf).pvalue > ALARM)


def radii(noise):
    return np.array([np.linalg.norm(noise.sample()) for _ in range(DRAWS)])


@pytest.mark.parametrize("dimension", [1, 2, 7, 50])
@pytest.mark.parametrize(("planted", "verdict"), [(1, True), (2 / 3, False)], ids=["right", "a third too small"])
def test_the_radius_of_spherical_laplace_is_gamma(dimension, planted, verdict):
    sample = radii(SphericalLaplace(scale=3.0 * planted, dimension=dimension))
    assert follows(sample, stats.gamma(dimension, scale=3.0)) is verdict


@pytest.mark.parametrize("dimension", [2, 3, 20])
@pytest.mark.parametrize(("planted", "verdict"), [(1, True), (2 / 3, False)], ids=["right", "a third too small"])
def test_the_direction_of_spherical_laplace_is_uniform(dimension, planted, verdict):
    """A coordinate of a uniform direction is 2·Beta((D-1)/2, (D-1)/2) - 1, whichever coordinate one looks along."""
    noise = SphericalLaplace(scale=3.0, dimension=dimension)
    along = np.arange(1.0, dimension + 1.0)
    along /= np.linalg.norm(along)
    draws = np.array([noise.sample() for _ in range(DRAWS)])
    cosines = planted * (draws @ along) / np.linalg.norm(draws, axis=1)
    half = (dimension - 1) / 2
    assert follows(cosines, stats.beta(half, half, loc=-1, scale=2)) is verdict


def test_in_one_dimension_the_direction_is_a_fair_sign():
    noise = SphericalLaplace(scale=1.0, dimension=1)
    positive = sum(float(noise.sample()[0]) > 0 for _ in range(DRAWS))
    assert stats.binomtest(positive, DRAWS).pvalue > ALARM


@pytest.mark.parametrize(("planted", "verdict"), [(1, True), (2 / 3, False)], ids=["right", "a third too small"])
def test_the_coordinates_of_the_gaussian_are_normal(planted, verdict):
    sample = Gaussian(scale=5.0 * planted, dimension=20_001).sample()
    assert follows(sample, stats.norm(scale=5.0)) is verdict


@pytest.mark.parametrize(("planted", "verdict"), [(1, True), (2 / 3, False)], ids=["right", "a third too small"])
def test_the_coordinates_of_the_gaussian_are_independent(planted, verdict):
    """Both halves of a Box-Muller pair: their sum and difference are normal with twice the variance."""
    noise = Gaussian(scale=planted, dimension=20_000)
    left, right = noise.sample().reshape(2, -1)
    assert follows(left + right, stats.norm(scale=math.sqrt(2))) is verdict
    assert follows(left - right, stats.norm(scale=math.sqrt(2))) is verdict


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_draw_is_fresh_even_after_a_fork():
    noise = Gaussian(scale=1.0, dimension=4)
    noise.sample()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, noise.sample().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    theirs = np.frombuffer(os.read(reader, 64))
    os.close(reader)
    assert not np.array_equal(theirs, noise.sample())


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.sampled_from(Kind), st.floats(1e-12, 1e9), st.floats(1e-12, 1e6))
def test_the_calibrated_scale_is_the_least_that_the_charge_covers(kind, sensitivity, charge):
    noise = calibrate(kind, sensitivity=sensitivity, charge=charge, dimension=3)

    def loss(scale):
        ratio = Fraction(sensitivity) / Fraction(scale)
        return ratio if kind is Kind.PURE else ratio**2 / 2

    assert loss(noise.scale) <= Fraction(charge)
    assert loss(math.nextafter(noise.scale, 0)) > Fraction(charge)
    assert loss(noise.scale) <= Fraction(noise.charge(sensitivity)) <= Fraction(charge)


def test_distributions_are_named_as_the_ledger_names_them():
    assert calibrate(Kind.PURE, sensitivity=1.0, charge=1.0, dimension=1).distribution == "spherical_laplace"
    assert calibrate(Kind.ZCDP, sensitivity=1.0, charge=1.0, dimension=1).distribution == "gaussian"


@pytest.mark.parametrize("noise", [SphericalLaplace(scale=0.3, dimension=6), Gaussian(scale=0.3, dimension=6)])
def test_what_is_added_lies_on_a_public_grid_and_keeps_its_shape(noise):
    values = np.linspace(-1, 1, 6).reshape(2, 3)
    noisy = add(values, noise)
    grid = 0.25 * 2.0**-GRID_BITS  # the power of two below 0.3
    assert noisy.shape == (2, 3)
    assert np.array_equal(np.rint(noisy / grid), noisy / grid)


@pytest.mark.parametrize("noise", [SphericalLaplace(scale=2.0, dimension=400), Gaussian(scale=2.0, dimension=400)])
def test_the_expected_norm_is_about_the_mean_norm(noise):
    mean = np.mean([np.linalg.norm(noise.sample()) for _ in range(300)])
    assert mean == pytest.approx(noise.expected_norm(), rel=0.03)  # ten standard errors and more


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_is_positive_and_finite(scale):
    with pytest.raises(ValueError, match="noise needs"):
        Gaussian(scale=scale, dimension=1)


@pytest.mark.parametrize(("sensitivity", "charge"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_nothing_is_calibrated_to_nonsense(sensitivity, charge):
    with pytest.raises(ValueError, match="noise can only be calibrated"):
        calibrate(Kind.PURE, sensitivity=sensitivity, charge=charge, dimension=1)


def test_noise_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match="another dimension"):
        add(np.zeros(3), Gaussian(scale=1.0, dimension=4))
