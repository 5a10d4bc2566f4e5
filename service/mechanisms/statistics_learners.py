"""From a configuration to what solves models from private statistics, or the reason why not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from service.learners.settings import LinearLearner, OutputPerturbationLearner
from service.learning import encoders
from service.learning.losses import HuberHinge
from service.mechanisms.configuration import (
    MAX_REMEMBERED,
    ConvolutionalEncoder,
    DenseEncoder,
    LifelongMechanism,
    Refused,
    WindowStatisticsMechanism,
)
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.lifelong.encoder_pass import EncoderPass
from service.mechanisms.lifelong.task_statistics import STEPS, TaskStatistics
from service.mechanisms.lifelong.tasks import Tasks
from service.mechanisms.moments import Moments
from service.privacy.loss import Kind
from service.streams import feature_maps

if TYPE_CHECKING:
    from service.learners.output_perturbation import Linear
    from service.learners.settings import Learner
    from service.learning.encoders import Encoder
    from service.mechanisms.configuration import Mechanism
    from service.streams.feature_maps import FeatureMap


def window(linear: Linear, mechanism: WindowStatisticsMechanism, settings: Learner) -> Moments:
    """Return what keeps a window's statistics. Raises Refused."""
    _checked(linear, mechanism.kind, settings)
    learner = Moments(**vars(linear), blocks=mechanism.blocks, ridge=mechanism.ridge)
    if learner.entries * mechanism.blocks > MAX_REMEMBERED:
        raise Refused(
            "mechanism.blocks",
            f"{mechanism.blocks} times {learner.entries} statistics are more than the {MAX_REMEMBERED} numbers that it "
            "may remember: use fewer blocks, or a feature_map to fewer features",
        )
    return learner


def lifelong(linear: Linear, mechanism: LifelongMechanism, settings: Learner) -> TaskStatistics:
    """Return what learns task after task, of a linear model of its own features if it has any. Raises Refused."""
    asked = _checked(linear, mechanism.kind, settings)
    if mechanism.heads == "per_task" and not linear.intercept:
        raise Refused("learner.intercept", "tasks are told by what their records' features sum up to: keep it")
    if mechanism.training == "agem" and asked.origin is not None:
        raise Refused("learner.origin", "agem starts from codes of the first task, with weights of zero: leave it out")
    if mechanism.features is not None:
        linear = replace(linear, features=mechanism.features, norm_bound=1.0)
    if mechanism.encoder is not None:
        linear = replace(linear, features=_network(mechanism.encoder, linear).features, norm_bound=1.0)
    learner = TaskStatistics(
        **vars(linear),
        ridge=mechanism.ridge,
        training=mechanism.training,
        heads=mechanism.heads,
        near=mechanism.near or "shared",
        memory=mechanism.memory,
        hidden=mechanism.hidden,
        epochs=_listed(mechanism.epochs or STEPS),
    )
    if learner.most_remembered > MAX_REMEMBERED:
        raise Refused(
            "mechanism.memory"
            if mechanism.memory
            else "mechanism.encoder"
            if mechanism.encoder
            else "mechanism.features",
            f"that is {learner.most_remembered} numbers to remember, more than the {MAX_REMEMBERED} there may be: use "
            "fewer features or a smaller memory",
        )
    return learner


def tasks(mechanism: LifelongMechanism) -> Tasks:
    """Return when which batch of which task is complete."""
    before = 0 if mechanism.encoder is None else mechanism.encoder.records
    return Tasks(_listed(mechanism.task_size), mechanism.batch, before)


def encoder(mechanism: LifelongMechanism, linear: Linear, kind: Kind) -> EncoderPass | None:
    """Return how an encoder of the records of a linear model is learnt, if there is to be one. Raises Refused."""
    asked = mechanism.encoder
    if asked is None:
        return None
    if kind is Kind.PURE:
        raise Refused(
            "mechanism.encoder",
            "an encoder is learnt along gradients with Gaussian noise, which has no pure guarantee: give privacy.delta "
            "a small value such as 1e-6, or leave encoder out",
        )
    if not encoder_pass.available():
        raise Refused(
            "mechanism.encoder",
            "what takes an encoder's gradients is not installed here: install perennial[deep] wherever the service "
            "runs, or leave encoder out",
        )
    return EncoderPass(
        encoder=_network(asked, linear),
        loss=linear.loss,
        classes=linear.classes,
        records=asked.records,
        batch=min(asked.batch, asked.records),
        clip=asked.clip,
        learning_rate=asked.learning_rate,
    )


def maps(mechanism: Mechanism, stream: FeatureMap) -> dict[str, FeatureMap]:
    """Return the mechanism's `own_map` of the stream's mapped records, and the `feature_map` that is both in one."""
    if not isinstance(mechanism, LifelongMechanism) or mechanism.features is None:
        return {"own_map": feature_maps.build(None, stream.features), "feature_map": stream}
    fourier = {
        "kind": "random_fourier",
        "version": 1,
        "features": mechanism.features,
        "width": mechanism.width or 1.0,
        "seed": 0,
    }
    first = () if stream.description is None else stream.description.get("maps", (stream.description,))
    try:
        own = feature_maps.build(fourier, stream.features)
    except ValueError as problem:
        raise Refused("mechanism.features", str(problem)) from None
    both = feature_maps.build({"kind": "compose", "maps": [*first, fourier]}, stream.input_features)
    return {"own_map": own, "feature_map": both}


def _checked(linear: Linear, kind: str, settings: Learner) -> OutputPerturbationLearner:
    """Return the settings. Raises Refused for what they cannot say about statistics."""
    if not isinstance(settings, OutputPerturbationLearner):
        raise Refused("learner.kind", f"{kind} takes no noisy steps and tilts nothing: use output_perturbation")
    if settings.solver != "exact":
        raise Refused("learner.solver", f"{kind} solves from statistics: leave it out")
    if settings.regularization != LinearLearner.model_fields["regularization"].default:
        raise Refused("learner.regularization", f"{kind} says how strong its pull is: set mechanism.ridge")
    if isinstance(linear.loss, HuberHinge):
        raise Refused("learner.loss", "huber_hinge says too little at zero to be expanded: use logistic or softmax")
    return settings


def _network(asked: DenseEncoder | ConvolutionalEncoder, linear: Linear) -> Encoder:
    """Return the encoder of a linear model's records. Raises Refused."""
    described = asked.model_dump() | {"version": encoders.VERSION, "norm_bound": linear.norm_bound}
    try:
        return encoders.build(described, linear.features, linear.shape[0])
    except ValueError as problem:
        raise Refused("mechanism.encoder", str(problem)) from None


def _listed(setting: int | tuple[int, ...]) -> tuple[int, ...]:
    return setting if isinstance(setting, tuple) else (setting,)
