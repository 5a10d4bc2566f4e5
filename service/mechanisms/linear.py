"""Publications of linear models, made at the times of a schedule, and how to predict with them.

All times and records here are relative to the publication's start; the caller shifts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning import feature_maps
from service.learning.learners import OutputPerturbation
from service.learning.losses import LOSSES, HuberHinge, Squared
from service.mechanisms.mechanism import Mechanism
from service.privacy.loss import Kind, round_down, round_up, zcdp_epsilon

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.learning.feature_maps import FeatureMap
    from service.learning.learners import Perturbation, Perturbed
    from service.learning.losses import Floats, Loss
    from service.schedules.schedule import Pattern, Schedule

_GROWS = (
    "the sensitivity is proportional to norm_bound·‖c‖ + bound, c being the released model that the fit is kept near; "
    "these are the figures for c = 0"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMechanism(Mechanism):
    """A publication of linear models, made at the times of a schedule."""

    schedule: Schedule
    learner: Perturbed
    origin: Floats
    feature_map: FeatureMap
    """What was done to the records before any fit reads them."""

    def next_time(self, after: int) -> int:
        """Return the first time > after at which something is released."""
        return self.schedule.next_time(after)

    def needs(self, after: int) -> int:
        """Return the oldest record that any step at a time > after may read."""
        return self.schedule.needs(after)

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and to its models, as JSON: for a person to judge."""
        learner = self.learner
        rows, columns = learner.shape
        lifetime = self.schedule.lifetime()
        return {
            "kind": self.kind.value,
            "guarantee": {
                "neighbours": "one record replaced by any other, or erased",
                "epsilon": _number(self.privacy.epsilon),
                "delta": _number(self.privacy.delta),
                "capacity": float(self.capacity),
                "currency": "epsilon" if self.kind is Kind.PURE else "rho",
            },
            "first_releases": self._first_times(),
            "model": {
                "loss": learner.loss.name,
                **learner.loss.settings(),
                "shape": [rows, columns],
                "dimension": learner.dimension,
                "norm_bound": learner.norm_bound,
                "learner": learner.kind,
                **learner.describe(self.origin),
            },
            "fits": self._fits(),
            "lifetime": {
                "record": lifetime.record,
                **self._loss(lifetime.share),
                "share": str(lifetime.share),
                **({} if lifetime.note is None else {"note": lifetime.note}),
                "parts": [
                    {"what": part.what, "fits": part.fits, "share": str(part.share), **self._loss(part.share)}
                    for part in lifetime.parts
                ],
            },
        }

    def model_description(self) -> dict[str, Any]:
        """Return all it takes to compute a prediction from released parameters, as JSON."""
        learner = self.learner
        rows, columns = learner.shape
        return {
            "kind": "linear",
            "loss": learner.loss.name,
            **learner.loss.settings(),
            "classes": learner.classes or None,
            "features": self.feature_map.input_features,
            "intercept": learner.intercept,
            "norm_bound": learner.norm_bound,
            "feature_map": self.feature_map.description,
            "shape": [rows, columns],
            "dimension": learner.dimension,
            "coordinates": "features, then intercept" if learner.intercept else "features",
        }

    def _first_times(self) -> list[int]:
        times = [0]
        for _ in range(8):
            times.append(self.next_time(times[-1]))
        return times[1:]

    def _charge(self, share: Fraction) -> float:
        return round_down(share * self.capacity)

    def _loss(self, share: Fraction) -> dict[str, float]:
        """Return a share of the capacity in its currency, rounded up, and for ρ the ε that it implies at δ."""
        amount = round_up(share * self.capacity)
        if self.kind is Kind.PURE:
            return {"epsilon": amount}
        delta = round_down(Fraction(self.privacy.delta))
        return {"rho": amount, "epsilon": zcdp_epsilon(amount, delta)}

    def _fits(self) -> list[dict[str, Any]]:
        """Return the kinds of fits as JSON."""
        return [self._pattern(pattern) for pattern in self.schedule.patterns()]

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a kind of fit as JSON. Where a fit is perturbed according to the model it starts from, and that is
        still to be released, nobody can know how yet: at least as near a model of zeros.
        """
        known = pattern.near_origin or self.learner.same_everywhere
        charge = self._charge(pattern.share)
        perturbation = self.learner.perturbation(self.kind, charge, pattern.records, self.origin if known else None)
        noise = noise_told(perturbation)
        sensitivity, scale = noise.pop("sensitivity"), noise["scale"]
        if not known:
            noise |= {"scale": None, "expected_norm": None}
        return {
            "what": pattern.what,
            "when": pattern.when,
            "records": pattern.records,
            "share": str(pattern.share),
            "charge": charge,
            "sensitivity": sensitivity if known else None,
            "noise": noise,
            **({} if known else {"at_least": {"sensitivity": sensitivity, "scale": scale, "why": _GROWS}}),
        }


def noise_told(perturbation: Perturbation) -> dict[str, Any]:
    """Return a perturbation as a plan tells it."""
    noise = perturbation.noise
    return perturbation.described() | {"expected_norm": noise.expected_norm(), "slack": noise.slack}


def predict(description: Mapping[str, Any], parameters: Floats, x: NDArray[Any]) -> tuple[NDArray[np.generic], Floats]:
    """Return (labels, scores) for x of shape (m, features).

    | loss | labels (m,) | scores |
    |---|---|---|
    | logistic, softmax | the likeliest class | (m, classes): the probability of each class |
    | huber_hinge | the class of the largest margin | (m, classes): the margin of each class |
    | squared | the predicted y, clipped to ±bound | (m, 1): the predicted y as it is |

    description: a `model_description`. The record map of training is applied first: the feature map, clipping to the
    norm bound, then the intercept. Scores of a record that the feature map takes out of the range of float32 are NaN.
    Post-processing of a release: it costs nothing.
    """
    feature_map = feature_maps.build(description["feature_map"], description["features"])
    loss: Loss = LOSSES[description["loss"]]
    if isinstance(loss, HuberHinge):
        loss = HuberHinge(width=description["huber_width"])
    elif isinstance(loss, Squared):
        loss = Squared(bound=description["bound"])
    learner = OutputPerturbation(
        loss=loss,
        regularization=1.0,
        intercept=description["intercept"],
        norm_bound=description["norm_bound"],
        features=feature_map.features,
        classes=description["classes"] or 0,
    )
    mapped = feature_map(x)
    rows, columns = learner.shape
    weights = np.asarray(parameters, dtype=np.float64).reshape(-1, columns)
    tasks = len(weights) // (rows + 1) if description.get("heads") == "per_task" else None
    labels, scores = learner.predict(weights, mapped, tasks)
    return labels, np.where(np.isfinite(mapped).all(axis=1)[:, None], scores, np.nan)


def _number(value: Any) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
