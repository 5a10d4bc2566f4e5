"""Predictions of a released linear model for records as they are stored: mapped by their stream already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.records import are_longer
from service.mechanisms.linear import predict_mapped
from service.mechanisms.released_models import Predictions
from service.streams import feature_maps
from service.streams.feature_maps.feature_map import FeatureMap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats

PROBABILITIES = ("logistic", "softmax")
"""The losses whose scores are probabilities."""
_AT_ONCE = 2**18  # numbers in memory at a time, so that a long block copies few of its records


def predictions(
    description: Mapping[str, Any], parameters: Floats, stream_map: FeatureMap, x: NDArray[np.floating]
) -> Predictions:
    """Return what a release predicts for x, shape (n, mapped features of the stream).

    description: the release's model. Its feature map begins with the stream's, `stream_map`, which is done already.
    """
    whole = feature_maps.build(description["feature_map"], description["features"])
    own = FeatureMap(description=None, input_features=stream_map.features, steps=whole.steps[len(stream_map.steps) :])
    rows = max(1, _AT_ONCE // max(own.features, len(parameters)))
    starts = range(0, max(1, len(x)), rows)
    pieces = [_of_piece(description, parameters, own(x[start : start + rows])) for start in starts]
    labels, confidences, shortened = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    certain = description["loss"] in PROBABILITIES
    return Predictions(labels=labels, confidences=confidences if certain else None, shortened=shortened)


def _of_piece(
    description: Mapping[str, Any], parameters: Floats, mapped: NDArray[Any]
) -> tuple[NDArray[np.generic], Floats, NDArray[np.bool_]]:
    """Return labels, the largest scores, and which rows are shortened, of some slots in their public places."""
    labels, scores = predict_mapped(description, parameters, mapped)
    return labels, scores.max(axis=1), are_longer(mapped, description["norm_bound"])
