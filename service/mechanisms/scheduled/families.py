"""The mechanisms that fit models on a public schedule, each with any learner."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from service.inputs.refused import Refused
from service.learning.family import HistogramFamily, LinearFamily
from service.learning.linear import LinearLearner
from service.learning.registry import LEARNERS
from service.mechanisms import linear_settings
from service.mechanisms.family import MechanismFamily
from service.mechanisms.scheduled.histograms import ScheduledHistograms
from service.mechanisms.scheduled.mechanism import Scheduled
from service.mechanisms.scheduled.settings import (
    ContinualMechanism,
    ImprovingBlackBoxMechanism,
    IndependentBatchesMechanism,
    MultiResolutionMechanism,
    ScheduledBlackBoxMechanism,
    SlidingWindowMechanism,
)
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.independent_batches import IndependentBatches
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.inputs.registry import FamilySettings, S
    from service.mechanisms.family import BuildContext
    from service.mechanisms.on_schedule import OnSchedule
    from service.privacy.currency import Currency
    from service.schedules.schedule import Schedule


def on(schedule: Callable[[S, Currency], Schedule]) -> Callable[[S, BuildContext], OnSchedule]:
    """Return the function that builds a publication of this schedule with the requested learner."""

    def build(settings: S, context: BuildContext) -> OnSchedule:
        return _fitted(schedule(settings, context.currency), context)

    return build


def _fitted(schedule: Schedule, context: BuildContext) -> OnSchedule:
    settings = context.learner
    assert settings is not None  # noqa: S101 - the configuration was checked
    family = LEARNERS.of(settings)
    if isinstance(family, HistogramFamily):
        return _histograms(family, settings, schedule, context)
    assert isinstance(family, LinearFamily)  # noqa: S101 - there are no others
    assert isinstance(settings, LinearLearner)  # noqa: S101 - as of all of these
    model = linear_settings.linear(context.stream, settings)
    return Scheduled(
        learner=linear_settings.linear_learner(family, settings, model, context.currency),
        origin=linear_settings.origin(settings, model.shape),
        feature_map=context.stream.mapping(),
        schedule=schedule,
        **context.promise,
    )


def _histograms(
    family: HistogramFamily[Any], settings: FamilySettings, schedule: Schedule, context: BuildContext
) -> ScheduledHistograms:
    cardinality = linear_settings.categories(context.stream, family.kind)
    if not all(pattern.near_origin for pattern in schedule.patterns()):
        raise Refused(
            "learner.kind",
            f"a {family.kind} is of the records of its own fit and near no other, and here a release is of more than "
            "its fit: use multi_resolution, independent_batches, scheduled_black_box or improving_black_box, without "
            "warm_start",
        )
    learner = family.build(cardinality, settings)
    return ScheduledHistograms(learner=learner, origin=np.zeros(learner.shape), schedule=schedule, **context.promise)


def _multi_resolution(settings: MultiResolutionMechanism, currency: Currency) -> Schedule:
    return MultiResolution(currency=currency, base=settings.base)


def _continual(settings: ContinualMechanism, currency: Currency) -> Schedule:
    return Continual(currency=currency, base=settings.base, update_every=settings.update_every, shares=settings.shares)


def _sliding_window(settings: SlidingWindowMechanism, currency: Currency) -> Schedule:
    return SlidingWindow(
        currency=currency,
        block=settings.block,
        blocks=settings.blocks,
        shares=settings.shares,
        warm_up=settings.warm_up == "continual",
    )


def _independent_batches(settings: IndependentBatchesMechanism, currency: Currency) -> Schedule:  # noqa: ARG001
    return IndependentBatches(batch=settings.batch, warm_start=settings.warm_start)


def _scheduled_black_box(settings: ScheduledBlackBoxMechanism, currency: Currency) -> Schedule:
    accuracy = Fraction(settings.accuracy or 0)
    return ScheduledBlackBox(
        currency=currency,
        first=settings.first,
        growth=Fraction(settings.growth) if settings.growth else accuracy / (1 - accuracy),
        warm_start=settings.warm_start,
    )


def _improving_black_box(settings: ImprovingBlackBoxMechanism, currency: Currency) -> Schedule:
    return ImprovingBlackBox(
        currency=currency,
        first=settings.first,
        every=settings.every,
        exponent=settings.exponent,
        warm_start=settings.warm_start,
    )


_CONTINUAL = {"kind": "continual"}
_WINDOW = {"kind": "sliding_window"}
_BATCHES = {"kind": "independent_batches"}
_SCHEDULED, _IMPROVING = {"kind": "scheduled_black_box", "first": 8}, {"kind": "improving_black_box", "first": 8}

MULTI_RESOLUTION = MechanismFamily(
    settings=MultiResolutionMechanism,
    source="paper A, Algorithm 2",
    summary="a block of 2^k·`base` records",
    build=on(_multi_resolution),
    examples={"multi_resolution": {"kind": "multi_resolution", "base": 8}},
)
CONTINUAL = MechanismFamily(
    settings=ContinualMechanism,
    source="paper A, Algorithm 4",
    summary="all records so far",
    build=on(_continual),
    examples={
        f"continual, {shares}": _CONTINUAL | {"base": 16, "update_every": 4, "shares": shares}
        for shares in ("equal", "paper", "improving")
    },
)
SLIDING_WINDOW = MechanismFamily(
    settings=SlidingWindowMechanism,
    source="paper A, Algorithm 5",
    summary="the last so many blocks of records",
    build=on(_sliding_window),
    examples={
        "sliding_window": _WINDOW | {"block": 4, "blocks": 7},
        "sliding_window, warm": _WINDOW | {"block": 4, "blocks": 7, "warm_up": "continual"},
    },
    adds_up=lambda _: 1,
)
INDEPENDENT_BATCHES = MechanismFamily(
    settings=IndependentBatchesMechanism,
    source="the papers' baseline",
    summary="the last batch, or what all batches taught",
    build=on(_independent_batches),
    examples={
        "independent_batches": _BATCHES | {"batch": 8},
        "independent_batches, warm": _BATCHES | {"batch": 8, "warm_start": True},
    },
    adds_up=lambda _: 1,
)
SCHEDULED_BLACK_BOX = MechanismFamily(
    settings=ScheduledBlackBoxMechanism,
    source="paper C, BBScheduler",
    summary="all records so far, at geometric times",
    build=on(_scheduled_black_box),
    examples={
        "scheduled_black_box": _SCHEDULED | {"growth": 0.4},
        "scheduled_black_box, warm": _SCHEDULED | {"accuracy": 0.3, "warm_start": True},
    },
)
IMPROVING_BLACK_BOX = MechanismFamily(
    settings=ImprovingBlackBoxMechanism,
    source="paper C, BBImprover",
    summary="all records so far, better and better",
    build=on(_improving_black_box),
    examples={
        "improving_black_box": _IMPROVING | {"every": 4},
        "improving_black_box, warm": _IMPROVING | {"every": 4, "warm_start": True},
    },
)
FAMILIES = (
    MULTI_RESOLUTION,
    CONTINUAL,
    SLIDING_WINDOW,
    INDEPENDENT_BATCHES,
    SCHEDULED_BLACK_BOX,
    IMPROVING_BLACK_BOX,
)
