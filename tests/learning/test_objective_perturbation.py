"""The density of what is released, for neighbours: never further apart than the charge, and some nearly as far."""

from dataclasses import replace
from fractions import Fraction
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from service.learning.objective_perturbation import ObjectivePerturbation
from service.learning.optimization.losses import LOSSES, HuberHinge
from service.learning.optimization.objective import norm
from service.learning.optimization.solvers import accuracy
from service.learning.records import Records
from service.privacy.accounting import events
from service.privacy.accounting.events.objective import curvature
from service.privacy.currency import Currency
from service.privacy.noise import additive as noises
from tests import chance

CASES = [("logistic", 2), ("softmax", 2), ("softmax", 4), ("huber_hinge", 2), ("huber_hinge", 3)]


def learner(name, classes, features=1, alpha=0.1, bound=1.0, width=0.5):
    return ObjectivePerturbation(
        loss=HuberHinge(width) if name == "huber_hinge" else LOSSES[name],
        regularization=alpha,
        intercept=False,
        norm_bound=bound,
        features=features,
        classes=classes,
    )


def log_density(one, spent, n, x, y, w, center=0.0):
    """ln of the density of the exact minimiser of n slots at w, a model: of the tilt b(w), and the Jacobian."""
    x, y = np.asarray(x, dtype=float).reshape(len(y), w.shape[1]), np.asarray(y)
    _, slopes, curved = one.loss.derivatives(x @ w.T, y)
    strength = n * spent.regularization
    tilt = -(slopes.T @ x) - strength * (w - center)
    hessian = strength * np.eye(w.size)
    for k, direction in enumerate(np.eye(len(w))):  # column block k of Σ S ⊗ xxᵀ
        seconds = one.loss.curve(curved, np.tile(direction, (len(y), 1)))
        hessian[:, k * x.shape[1] : (k + 1) * x.shape[1]] += np.einsum("ij,ik,il->jkl", seconds, x, x).reshape(
            w.size, -1
        )
    return -np.linalg.norm(tilt) / spent.noise.scale + np.linalg.slogdet(hessian)[1]


def apart(one, spent, records, points, center):
    """The largest |ln density ratio| at those points, of all pairs of data sets with one record each or none."""
    sets = [([], [])] + [([x], [y]) for x in records for y in (0, 1)]
    densities = [np.array([log_density(one, spent, 1, x, y, w, center) for w in points]) for x, y in sets]
    return max(np.abs(a - b).max() for a in densities for b in densities)


def bent(epsilon, case, factor=1.0):
    """On a line, near where a record bends the objective most; Λ is `factor` of what is stated."""
    one = learner(*case, alpha=1e-6)
    spent = one.perturbation(Currency.PURE, epsilon, 1)
    spent = replace(spent, regularization=factor * spent.regularization)
    return apart(one, spent, (-1.0, -0.5, 0.5, 1.0), np.linspace(-8, 8, 401)[:, None, None], 0.0)


def across(epsilon, case, factor=1.0):
    """Far out, where two records pull in opposite directions with all their force; the noise is `factor` of it."""
    one = learner(*case, features=2, alpha=1e3)
    spent = one.perturbation(Currency.PURE, epsilon, 1)
    spent = replace(spent, noise=noises.SphericalLaplace(scale=factor * spent.noise.scale, dimension=2))
    points = [np.array([[-1e4, along]]) for along in np.linspace(-5, 5, 101)]
    return apart(one, spent, ((0.01, 0.9999), (0.01, -0.9999)), points, np.array([[-1e4, 0.0]]))


@pytest.mark.more
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("case", [("logistic", 2), ("huber_hinge", 2)])
def test_densities_differ_by_the_charge_and_no_more(case, epsilon):
    assert 0.4 * epsilon < bent(epsilon, case) <= epsilon
    assert 0.98 * epsilon < across(epsilon, case) <= epsilon


@pytest.mark.more
@pytest.mark.parametrize("case", [("logistic", 2), ("huber_hinge", 2)])
def test_with_a_wrong_constant_they_differ_by_more(case):
    """Planted: a Λ that is not raised, and noise a third too small."""
    assert bent(1.0, case, factor=0.2) > 1.0
    assert across(1.0, case, factor=2 / 3) > 1.0


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.sampled_from(CASES), st.floats(-2, 1), st.floats(-1, 1), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_densities_never_differ_by_more(case, log_alpha, log_epsilon, others, seed):
    """In two dimensions, at random points of random neighbours, far from and near where the tilt is 0."""
    rng = np.random.default_rng(seed)
    one = learner(*case, features=2, alpha=10**log_alpha)
    epsilon = 10**log_epsilon
    spent = one.perturbation(Currency.PURE, epsilon, others + 1)
    x = rng.normal(size=(others + 2, 2))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    y = rng.integers(0, case[1], others + 2)
    w = rng.normal(size=one.shape) * 10 ** rng.uniform(-2, 2)
    first, second = (np.delete(np.arange(others + 2), i) for i in (0, 1))
    erased = np.arange(2, others + 2)
    densities = [log_density(one, spent, others + 1, x[keep], y[keep], w) for keep in (first, second, erased)]
    assert max(densities) - min(densities) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_some_curvature_comes_close(case):
    """The bound is reached by a record that is alone: found by optimisation over where it is looked at."""
    one = learner(*case, features=1, alpha=0.02, width=0.25)
    rank, trace = one.loss.curvature(one.shape[0])
    bound = curvature(rank=rank, steepness=trace, records=1, regularization=0.02)

    def curved(w):
        _, _, seconds = one.loss.derivatives(w[None], np.zeros(1, dtype=int))
        matrix = [one.loss.curve(seconds, direction[None])[0] for direction in np.eye(len(w))]
        return np.linalg.slogdet(np.eye(len(w)) + np.array(matrix) / 0.02)[1]

    start = {"huber_hinge": -np.ones(one.shape[0])}.get(case[0], np.zeros(one.shape[0]))
    if case[0] == "huber_hinge":
        start[0] = 1.0 if one.shape[0] > 1 else -1.0
    best = optimize.minimize(lambda w: -curved(w), start, method="Nelder-Mead")
    assert 0.999 * bound < -best.fun <= bound


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", list(Currency))
@pytest.mark.parametrize(("charge", "n"), [(1e-3, 1), (1e-3, 1000), (0.5, 20), (8.0, 1)])
def test_it_costs_what_it_is_charged_and_little_less(case, kind, charge, n):
    one = learner(*case, features=3)
    spent = one.perturbation(kind, charge, n)
    again = events.from_json(spent.to_json()).cost(kind, records=n)
    assert 0.999999 * Fraction(charge) < again == spent.cost(kind, records=n) <= Fraction(charge)


def test_the_constants_are_those_of_the_statement():
    """Softmax, K = 4, ‖x‖ ≤ 2, n = 100: ε' = ε - 3·ln(1 + R²/(4nΛ)) but for the part of the output."""
    one = learner("softmax", 4, alpha=0.5, bound=2.0)
    spent = one.perturbation(Currency.PURE, 1.0, 100)
    left = 1.0 - 2.0**-10 - 3 * log(1 + 4 / (4 * 100 * 0.5))
    assert spent.noise.scale == pytest.approx(2 * 2 * sqrt(2) / left, rel=1e-5)
    assert spent.regularization == 0.5


def test_a_regularization_too_small_is_raised_until_the_curvature_takes_half():
    one = learner("logistic", 2, alpha=1e-6)
    spent = one.perturbation(Currency.PURE, 0.2, 10)
    half = 0.2 * (1 - 2.0**-10) / 2
    assert spent.regularization == pytest.approx(0.25 / (10 * np.expm1(half)), rel=1e-5)
    assert spent.noise.scale == pytest.approx(2 / half, rel=1e-4)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [1, 30])
def test_the_minimiser_is_as_near_as_stated(case, n):
    """A much better one by scipy is within τ/Λ, though the tilt is many times what all records can do."""
    rng = np.random.default_rng(4)
    one = learner(*case, features=3)
    x, y = rng.normal(size=(n, 3)), rng.integers(0, case[1], n)
    center = rng.normal(size=one.shape)
    spent = one.perturbation(Currency.PURE, 0.5, n, center)
    tilt = spent.noise.scale / n * rng.normal(size=one.shape)
    weights = one.fit(Records(x=x, y=y), n, center, spent, tilt)
    rows, _ = one.prepared(Records(x=x, y=y))

    def objective(flat):
        w = flat.reshape(one.shape)
        losses, slopes, _ = one.loss.derivatives(rows.rows() @ w.T, y)
        gradient = slopes.T @ rows.rows() / n + spent.regularization * (w - center) + tilt
        pull = spent.regularization / 2 * np.sum((w - center) ** 2) + np.sum(tilt * (w - center))
        return losses.sum() / n + pull, gradient.ravel()

    assert np.linalg.norm(objective(weights.ravel())[1]) <= spent.output_sensitivity * spent.regularization / 2
    rough = optimize.minimize(objective, center.ravel(), jac=True, method="L-BFGS-B", options={"gtol": 1e-8})
    assert np.linalg.norm(rough.x - weights.ravel()) < 1e-2 * max(1.0, np.linalg.norm(weights))


def test_no_records_are_no_obstacle():
    one = learner("softmax", 3, features=2)
    spent = one.perturbation(Currency.PURE, 1.0, 5)
    empty = Records(x=np.empty((0, 2)), y=np.empty(0))
    tilt = np.ones(one.shape)
    assert np.allclose(one.fit(empty, 5, np.zeros(one.shape), spent, tilt), -tilt / spent.regularization)
    assert one.release(empty, 5, np.zeros(one.shape), spent).shape == one.shape


def test_the_tilt_follows_its_law():
    """As the releases of an empty data set betray it."""
    one = learner("softmax", 3, features=4, alpha=1.0)
    spent = one.perturbation(Currency.PURE, 1.0, 5)
    empty, center = Records(x=np.empty((0, 4)), y=np.empty(0)), np.zeros(one.shape)
    tilts = [one.release(empty, 5, center, spent).ravel() * 5 * spent.regularization for _ in range(100)]
    chance.assert_spherical_laplace(tilts, scale=spent.noise.scale)


def test_the_output_noise_covers_the_solver():
    """Δ/scale of it is the stated part of the charge, and Δ covers both fits and the lattice of the tilt."""
    one = learner("softmax", 3, features=4)
    spent = one.perturbation(Currency.PURE, 1.0, 50)
    assert spent.output.charge(spent.output_sensitivity) <= 2.0**-10
    lattice = spent.noise.grid * sqrt(12) / (2 * 50)
    promise, _ = one._promise(spent.noise, 50, spent.regularization, 0.0)
    assert spent.output_sensitivity >= 2 * (promise.tolerance + lattice) / spent.regularization


def test_a_coarse_lattice_of_the_tilt_moves_the_minimiser_by_half_a_diagonal_of_its_cells(monkeypatch):
    one, grid = learner("softmax", 3, features=4), 0.25
    coarse = type("Coarse", (noises.SphericalLaplace,), {"grid": grid})
    tilt_and_output = iter([coarse(scale=3.0, dimension=12), noises.SphericalLaplace(scale=3.0, dimension=12)])
    monkeypatch.setattr(noises, "calibrate", lambda *_, **__: next(tilt_and_output))
    spent = one.perturbation(Currency.PURE, 1.0, 50)
    promise, longest = one._promise(spent.noise, 50, spent.regularization, 0.0)
    diagonal = grid * sqrt(one.dimension) / 50
    near = promise.tolerance + 2 * longest * 2.0**-53 + diagonal / 2
    assert 2 * near <= spent.output_sensitivity * spent.regularization <= 2 * near * (1 + 1e-6)


def test_the_solver_is_as_near_as_for_the_longest_tilt_and_the_centre_of_the_fit():
    one = learner("softmax", 3, features=4)
    spent = one.perturbation(Currency.PURE, 1.0, 50)
    promise, longest = one._promise(spent.noise, 50, spent.regularization, 7.0)
    public = {"norm_bound": 1.0, "regularization": spent.regularization, "shape": one.shape, "records": 50}
    assert promise == accuracy(one.loss, **public, center_norm=7.0, tilt=longest)


def test_a_tilt_longer_than_any_is_refused():
    one = learner("logistic", 2, features=2)
    spent = one.perturbation(Currency.PURE, 1.0, 5)
    far = np.full(one.shape, 1e6)
    assert norm(far) > spent.noise.scale
    with pytest.raises(OverflowError):
        one.fit(Records(x=np.ones((1, 2)), y=np.zeros(1)), 5, np.zeros(one.shape), spent, far)


def test_a_loss_of_unbounded_slope_is_refused():
    with pytest.raises(ValueError, match="squared"):
        learner("squared", 0)
