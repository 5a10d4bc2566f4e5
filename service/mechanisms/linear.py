"""Publications of linear models, made at the times of a schedule, and how to predict with them.

All times and records here are relative to the publication's start; the caller shifts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning import encoders
from service.learning.linear import Linear
from service.learning.optimization.losses import LOSSES, HuberHinge, Squared
from service.mechanisms.on_schedule import OnSchedule
from service.streams import feature_maps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.learning.linear import PlannedLinearLearner
    from service.learning.optimization.losses import Floats, Loss
    from service.streams.feature_maps import FeatureMap


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearMechanism(OnSchedule):
    """A publication of linear models, made at the times of a schedule."""

    learner: PlannedLinearLearner
    feature_map: FeatureMap
    """The map of the records before any fit reads them."""

    @property
    def setting_of_features(self) -> str | None:
        """Return the setting by which it makes features of its own of these records; None: it makes none."""
        return None

    def planned_model(self) -> dict[str, Any]:
        """Return the loss, the size of the weights and what the learner tells, as JSON."""
        learner = self.learner
        return {
            "loss": learner.loss.name,
            **learner.loss.settings(),
            "shape": list(learner.shape),
            "dimension": learner.dimension,
            "norm_bound": learner.norm_bound,
            "learner": learner.kind,
            **learner.describe(self.origin),
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
            **({} if learner.intercept_scale is None else {"intercept_scale": learner.intercept_scale}),
            "norm_bound": learner.norm_bound,
            "feature_map": self.feature_map.description,
            "shape": [rows, columns],
            "dimension": learner.dimension,
            "coordinates": "features, then intercept" if learner.intercept else "features",
            **self.names.to_json(),
        }


def predict(
    description: Mapping[str, Any], parameters: Floats, x: NDArray[Any], encoder: Floats | None = None
) -> tuple[NDArray[np.generic], Floats]:
    """Return (labels, scores) for x of shape (m, features), as `predict_mapped` does for records that are mapped.

    | loss | labels (m,) | scores |
    |---|---|---|
    | logistic, softmax | the likeliest class | (m, classes): the probability of each class |
    | huber_hinge | the class of the largest margin | (m, classes): the margin of each class |
    | squared | the predicted y, clipped to ±bound | (m, 1): the predicted y as it is |

    description: a `model_description`. The record map of training is applied first: the feature map, the encoder if
    there is one, clipping to the norm bound, then the intercept. encoder: the parameters of the release that the
    description says the encoder is in. Scores of a record that the feature map takes out of the range of float32 are
    NaN. Post-processing of releases: it costs nothing.
    """
    feature_map = feature_maps.build(description["feature_map"], description["features"])
    mapped = feature_map(x)
    if "encoder" in description:
        if encoder is None:
            raise ValueError("these are weights of features that an encoder makes: predict with its release too")
        mapped = encoders.build(description["encoder"], feature_map.features)(encoder, mapped)
    return predict_mapped(description, parameters, mapped)


def predict_mapped(
    description: Mapping[str, Any], parameters: Floats, mapped: NDArray[Any]
) -> tuple[NDArray[np.generic], Floats]:
    """Return (labels, scores) for records that are mapped already, shape (m, mapped features). See `predict`."""
    loss: Loss = LOSSES[description["loss"]]
    if isinstance(loss, HuberHinge):
        loss = HuberHinge(width=description["huber_width"])
    elif isinstance(loss, Squared):
        loss = Squared(bound=description["bound"])
    learner = Linear(
        loss=loss,
        regularization=1.0,
        intercept=description["intercept"],
        intercept_scale=description.get("intercept_scale"),
        norm_bound=description["norm_bound"],
        features=mapped.shape[1],
        classes=description["classes"] or 0,
    )
    rows, columns = learner.shape
    weights = np.asarray(parameters, dtype=np.float64).reshape(-1, columns)
    tasks = len(weights) // (rows + 1) if description.get("heads") == "per_task" else None
    labels, scores = learner.predict(weights, mapped, tasks)
    return labels, np.where(np.isfinite(mapped).all(axis=1)[:, None], scores, np.nan)
