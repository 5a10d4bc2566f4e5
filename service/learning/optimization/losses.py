"""Convex losses of a linear model: value, derivatives, and how steep they can be.

A loss sees one record (x, y), ‖x‖₂ ≤ R, only through its scores s = W·x, W of shape (rows, D). Everything here is
in terms of scores of shape (m, rows); the gradient in W is then the sum of outer products of `gradient` with x.

| loss | rows | loss of one record | Lipschitz in W (Frobenius) | smoothness in W |
|---|---|---|---|---|
| logistic | 1 | ln(1 + exp(-s)) for label 1, ln(1 + exp(s)) for label 0 | R | R²/4 |
| softmax | K | ln Σ exp(s_k) - s_y | √2·R | R²/2 |
| huber_hinge | 1, or K for K > 2 | Σ_k H(±s_k) | √rows·R | R²/(2h) |
| squared | 1 | ½(s - y)², y clipped to ±Y | R·(R·‖W‖ + Y) | R² |

H(z) is 0 above 1 + h, (1 + h - z)²/(4h) where |1 - z| ≤ h, and 1 - z below. With more than two classes Huber's hinge is
one versus rest: a row of weights per class, its sign + for the records of that class. None of the K slopes is more than
1, so the gradient, slopes ⊗ x, is at most √K·R; the second derivative acts on each row by itself, so it is that of one
row. The squared loss is as steep as W is long: a solver has to know in which ball W is, and paper-audit.md D3 gives one
that holds the minimiser (`solvers.Setting`).

(paper-audit.md D3. Paper A's experiments use (K-1)/(2nK)·‖X‖_F instead, which is computed from the records, belongs to
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
    def settings(self) -> dict[str, float]:
        """Return its settings by name, for a description."""

    def rows(self, classes: int) -> int:
        """Return how many rows of weights K classes need. ValueError if this loss cannot separate K classes."""

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        """Return which labels are ones this loss knows; another record counts as empty."""

    def derivatives(self, scores: AnyFloats, y: NDArray[np.generic]) -> tuple[AnyFloats, AnyFloats, AnyFloats]:
        """Return the losses (m,), their derivatives in the scores (m, rows), and what `curve` needs of them."""

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        """Return the second derivative of each loss applied to a direction in its scores, (m, rows)."""

    def predict(self, scores: Floats) -> tuple[NDArray[np.generic], Floats]:
        """Return labels (m,) and the scores that they were chosen by, (m, classes), or (m, 1) for a regression."""

    def lipschitz(self, norm_bound: float, rows: int, weights: float = math.inf) -> float:
        """Return L, rounded up: at every W of Frobenius norm ≤ weights, gradients in W have Frobenius norm ≤ L.

        Infinite where there is no such L.
        """

    def smoothness(self, norm_bound: float) -> float:
        """Return β, rounded up: gradients in W are β-Lipschitz."""

    def curvature(self, rows: int) -> tuple[int, float]:
        """Return upper bounds on the rank and the trace of the second derivative of a record in its scores."""

    def at_most(self, scores: float, rows: int) -> float:
        """Return an upper bound on the loss of any record whose scores have a norm of at most `scores`."""

    def slope_error(self, rows: int) -> float:
        """Return a bound, in units of 2^-53, on the error of evaluating a derivative from given scores, as a norm."""

    @property
    def score_smoothness(self) -> float:
        """Return an upper bound on the norm of the second derivative in the scores."""


def _up(value: float) -> float:
    """Return the value increased by a margin that covers a few roundings."""
    return value * (1.0 + 2.0**-50)


@dataclass(frozen=True)
class Logistic:
    """Two classes, one row of weights; label 1 is the positive class (s = ±1 in the papers)."""

    name: str = "logistic"
    score_smoothness: float = 0.25

    def settings(self) -> dict[str, float]:
        return {}

    def rows(self, classes: int) -> int:
        if classes != 2:
            raise ValueError("the logistic loss separates two classes")
        return 1

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        return _known(y, classes)

    def derivatives(self, scores: AnyFloats, y: NDArray[np.generic]) -> tuple[Floats, Floats, Floats]:
        positive = (y == 1)[:, None]
        value = np.logaddexp(0.0, np.where(positive, -scores, scores))[:, 0]
        probability = _sigmoid(scores)
        return value, np.asarray(probability - positive), np.asarray(probability * (1.0 - probability))

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        return np.asarray(curvature * directions)

    def predict(self, scores: Floats) -> tuple[NDArray[np.generic], Floats]:
        return _likeliest(self.probabilities(scores))

    def probabilities(self, scores: Floats) -> Floats:
        """Return the class probabilities, (m, 2)."""
        positive = _sigmoid(scores)
        return np.hstack((1.0 - positive, positive))

    def lipschitz(self, norm_bound: float, rows: int, weights: float = math.inf) -> float:  # noqa: ARG002
        return norm_bound

    def smoothness(self, norm_bound: float) -> float:
        return _up(norm_bound**2 / 4.0)

    def curvature(self, rows: int) -> tuple[int, float]:  # noqa: ARG002
        return 1, 0.25

    def at_most(self, scores: float, rows: int) -> float:  # noqa: ARG002
        return _up(math.log(2.0) + scores)

    def slope_error(self, rows: int) -> float:
        return 4 * rows + 64


@dataclass(frozen=True)
class Softmax:
    """K classes, K rows of weights: cross-entropy."""

    name: str = "softmax"
    score_smoothness: float = 0.5

    def settings(self) -> dict[str, float]:
        return {}

    def rows(self, classes: int) -> int:
        return classes

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        return _known(y, classes)

    def derivatives(self, scores: AnyFloats, y: NDArray[np.generic]) -> tuple[Floats, Floats, Floats]:
        own = (np.arange(len(y)), y.astype(np.intp))
        shifted = scores - scores.max(axis=1, keepdims=True)
        probabilities = np.exp(shifted)
        totals = probabilities.sum(axis=1, keepdims=True)
        probabilities /= totals
        slopes = probabilities.copy(order="K")
        slopes[own] -= 1.0
        return np.asarray(np.log(totals[:, 0]) - shifted[own]), slopes, probabilities

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        weighted = curvature * directions
        return np.asarray(weighted - curvature * np.einsum("ij->i", weighted)[:, None])

    def predict(self, scores: Floats) -> tuple[NDArray[np.generic], Floats]:
        return _likeliest(self.probabilities(scores))

    def probabilities(self, scores: Floats) -> Floats:
        """Return the class probabilities, (m, K)."""
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def lipschitz(self, norm_bound: float, rows: int, weights: float = math.inf) -> float:  # noqa: ARG002
        return _up(_SQRT_2 * norm_bound)

    def smoothness(self, norm_bound: float) -> float:
        return _up(norm_bound**2 / 2.0)

    def curvature(self, rows: int) -> tuple[int, float]:
        return rows - 1, _up(1.0 - 1.0 / rows)

    def at_most(self, scores: float, rows: int) -> float:
        return _up(math.log(rows) + _SQRT_2 * scores)

    def slope_error(self, rows: int) -> float:
        return 4 * rows + 64


@dataclass(frozen=True)
class HuberHinge:
    """A hinge whose corner is rounded over `width` h on both sides; two classes in one row, more one versus rest.

    The derivative of H(z) is -1 below 1 - h, 0 above 1 + h, and (z - 1 - h)/(2h) between.
    """

    width: float = 0.5
    name: str = "huber_hinge"

    @property
    def score_smoothness(self) -> float:
        return _up(1.0 / (2.0 * self.width))

    def settings(self) -> dict[str, float]:
        return {"huber_width": self.width}

    def rows(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
        return _known(y, classes)

    def derivatives(self, scores: AnyFloats, y: NDArray[np.generic]) -> tuple[Floats, Floats, Floats]:
        rows = scores.shape[1]
        classes = np.ones(1) if rows == 1 else np.arange(float(rows))
        signs = np.where(y.astype(np.float64)[:, None] == classes, 1.0, -1.0)
        margins = signs * scores
        slopes = np.clip((margins - (1.0 + self.width)) / (2.0 * self.width), -1.0, 0.0)
        curved = (slopes > -1.0) & (slopes < 0.0)
        # H = h·slope² in the curved part; below it the slope is -1, and H = 1 - z = h + (1 - h - z).
        value = (self.width * slopes**2 + np.maximum(0.0, (1.0 - self.width) - margins)).sum(axis=1)
        return value, signs * slopes, curved / (2.0 * self.width)

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:
        return np.asarray(curvature * directions)

    def predict(self, scores: Floats) -> tuple[NDArray[np.generic], Floats]:
        return _likeliest(np.hstack((-scores, scores)) if scores.shape[1] == 1 else scores)

    def lipschitz(self, norm_bound: float, rows: int, weights: float = math.inf) -> float:  # noqa: ARG002
        return _up(math.sqrt(rows) * norm_bound)

    def smoothness(self, norm_bound: float) -> float:
        return _up(norm_bound**2 * self.score_smoothness)

    def curvature(self, rows: int) -> tuple[int, float]:
        return rows, _up(rows / (2.0 * self.width))

    def at_most(self, scores: float, rows: int) -> float:
        at_zero = (1.0 + self.width) ** 2 / (4.0 * self.width) if self.width > 1.0 else 1.0
        return _up(rows * at_zero + math.sqrt(rows) * scores)

    def slope_error(self, rows: int) -> float:
        return 8.0 * math.sqrt(rows) * (1.0 + self.score_smoothness)


@dataclass(frozen=True)
class Squared:
    """Regression: half the squared error, of labels clipped to ±bound."""

    bound: float = 1.0
    name: str = "squared"
    score_smoothness: float = 1.0

    def settings(self) -> dict[str, float]:
        return {"bound": self.bound}

    def rows(self, classes: int) -> int:  # noqa: ARG002
        return 1

    def present(self, y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:  # noqa: ARG002
        return np.asarray(np.isfinite(y.astype(np.float64)))

    def derivatives(self, scores: AnyFloats, y: NDArray[np.generic]) -> tuple[Floats, Floats, Floats]:
        errors = scores - self._clipped(y.astype(np.float64)[:, None])
        return 0.5 * np.square(errors[:, 0]), errors, np.ones_like(errors)

    def curve(self, curvature: AnyFloats, directions: AnyFloats) -> AnyFloats:  # noqa: ARG002
        return directions

    def predict(self, scores: Floats) -> tuple[NDArray[np.generic], Floats]:
        return self._clipped(scores[:, 0]), scores

    def lipschitz(self, norm_bound: float, rows: int, weights: float = math.inf) -> float:  # noqa: ARG002
        return _up(norm_bound * (norm_bound * weights + self.bound))

    def smoothness(self, norm_bound: float) -> float:
        return _up(norm_bound**2)

    def curvature(self, rows: int) -> tuple[int, float]:  # noqa: ARG002
        return 1, 1.0

    def at_most(self, scores: float, rows: int) -> float:  # noqa: ARG002
        return _up(0.5 * (scores + self.bound) ** 2)

    def slope_error(self, rows: int) -> float:  # noqa: ARG002
        return 0.0  # one subtraction, whose error is relative to the slope

    def _clipped(self, values: Floats) -> Floats:
        return np.asarray(np.clip(values, -self.bound, self.bound))


def _sigmoid(scores: AnyFloats) -> AnyFloats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * scores))


def _known(y: NDArray[np.generic], classes: int) -> NDArray[np.bool_]:
    """Return which labels are whole numbers among the classes."""
    labels = y.astype(np.float64)
    return np.asarray((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))


def _likeliest(scores: Floats) -> tuple[NDArray[np.generic], Floats]:
    return scores.argmax(axis=1), scores


LOSSES: Mapping[str, Loss] = {loss.name: loss for loss in (Logistic(), Softmax(), HuberHinge(), Squared())}
"""One of each, with the default width and a bound of 1."""
