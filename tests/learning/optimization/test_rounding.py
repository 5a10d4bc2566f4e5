"""The bounds on rounding that sensitivities rest on, recomputed from the statements of `solvers` and `descent`."""

import contextlib
import math
from fractions import Fraction

import pytest

from service.learning.noisy_gradient_descent import NoisyGradientDescent, clipped_sum
from service.learning.objective_perturbation import _epsilon
from service.learning.optimization import descent, solvers
from service.learning.optimization.descent import GradientDescent, PermutationSGD
from service.learning.optimization.losses import LOSSES, Squared
from service.learning.optimization.objective import MARGIN, ROWS
from service.learning.optimization.solvers import SLACK, UNIT, Inaccurate, Setting, accuracy
from service.privacy.currency import Currency

SQUARED = Squared(bound=2.0)
SETTINGS = {
    "plain": Setting(
        loss=LOSSES["logistic"], norm_bound=3.0, regularization=1e-3, shape=(1, 50), center_norm=7.0, tilt=0.25
    ),
    "many rows": Setting(
        loss=LOSSES["softmax"], norm_bound=0.5, regularization=0.2, shape=(4, 9), center_norm=0.0, tilt=0.0
    ),
    "in a ball": Setting(loss=SQUARED, norm_bound=1.5, regularization=0.01, shape=(1, 20), center_norm=0.5),
}
MANY = 10**15  # records, of which one moves so little that rounding decides
same = pytest.approx


@pytest.fixture(params=SETTINGS)
def setting(request):
    return SETTINGS[request.param]


def error(setting, radius):
    """E: twice the rounding of scores, slopes, sums, the rest of a gradient, and a step along it."""
    u, r, d = Fraction(UNIT), Fraction(setting.norm_bound), setting.shape[1]
    weights = Fraction(MARGIN) * (Fraction(setting.center_norm) + Fraction(radius))
    alpha, lipschitz, tilt = (Fraction(each) for each in (setting.regularization, setting.lipschitz, setting.tilt))
    parts = (
        r * Fraction(setting.loss.score_smoothness) * (d + 2) * weights * r,
        r * Fraction(setting.loss.slope_error(setting.shape[0])),
        (ROWS + 8) * lipschitz,
        8 * (lipschitz + tilt + alpha * Fraction(radius)),
        8 * (Fraction(setting.loss.smoothness(setting.norm_bound)) + alpha) * weights,
    )
    return 2 * u * sum(parts)


@pytest.mark.parametrize("radius", [0.5, 40.0])
def test_the_error_of_a_gradient_is_the_sum_of_what_is_listed(setting, radius):
    assert setting.error(radius) == same(float(error(setting, radius)), rel=1e-12)


def test_the_reach_is_where_the_objective_can_be_as_low_as_in_the_centre(setting):
    worst = setting.loss.at_most(setting.norm_bound * setting.center_norm, setting.shape[0])
    root = math.sqrt(setting.tilt**2 + 2 * setting.regularization * worst)
    assert setting.reach == same(MARGIN * (setting.tilt + root) / setting.regularization, rel=1e-12)
    assert setting.bounded == (setting.loss is SQUARED)


def promised(setting, records):
    return accuracy(
        setting.loss,
        norm_bound=setting.norm_bound,
        regularization=setting.regularization,
        shape=setting.shape,
        records=records,
        center_norm=setting.center_norm,
        tilt=setting.tilt,
    )


@pytest.mark.parametrize("records", [1, MANY])
def test_the_certificate_covers_five_errors_or_the_slack_of_a_record(setting, records):
    promise = promised(setting, records)
    steepest = setting.lipschitz + setting.tilt
    radius = min(2 * MARGIN * steepest / setting.regularization, setting.reach)
    bound = float(error(setting, radius))
    assert (promise.radius, promise.steepest) == (same(radius, rel=1e-12), same(steepest, rel=1e-12))
    assert promise.error == same(bound, rel=1e-12)
    assert promise.tolerance == same(max(SLACK * setting.lipschitz / records, 5 * bound), rel=1e-12)


def test_as_many_steps_are_proved_to_be_enough_as_are_taken():
    """T = ln(βG²/(4αE²))/(3α/(4β)), with τ/5 in the place of E, and two more."""
    steepest, alpha, beta, tolerance = 3.0, 0.5, 8.0, 1e-3
    t = math.log(beta * steepest**2 / (4 * alpha * (tolerance / 5) ** 2)) / (3 * alpha / (4 * beta))
    assert solvers._descent_steps(steepest, alpha, beta, tolerance) == 2 + math.ceil(t)
    assert solvers._descent_steps(1e-9, alpha, beta, 1.0) == 2 + math.ceil(math.log(2.0) * 4 * beta / (3 * alpha))


@pytest.mark.parametrize(("regularization", "is_fit"), [(0.01, True), (0.001, False)])
def test_a_fit_that_could_take_longer_than_ten_million_steps_is_refused(regularization, is_fit):
    beta, settings = 0.25 * 30.0**2, {"norm_bound": 30.0, "shape": (1, 3), "records": 1, "center_norm": 0.0}
    assert (40 * 4 * beta / (3 * regularization) < 1e7) == is_fit  # a logarithm near 40
    with contextlib.nullcontext() if is_fit else pytest.raises(Inaccurate, match="too long"):
        accuracy(LOSSES["logistic"], regularization=regularization, **settings)


def step_error(setting):
    """The radius that steps stay in, and s: 2uW, and with a projection onto a ball (4·dimension + 16)·u·ρ more."""
    within = setting.reach if setting.bounded else 2 * setting.lipschitz / setting.regularization
    radius = MARGIN * within
    rounding = 2 * UNIT * (setting.center_norm + radius)
    if setting.bounded:
        rounding += UNIT * (4 * math.prod(setting.shape) + 16) * radius
    return radius, rounding


def test_gradient_descent_counts_its_rounding(setting):
    radius, rounding = step_error(setting)
    beta = setting.loss.smoothness(setting.norm_bound) + setting.regularization
    step = 2 / (beta + setting.regularization)
    tau = MARGIN * (float(error(setting, radius)) + rounding / step)
    sensitivity = GradientDescent(steps=3).sensitivity(setting, MANY)
    moved = 1 - (1 - step * setting.regularization) ** 3
    expected = 2 * setting.lipschitz / (setting.regularization * MANY) * moved + 2 * tau / setting.regularization
    assert sensitivity == same(expected, rel=1e-6)
    assert descent._step(setting) <= step


def test_permutation_sgd_counts_its_rounding(setting):
    radius, rounding = step_error(setting)
    passes, batch = 4, MANY // 10
    beta = setting.loss.smoothness(setting.norm_bound) + setting.regularization
    fastest = max(beta, setting.regularization * passes * 10)
    tau = MARGIN * (float(error(setting, radius)) + rounding * fastest)
    sensitivity = PermutationSGD(passes=passes, batch=batch).sensitivity(setting, MANY)
    assert sensitivity == same(2 / setting.regularization * (setting.lipschitz / MANY + tau), rel=1e-6)


@pytest.mark.parametrize(("rho", "epsilon"), [(0.5, 1.0), (2.0, 2.0), (0.3, math.sqrt(0.6))])
def test_the_epsilon_of_a_rho_is_the_largest_double_that_does_not_pass_it(rho, epsilon):
    root = _epsilon(rho)
    assert root == same(epsilon, rel=1e-15)
    assert Fraction(root) ** 2 <= 2 * Fraction(rho) < Fraction(math.nextafter(root, 9.0)) ** 2


@pytest.mark.parametrize(("name", "classes"), [("logistic", 2), ("softmax", 4), ("squared", 0)])
@pytest.mark.parametrize("records", [10, 10**9])
def test_a_clipped_sum_counts_its_rounding(name, classes, records):
    """2C + 2E, E at least SLACK·C: h·(D + 2)·u·W·R² + slope_error·u·R + (ROWS + rows + D + 16)·u·C, 2n times."""
    one = noisy(name, classes)
    clip, weights, (rows, columns) = 0.3, 5.0, one.shape
    scores = 1.5**2 * one.loss.score_smoothness * (columns + 2) * MARGIN * weights
    each = scores + 1.5 * one.loss.slope_error(rows) + (ROWS + rows + columns + 16) * clip
    expected = 2 * MARGIN * (clip + max(SLACK * clip, 2 * UNIT * records * each))
    assert (2 * UNIT * records * each > SLACK * clip) == (records > 10)
    assert clipped_sum(one, clip=clip, records=records, weights=weights) == same(expected, rel=1e-12)
    with pytest.raises(Inaccurate, match="add up"):
        clipped_sum(one, clip=clip, records=10**14, weights=weights)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noisy_steps_stay_in_twice_the_ball_that_they_and_their_noise_reach(momentum):
    steps, step, clip, records, charge = 5, 0.5, 0.3, 1000, 0.01
    perturbation = noisy("softmax", 4, steps=steps, step=step, clip=clip, momentum=momentum).perturbation(
        Currency.ZCDP, charge, records
    )
    still = [1 - momentum**t for t in range(steps, 0, -1)]
    scale = 1.5 * 2 * clip * math.sqrt(steps / (2 * charge))
    noise = step * scale / records * math.hypot(*still) * (math.sqrt(24) + 8)
    assert perturbation.radius == same(2 * (step * clip * sum(still) + noise), rel=1e-12)
    assert perturbation.noise.scale < scale


def noisy(name, classes, **changed):
    settings = {"steps": None, "step": None, "clip": None, "momentum": 0.0} | changed
    return NoisyGradientDescent(
        loss=SQUARED if name == "squared" else LOSSES[name],
        regularization=0.0,
        intercept=False,
        norm_bound=1.5,
        features=6,
        classes=classes,
        **settings,
    )
