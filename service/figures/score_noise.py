"""Bounds on how far a release's noise may have moved a prediction, from the stated law. They cost nothing.

The noise-free model is the one that the same fit would have released without noise of its own. For one record, chosen
without looking at the release, each interval holds the noise-free model's score but for a probability of `error`; and
the noise-free model predicts another label, where `could_flip` is false, with a probability of at most `error`.

| noise is added to | what is known of ⟨Z, v⟩, Z = released weights - noise-free weights |
|---|---|
| weights, Gaussian | N(0, σ²‖v‖²) |
| weights, spherical Laplace in D dimensions | s·‖v‖·√(2G)·N(0, 1), G of the law Gamma((D + 1)/2) (`noise.additive`) |
| objective | a bound: at most ‖v‖·‖b‖/(nΛ), ‖b‖ of the law Gamma(D, s), and the output noise as above |
| anything else | nothing |

Objective: both minimisers belong to Λ-strongly convex objectives whose gradients differ by b/n. It is a bound for every
direction at once, so it is wide. Sums of gradients (noisy gradient descent, running sums, active learning) enter later
gradients, and statistics enter through an inverse: the law of their effect on a score depends on the private records,
and cannot be had from what is released.

A score is ⟨w_k, x⟩, x being the record's row after the record map. v is x for a score, and has the length √2·‖x‖ for
the difference of two classes' scores. With K classes a label flips if one of K - 1 differences changes its sign: each
gets its part of the error, on one side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.optimization.losses import LOSSES
from service.learning.records import prepare
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from service.streams import feature_maps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats

_NODES = 4001
_HALVINGS = 50


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreNoise:
    """For m records: bounds of the noise-free model's scores, and whether its labels may differ.

    low, high: (m, k), in the units of `linear.predict`'s scores. could_flip: (m,), None for a regression.
    """

    low: Floats
    high: Floats
    could_flip: NDArray[np.bool_] | None


def score_noise(
    description: Mapping[str, Any],
    noise: Mapping[str, Any],
    records: int,
    parameters: Floats,
    x: NDArray[np.floating],
    *,
    error: float = 0.05,
) -> ScoreNoise | None:
    """Return what noise may have done to the predictions for x, shape (m, features); None where nothing is known.

    description: the release's model. noise: as the release states it. records: the n of its fit.
    """
    if description["kind"] != "linear" or "encoder" in description or "heads" in description:
        return None
    if reach(noise, records, error) is None:
        return None
    mapped = feature_maps.build(description["feature_map"], description["features"])(x)
    rows = prepare(
        mapped,
        norm_bound=description["norm_bound"],
        intercept=description["intercept"],
        intercept_scale=description.get("intercept_scale"),
    )
    scores, lengths = rows @ parameters.reshape(-1, rows.shape[1]).T, np.linalg.norm(rows, axis=1)[:, None]

    def moved(rate: float, *, differences: bool) -> Floats:
        """Return a bound on how far noise moved a score, or a difference of two, (m, 1); it fails with that rate."""
        farthest = reach(noise, records, rate) or 0.0
        return np.asarray(farthest * lengths * (math.sqrt(2.0) if differences else 1.0))

    others = scores.shape[1] - 1
    outputs = LOSSES[description["loss"]]
    if description["loss"] == "softmax":
        low, high = _probabilities(scores, moved(error / others, differences=True))
    else:
        ends = [outputs.predict(scores + side * moved(error, differences=False))[1] for side in (-1.0, 1.0)]
        low, high = np.minimum(*ends), np.maximum(*ends)
    if description["loss"] == "squared":
        return ScoreNoise(low=low, high=high, could_flip=None)
    if others == 0:
        flips = np.abs(scores) <= moved(2 * error, differences=False)
        return ScoreNoise(low=low, high=high, could_flip=flips[:, 0])
    ordered = np.sort(scores, axis=1)
    flips = (ordered[:, -1:] - ordered[:, -2:-1]) <= moved(min(1.0, 2 * error / others), differences=True)
    return ScoreNoise(low=low, high=high, could_flip=flips[:, 0])


def _probabilities(scores: Floats, moved: Floats) -> tuple[Floats, Floats]:
    """Return the least and the largest probability of each class if all others' scores have moved so far at most."""
    low, high = np.empty_like(scores), np.empty_like(scores)
    for label in range(scores.shape[1]):
        shift = np.broadcast_to(moved, scores.shape).copy()
        shift[:, label] = 0.0
        low[:, label] = LOSSES["softmax"].predict(scores + shift)[1][:, label]
        high[:, label] = LOSSES["softmax"].predict(scores - shift)[1][:, label]
    return low, high


def reach(noise: Mapping[str, Any], records: int, error: float) -> float | None:
    """Return r such that noise moves ⟨w, v⟩ by more than r·‖v‖ with probability at most `error`, for any v.

    v is chosen without looking at the release. None: nothing is known.
    """
    if noise["added_to"] == "weights":
        return _of_weights(noise, error)
    if noise["added_to"] == "objective":
        tilt = noise["scale"] * _longest(noise["dimension"], error / 2) / (records * noise["regularization"])
        return float(tilt + noise["output"]["sensitivity"] + (_of_weights(noise["output"], error / 2) or 0.0))
    return None


def _of_weights(noise: Mapping[str, Any], error: float) -> float | None:
    if noise["distribution"] == Gaussian.distribution:
        return float(noise["scale"] * NormalDist().inv_cdf(1.0 - error / 2))
    if noise["distribution"] == SphericalLaplace.distribution:
        return float(noise["scale"]) * _marginal(noise["dimension"], error)
    return None


@lru_cache(maxsize=1024)
def _marginal(dimension: int, error: float) -> float:
    """Return t with P(|⟨Z, v⟩| > t) = error, for spherical Laplace noise of scale 1 and a unit vector v."""
    shape = (dimension + 1) / 2
    spread = 12.0 * math.sqrt(shape)
    logs = np.linspace(math.log(max(shape - spread, shape * 1e-12)), math.log(shape + spread + 60.0), _NODES)
    exponents = shape * logs - np.exp(logs)
    weights = np.exp(exponents - exponents.max())
    weights /= weights.sum()
    factors = 0.5 / np.sqrt(np.exp(logs))

    def outside(t: float) -> float:
        return float(weights @ np.array([math.erfc(distance) for distance in (t * factors).tolist()]))

    low, high = 0.0, 1.0
    while outside(high) > error:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if outside(middle) > error else (low, middle)
    return high


@lru_cache(maxsize=1024)
def _longest(dimension: int, error: float) -> float:
    """Return t with P(‖b‖ > t) = error, for spherical Laplace noise of scale 1: of the law Gamma(dimension)."""
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1.0, dimension)))))  # ln k!, k < dimension
    counts = np.arange(dimension)

    def longer(t: float) -> float:
        """Return P(Poisson(t) < dimension)."""
        return float(np.exp(counts * math.log(t) - factorials - t).sum())

    low, high = 0.0, float(dimension)
    while longer(high) > error:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if longer(middle) > error else (low, middle)
    return high
