"""Losses have the derivatives and the bounds they claim."""

import math

import numpy as np
import pytest
from scipy import optimize, special

from service.learning.optimization.losses import LOSSES, HuberHinge

CLASSIFIERS = [("logistic", 2), ("softmax", 2), ("softmax", 7)]
HUBER = [("huber_hinge", 2), ("huber_hinge", 5)]
CASES = CLASSIFIERS + HUBER
RNG = np.random.default_rng(7)  # of the test data, not of any noise


def scores_and_labels(name, classes, spread=2.0, m=40):
    rows = LOSSES[name].rows(classes)
    return RNG.normal(scale=spread, size=(m, rows)), RNG.integers(0, classes, m)


def one(name, score, label):
    """The loss as the contract writes it."""
    if name == "logistic":
        return np.logaddexp(0.0, -(2 * label - 1) * score[0])
    if name == "softmax":
        return special.logsumexp(score) - score[label]
    if name == "squared":
        return 0.5 * (score[0] - np.clip(label, -1, 1)) ** 2
    classes = [1] if len(score) == 1 else range(len(score))
    return sum(huber(s if label == k else -s) for s, k in zip(score, classes, strict=True))


def huber(z, h=0.5):
    return 0.0 if z > 1 + h else (1 + h - z) ** 2 / (4 * h) if abs(1 - z) <= h else 1 - z


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_value_and_first_derivative(name, classes):
    scores, y = scores_and_labels(name, classes)
    losses, slopes, _ = LOSSES[name].derivatives(scores, y)
    assert losses == pytest.approx([one(name, s, label) for s, label in zip(scores, y, strict=True)])
    for score, label, slope in zip(scores[:5], y, slopes, strict=False):
        assert slope == pytest.approx(optimize.approx_fprime(score, lambda s, k=label: one(name, s, k)), abs=1e-6)


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_second_derivative(name, classes):
    loss = LOSSES[name]
    scores, y = scores_and_labels(name, classes)
    directions = RNG.normal(size=scores.shape)
    _, before, curvature = loss.derivatives(scores - 1e-6 * directions, y)
    _, after, curvature = loss.derivatives(scores + 1e-6 * directions, y)
    assert loss.curve(curvature, directions) == pytest.approx((after - before) / 2e-6, abs=1e-5)


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_the_lipschitz_constant_holds_and_is_reached(name, classes):
    """The gradient in W of one record is slope ⊗ x; with ‖x‖ = R it comes within a hair of L and never above."""
    loss, bound = LOSSES[name], 3.0
    scores, y = scores_and_labels(name, classes, spread=30.0, m=4000)
    lengths = bound * np.linalg.norm(loss.derivatives(scores, y)[1], axis=1)
    assert lengths.max() <= loss.lipschitz(bound, scores.shape[1])
    assert lengths.max() > 0.99 * loss.lipschitz(bound, scores.shape[1])


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_the_smoothness_holds_and_is_reached(name, classes):
    """At s = 0 for two classes, between two equal classes that crowd out the others, and within a hinge's corner."""
    loss = LOSSES[name]
    rows = loss.rows(classes)
    scores = np.full((1, rows), -40.0)
    scores[:, :2] = [1.2, -1.2][:rows] if name == "huber_hinge" else 0.0
    curvature = loss.derivatives(scores, np.full(1, 1 if rows == 1 and name == "huber_hinge" else 0))[2]
    steepest = np.linalg.norm(np.vstack([loss.curve(curvature, direction[None]) for direction in np.eye(rows)]), ord=2)
    assert steepest == pytest.approx(loss.score_smoothness)
    assert loss.smoothness(3.0) >= 9.0 * loss.score_smoothness
    random = loss.derivatives(*scores_and_labels(name, classes))[2]
    for row in random:
        hessian = np.vstack([loss.curve(row[None], direction[None]) for direction in np.eye(rows)])
        assert np.linalg.norm(hessian, ord=2) <= loss.score_smoothness * (1 + 1e-12)


@pytest.mark.parametrize(("name", "classes"), CLASSIFIERS)
def test_probabilities_are_those_of_all_classes(name, classes):
    scores, _ = scores_and_labels(name, classes)
    probabilities = LOSSES[name].probabilities(scores)
    full = np.hstack((np.zeros_like(scores), scores)) if name == "logistic" else scores
    assert probabilities == pytest.approx(special.softmax(full, axis=1))


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_huge_scores_do_no_harm(name, classes):
    loss = LOSSES[name]
    scores = np.array([[1e300] + [-1e300] * (loss.rows(classes) - 1), [-1e5] * loss.rows(classes)])
    for y in (np.zeros(2, dtype=int), np.ones(2, dtype=int)):
        losses, slopes, curvature = loss.derivatives(scores, y)
        assert np.isfinite(losses).all()
        assert np.isfinite(slopes).all()
        assert np.isfinite(loss.curve(curvature, scores / 1e300)).all()


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_the_loss_at_zero_is_bounded(name, classes):
    loss = LOSSES[name]
    rows = loss.rows(classes)
    assert loss.derivatives(np.zeros((1, rows)), np.zeros(1, dtype=int))[0][0] <= loss.at_most(0.0, rows)


@pytest.mark.parametrize(
    ("loss", "rows", "largest"),
    [
        (LOSSES["logistic"], 1, math.log(2) + 5),
        (LOSSES["softmax"], 3, math.log(3) + math.sqrt(2) * 5),
        (HuberHinge(width=0.5), 3, 3 + math.sqrt(3) * 5),
        (HuberHinge(width=2.0), 1, 9 / 8 + 5),
        (LOSSES["squared"], 1, 0.5 * 6**2),
    ],
)
def test_a_loss_is_bounded_by_its_value_at_zero_and_its_slope(loss, rows, largest):
    assert largest <= loss.at_most(5.0, rows) <= largest * (1 + 1e-12)


def test_labels_outside_the_classes_are_not_known():
    y = np.array([0, 1, 2, -1, 1.5, np.nan, np.inf])
    assert LOSSES["softmax"].present(y, 2).tolist() == [True, True, False, False, False, False, False]


def test_logistic_is_for_two_classes():
    with pytest.raises(ValueError, match="two classes"):
        LOSSES["logistic"].rows(3)


@pytest.mark.parametrize("width", [1e-3, 0.5, 3.0])
def test_the_width_of_the_corner(width):
    loss = HuberHinge(width=width)
    z = np.linspace(-2 - width, 2 + width, 101)
    for score in z:
        (value,), slope, _ = loss.derivatives(np.array([[score]]), np.ones(1))
        assert value == pytest.approx(huber(score, width), abs=1e-12)
        assert -1 <= slope[0, 0] <= 0
        assert value <= loss.at_most(abs(score), 1)
    assert loss.smoothness(2.0) == pytest.approx(4 / (2 * width))
    assert loss.lipschitz(2.0, 1) == pytest.approx(2)
    assert loss.lipschitz(2.0, 4) == pytest.approx(4)


def test_the_squared_loss_and_its_bounds():
    """On weights of norm ≤ 4 and rows of norm ≤ 3, |s - y| is at most 3·4 + 1; labels are clipped."""
    loss = LOSSES["squared"]
    scores, y = RNG.normal(size=(50, 1)) * 8, RNG.normal(size=50) * 3
    losses, slopes, curvature = loss.derivatives(scores, y)
    assert losses == pytest.approx([one("squared", s, label) for s, label in zip(scores, y, strict=True)])
    assert slopes == pytest.approx(scores - np.clip(y, -1, 1)[:, None])
    assert np.array_equal(loss.curve(curvature, scores), scores)
    assert loss.lipschitz(3.0, 1, 4.0) == pytest.approx(3 * (3 * 4 + 1))
    assert loss.lipschitz(3.0, 1) == math.inf
    assert loss.smoothness(3.0) >= 9.0
    assert loss.present(np.array([1.0, np.nan, -np.inf, 9.0]), 0).tolist() == [True, False, False, True]


def test_predictions():
    labels, margins = LOSSES["huber_hinge"].predict(np.array([[0.3], [-2.0]]))
    assert labels.tolist() == [1, 0]
    assert margins.tolist() == [[-0.3, 0.3], [2.0, -2.0]]
    assert LOSSES["huber_hinge"].predict(np.array([[0.3, -1.0, 0.4]]))[0].tolist() == [2]
    labels, values = LOSSES["squared"].predict(np.array([[0.3], [-2.0]]))
    assert labels.tolist() == [0.3, -1.0]
    assert values.tolist() == [[0.3], [-2.0]]
