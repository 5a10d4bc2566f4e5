"""Settings of a learner for a mechanism that solves models from private statistics, or the reason why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.learning.linear import LinearLearner
from service.learning.optimization.losses import HuberHinge
from service.learning.output_perturbation import FAMILY as OUTPUT
from service.mechanisms.linear_settings import linear_model, settings_of

if TYPE_CHECKING:
    from service.learning.linear import Linear
    from service.mechanisms.family import BuildContext


def statistics_model(context: BuildContext, mechanism: str) -> tuple[Linear, LinearLearner]:
    """Return the linear model and the learner's settings. Raises Refused for what they cannot say about statistics."""
    linear = linear_model(context, mechanism)
    settings = settings_of(OUTPUT, context, f"{mechanism} takes no noisy steps and tilts nothing")
    if settings.solver != "exact":
        raise Refused("learner.solver", f"{mechanism} solves from statistics: leave it out")
    if settings.sample is not None:
        raise Refused("learner.sample", f"{mechanism} adds up the statistics of all records: leave it out")
    if settings.regularization != LinearLearner.model_fields["regularization"].default:
        raise Refused("learner.regularization", f"{mechanism} says how strong its pull is: set mechanism.ridge")
    if settings.score_noise is not None:
        raise Refused("learner.score_noise", f"{mechanism} says how strong its pull is: set mechanism.ridge")
    if isinstance(linear.loss, HuberHinge):
        raise Refused("learner.loss", "huber_hinge says too little at zero to be expanded: use logistic or softmax")
    return linear, settings
