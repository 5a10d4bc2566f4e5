"""From records to releases with real noise: what is released minus the exact minimiser follows the stated law.

The minimiser is recomputed with scipy from the contract's formula, the scale from paper-audit.md 1.1, sharing
nothing with the service but the released parents.
"""

from math import expm1, log1p, sqrt

import numpy as np
import pytest
from scipy import optimize

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.streams.schema import StreamSchema
from tests import chance

FEATURES = 30  # so many numbers in a release that few releases do
ALPHA = 0.3
CONTINUAL = {"kind": "continual", "base": 16, "update_every": 4}
SLIDING = {"kind": "sliding_window", "block": 4, "blocks": 7}
MULTI = {"kind": "multi_resolution", "base": 16}
BATCHES = {"kind": "independent_batches", "batch": 16, "warm_start": True}
PURE = {"epsilon": 1}
GAUSSIAN = {"epsilon": 1, "delta": 1e-6}
# Shares of the smallest fit (a base of 16 or an update of 4; a bucket of 4; a block or a batch of 16), by hand from
# paper-audit.md 1.2 to 1.4: B/b_0 = 4 = 2^2, so a record of the second epoch pays bases e·r/(1-r), updates e·(1 + r);
# W = 7 pays 1 + r + r²; all levels of blocks 1/(1 - r); a batch all there is.
UNIT = {
    ("continual", "pure"): 1 / (1 + 1.5),
    ("continual", "gaussian"): 1 / (1 / 3 + 1.25),
    ("sliding_window", "pure"): 1 / 1.75,
    ("sliding_window", "gaussian"): 1 / (1 + 1 / 4 + 1 / 16),
    ("multi_resolution", "pure"): 1 / 2,
    ("multi_resolution", "gaussian"): 3 / 4,
    ("independent_batches", "pure"): 1.0,
    ("independent_batches", "gaussian"): 1.0,
}
RHO = 0.024355970359  # the ρ that implies (1, 1e-6), paper-audit.md N3


def data(classes):
    rng = np.random.default_rng(11)
    return rng.normal(size=(64, FEATURES)).astype(np.float32), rng.integers(0, classes, 64)


def minimiser(x, y, n, classes, center):
    """argmin (1/n)·Σ loss + (α/2)·‖w - c‖², rows clipped to 1 and given their intercept, by scipy."""
    x = x.astype(float)
    rows = x * np.minimum(1, 1 / np.linalg.norm(x, axis=1, keepdims=True))
    rows = np.hstack((rows, np.ones((len(x), 1)))) / sqrt(2)
    own = np.arange(len(y))

    def objective(flat):
        w = flat.reshape(center.shape)
        scores = rows @ w.T
        full = np.hstack((0 * scores, scores)) if classes == 2 else scores
        full = full - full.max(axis=1, keepdims=True)
        slopes = np.exp(full)
        totals = slopes.sum(axis=1, keepdims=True)
        losses = np.log(totals[:, 0]) - full[own, y]
        slopes /= totals
        slopes[own, y] -= 1
        gradient = (slopes[:, -len(w) :].T @ rows) / n + ALPHA * (w - center)
        return losses.sum() / n + ALPHA / 2 * np.sum((w - center) ** 2), gradient.ravel()

    solution = optimize.minimize(objective, center.ravel(), jac=True, method="L-BFGS-B", options={"gtol": 1e-9})
    return solution.x.reshape(center.shape)


def scale(mechanism, privacy, classes):
    """2L/(αn·charge), or 2L/(αn·√(2·charge)): the same for all fits of a mechanism with equal noise."""
    lipschitz = 1.0 if classes == 2 else sqrt(2)
    pure = "delta" not in privacy
    unit = UNIT[mechanism["kind"], "pure" if pure else "gaussian"]
    smallest = {"continual": (16, 4), "sliding_window": (4, 4)}.get(
        mechanism["kind"], (16, 16)
    )  # a first fit, a later one
    charge = unit * (1.0 if pure else RHO)
    return tuple(2 * lipschitz / (ALPHA * n * (charge if pure else sqrt(2 * charge))) for n in smallest)


def residuals(mechanism, privacy, classes, until, runs):
    """(released - exact)/scale for every release of many runs: without a parent, and with one."""
    scheduled = build(
        StreamSchema.model_validate({"features": FEATURES, "task": {"kind": "classification", "classes": classes}}),
        PublicationConfiguration.model_validate(
            {
                "mechanism": mechanism,
                "learner": {"kind": "output_perturbation", "regularization": ALPHA},
                "privacy": privacy,
            }
        ),
    )
    x, y = data(classes)
    first_scale, later_scale = scale(mechanism, privacy, classes)
    first, later, near_origin = [], [], {}
    for _ in range(runs):
        time, chain, released = 0, (), {}
        while (time := scheduled.next_time(time)) <= until:
            step = scheduled.step(
                time, chain, len(released) + 1, lambda start, end: Records(x=x[start:end], y=y[start:end])
            )
            chain = step.chain
            for release in step.releases:
                start, end = release.fit
                if release.parent is None and release.fit in near_origin:
                    exact = near_origin[release.fit]
                else:
                    center = released[release.parent] if release.parent else np.zeros(release.parameters.shape)
                    exact = minimiser(x[start:end], y[start:end], end - start, classes, center)
                    if release.parent is None:
                        near_origin[release.fit] = exact
                released[release.version] = release.parameters
                residual = (release.parameters - exact).ravel()
                (later if release.parent else first).append(residual / (later_scale if release.parent else first_scale))
    return np.array(first), np.array(later)


def assert_law(sample, privacy):
    """Assert that residuals in units of the scale follow the law."""
    follow = chance.assert_gaussian if "delta" in privacy else chance.assert_spherical_laplace
    follow(sample)


@pytest.mark.more
@pytest.mark.parametrize("classes", [2, 3], ids=["logistic", "softmax"])
@pytest.mark.parametrize("privacy", [PURE, GAUSSIAN], ids=["pure", "gaussian"])
@pytest.mark.parametrize(
    ("mechanism", "until", "runs"),
    [(CONTINUAL, 32, 12), (SLIDING, 28, 24), (MULTI, 48, 6), (BATCHES, 48, 24)],
    ids=["continual", "sliding window", "multi resolution", "batches with a warm start"],
)
def test_releases_are_minimisers_near_released_parents_with_the_stated_noise(mechanism, until, runs, privacy, classes):
    first, later = residuals(mechanism, privacy, classes, until, runs)
    assert len(first) == 24
    assert_law(first, privacy)
    if mechanism is MULTI:  # no block is near another
        assert len(later) == 0
    else:
        assert len(later) >= 36
        assert_law(later, privacy)


def stochastic(row, y, n, passes, batch):
    """Permutation SGD from 0 over n records that are all the same, so that every order of them is."""
    w = np.zeros_like(row)
    for t in range(1, passes * n // batch + 1):
        gradient = (1 / (1 + np.exp(-row @ w)) - y) * row + ALPHA * w
        w = w - min(1 / (0.25 + ALPHA), 1 / (ALPHA * t)) * gradient
    return w


@pytest.mark.parametrize("privacy", [PURE, GAUSSIAN], ids=["pure", "gaussian"])
def test_releases_of_permutation_sgd_are_its_last_iterate_with_the_stated_noise(privacy):
    """The permutation is secret, so the records are all the same, in whole batches."""
    learner = {"kind": "output_perturbation", "regularization": ALPHA, "solver": "psgd", "passes": 3, "batch": 4}
    scheduled = build(
        StreamSchema.model_validate({"features": FEATURES, "task": {"kind": "classification", "classes": 2}}),
        PublicationConfiguration.model_validate({"mechanism": CONTINUAL, "learner": learner, "privacy": privacy}),
    )
    x = np.zeros((16, FEATURES), dtype=np.float32)
    x[:, 3] = 1.0
    row = np.zeros(FEATURES + 1)
    row[[3, -1]] = sqrt(0.5)
    ideal, first_scale = stochastic(row, 1, 16, 3, 4), scale(CONTINUAL, privacy, 2)[0]
    sample = []
    for _ in range(24):
        step = scheduled.step(16, (), 1, lambda start, end: Records(x=x[start:end], y=np.ones(end - start)))
        sample.append((step.releases[0].parameters.ravel() - ideal) / first_scale)
    assert_law(np.array(sample), privacy)


@pytest.mark.parametrize("solver", ["exact", "psgd"])
def test_releases_of_a_sample_have_the_noise_of_its_size(solver):
    """The sample is secret, so the records are all the same: any 4 of 16 have one and the same model."""
    learner = {"kind": "output_perturbation", "regularization": ALPHA, "sample": 4}
    if solver == "psgd":
        learner |= {"solver": solver, "passes": 3, "batch": 4}
    scheduled = build(
        StreamSchema.model_validate({"features": FEATURES, "task": {"kind": "classification", "classes": 2}}),
        PublicationConfiguration.model_validate(
            {"mechanism": BATCHES, "learner": learner | {"intercept_scale": sqrt(0.5)}, "privacy": PURE}
        ),
    )
    x = np.zeros((16, FEATURES), dtype=np.float32)
    x[:, 3] = 1.0
    row = np.zeros(FEATURES + 1)
    row[[3, -1]] = sqrt(0.5)
    origin = np.zeros((1, FEATURES + 1))
    ideal = minimiser(x, np.ones(16, int), 16, 2, origin).ravel() if solver == "exact" else stochastic(row, 1, 4, 3, 4)
    of_four = 2 / (ALPHA * 4 * log1p(16 / 4 * expm1(1.0)))  # 2L/(αh·ε_h)
    sample = []
    for _ in range(24):
        step = scheduled.step(16, (), 1, lambda start, end: Records(x=x[start:end], y=np.ones(end - start, int)))
        sample.append((step.releases[0].parameters.ravel() - ideal) / of_four)
    assert_law(np.array(sample), PURE)
