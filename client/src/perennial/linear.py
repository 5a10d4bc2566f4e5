"""Labels and scores of a linear release: what the service's `predict` computes, from the release alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial import encoders, feature_maps
from perennial.encoders import Encoder
from perennial.errors import Unsupported
from perennial.feature_maps import FeatureMap

Floats: TypeAlias = NDArray[np.float64]

INFLATION = 1.0 + 2.0**-20  # factor by which the service rounds norms up
_HALF = math.sqrt(0.5) * (1.0 - 2.0**-50)
_OTHERS = {
    "histogram": "a histogram",
    "encoder": "an encoder",
    "preparation": "a preparation of features",
    "evaluation": "an evaluation of models",
}
LOSSES = ("logistic", "softmax", "huber_hinge", "squared")


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """A linear release, ready to predict.

    A record goes through the feature map, the encoder if there is one, clipping to `norm_bound`, then gets the
    intercept's coordinate; its scores are products with `weights`. With `tasks`, the weights are the models of so many
    tasks, one below the other, then a row of scores of each: the model of the task with the largest score predicts.
    """

    feature_map: FeatureMap
    encoder: Encoder | None
    norm_bound: float
    intercept: tuple[float, float] | None
    """(cos θ, sin θ) of the rows (x·cos θ, R·sin θ); None: there is none"""
    weights: Floats
    tasks: int | None
    loss: str
    classes: int | None
    bound: float | None

    def margins(self, x: NDArray[Any]) -> Floats:
        """Return the products with the weights, (m, rows). Those of a record that can't be mapped are NaN."""
        mapped = self.feature_map(x)
        finite = np.isfinite(mapped).all(axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            rows = mapped.astype(np.float64)
            if self.encoder is not None:
                rows = self.encoder(clipped(rows, self.encoder.norm_bound)).astype(np.float32).astype(np.float64)
            rows = clipped(rows, self.norm_bound)
            if self.intercept is not None:
                cosine, sine = self.intercept
                bias = np.full((len(rows), 1), self.norm_bound * sine)
                rows = np.hstack((rows * cosine, bias))
            return np.where(finite, self._chosen(rows @ self.weights.T), np.nan)

    def _chosen(self, scores: Floats) -> Floats:
        if self.tasks is None:
            return scores
        task = scores[:, -self.tasks :].argmax(axis=1)
        by_task = scores[:, : -self.tasks].reshape(len(scores), self.tasks, scores.shape[1] // self.tasks - 1)
        return np.asarray(by_task[np.arange(len(scores)), task])

    def read(self, scores: Floats) -> tuple[NDArray[np.generic], Floats]:
        """Return labels (m,) and scores (m, columns) of margins, as the service's `predict` answers them."""
        if self.loss == "squared":
            return np.clip(scores[:, 0], -self.bound, self.bound), scores  # type: ignore[operator] # it has one
        if self.loss == "logistic":
            positive = 0.5 + 0.5 * np.tanh(0.5 * scores)
            scores = np.hstack((1.0 - positive, positive))
        elif self.loss == "softmax":
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        elif scores.shape[1] == 1:
            scores = np.hstack((-scores, scores))
        return scores.argmax(axis=1), scores


def row_scales(intercept_scale: float | None) -> tuple[float, float]:
    """Return (cos θ, sin θ) of the rows (x·cos θ, R·sin θ), sin θ = intercept_scale; None: both 1/√2."""
    if intercept_scale is None:
        return _HALF, _HALF
    return math.sqrt((1.0 - intercept_scale) * (1.0 + intercept_scale)) * (1.0 - 2.0**-40), intercept_scale


def clipped(rows: Floats, norm_bound: float) -> Floats:
    """Return rows shortened to the norm bound, their norms rounded up."""
    norms = np.sqrt(np.vecdot(rows, rows)) * INFLATION
    return rows * np.minimum(1.0, norm_bound / np.where(norms > 0.0, norms, 1e-300))[:, None]


def build(description: Mapping[str, Any], parameters: Floats, encoder: Floats | None = None) -> LinearModel:
    """Return the model that a release describes. Raises Unsupported where it is none.

    description: the release's `model`. parameters: its weights. encoder: the parameters of the release that holds the
    encoder, if the description names one.
    """
    kind, loss = description.get("kind"), description.get("loss")
    if kind in _OTHERS:
        raise Unsupported(f"This release is no model of labels but {_OTHERS[kind]}, so it predicts nothing.")
    if kind != "linear" or loss not in LOSSES:
        raise Unsupported(
            "This release is a kind of model that this version of perennial-client does not know: update it."
        )
    feature_map = feature_maps.build(description["feature_map"], description["features"])
    network = None
    if "encoder" in description:
        if encoder is None:
            raise Unsupported(
                f"The encoder of this release is missing: it is release {description['encoder']['release']} of the "
                "publication; `publication.release(version)` gets both."
            )
        network = encoders.build(description["encoder"], feature_map.features, encoder)
    classes = description["classes"]
    rows = 1 if loss == "squared" or (classes == 2 and loss != "softmax") else classes
    weights = np.asarray(parameters, dtype=np.float64).reshape(-1, parameters.shape[-1])
    return LinearModel(
        feature_map=feature_map,
        encoder=network,
        norm_bound=float(description["norm_bound"]),
        intercept=row_scales(description.get("intercept_scale")) if description["intercept"] else None,
        weights=weights,
        tasks=len(weights) // (rows + 1) if description.get("heads") == "per_task" else None,
        loss=loss,
        classes=classes,
        bound=description.get("bound"),
    )
