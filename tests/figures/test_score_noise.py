"""The effect of noise on a prediction: the intervals hold the noise-free score, against releases drawn anew."""

import numpy as np
import pytest
from scipy import stats

from service.figures.score_noise import _longest, _marginal, reach, score_noise
from service.learning.objective_perturbation import ObjectivePerturbation
from service.learning.optimization.losses import LOSSES, Squared
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.linear import predict
from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from tests import chance

RUNS = 400
RNG = np.random.default_rng(21)


def description(loss, *, features=3, classes=2, intercept=True, bound=1.0):
    rows = LOSSES[loss].rows(classes)
    return {
        "kind": "linear",
        "loss": loss,
        **({"huber_width": 0.5} if loss == "huber_hinge" else {}),
        **({"bound": bound} if loss == "squared" else {}),
        "classes": None if loss == "squared" else classes,
        "features": features,
        "intercept": intercept,
        "norm_bound": 2.0,
        "feature_map": None,
        "shape": [rows, features + intercept],
    }


def stated(kind, scale, dimension):
    law = Gaussian if kind is Currency.ZCDP else SphericalLaplace
    noise = law(scale=scale, dimension=dimension)
    return noise, {"distribution": law.distribution, "scale": scale, "dimension": dimension, "added_to": "weights"}


@pytest.mark.more
@pytest.mark.parametrize("dimension", [1, 2, 60, 3000])
def test_a_score_of_spherical_laplace_noise_has_the_marginal_law(dimension):
    """Against a radius of the gamma law and a direction of the sphere's: the square of a cosine is beta."""
    for error in (0.5, 0.05, 1e-4):
        t = _marginal(dimension, error)
        if dimension == 1:
            assert t == pytest.approx(-np.log(error), rel=1e-4)
            continue
        radii = np.linspace(0, dimension + 60 + 12 * np.sqrt(dimension), 10_001)[1:]
        weights = stats.gamma(dimension).pdf(radii) * (radii[1] - radii[0])
        outside = stats.beta(0.5, (dimension - 1) / 2).sf(np.minimum(1, (t / radii) ** 2))
        assert float(weights @ outside) == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("dimension", [1, 5, 400])
@pytest.mark.parametrize("error", [0.9, 0.05, 1e-6])
def test_the_longest_tilt_is_the_gamma_laws(dimension, error):
    assert _longest(dimension, error) == pytest.approx(stats.gamma(dimension).isf(error), rel=1e-9)


@pytest.mark.more
@pytest.mark.parametrize("kind", Currency)
@pytest.mark.parametrize(
    ("loss", "classes"), [("logistic", 2), ("huber_hinge", 2), ("huber_hinge", 4), ("softmax", 4), ("squared", 0)]
)
def test_intervals_hold_the_noise_free_scores_and_labels_that_noise_cannot_flip_are_right(kind, loss, classes):
    described = description(loss, classes=classes)
    rows, columns = described["shape"]
    weights = RNG.normal(size=(rows, columns))
    x = RNG.normal(size=(1, 3))
    labels, scores = predict(described, weights, x)
    noise, law = stated(kind, 0.5 if kind is Currency.ZCDP else 0.2, weights.size)
    missed, flipped = np.zeros(scores.shape[1], dtype=int), 0
    for _ in range(RUNS):
        moved = weights + noise.sample().reshape(weights.shape) * noise.grid
        effect = score_noise(described, law, 100, moved, x)
        missed += ((scores < effect.low) | (scores > effect.high))[0]
        if effect.could_flip is not None:
            flipped += int(not effect.could_flip[0] and predict(described, moved, x)[0][0] != labels[0])
    for each in missed:
        chance.assert_no_more(int(each), RUNS, 0.05)
    chance.assert_no_more(flipped, RUNS, 0.05)
    if loss != "softmax":  # whose intervals hold several differences at once
        chance.assert_count(int(missed[-1]), RUNS, 0.05)


@pytest.mark.parametrize("kind", Currency)
def test_a_record_on_the_boundary_may_flip_and_one_far_from_it_may_not(kind):
    described = description("logistic", intercept=False)
    _, law = stated(kind, 0.01, 3)
    weights = np.array([[1.0, 0.0, 0.0]])
    effect = score_noise(described, law, 100, weights, np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
    assert effect.could_flip.tolist() == [True, False]
    longer = score_noise(described, law, 100, weights, np.array([[0.0, 0.1, 0.0], [0.0, 1.0, 0.0]]))
    widths = longer.high[:, 1] - longer.low[:, 1]
    assert widths[1] > 9 * widths[0], "noise moves a score in proportion to the record"


@pytest.mark.parametrize("kind", Currency)
@pytest.mark.parametrize("loss", ["huber_hinge", "softmax"])
def test_of_many_classes_the_two_greatest_scores_say_whether_noise_may_flip_them(kind, loss):
    described = description(loss, classes=4, intercept=False)
    _, law = stated(kind, 1e-3, 12)
    weights = np.array([[9.0, 9.0, 0], [9.0, 0, 0], [0, 0, 9.0], [0, 0, 0]])
    effect = score_noise(described, law, 100, weights, np.array([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]]))
    assert effect.could_flip.tolist() == [True, False, False]


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_of_objective_perturbation_a_bound_is_held(loss):
    rng = np.random.default_rng(2)
    learner = ObjectivePerturbation(
        loss=LOSSES[loss], regularization=0.05, intercept=True, norm_bound=2.0, features=3, classes=2
    )
    records = Records(x=rng.normal(size=(200, 3)), y=rng.integers(0, 2, 200))
    perturbation = learner.perturbation(Currency.PURE, 2.0, 200)
    center, described, x = np.zeros(learner.shape), description(loss), rng.normal(size=(1, 3))
    free = learner.fit(records, 200, center, perturbation, np.zeros(learner.shape))
    _, scores = predict(described, free, x)
    missed = 0
    for _ in range(60):
        released = learner.release(records, 200, center, perturbation)
        effect = score_noise(described, perturbation.to_json(), 200, released, x)
        missed += int(not (effect.low <= scores).all() or not (scores <= effect.high).all())
    chance.assert_no_more(missed, 60, 0.05)


def test_of_output_perturbation_the_release_says_all_that_is_needed():
    learner = OutputPerturbation(
        loss=Squared(bound=1.0), regularization=0.1, intercept=False, norm_bound=2.0, features=3, classes=0
    )
    perturbation = learner.perturbation(Currency.ZCDP, 0.5, 300)
    described = description("squared", intercept=False, classes=0)
    effect = score_noise(described, perturbation.to_json(), 300, np.zeros(learner.shape), np.array([[1.0, 0.0, 0.0]]))
    assert effect.could_flip is None
    assert effect.high[0, 0] == pytest.approx(1.959964 * perturbation.noise.scale, rel=1e-6)


@pytest.mark.parametrize(
    "added_to", ["gradient_sums", "running_sums", "statistics", "selected_gradients", "sampled_weights"]
)
def test_where_the_effect_of_noise_depends_on_records_nothing_is_said(added_to):
    _, law = stated(Currency.ZCDP, 1.0, 4)
    noise = law | {"added_to": added_to}
    assert reach(noise, 100, 0.05) is None
    assert score_noise(description("logistic"), noise, 100, np.zeros((1, 4)), np.zeros((1, 3))) is None


@pytest.mark.parametrize("more", [{"encoder": {}}, {"heads": "per_task"}, {"kind": "histogram"}])
def test_of_models_that_other_noise_has_a_part_in_nothing_is_said(more):
    _, law = stated(Currency.ZCDP, 1.0, 4)
    assert score_noise(description("logistic") | more, law, 100, np.zeros((1, 4)), np.zeros((1, 3))) is None


@pytest.mark.parametrize("scale", [None, 0.3])
def test_noise_moves_the_score_of_a_record_of_zeros_by_its_intercept(scale):
    described, (_, law) = description("squared") | {"intercept_scale": scale}, stated(Currency.ZCDP, 0.01, 4)
    effect = score_noise(described, law, 100, np.zeros((1, 4)), np.zeros((1, 3)))
    length = 2.0 * (np.sqrt(0.5) if scale is None else scale)  # of the record's row, by its norm bound
    assert effect.high[0, 0] - effect.low[0, 0] == pytest.approx(2 * length * reach(law, 100, 0.05))


def test_a_tilted_objective_has_the_noise_of_its_output_too():
    _, law = stated(Currency.PURE, 0.3, 4)
    output = law | {"sensitivity": 0.01, "scale": 2.0}
    tilted = law | {"added_to": "objective", "regularization": 0.1, "output": output}
    tilt = 0.3 * stats.gamma(4).isf(0.025) / (100 * 0.1)
    assert reach(tilted, 100, 0.05) == pytest.approx(tilt + 0.01 + reach(output, 100, 0.025))


def test_a_probability_is_between_what_all_other_classes_scores_may_have_become():
    """Each of three differences is held but for a third of the error."""
    described, (_, law) = description("softmax", classes=4, intercept=False), stated(Currency.ZCDP, 0.5, 12)
    weights, x = RNG.normal(size=(4, 3)), np.array([[1.0, 0.0, 0.0]])
    effect = score_noise(described, law, 100, weights, x)
    moved = np.sqrt(2) * reach(law, 100, 0.05 / 3)
    for label, score in enumerate(weights[:, 0]):
        others = np.exp(np.delete(weights[:, 0], label) - score)
        assert effect.low[0, label] == pytest.approx(1 / (1 + np.exp(moved) * others.sum()), rel=1e-5)
        assert effect.high[0, label] == pytest.approx(1 / (1 + np.exp(-moved) * others.sum()), rel=1e-5)
