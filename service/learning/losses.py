"""Convex losses of a linear model: value, derivatives, and how steep they can be.

A loss sees one record (x, y), ‖x‖₂ ≤ R, only through its scores s = W·x, W of shape (rows, D). Everything here is
in terms of scores of shape (m, rows); the gradient in W is then the sum of outer products of `gradient` with x.

| loss | rows | loss of one record | Lipschitz in W (Frobenius) | smoothness in W |
|---|---|---|---|---|
| logistic | 1 | ln(1 + exp(-s)) for label 1, ln(1 + exp(s)) for label 0 | R | R²/4 |
| softmax | K | ln Σ exp(s_k) - s_y | √2·R | R²/2 |

(mechanisms.md 0. Paper A's experiments use (K-1)/(2nK)·‖X‖_F instead, which is computed from the records, belongs to
the average gradient and under-noises about a hundredfold; it is not used.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    AnyFloats = NDArray[np.floating]

_SQRT_2 = math.nextafter(math.sqrt(2.0), 2.0)  # rounded up


class Loss(Protocol):
    """A convex, non-negative loss with Lipschitz gradient, as a function of scores (m, rows) and labels (m,)."""

    @property
    def name(self) -> str: ...
    def rows(self, classes: int) -> int:
        """Return how many rows of weights K classes need. ValueError if this loss cannot separate K classes."""

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        """Return which labels are ones this loss knows; another record counts as empty."""

    def derivatives(self, scores: Floats, y: NDArray[np.generic]) -> tuple[float, Floats, Floats]:
        """Return the sum of the losses, each one's derivative in its scores (m, rows), and what `curve` needs of it."""

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        """Return the second derivative of each loss applied to a direction in its scores, (m, rows)."""

    def probabilities(self, scores: Floats) -> Floats:
        """Return the class probabilities, (m, classes)."""

    def lipschitz(self, norm_bound: float, weights: float = math.inf) -> float:
        """Return L, rounded up: at every W of Frobenius norm ≤ weights, gradients in W have Frobenius norm ≤ L.

        Infinite where there is no such L.
        """

    def smoothness(self, norm_bound: float) -> float:
        """Return β, rounded up: gradients in W are β-Lipschitz."""

    def at_most(self, scores: float, rows: int) -> float:
        """Return an upper bound on the loss of any record whose scores have a norm of at most `scores`."""

    def slope_error(self, rows: int) -> float:
        """Return a bound, in units of 2^-53, on the error of evaluating a derivative from given scores, as a norm."""

    @property
    def score_smoothness(self) -> float:
        """Return an upper bound on the norm of the second derivative in the scores."""


def _up(value: float) -> float:
    """Return value with a margin above that covers a few roundings."""
    return value * (1.0 + 2.0**-50)


@dataclass(frozen=True)
class Logistic:
    """Two classes, one row of weights; label 1 is the positive class (s = ±1 in the papers)."""

    name: str = "logistic"
    score_smoothness: float = 0.25

    def rows(self, classes: int) -> int:
        if classes != 2:
            raise ValueError("the logistic loss separates two classes")
        return 1

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        return _known(y, classes)

    def derivatives(self, scores: Floats, y: NDArray[np.generic]) -> tuple[float, Floats, Floats]:
        positive = (y == 1)[:, None]
        value = float(np.logaddexp(0.0, np.where(positive, -scores, scores)).sum())
        probability = _sigmoid(scores)
        return value, np.asarray(probability - positive), np.asarray(probability * (1.0 - probability))

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        return np.asarray(curvature * directions)

    def probabilities(self, scores: Floats) -> Floats:
        positive = _sigmoid(scores)
        return np.hstack((1.0 - positive, positive))

    def lipschitz(self, norm_bound: float, weights: float = math.inf) -> float:  # noqa: ARG002
        return norm_bound

    def smoothness(self, norm_bound: float) -> float:
        return _up(norm_bound**2 / 4.0)

    def at_most(self, scores: float, rows: int) -> float:  # noqa: ARG002
        return _up(math.log(2.0) + scores)

    def slope_error(self, rows: int) -> float:
        return 4 * rows + 64


@dataclass(frozen=True)
class Softmax:
    """K classes, K rows of weights: cross-entropy."""

    name: str = "softmax"
    score_smoothness: float = 0.5

    def rows(self, classes: int) -> int:
        return classes

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        return _known(y, classes)

    def derivatives(self, scores: Floats, y: NDArray[np.generic]) -> tuple[float, Floats, Floats]:
        own = (np.arange(len(y)), y.astype(np.intp))
        shifted = scores - scores.max(axis=1, keepdims=True)
        probabilities = np.exp(shifted)
        totals = probabilities.sum(axis=1, keepdims=True)
        probabilities /= totals
        slopes = probabilities.copy()
        slopes[own] -= 1.0
        return float((np.log(totals[:, 0]) - shifted[own]).sum()), slopes, probabilities

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        weighted = curvature * directions
        return np.asarray(weighted - curvature * np.einsum("ij->i", weighted)[:, None])

    def probabilities(self, scores: Floats) -> Floats:
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def lipschitz(self, norm_bound: float, weights: float = math.inf) -> float:  # noqa: ARG002
        return _up(_SQRT_2 * norm_bound)

    def smoothness(self, norm_bound: float) -> float:
        return _up(norm_bound**2 / 2.0)

    def at_most(self, scores: float, rows: int) -> float:
        return _up(math.log(rows) + _SQRT_2 * scores)

    def slope_error(self, rows: int) -> float:
        return 4 * rows + 64


def _sigmoid(scores: Floats) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * scores))


def _known(y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
    """Return which labels are whole numbers among the classes."""
    labels = y.astype(np.float64)
    return np.asarray((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))


LOSSES: Mapping[str, Loss] = {loss.name: loss for loss in (Logistic(), Softmax())}
