"""Each fit's pull, chosen so that its noise has a known spread in a score, and the noise, which is for that pull."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.noisy_gradient_descent import logit
from service.learning.optimization.descent import GradientDescent, PermutationSGD
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.solvers import Exact
from service.learning.output_perturbation import LEAST, SCORE_NOISE, NoisyFit, OutputPerturbation
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import AskedPublication, PublicationConfiguration
from service.privacy.accounting.budget import Budget
from service.privacy.accounting.events import NoisyWeights
from service.privacy.currency import Currency
from service.streams.schema import StreamSchema

LOSSES_OF = [("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3), ("squared", 0)]
SOLVERS = [Exact(), PermutationSGD(passes=2, batch=3), GradientDescent(steps=20)]
STREAM = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 2}, "norm_bound": 2})
WINDOW = {"kind": "sliding_window", "block": 100, "blocks": 7}
STATISTICS = {"kind": "window_statistics", "block": 400, "blocks": 1}


def learner(name, classes, *, score_noise=SCORE_NOISE, bound=1.0, solver=SOLVERS[0]):
    return OutputPerturbation(
        loss=LOSSES[name],
        regularization=1e-4,  # a fit that had it would be far from what it should be
        intercept=True,
        norm_bound=bound,
        features=3,
        classes=classes,
        solver=solver,
        score_noise=score_noise,
    )


def begun(mechanism=WINDOW, delta=1e-6, **more):
    return AskedPublication.model_validate(
        {
            "mechanism": mechanism,
            "learner": {"kind": "output_perturbation"} | more,
            "privacy": {"epsilon": 1, "delta": delta},
        }
    ).configuration(Budget(epsilon=1, delta=1))


@pytest.mark.more
@pytest.mark.parametrize("case", LOSSES_OF)
@pytest.mark.parametrize("currency", [Currency.PURE, Currency.ZCDP])
@pytest.mark.parametrize("bound", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("n", [1, 300, 10**6])
@pytest.mark.parametrize("far", [0.0, 2.0])
def test_noise_has_the_spread_that_is_asked_for(case, currency, bound, n, far):
    one = learner(*case, bound=bound)
    center = np.full(one.shape, far)
    made = one.perturbation(currency, 0.05, n, center)
    spread = bound * made.noise.expected_norm() / math.sqrt(one.dimension) / logit(one)
    if made.regularization > LEAST * one.loss.smoothness(bound):
        assert spread == pytest.approx(SCORE_NOISE, rel=1e-3)
    else:
        assert n == 10**6
        assert spread <= SCORE_NOISE * 1.001


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.sampled_from(LOSSES_OF),
    st.sampled_from(SOLVERS),
    st.sampled_from([Currency.PURE, Currency.ZCDP]),
    st.floats(-3, 8),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_neighbours_are_no_further_apart_than_the_noise_is_for(case, solver, currency, log_charge, m, erase, seed):
    """One record is replaced by an opposite one or erased; centres near and far; the same permutation for both."""
    rng = np.random.default_rng(seed)
    if isinstance(solver, PermutationSGD):
        order = rng.permutation(30)
        solver = replace(solver, places=lambda rows, slots: np.argsort(np.argsort(order[:slots]))[:rows])
    one = learner(*case, solver=solver)
    x, y = rng.normal(size=(m, 3)), rng.integers(0, case[1] or 5, m)
    center = rng.normal(size=one.shape) * rng.choice([0.0, 1.0, 100.0])
    n = m + int(rng.integers(0, 4))
    other_x, other_y = x.copy(), y.copy()
    last = m - 1  # so that erasing it leaves the places of the others
    other_x[last], other_y[last] = -x[last], rng.integers(case[1] or 5)
    rest = slice(0, last if erase else m)
    made = one.perturbation(currency, 10**log_charge, n, center)
    first, second = (
        one.fit(records, n, center, made.regularization)
        for records in (Records(x=x, y=y), Records(x=other_x[rest], y=other_y[rest]))
    )
    assert np.linalg.norm(first - second) <= made.sensitivity


def test_some_neighbours_come_close():
    """A centre far along the first axis, and two records across it, both on its wrong side by a little."""
    one = replace(learner("logistic", 2), intercept=False, features=2)
    center = np.array([[-1e4, 0.0]])
    made = one.perturbation(Currency.ZCDP, 0.01, 20, center)
    assert made.regularization > 1
    first, second = (
        one.fit(Records(x=np.array([[0.01, side]]), y=np.array([1])), 20, center, made.regularization)
        for side in (0.9999, -0.9999)
    )
    assert np.linalg.norm(first - second) > 0.99 * made.sensitivity


def test_a_release_is_the_fit_that_its_noise_is_for():
    """With so little noise that the pull shows: 10⁻⁴ logits of it."""
    one = learner("logistic", 2, score_noise=1e-4)
    rng = np.random.default_rng(0)
    records = Records(x=rng.normal(size=(50, 3)), y=rng.integers(0, 2, 50))
    center = np.zeros(one.shape)
    made = one.perturbation(Currency.ZCDP, 1e6, 50, center)
    assert made.regularization > 100 * one.regularization
    released = one.release(records, 50, center, made)
    exact = one.fit(records, 50, center, made.regularization)
    assert np.linalg.norm(released - exact) < 0.01  # 50 deviations
    assert np.linalg.norm(released - one.fit(records, 50, center)) > 0.1


def test_noise_that_is_for_no_pull_is_refused():
    one = learner("logistic", 2)
    made = one.perturbation(Currency.ZCDP, 1.0, 5)
    assert isinstance(made, NoisyFit)
    records = Records(x=np.zeros((1, 3)), y=np.zeros(1))
    with pytest.raises(TypeError):
        one.release(records, 5, np.zeros(one.shape), NoisyWeights(noise=made.noise, sensitivity=made.sensitivity))


def test_a_new_publication_gets_the_default_and_stored_json_without_it_keeps_its_regularization():
    configuration = begun()
    stored = configuration.stored()
    assert stored["learner"]["score_noise"] == SCORE_NOISE
    assert "regularization" not in stored["learner"]
    again = PublicationConfiguration.model_validate(stored)
    assert again.stored() == stored
    assert build(STREAM, again).learner.score_noise == SCORE_NOISE
    old = PublicationConfiguration.model_validate(
        {"mechanism": WINDOW, "learner": {"kind": "output_perturbation"}, "privacy": {"epsilon": 1, "delta": 1e-6}}
    )
    assert old.stored()["learner"]["regularization"] == 0.1
    assert "score_noise" not in old.stored()["learner"]
    assert build(STREAM, old).learner.pull(Currency.ZCDP, 0.01, 100) == 0.1


def test_a_regularization_that_is_given_counts():
    stored = begun(regularization=0.1).stored()["learner"]
    assert stored["regularization"] == 0.1
    assert "score_noise" not in stored


def test_sums_of_records_have_a_pull_of_their_own():
    stored = begun(STATISTICS).stored()["learner"]
    assert stored["regularization"] == 0.1
    assert "score_noise" not in stored


def test_both_are_refused():
    with pytest.raises(ValueError, match="not both"):
        begun(regularization=0.1, score_noise=0.2)


def test_a_plan_says_what_its_pull_follows_from():
    plan = build(STREAM, begun()).plan()
    learner = plan["model"]
    assert learner["score_noise"] == SCORE_NOISE
    assert learner["least_strong_convexity"] == pytest.approx(LEAST)  # of a smoothness of 2²/4
    assert "strong_convexity" not in learner
    for fit in plan["fits"]:
        least = 2 * learner["lipschitz"] / (fit["strong_convexity"] * fit["records"])
        assert least <= fit["sensitivity"] <= least * 1.0001


def test_a_plan_says_the_pull_of_fits_of_a_sample_which_is_for_the_sample():
    plan = build(STREAM, begun(delta=0, sample=3)).plan()
    for fit in plan["fits"]:
        assert fit["noise"]["sample"] == 3 < fit["records"]
        least = 2 * plan["model"]["lipschitz"] / (fit["strong_convexity"] * 3)
        assert least <= fit["sensitivity"] <= least * 1.0001
