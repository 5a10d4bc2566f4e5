"""From a configuration to what runs: schedule × learner × kind of guarantee, or the reason why not."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learners.noisy_gradient_descent import NoisyGradientDescent
from service.learners.objective_perturbation import ObjectivePerturbation
from service.learners.output_perturbation import Linear, OutputPerturbation
from service.learners.settings import (
    LinearLearner,
    NoisyGradientDescentLearner,
    ObjectivePerturbationLearner,
    OutputPerturbationLearner,
    SmallDatabaseLearner,
)
from service.learners.small_database import MAX_NUMBERS, SmallDatabase
from service.learning.constraint_sets import ConstraintSet
from service.learning.descent import GradientDescent, PermutationSGD
from service.learning.losses import LOSSES, HuberHinge, Squared
from service.learning.solvers import Exact, Inaccurate
from service.mechanisms import statistics_learners
from service.mechanisms.active_learning import active_learners
from service.mechanisms.active_learning.mechanism import ActiveLearning
from service.mechanisms.configuration import (
    ActiveLearningMechanism,
    ContinualMechanism,
    ImprovingBlackBoxMechanism,
    IndependentBatchesMechanism,
    LifelongMechanism,
    LinearQueriesMechanism,
    MultiResolutionMechanism,
    OnlineLeaderMechanism,
    PublicationConfiguration,
    Refused,
    ScheduledBlackBoxMechanism,
    SlidingWindowMechanism,
    WindowStatisticsMechanism,
)
from service.mechanisms.histogram import MAX_CARDINALITY
from service.mechanisms.lifelong.mechanism import Lifelong
from service.mechanisms.lifelong.task_statistics import TaskStatistics
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.linear_queries.mechanism import LinearQueries
from service.mechanisms.moments import Moments
from service.mechanisms.online_leader.mechanism import OnlineLeader
from service.mechanisms.online_leader.online_gradient import OnlineGradient
from service.mechanisms.scheduled.mechanism import Scheduled, ScheduledHistograms
from service.mechanisms.window_statistics.mechanism import WindowStatistics
from service.privacy.loss import Kind, capacity
from service.privacy.noise.additive import Unaffordable
from service.privacy.noise.correlated import Blt, Toeplitz, Tree
from service.privacy.noise.exponential import MAX_CANDIDATES
from service.privacy.noise.running_sums import Doubling, Repeated
from service.privacy.noise.window_tree import WindowTree
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.independent_batches import IndependentBatches
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow
from service.streams.schema import MAX_DIMENSION, Categorical, Classification, Regression, StreamSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.learners.output_perturbation import Learner, Solver
    from service.learning.losses import Floats, Loss
    from service.mechanisms.configuration import Mechanism as MechanismSettings
    from service.mechanisms.mechanism import Mechanism
    from service.privacy.noise.running_sums import Runs
    from service.schedules.schedule import Schedule

    LinearSettings = OutputPerturbationLearner | ObjectivePerturbationLearner | NoisyGradientDescentLearner

FARTHEST = 1e4  # how far in a score the ball reaches where nobody says otherwise: farther than any model goes
DECAY = 0.97  # of the noise of running sums: a step that was long ago is forgotten by the gradients anyway


def build(stream: StreamSchema, publication: PublicationConfiguration) -> Mechanism:
    """Return the publication that the configuration describes. Raises Refused with the field that cannot stand."""
    privacy = publication.privacy
    kind, cap = capacity(privacy.epsilon, privacy.delta)
    if cap == 0:
        raise Refused("privacy.delta", "this delta leaves no budget for noise in double precision")
    if publication.publish_delay and not publication.has_ticks:
        raise Refused("publish_delay", f"steps of {publication.mechanism.kind} are due at no public time: leave it out")
    about: dict[str, Any] = {"kind": kind, "capacity": cap, "privacy": privacy}
    settings, learner = publication.mechanism, publication.learner
    mechanism: Mechanism
    if isinstance(settings, LinearQueriesMechanism):
        if learner is not None:
            raise Refused("learner", "linear_queries fits no model: leave learner out")
        mechanism, setting = _queries(stream, settings, about), "mechanism.accuracy"
    elif isinstance(settings, ActiveLearningMechanism):
        assert learner is not None  # noqa: S101 - the configuration was checked
        mechanism, setting = (
            _active(stream, settings, active_learners.checked(settings, learner), about),
            "mechanism.size",
        )
    else:
        assert learner is not None  # noqa: S101 - the same
        about["schedule"] = _schedule(settings, kind)
        if isinstance(learner, SmallDatabaseLearner):
            mechanism, setting = _of_histograms(stream, settings, learner, about), "learner.accuracy"
        else:
            mechanism, setting = _of_models(stream, settings, learner, about)
    try:
        mechanism.plan()
    except Inaccurate as problem:
        raise Refused(setting, str(problem)) from None
    except Unaffordable as problem:
        raise Refused("privacy.epsilon", str(problem)) from None
    return mechanism


def _queries(stream: StreamSchema, settings: LinearQueriesMechanism, about: dict[str, Any]) -> LinearQueries:
    if not isinstance(stream.task, Categorical):
        raise Refused("mechanism.kind", "linear_queries counts categories: it needs a categorical stream")
    if stream.task.cardinality > MAX_CARDINALITY:
        raise Refused("mechanism.kind", f"linear_queries keeps a histogram of at most {MAX_CARDINALITY} categories")
    return LinearQueries(cardinality=stream.task.cardinality, **settings.model_dump(exclude={"kind"}), **about)


def _active(
    stream: StreamSchema, mechanism: ActiveLearningMechanism, settings: LinearSettings, about: dict[str, Any]
) -> ActiveLearning:
    linear = _linear(active_learners.labelled(stream), settings)
    learner, spent = active_learners.gradient(linear, mechanism, about["kind"], about["capacity"])
    how = active_learners.asking(mechanism, stream, learner)
    return ActiveLearning(
        learner=learner,
        origin=_origin(settings, linear.shape),
        feature_map=stream.mapping(),
        schedule=IndependentBatches(batch=how.pop("longest")),
        **about | how | {"capacity": spent},
    )


def _of_models(
    stream: StreamSchema, mechanism: MechanismSettings, settings: LinearSettings, about: dict[str, Any]
) -> tuple[LinearMechanism, str]:
    """Return a publication of linear models, and the setting that its accuracy in double precision depends on."""
    linear = _linear(stream, settings)
    learner: Learner | OnlineGradient | Moments | TaskStatistics
    match mechanism:
        case OnlineLeaderMechanism():
            learner = _online(linear, mechanism, settings)
        case WindowStatisticsMechanism():
            learner = statistics_learners.window(linear, mechanism, settings)
        case LifelongMechanism():
            learner = statistics_learners.lifelong(linear, mechanism, settings)
        case _:
            learner = _learner(linear, settings, about["kind"])
    origin = _origin(settings, learner.shape)
    if isinstance(learner, OnlineGradient) and not learner.constraint.holds(origin, origin):
        raise Refused(
            "learner.origin",
            f"the first iterate is the origin, so it has to lie in the simplex: all of {origin.size} weights at "
            f"{learner.constraint.radius / origin.size:.6g} do",
        )
    about = about | {"origin": origin, "feature_map": stream.mapping()}
    match learner:
        case OnlineGradient():
            return OnlineLeader(learner=learner, **about), "learner.step"
        case TaskStatistics():
            assert isinstance(mechanism, LifelongMechanism)  # noqa: S101 - whose learner it is
            maps = statistics_learners.maps(mechanism, stream.mapping())
            encoder = statistics_learners.encoder(mechanism, linear, about["kind"])
            return Lifelong(learner=learner, encoder=encoder, **about | maps), "mechanism.batch"
        case Moments():
            return WindowStatistics(learner=learner, **about), "mechanism.block"
    setting = "learner.step" if isinstance(learner, NoisyGradientDescent) else "learner.regularization"
    return Scheduled(learner=learner, **about), setting


def _of_histograms(
    stream: StreamSchema, mechanism: MechanismSettings, settings: SmallDatabaseLearner, about: dict[str, Any]
) -> ScheduledHistograms:
    if not isinstance(stream.task, Categorical):
        raise Refused("learner.kind", "small_database counts categories: it needs a categorical stream")
    if isinstance(mechanism, OnlineLeaderMechanism | WindowStatisticsMechanism | LifelongMechanism):
        raise Refused("learner.kind", f"{mechanism.kind} makes linear models: small_database makes none")
    if not all(pattern.near_origin for pattern in about["schedule"].patterns()):
        raise Refused(
            "learner.kind",
            "a small_database is of the records of its own fit and near no other, and here a release is of more than "
            "its fit: use multi_resolution, independent_batches, scheduled_black_box or improving_black_box, without "
            "warm_start",
        )
    learner = SmallDatabase(
        cardinality=stream.task.cardinality, queries=settings.queries, accuracy=Fraction(settings.accuracy)
    )
    if learner.too_many:
        raise Refused(
            "learner.accuracy",
            f"there are too many databases of {learner.size} records over {learner.cardinality} categories to look at "
            f"each: at most {MAX_CANDIDATES}, and {MAX_NUMBERS} numbers in all; ask for less accuracy, or for fewer "
            "queries (intervals, points)",
        )
    return ScheduledHistograms(learner=learner, origin=np.zeros(learner.shape), **about)


def needs(schema: Mapping[str, Any], configuration: Mapping[str, Any], position: int) -> int:
    """Return the oldest record that a publication may still read after `position`; both are counted from its start.

    schema, configuration: as they are stored, of the stream and of the publication.
    """
    return _stored(json.dumps(schema), json.dumps(configuration)).needs(position)


def declassified(schema: Mapping[str, Any], configuration: Mapping[str, Any], position: int) -> int:
    """Return how many records, the first ones of a publication, what it released up to `position` no longer protects.

    schema, configuration, position: as for `needs`.
    """
    if configuration.get("mechanism", {}).get("expiry", "never") == "never":  # of most: nothing to build
        return 0
    return _stored(json.dumps(schema), json.dumps(configuration)).declassified(position)


@lru_cache(maxsize=64)
def _stored(schema: str, configuration: str) -> Mechanism:
    """Build what is stored, both as JSON. A list asks this for each stream, and many streams have the same settings."""
    publication = PublicationConfiguration.model_validate(json.loads(configuration))
    return build(StreamSchema.model_validate(json.loads(schema)), publication)


def _schedule(mechanism: MechanismSettings, kind: Kind) -> Schedule:  # noqa: C901, PLR0911 - one for each kind
    match mechanism:
        case MultiResolutionMechanism():
            return MultiResolution(kind=kind, base=mechanism.base)
        case ContinualMechanism():
            return Continual(
                kind=kind, base=mechanism.base, update_every=mechanism.update_every, shares=mechanism.shares
            )
        case SlidingWindowMechanism():
            return SlidingWindow(
                kind=kind,
                block=mechanism.block,
                blocks=mechanism.blocks,
                shares=mechanism.shares,
                warm_up=mechanism.warm_up == "continual",
            )
        case IndependentBatchesMechanism():
            return IndependentBatches(batch=mechanism.batch, warm_start=mechanism.warm_start)
        case ScheduledBlackBoxMechanism():
            accuracy = Fraction(mechanism.accuracy or 0)
            return ScheduledBlackBox(
                kind=kind,
                first=mechanism.first,
                growth=Fraction(mechanism.growth) if mechanism.growth else accuracy / (1 - accuracy),
                warm_start=mechanism.warm_start,
            )
        case ImprovingBlackBoxMechanism():
            return ImprovingBlackBox(
                kind=kind,
                first=mechanism.first,
                every=mechanism.every,
                exponent=mechanism.exponent,
                warm_start=mechanism.warm_start,
            )
        case WindowStatisticsMechanism():
            return IndependentBatches(batch=mechanism.block)
        case LifelongMechanism():
            return statistics_learners.tasks(mechanism)
        case OnlineLeaderMechanism():
            return IndependentBatches(batch=mechanism.batch, warm_start=True)
        case LinearQueriesMechanism() | ActiveLearningMechanism():
            raise TypeError(f"{mechanism.kind} has no schedule of fits")


def _linear(stream: StreamSchema, settings: LinearLearner) -> Linear:
    loss, classes = _loss(stream, settings)
    try:
        rows = loss.rows(classes)
    except ValueError as problem:
        raise Refused("learner.loss", f"{problem}; this stream has {classes}: use softmax or huber_hinge") from None
    if stream.features is None:  # only a categorical stream, which has no loss
        raise Refused("learner.loss", "a linear model needs features")
    features = stream.mapping().features
    if rows * (features + 1) > MAX_DIMENSION:
        raise Refused("learner.loss", f"the model would have more than {MAX_DIMENSION} weights")
    return Linear(
        loss=loss,
        regularization=settings.regularization,
        intercept=settings.intercept,
        norm_bound=stream.norm_bound,
        features=features,
        classes=classes,
    )


def _learner(linear: Linear, settings: LinearSettings, kind: Kind) -> Learner:
    if isinstance(settings, OutputPerturbationLearner):
        return OutputPerturbation(**vars(linear), solver=_solver(settings))
    if isinstance(settings, ObjectivePerturbationLearner):
        if not linear.classes:
            raise Refused(
                "learner.kind",
                "objective_perturbation needs a loss whose slope is bounded everywhere, and squared is the steeper the "
                "farther a prediction is off: use output_perturbation or, with a delta, noisy_gradient_descent",
            )
        return ObjectivePerturbation(**vars(linear))
    if kind is Kind.PURE:
        raise Refused(
            "learner.kind",
            "noisy_gradient_descent adds Gaussian noise in every step, which has no pure guarantee: give privacy.delta "
            "a small value such as 1e-6, or use output_perturbation or objective_perturbation",
        )
    return NoisyGradientDescent(
        **vars(linear),
        clip=settings.clip,
        steps=settings.steps,
        step=settings.step,
        momentum=0.9 if settings.momentum is None else settings.momentum,
    )


def _online(linear: Linear, mechanism: OnlineLeaderMechanism, settings: LinearSettings) -> OnlineGradient:
    if not isinstance(settings, NoisyGradientDescentLearner):
        raise Refused("learner.kind", "online_leader takes steps along noisy gradients: use noisy_gradient_descent")
    for name, instead in (("steps", None), ("step", "learning_rate"), ("clip", "clip")):
        if getattr(settings, name) is not None:
            told = f"set mechanism.{instead}" if instead else "there is one for every batch"
            raise Refused(f"learner.{name}", f"online_leader says how its steps are taken: {told}")
    if mechanism.strong_convexity is not None:
        for name in ("momentum", "regularization"):
            if getattr(settings, name):
                raise Refused(f"learner.{name}", "the leader is followed without: only strong_convexity pulls")
    return OnlineGradient(
        **vars(linear),
        runs=_runs(mechanism),
        clip=mechanism.clip,
        learning_rate=mechanism.learning_rate,
        strong_convexity=mechanism.strong_convexity,
        momentum=settings.momentum or 0.0,
        averaging=mechanism.averaging,
        constraint=ConstraintSet(name=mechanism.constraint, radius=mechanism.radius or FARTHEST / linear.norm_bound),
        projected=mechanism.step == "projection",
    )


def _runs(mechanism: OnlineLeaderMechanism) -> Runs:
    decay = mechanism.decay or DECAY
    match mechanism.noise:
        case "blt":
            return Repeated(factor=Blt.decaying(decay))
        case "toeplitz":
            return Repeated(factor=Toeplitz.for_ever(decay))
        case "tree":
            return Doubling()
        case "window_tree":
            window = mechanism.window or 1
            if mechanism.expiry == "never":
                return Repeated(factor=Tree(steps=1 << (window - 1).bit_length()))
            return Repeated(factor=WindowTree(window=window, expiry=mechanism.expiry))


def _origin(settings: LinearLearner, shape: tuple[int, int]) -> Floats:
    """Return the public weights to start from."""
    if settings.origin is None:
        return np.zeros(shape)
    rows, columns = shape
    if {len(row) for row in settings.origin} != {columns} or len(settings.origin) != rows:
        raise Refused("learner.origin", f"the model has {rows} rows of {columns} weights")
    return np.array(settings.origin, dtype=np.float64)


def _loss(stream: StreamSchema, settings: LinearLearner) -> tuple[Loss, int]:
    """Return the loss, and for how many classes."""
    task = stream.task
    if isinstance(task, Regression):
        if settings.loss not in (None, "squared"):
            raise Refused("learner.loss", f"{settings.loss} needs classes; this stream is a regression: use squared")
        return Squared(bound=task.bound), 0
    if not isinstance(task, Classification):
        instead = "; small_database is for categories" if isinstance(task, Categorical) else ""
        raise Refused(
            "learner.loss",
            f"no loss for a {task.kind} stream is available; available: classification, regression{instead}",
        )
    if settings.loss == "squared":
        raise Refused("learner.loss", "squared needs a regression stream: use logistic, softmax or huber_hinge")
    if settings.loss == "huber_hinge":
        return HuberHinge(width=settings.huber_width or HuberHinge().width), task.classes
    return LOSSES[settings.loss or ("logistic" if task.classes == 2 else "softmax")], task.classes


def _solver(settings: OutputPerturbationLearner) -> Solver:
    if settings.solver == "psgd":
        return PermutationSGD(passes=settings.passes or 10, batch=settings.batch or 32)
    if settings.solver == "gradient_descent":
        return GradientDescent(steps=settings.steps or 100)
    return Exact()
