"""Build the linear models of a stream and a learner's settings, or refuse them with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from service.inputs.refused import Refused
from service.learning.family import HistogramFamily, LearnerFamily, LinearFamily
from service.learning.linear import Linear, LinearLearner, ReleasedModel
from service.learning.optimization.losses import LOSSES, HuberHinge, Squared
from service.learning.registry import LEARNERS
from service.privacy.currency import Currency
from service.streams.schema import MAX_DIMENSION, Categorical, Classification, Regression

if TYPE_CHECKING:
    from service.inputs.fields import Shape
    from service.learning.linear import LinearModelLearner
    from service.learning.optimization.losses import Floats, Loss
    from service.mechanisms.family import BuildContext
    from service.streams.schema import StreamSchema

    S = TypeVar("S", bound=Shape)


def settings_of(family: LearnerFamily[S], context: BuildContext, why: str) -> S:
    """Return the learner's settings. Raises Refused unless they are of this family, and says why only it will do."""
    if not isinstance(context.learner, family.settings):
        raise Refused("learner.kind", f"{why}: use {family.kind}")
    return context.learner


def linear_model(context: BuildContext, mechanism: str) -> Linear:
    """Return the model of a mechanism that makes linear models, whatever the learner. Raises Refused."""
    learner = context.learner
    if isinstance(learner, LinearLearner):
        return linear(context.stream, learner)
    assert learner is not None  # noqa: S101 - the configuration was checked
    categories(context.stream, learner.kind)
    raise Refused("learner.kind", f"{mechanism} makes linear models: {learner.kind} makes none")


def linear(stream: StreamSchema, settings: LinearLearner) -> Linear:
    """Return the linear model of a stream's records. Raises Refused."""
    loss, classes = _loss(stream, settings)
    try:
        rows = loss.rows(classes)
    except ValueError as problem:
        raise Refused("learner.loss", f"{problem}; this stream has {classes}: use softmax or huber_hinge") from None
    if stream.features is None:  # only a categorical stream has no features, and it has no loss either
        raise Refused("learner.loss", "a linear model needs features")
    features = stream.mapping().features
    if rows * (features + 1) > MAX_DIMENSION:
        raise Refused("learner.loss", f"the model would have more than {MAX_DIMENSION} weights")
    return Linear(
        loss=loss,
        regularization=settings.regularization,
        intercept=settings.intercept,
        intercept_scale=settings.intercept_scale,
        norm_bound=stream.norm_bound,
        features=features,
        classes=classes,
    )


def origin(settings: LinearLearner, shape: tuple[int, int]) -> Floats:
    """Return the public weights to start from. Raises Refused."""
    if settings.origin is None:
        return np.zeros(shape)
    if isinstance(settings.origin, ReleasedModel):
        raise Refused("learner.origin", "only the service can look up a release: give its weights here")
    rows, columns = shape
    if {len(row) for row in settings.origin} != {columns} or len(settings.origin) != rows:
        raise Refused("learner.origin", f"the model has {rows} rows of {columns} weights")
    return np.array(settings.origin, dtype=np.float64)


def linear_learner(family: LinearFamily[S], settings: S, model: Linear, currency: Currency) -> LinearModelLearner:
    """Return what learns the linear model. Raises Refused where it can't, and says which learners can."""
    if not family.regressions and not model.classes:
        raise Refused(
            "learner.kind",
            f"{family.kind} needs a loss whose slope is bounded everywhere, and squared is the steeper the farther a "
            f"prediction is off: use {_for_regressions()}",
        )
    if family.needs_delta is not None and currency is Currency.PURE:
        pure = " or ".join(family.kind for family in _linear_families() if family.needs_delta is None)
        raise Refused(
            "learner.kind",
            f"{family.kind} {family.needs_delta}, which has no pure guarantee: give privacy.delta a small value such "
            f"as 1e-6, or use {pure}",
        )
    return family.build(model, settings, currency)


def categories(stream: StreamSchema, learner: str) -> int:
    """Return how many categories a learner of that kind counts. Raises Refused where a stream has none."""
    if not isinstance(stream.task, Categorical):
        raise Refused("learner.kind", f"{learner} counts categories: it needs a categorical stream")
    return stream.task.cardinality


def _for_regressions() -> str:
    suited = [family for family in _linear_families() if family.regressions]
    pure = " or ".join(family.kind for family in suited if family.needs_delta is None)
    return pure + "".join(f" or, with a delta, {family.kind}" for family in suited if family.needs_delta is not None)


def _linear_families() -> list[LinearFamily[Any]]:
    return [family for family in LEARNERS if isinstance(family, LinearFamily)]


def _loss(stream: StreamSchema, settings: LinearLearner) -> tuple[Loss, int]:
    """Return the loss, and for how many classes."""
    task = stream.task
    if isinstance(task, Regression):
        if settings.loss not in (None, "squared"):
            raise Refused("learner.loss", f"{settings.loss} needs classes; this stream is a regression: use squared")
        return Squared(bound=task.bound), 0
    if not isinstance(task, Classification):
        counting = " or ".join(LEARNERS.kinds(lambda family: isinstance(family, HistogramFamily)))
        instead = f"; {counting} is for categories" if isinstance(task, Categorical) else ""
        raise Refused(
            "learner.loss",
            f"no loss for a {task.kind} stream is available; available: classification, regression{instead}",
        )
    if settings.loss == "squared":
        raise Refused("learner.loss", "squared needs a regression stream: use logistic, softmax or huber_hinge")
    if settings.loss == "huber_hinge":
        return HuberHinge(width=settings.huber_width or HuberHinge().width), task.classes
    return LOSSES[settings.loss or ("logistic" if task.classes == 2 else "softmax")], task.classes
