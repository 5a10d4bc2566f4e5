"""Recomputes predictions from published weights, as any reader can; and fits the same model without noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Features = NDArray[np.float32]

# Just enough to keep weights finite. (The private fits need much more: it is what bounds one record's influence.)
_REGULARIZATION = 1e-4
_STEPS = 100


_HALF = 0.5**0.5  # as much of the norm bound for the intercept as for the features


def inputs(x: Features, *, norm_bound: float, intercept: bool, intercept_scale: float = _HALF) -> Floats:
    """Return rows as they enter the model: no longer than the norm bound, then with an intercept.

    intercept_scale: sin θ of (x·cos θ, norm_bound·sin θ).
    """
    rows = x.astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    rows *= np.minimum(1.0, norm_bound / np.maximum(length, 1e-300))
    if not intercept:
        return rows
    rest = (1.0 - intercept_scale**2) ** 0.5
    return np.asarray(np.column_stack((rest * rows, np.full(len(rows), intercept_scale * norm_bound))))


def from_release(release: Mapping[str, Any]) -> Callable[[Features], NDArray[np.bool_]]:
    """Return the predictor that a release of a two-class logistic model describes."""
    model = release["model"]
    if (model["kind"], model["loss"], model["feature_map"]) != ("linear", "logistic", None):
        raise ValueError(f"not a model that this program can apply: {model}")
    weights = np.array(release["parameters"]["values"], dtype=np.float64)[0]
    scale = model.get("intercept_scale", _HALF)
    return _predictor(weights, norm_bound=model["norm_bound"], intercept=model["intercept"], intercept_scale=scale)


def without_noise(x: Features, y: NDArray[np.int8], *, norm_bound: float) -> Callable[[Features], NDArray[np.bool_]]:
    """Return the same kind of model fitted to these records with no thought of privacy, by damped Newton steps."""
    rows = inputs(x, norm_bound=norm_bound, intercept=True)
    labels = y.astype(np.float64)
    weights = np.zeros(rows.shape[1])

    def loss(weights: Floats) -> float:
        scores = rows @ weights
        return float((np.logaddexp(0.0, scores) - labels * scores).mean() + _REGULARIZATION / 2 * weights @ weights)

    for _ in range(_STEPS):
        rain = 0.5 + 0.5 * np.tanh(0.5 * (rows @ weights))
        gradient = rows.T @ (rain - labels) / len(rows) + _REGULARIZATION * weights
        if np.linalg.norm(gradient) < 1e-9:
            break
        curvature = (rows.T * (rain * (1.0 - rain))) @ rows / len(rows) + _REGULARIZATION * np.eye(len(weights))
        direction = np.linalg.solve(curvature, gradient)
        step = 1.0
        while loss(weights - step * direction) > loss(weights) and step > 1e-6:
            step /= 2
        weights = weights - step * direction
    return _predictor(weights, norm_bound=norm_bound, intercept=True)


def _predictor(weights: Floats, **settings: Any) -> Callable[[Features], NDArray[np.bool_]]:
    def predict(x: Features) -> NDArray[np.bool_]:
        return np.asarray(inputs(x, **settings) @ weights > 0.0)

    return predict
