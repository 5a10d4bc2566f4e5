"""A publication that begins where another one's release stands: its origin is that release's weights.

Statement. The weights are fixed when the publication starts, and stored with its settings like any public numbers: the
publication's own charges are those of any origin. For the records that the release was learnt from it is
post-processing of what was published of them, also where they are this stream's own: charges add up whatever is chosen
by looking at releases (paper-audit.md L1, paper A's biased regulariser).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from service.inputs.fields import LARGEST_WEIGHT
from service.inputs.refused import Refused
from service.learning.linear import LinearLearner, ReleasedModel
from service.mechanisms.building import build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.learning.optimization.losses import Floats
    from service.mechanisms.configuration import PublicationConfiguration
    from service.streams.schema import StreamSchema

_AGREEING = ("classes", "features", "feature_map", "intercept", "norm_bound")
_OF_OTHER_FEATURES = "only weights of the streams' own features mean the same on both: name others"


def named_origin(configuration: PublicationConfiguration) -> ReleasedModel | None:
    """Return the release that a publication's origin names; None: its origin is numbers, or there is none."""
    learner = configuration.learner
    return learner.origin if isinstance(learner, LinearLearner) and isinstance(learner.origin, ReleasedModel) else None


def begun_at(
    stream: StreamSchema, configuration: PublicationConfiguration, model: Mapping[str, Any], parameters: Floats
) -> PublicationConfiguration:
    """Return the configuration with a release's weights as its origin, and that one's intercept_scale if it has none.

    model: the release's description. Raises Refused where its weights would mean something else here.
    """
    learner = configuration.learner
    assert isinstance(learner, LinearLearner)  # noqa: S101 - no other has an origin
    scale = model.get("intercept_scale")
    if learner.intercept_scale not in (None, scale):
        own_scale = "1/sqrt(2), and intercept_scale can't say that: leave it out" if scale is None else f"{scale}"
        raise Refused("learner.intercept_scale", f"the release of learner.origin has {own_scale}")
    if model["kind"] != "linear" or "encoder" in model or configuration.features is not None:
        raise Refused("learner.origin", _OF_OTHER_FEATURES)
    if "heads" in model:
        raise Refused("learner.origin", "that release is a model of each task (heads per_task): name one of one model")
    if not (np.abs(parameters) <= LARGEST_WEIGHT).all():
        raise Refused("learner.origin", f"that release has weights beyond {LARGEST_WEIGHT:g}: name another")
    rows = tuple(tuple(row) for row in parameters.reshape(-1, parameters.shape[-1]).tolist())
    begun = configuration.model_copy(
        update={"learner": learner.model_copy(update={"origin": rows, "intercept_scale": scale})}
    )
    alone = configuration.model_copy(update={"learner": learner.model_copy(update={"origin": None})})
    mine = _described(stream, alone, begun)
    if "encoder" in mine:
        raise Refused("learner.origin", _OF_OTHER_FEATURES)
    differing = [name for name in _AGREEING if mine.get(name) != model.get(name)]
    if differing:
        raise Refused("learner.origin", f"that release has another {' and '.join(differing)}: name one that agrees")
    return begun


def _described(
    stream: StreamSchema, alone: PublicationConfiguration, begun: PublicationConfiguration
) -> dict[str, Any]:
    """Return what a publication says of its models, as JSON, whatever its origin is. Raises Refused.

    alone: it begins at zeros; begun: at a release, for a mechanism that can't begin at zeros.
    """
    try:
        mechanism = build(stream, alone)
    except Refused as refused:
        if refused.path != "learner.origin":
            raise
        mechanism = build(stream, begun)
    description: dict[str, Any] = json.loads(json.dumps(mechanism.model_description()))
    return description
