"""No record moves a sum of clipped gradients further than stated, some move it nearly as far; the noise is there."""

from dataclasses import replace
from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from service.learning import noisy_gradient_descent
from service.learning.noisy_gradient_descent import FIRST, NEAR, NoisyGradientDescent, clipped_sum
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.objective import norm, summed
from service.learning.optimization.solvers import SLACK, Inaccurate
from service.learning.records import Records
from service.privacy.accounting import events
from service.privacy.currency import Currency
from tests import chance

CASES = [("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3), ("squared", 0)]
RHO = 0.0244


def learner(name, classes, features=3, **settings):
    return NoisyGradientDescent(
        **{"loss": LOSSES[name], "regularization": 0.0, "intercept": False, "norm_bound": 1.0}
        | {"features": features, "classes": classes}
        | settings
    )


@pytest.fixture
def silent(monkeypatch):
    """Every sum a fit adds noise to, and no noise."""
    sums = []

    def add(values, noise):
        sums.append(values.copy())
        return values

    monkeypatch.setattr(noisy_gradient_descent.noises, "add", add)
    return sums


def moved(one, first, second, n, center, silent):
    """How far apart the first sums of two neighbours are, which are taken at the same point, in units of the claim."""
    spent = replace(one.perturbation(Currency.ZCDP, RHO, n, center), steps=1)
    silent.clear()
    for records in (first, second):
        one.release(records, n, center, spent)
    return np.linalg.norm(silent[0] - silent[1]) / spent.sensitivity


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.sampled_from(CASES),
    st.integers(1, 300),
    st.floats(-1, 3),
    st.floats(-3, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_neighbours_never_move_a_sum_further(case, m, log_scale, log_clip, intercept, erase, seed):
    rng = np.random.default_rng(seed)
    one = learner(*case, clip=10**log_clip, intercept=intercept)
    x, y = rng.normal(size=(m, 3)) * 10**log_scale, rng.integers(0, case[1] or 5, m) - (0 if case[1] else 2)
    center = rng.normal(size=one.shape) * 10**log_scale
    other_x, other_y = x.copy(), y.copy()
    other_x[0], other_y[0] = rng.choice([-1, 1]) * x[0] + 0.1 * rng.normal(size=3), rng.integers(case[1] or 2)
    keep = slice(1 if erase else 0, None)
    sums = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noisy_gradient_descent.noises, "add", lambda values, noise: sums.append(values) or values)
        first, second = Records(x=x, y=y), Records(x=other_x[keep], y=other_y[keep])
        assert moved(one, first, second, m + 2, center, sums) <= 1.0


@pytest.mark.more
@pytest.mark.parametrize("n", [1, 1000])
@pytest.mark.parametrize("case", CASES)
def test_some_neighbours_come_close(case, n, silent):
    """Found by optimisation over both records, around a model that is far out."""
    one = learner(*case, features=2)
    center = np.array([[-30.0, 0.0], [30.0, 0.0], [30.0, 0.0]])[: one.shape[0]]
    label = {"logistic": 1, "huber_hinge": 1 if case[1] == 2 else 0}.get(case[0], 0)
    labels = np.array([label])

    def closeness(angles):
        first, second = (Records(x=np.array([[np.cos(a), np.sin(a)]]), y=labels) for a in angles)
        return -moved(one, first, second, n, center, silent)

    best = optimize.minimize(closeness, [1.0, -1.0], method="Nelder-Mead", options={"maxfev": 80})
    assert 0.99 < -best.fun <= 1.0


def test_a_gradient_is_clipped_and_short_ones_are_left_alone():
    """Against per-record gradients in plain numpy."""
    rng = np.random.default_rng(3)
    one = learner("softmax", 3, clip=0.3, intercept=True)
    x, y = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    rows, labels = one.prepared(Records(x=x, y=y))
    plain = rows.rows()
    weights = rng.normal(size=one.shape)
    _, slopes, _ = one.loss.derivatives(plain @ weights.T, labels)
    gradients = slopes[:, :, None] * plain[:, None, :]
    lengths = np.linalg.norm(gradients, axis=(1, 2))
    assert (lengths > 0.3).any()
    assert (lengths < 0.3).any()
    expected = (gradients * np.minimum(1, 0.3 / lengths)[:, None, None]).sum(axis=0)
    _, total = summed(one.loss, rows, labels, weights, steepest=0.3 / rows.norms())
    assert np.allclose(total, expected, atol=50 * 1e-6)
    assert np.linalg.norm(total) <= np.linalg.norm(expected) + 50 * 1e-6


@pytest.mark.parametrize("charge", [1e-9, 1e-3, 0.0244, 2.0])
@pytest.mark.parametrize("n", [1, 1000, 10**6])
@pytest.mark.parametrize("case", CASES)
def test_all_steps_together_cost_the_charge(case, charge, n):
    one = learner(*case)
    spent = one.perturbation(Currency.ZCDP, charge, n)
    again = events.from_json(spent.to_json()).cost(Currency.ZCDP, records=n)
    assert 0.999999 * Fraction(charge) < again == spent.cost(Currency.ZCDP, records=n) <= Fraction(charge)
    assert spent.noise.scale == pytest.approx(
        2 * one.longest * (1 + SLACK) * sqrt(spent.steps / (2 * charge)), rel=1e-3
    )


def test_noise_is_fresh_in_every_step_and_follows_its_law():
    """Two steps without records or momentum from 0 add up two draws."""
    one = learner("softmax", 3, features=400, momentum=0.0, steps=2, step=1.0)
    spent = one.perturbation(Currency.ZCDP, RHO, 5)
    empty, center = Records(x=np.empty((0, 400)), y=np.empty(0)), np.zeros(one.shape)
    released = one.release(empty, 5, center, spent).reshape(4, 300)
    chance.assert_gaussian(released, scale=sqrt(2) * spent.noise.scale * spent.step / 5)


def released_noise(one, n, center):
    """Return what the noise alone does to the scores of records of length R along one feature each."""
    spent = one.perturbation(Currency.ZCDP, RHO, n, center)
    empty = Records(x=np.empty((0, one.features)), y=np.empty(0))
    return (one.release(empty, n, center, spent) - center) * one.norm_bound


@pytest.mark.parametrize("bound", [0.1, 30.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_noise_of_a_score_is_what_the_rule_says(bound, momentum):
    one = learner("softmax", 3, features=2000, norm_bound=bound, momentum=momentum)
    center = np.zeros(one.shape)
    chance.assert_spread(released_noise(one, 100, center), 0.9 * FIRST, 1.1 * FIRST)
    chance.assert_spread(released_noise(one, 100, center + 1.0), 0.9 * NEAR, 1.1 * NEAR)


def test_a_fit_learns_and_one_on_a_few_records_does_not_spoil_it():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(20_000, 20))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x @ rng.normal(size=(20, 3))).argmax(axis=1)
    one = learner("softmax", 3, features=20)

    def fitted(start, stop, charge, center):
        records = Records(x=x[start:stop], y=y[start:stop])
        return one.release(records, stop - start, center, one.perturbation(Currency.ZCDP, charge, stop - start, center))

    def right(weights):
        return np.mean((x @ weights.T).argmax(axis=1) == y)

    first = fitted(0, 16_000, 0.01, np.zeros(one.shape))
    chance.assert_above(right(first), 0.9, mean=0.977, spread=0.0025, runs=88)
    worst = min(right(fitted(start, start + 500, 0.001, first)) for start in range(16_000, 20_000, 500))
    chance.assert_above(worst - right(first), -0.05, mean=-0.0093, spread=0.002, runs=88)


def test_what_is_chosen_depends_on_public_quantities_only(silent):
    """Records that no step can satisfy change neither steps nor their size."""
    one = learner("softmax", 3)
    spent = one.perturbation(Currency.ZCDP, RHO, 64)
    for y in (np.zeros(64, dtype=int), np.arange(64) % 3):
        silent.clear()
        one.release(Records(x=np.ones((64, 3)), y=y), 64, np.zeros(one.shape), spent)
        assert len(silent) == spent.steps


def test_iterates_stay_in_the_public_ball(monkeypatch):
    """However large the noise comes out."""
    one = learner("logistic", 2)
    spent = one.perturbation(Currency.ZCDP, RHO, 10)
    monkeypatch.setattr(noisy_gradient_descent.noises, "add", lambda values, noise: values + 1e9)
    center = np.ones(one.shape)
    records = Records(x=np.ones((1, 3)), y=np.zeros(1))
    away = np.linalg.norm(one.release(records, 10, center, spent) - center)
    assert 0.999 * spent.radius < away <= spent.radius


def test_rounding_is_reckoned_for_iterates_as_far_out_as_they_may_be():
    """Around a model of long weights iterates are long, however little they move away from it."""
    one = learner("logistic", 2)
    center = np.full(one.shape, 1e10)
    spent = one.perturbation(Currency.ZCDP, RHO, 100, center)
    weights = norm(center) + spent.radius
    assert spent.sensitivity == clipped_sum(one, clip=one.longest, records=100, weights=weights)
    assert spent.sensitivity > 1.0005 * one.perturbation(Currency.ZCDP, RHO, 100).sensitivity


def test_regularization_pulls_towards_the_centre(silent):
    records = Records(x=np.ones((64, 3)), y=np.ones(64))
    distances = []
    for alpha in (0.0, 0.1, 1.0, 10.0):
        one = learner("logistic", 2, regularization=alpha)
        center = np.full(one.shape, -1.0)
        weights = one.release(records, 64, center, one.perturbation(Currency.ZCDP, RHO, 64, center))
        distances.append(np.linalg.norm(weights - center))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] > 0


def test_there_is_no_pure_kind():
    with pytest.raises(ValueError, match="pure"):
        learner("logistic", 2).perturbation(Currency.PURE, 1.0, 100)


def test_more_records_than_doubles_can_add_up_are_refused():
    with pytest.raises(Inaccurate):
        learner("softmax", 3).perturbation(Currency.ZCDP, 1e3, 2**40)
