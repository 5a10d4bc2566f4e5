"""Lifelong learning, as data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from service.inputs.refused import Refused
from service.learning import encoders
from service.learning.output_perturbation import FAMILY as OUTPUT
from service.mechanisms import linear_settings
from service.mechanisms.family import MechanismFamily
from service.mechanisms.lifelong import encoder_pass
from service.mechanisms.lifelong.encoder_pass import EncoderPass
from service.mechanisms.lifelong.mechanism import Lifelong
from service.mechanisms.lifelong.settings import ConvolutionalEncoder, DenseEncoder, LifelongMechanism
from service.mechanisms.lifelong.task_statistics import STEPS, TaskStatistics
from service.mechanisms.lifelong.tasks import Tasks
from service.mechanisms.limits import MAX_REMEMBERED
from service.mechanisms.statistics_settings import statistics_model
from service.privacy.currency import Currency
from service.streams import feature_maps

if TYPE_CHECKING:
    from service.learning.encoders import Encoder
    from service.learning.linear import Linear, LinearLearner
    from service.mechanisms.family import BuildContext
    from service.streams.feature_maps import FeatureMap


def build(settings: LifelongMechanism, context: BuildContext) -> Lifelong:
    """Return the publication. Raises Refused."""
    linear, learner_settings = statistics_model(context, settings.kind)
    learner = _learner(linear, settings, learner_settings)
    return Lifelong(
        learner=learner,
        origin=linear_settings.origin(learner_settings, learner.shape),
        schedule=tasks(settings),
        **_maps(settings, context.stream.mapping()) | {"encoder": _encoder(settings, linear, context.currency)},
        **context.promise,
    )


def tasks(settings: LifelongMechanism) -> Tasks:
    """Return the schedule of tasks and batches."""
    before = 0 if settings.encoder is None else settings.encoder.records
    return Tasks(_listed(settings.task_size), settings.batch, before)


def _learner(linear: Linear, settings: LifelongMechanism, settings_of_learner: LinearLearner) -> TaskStatistics:
    """Return what learns task after task, of a linear model of its own features if it has any. Raises Refused."""
    if settings.heads == "per_task" and not linear.intercept:
        raise Refused("learner.intercept", "heads per_task need it, since the sums of features identify tasks: keep it")
    if settings.training == "agem" and settings_of_learner.origin is not None:
        raise Refused("learner.origin", "agem starts from the codes of the first task: leave it out")
    if settings.features is not None:
        linear = replace(linear, features=settings.features, norm_bound=1.0)
    if settings.encoder is not None:
        linear = replace(linear, features=_network(settings.encoder, linear).features, norm_bound=1.0)
    learner = TaskStatistics(
        **vars(linear),
        ridge=settings.ridge,
        training=settings.training,
        heads=settings.heads,
        near=settings.near or "shared",
        memory=settings.memory,
        hidden=settings.hidden,
        epochs=_listed(settings.epochs or STEPS),
    )
    if learner.most_remembered > MAX_REMEMBERED:
        raise Refused(
            "mechanism.memory"
            if settings.memory
            else "mechanism.encoder"
            if settings.encoder
            else "mechanism.features",
            f"that is {learner.most_remembered} numbers to remember, more than the {MAX_REMEMBERED} there may be: use "
            "fewer features or a smaller memory",
        )
    return learner


def _encoder(settings: LifelongMechanism, linear: Linear, currency: Currency) -> EncoderPass | None:
    """Return how an encoder of the records of a linear model is learnt, if there is to be one. Raises Refused."""
    chosen = settings.encoder
    if chosen is None:
        return None
    if currency is Currency.PURE:
        raise Refused(
            "mechanism.encoder",
            "an encoder is learnt along gradients with Gaussian noise, which has no pure guarantee: give privacy.delta "
            "a small value such as 1e-6, or leave encoder out",
        )
    if not encoder_pass.available():
        raise Refused(
            "mechanism.encoder",
            "the library for an encoder's gradients is not installed: install perennial[deep] wherever the service "
            "runs, or leave encoder out",
        )
    return EncoderPass(
        encoder=_network(chosen, linear),
        loss=linear.loss,
        classes=linear.classes,
        records=chosen.records,
        batch=min(chosen.batch, chosen.records),
        clip=chosen.clip,
        learning_rate=chosen.learning_rate,
    )


def _maps(settings: LifelongMechanism, stream: FeatureMap) -> dict[str, Any]:
    """Return the mechanism's `own_map` of the stream's mapped records, and the `feature_map` that is both in one."""
    if settings.features is None:
        return {"own_map": feature_maps.build(None, stream.features), "feature_map": stream}
    fourier = {
        "kind": "random_fourier",
        "version": 1,
        "features": settings.features,
        "width": settings.width or 1.0,
        "seed": 0,
    }
    first = () if stream.description is None else stream.description.get("maps", (stream.description,))
    try:
        own = feature_maps.build(fourier, stream.features)
    except ValueError as problem:
        raise Refused("mechanism.features", str(problem)) from None
    both = feature_maps.build({"kind": "compose", "maps": [*first, fourier]}, stream.input_features)
    return {"own_map": own, "feature_map": both}


def _network(chosen: DenseEncoder | ConvolutionalEncoder, linear: Linear) -> Encoder:
    """Return the encoder of a linear model's records. Raises Refused."""
    described = chosen.model_dump() | {"version": encoders.VERSION, "norm_bound": linear.norm_bound}
    try:
        return encoders.build(described, linear.features, linear.shape[0])
    except ValueError as problem:
        raise Refused("mechanism.encoder", str(problem)) from None


def _listed(setting: int | tuple[int, ...]) -> tuple[int, ...]:
    return setting if isinstance(setting, tuple) else (setting,)


_KIND = {"kind": "lifelong"}
FAMILY = MechanismFamily(
    settings=LifelongMechanism,
    source="paper D's setting, with a guarantee that holds",
    summary="all tasks so far, each record read once",
    build=build,
    examples={
        "lifelong": _KIND | {"task_size": 16, "batch": 8},
        "lifelong, agem": _KIND | {"task_size": [4, 8], "training": "agem", "epochs": 3},
        "lifelong, heads": _KIND | {"task_size": 8, "heads": "per_task", "memory": 2},
        "lifelong, encoder": _KIND | {"task_size": 8, "encoder": {"kind": "dense", "records": 8, "layers": [4, 3]}},
    },
    accuracy_setting="mechanism.batch",
    takes=(OUTPUT,),
    not_evaluated=lambda settings: None if settings.encoder is None else "its first release is an encoder",
)
