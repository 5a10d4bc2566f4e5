"""The noise follows the law it is charged for, and rounding to its lattice is charged for too. Real noise, no seeds.

Each statistical test rejects a scale that is a third too small.
"""

import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from service.privacy.currency import Currency
from service.privacy.noise import additive as noises
from service.privacy.noise.additive import SLACK, Gaussian, SphericalLaplace, add, calibrate, round_to_steps
from tests import chance


def draw(noise):
    return noise.sample() * noise.grid


@pytest.mark.more
@pytest.mark.parametrize("dimension", [1, 2, 7, 50])
def test_the_radius_of_spherical_laplace_is_gamma_and_its_direction_uniform(dimension):
    """A fair sign in one dimension; in more, a coordinate of a uniform direction is 2·Beta((D-1)/2, (D-1)/2) - 1."""
    noise = SphericalLaplace(scale=3.0, dimension=dimension)
    draws = np.array([draw(noise) for _ in range(3000)])
    chance.assert_spherical_laplace(draws, scale=3.0)
    lengths = np.linalg.norm(draws, axis=1)
    chance.assert_follows(lengths, stats.gamma(dimension, scale=3.0))
    with chance.is_noticed():
        chance.assert_follows(lengths * chance.TOO_SMALL, stats.gamma(dimension, scale=3.0))
    if dimension > 1:
        along = np.arange(1.0, dimension + 1.0) / np.linalg.norm(np.arange(1.0, dimension + 1.0))
        half = (dimension - 1) / 2
        cosine = stats.beta(half, half, loc=-1, scale=2)
        chance.assert_follows(draws @ along / lengths, cosine)
        with chance.is_noticed():
            chance.assert_follows(draws @ along / lengths * chance.TOO_SMALL, cosine)


def test_the_coordinates_of_the_gaussian_are_normal_and_independent():
    """Also sums and differences of its two halves."""
    left, right = draw(Gaussian(scale=5.0, dimension=6000)).reshape(2, -1)
    chance.assert_gaussian([left, right], scale=5.0)
    for each, scale in ((left, 5.0), (left + right, math.sqrt(50)), (left - right, math.sqrt(50))):
        chance.assert_follows(each, stats.norm(scale=scale))
        with chance.is_noticed():
            chance.assert_follows(each * chance.TOO_SMALL, stats.norm(scale=scale))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # jax's, where a test before used it
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
    theirs = np.frombuffer(os.read(reader, 64), dtype=np.int64)
    os.close(reader)
    assert not np.array_equal(theirs, noise.sample())


def exact_loss(currency, noise, sensitivity, scale=None):
    """(Δ + g√D)/s or (Δ + g√D)²/(2σ²) in fractions, √D from below, so what is at most the charge is it for sure."""
    root = Fraction(math.isqrt(noise.dimension << 200), 2**100)
    ratio = (Fraction(sensitivity) + Fraction(noise.grid) * root) / Fraction(scale or noise.scale)
    return ratio if currency is Currency.PURE else ratio**2 / 2


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.sampled_from(Currency), st.floats(1e-12, 1e9), st.floats(1e-10, 1e6), st.integers(1, 10**6))
def test_the_calibrated_scale_is_the_least_that_the_charge_covers(currency, sensitivity, charge, dimension):
    """On its grid: what is least may be some units of 2^-50 less on the finer grid below a power of two."""
    try:
        noise = calibrate(currency, sensitivity=sensitivity, charge=charge, dimension=dimension)
    except ValueError:
        assert currency is Currency.PURE
        assert dimension * 2.0**-50 > charge / 16
        return
    assert exact_loss(currency, noise, sensitivity) <= Fraction(noise.charge(sensitivity)) <= Fraction(charge)
    less = exact_loss(currency, noise, sensitivity, math.nextafter(noise.scale, 0))
    assert less > Fraction(charge) * (1 - Fraction(1, 2**70))  # √D is rounded, to far less than doubles are


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("dimension", [1, 2, 7850, 10**6])
def test_what_the_lattice_costs_is_next_to_nothing(currency, dimension):
    """Rounding adds 2^-50·D (pure) or 2^-50·√D (zCDP) to the share of the noise that is the sensitivity."""
    noise = calibrate(currency, sensitivity=0.01, charge=0.05, dimension=dimension)
    ideal = 0.01 / 0.05 if currency is Currency.PURE else 0.01 / math.sqrt(2 * 0.05)
    assert ideal < noise.scale < ideal * (1 + 1e-7)


def test_a_charge_that_the_lattice_is_too_coarse_for_is_refused():
    with pytest.raises(ValueError, match="too small"):
        calibrate(Currency.PURE, sensitivity=1.0, charge=1e-10, dimension=10**6)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.integers(1, 40), st.floats(-60, 3), st.floats(-8, 8), st.integers(0, 2**32 - 1))
def test_rounding_never_moves_neighbours_further_apart_than_it_is_charged_for(dimension, log_apart, log_size, seed):
    rng = np.random.default_rng(seed)
    grid = 2.0**-20
    one = rng.normal(size=dimension) * 2.0**log_size
    other = one + rng.normal(size=dimension) * 2.0**log_apart
    steps = [round_to_steps(values, grid) for values in (one, other)]
    apart = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(one, other, strict=True))
    moved = sum(Fraction(a - b) ** 2 for a, b in zip(*steps, strict=True)) * Fraction(grid) ** 2
    bound = math.sqrt(apart) + grid * math.sqrt(dimension)
    assert math.sqrt(moved) <= bound * (1 + 1e-12)


@pytest.mark.parametrize("currency", Currency)
def test_neighbours_across_the_edges_of_the_lattice_would_break_a_charge_that_leaves_rounding_out(currency):
    """Each coordinate of one is just below the middle of a step, of the other just above: a step apart, all of them."""
    noise = calibrate(currency, sensitivity=1.0, charge=0.5, dimension=400)
    middle = (0.5 + np.arange(400)) * noise.grid
    one, other = np.nextafter(middle, -1), np.nextafter(middle, 1)
    moved = np.linalg.norm(round_to_steps(one, noise.grid) - round_to_steps(other, noise.grid))
    sensitivity = float(np.linalg.norm(other - one))
    assert moved == 20.0
    assert sensitivity < 1e-10 * noise.grid
    ratio = Fraction(moved * noise.grid) / Fraction(noise.scale)
    loss = ratio if currency is Currency.PURE else ratio**2 / 2
    without = Fraction(sensitivity) / Fraction(noise.scale)
    assert (without if currency is Currency.PURE else without**2 / 2) < loss / 10**9
    assert loss <= Fraction(noise.charge(sensitivity))
    assert Fraction(noise.charge(sensitivity)) < loss * (1 + Fraction(1, 10**8))


@settings(deadline=None, derandomize=True, max_examples=500)
@given(
    st.integers(-(2**300), 2**300) | st.integers(-(2**60), 2**60), st.integers(-(2**62), 2**62), st.integers(1, 2**62)
)
def test_the_sum_is_a_function_of_the_exact_sum(near, steps, shift):
    """Two ways to the same exact sum give the same double, which is the sum itself if that fits."""
    whole = float(near)

    def computed(value, noise):
        return float(noises._sum(np.array([value]), np.array([noise]))[0])

    result, exact = computed(whole, steps), int(whole) + steps
    assert abs(Fraction(result) - exact) <= Fraction(abs(exact), 2**51)
    if abs(exact) < 2**53:
        assert result == exact
    moved = float(int(whole) + shift)
    rest = exact - int(moved)
    if abs(rest) <= 2**62:
        assert computed(moved, rest) == result


def test_one_dimension_and_the_gaussian_are_exact_and_the_rest_says_how_nearly():
    assert SphericalLaplace(scale=1.0, dimension=1).slack == Gaussian(scale=1.0, dimension=9).slack == 0
    assert SphericalLaplace(scale=1.0, dimension=2).slack == SLACK


def test_distributions_are_named_as_the_ledger_names_them():
    assert calibrate(Currency.PURE, sensitivity=1.0, charge=1.0, dimension=1).distribution == "spherical_laplace"
    assert calibrate(Currency.ZCDP, sensitivity=1.0, charge=1.0, dimension=1).distribution == "gaussian"


@pytest.mark.parametrize("noise", [SphericalLaplace(scale=0.3, dimension=6), Gaussian(scale=0.3, dimension=6)])
def test_what_is_added_lies_on_a_public_grid_and_keeps_its_shape(noise):
    noisy = add(np.linspace(-1, 1, 6).reshape(2, 3), noise)
    assert noisy.shape == (2, 3)
    assert np.array_equal(np.rint(noisy / noise.grid), noisy / noise.grid)


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("scale", [2.0**-500, 0.3, 0.5, 2.0**500])
@pytest.mark.parametrize("dimension", [1, 2, 3, 7850, 2**24])
def test_the_grid_is_a_power_of_two_a_2_to_the_50th_of_the_spread_of_a_coordinate(currency, scale, dimension):
    noise = (SphericalLaplace if currency is Currency.PURE else Gaussian)(scale=scale, dimension=dimension)
    spread = scale * (math.sqrt(dimension + 1) if currency is Currency.PURE else 1.0)
    assert math.frexp(noise.grid)[0] == 0.5
    assert spread / 2 < noise.grid * 2**50 < spread * 4


@pytest.mark.parametrize("noise", [SphericalLaplace(scale=0.3, dimension=2), Gaussian(scale=0.3, dimension=2)])
def test_values_however_large_are_kept_and_those_beyond_the_public_range_are_cut(noise):
    values = np.array([1e30, -1e30])
    assert np.array_equal(add(values, noise), values)
    assert np.array_equal(add(values * 1e270, noise), np.array([1.0, -1.0]) * noise.grid * 2.0**500)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_never_published(value):
    with pytest.raises(ValueError, match="not finite"):
        add(np.array([0.0, value]), Gaussian(scale=1.0, dimension=2))


@pytest.mark.parametrize("noise", [SphericalLaplace(scale=2.0, dimension=400), Gaussian(scale=2.0, dimension=400)])
def test_the_expected_norm_is_about_the_mean_norm(noise):
    """Lengths are s·Gamma(D) or σ·χ(D), whose means are s·D and nearly σ·√D."""
    law = stats.gamma(400, scale=2.0) if isinstance(noise, SphericalLaplace) else stats.chi(400, scale=2.0)
    assert noise.expected_norm() == pytest.approx(law.mean(), rel=1e-3)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 2.0**-501, 2.0**501])
def test_a_scale_is_positive_and_finite(scale):
    with pytest.raises(ValueError, match="noise needs"):
        Gaussian(scale=scale, dimension=1)


def test_the_slack_is_proved_up_to_a_dimension():
    with pytest.raises(ValueError, match="dimensions"):
        SphericalLaplace(scale=1.0, dimension=2**24 + 1)


@pytest.mark.parametrize(("sensitivity", "charge"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_nothing_is_calibrated_to_nonsense(sensitivity, charge):
    with pytest.raises(ValueError, match="noise can only be calibrated"):
        calibrate(Currency.PURE, sensitivity=sensitivity, charge=charge, dimension=1)


def test_noise_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match="another dimension"):
        add(np.zeros(3), Gaussian(scale=1.0, dimension=4))
