"""A window of private statistics, as data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.learning.output_perturbation import FAMILY as OUTPUT
from service.mechanisms import linear_settings
from service.mechanisms.family import MechanismFamily
from service.mechanisms.limits import MAX_REMEMBERED
from service.mechanisms.statistics_settings import statistics_model
from service.mechanisms.window_statistics.mechanism import WindowStatistics
from service.mechanisms.window_statistics.settings import WindowStatisticsMechanism
from service.mechanisms.window_statistics.window_model import WindowModel
from service.privacy.currency import Currency
from service.privacy.noise.additive import MAX_LAPLACE_DIMENSION
from service.schedules.independent_batches import IndependentBatches

if TYPE_CHECKING:
    from service.mechanisms.family import BuildContext

MAX_CANDIDATE_NUMBERS = 2**12


def build(settings: WindowStatisticsMechanism, context: BuildContext) -> WindowStatistics:
    """Return the publication. Raises Refused."""
    linear, learner_settings = statistics_model(context, settings.kind)
    learner = WindowModel(**vars(linear), blocks=settings.blocks, ridge=settings.ridge)
    learner = replace(learner, candidates=_candidates(settings, learner))
    if learner.entries * settings.blocks > MAX_REMEMBERED:
        raise Refused(
            "mechanism.blocks",
            f"{settings.blocks} times {learner.entries} statistics are more than the {MAX_REMEMBERED} numbers that it "
            "may remember: use fewer blocks, or a feature_map to fewer features",
        )
    if context.currency is Currency.PURE and learner.entries > MAX_LAPLACE_DIMENSION:
        raise Refused(
            "privacy.delta",
            f"pure noise is for at most {MAX_LAPLACE_DIMENSION} numbers, and these are {learner.entries} statistics: "
            "give privacy.delta a small value such as 1e-6, or use a feature_map to fewer features",
        )
    return WindowStatistics(
        learner=learner,
        origin=linear_settings.origin(learner_settings, learner.shape),
        feature_map=context.stream.mapping(),
        schedule=IndependentBatches(batch=settings.block),
        **context.promise,
    )


def _candidates(settings: WindowStatisticsMechanism, learner: WindowModel) -> tuple[WindowModel, ...]:
    """Return the candidates of a window. Raises Refused."""
    named = settings.candidates or ()
    if any((candidate.blocks or 1) > settings.blocks for candidate in named):
        raise Refused(
            "mechanism.candidates",
            f"a candidate may be of at most {settings.blocks} blocks, as many as are remembered: make blocks larger",
        )
    if (numbers := len(named) * math.prod(learner.shape)) > MAX_CANDIDATE_NUMBERS:
        raise Refused(
            "mechanism.candidates",
            f"their models are {numbers} numbers, and a release carries at most {MAX_CANDIDATE_NUMBERS}: name fewer",
        )
    return tuple(
        replace(learner, blocks=candidate.blocks or settings.blocks, ridge=candidate.ridge) for candidate in named
    )


_KIND = {"kind": "window_statistics"}
FAMILY = MechanismFamily(
    settings=WindowStatisticsMechanism,
    source="paper D's statistics, done right",
    summary="the last so many blocks of records, each read once",
    build=build,
    examples={"window_statistics": _KIND | {"block": 8, "blocks": 2}},
    accuracy_setting="mechanism.block",
    takes=(OUTPUT,),
    adds_up=lambda settings: settings.blocks,
)
