"""Evaluations, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.inputs.refused import Refused
from service.mechanisms.evaluation.mechanism import Evaluation
from service.mechanisms.evaluation.settings import MAX_SLOTS, EvaluationMechanism
from service.mechanisms.evaluation.tables import ClassCounts, Counts, ErrorSums
from service.mechanisms.family import MechanismFamily
from service.streams.schema import Classification, Regression
from service.streams.slots import EvaluationSlots

if TYPE_CHECKING:
    from service.mechanisms.family import BuildContext


def build(settings: EvaluationMechanism, context: BuildContext) -> Evaluation:
    """Return the publication. Raises Refused."""
    stream = context.stream
    of_units = 1 if stream.unit is None or stream.evaluation is None else stream.evaluation.every
    if settings.block * of_units > MAX_SLOTS:
        most = MAX_SLOTS // of_units
        raise Refused("mechanism.block", f"must be at most {most} where every {of_units}-th unit is set aside")
    return Evaluation(
        start=context.start,
        units_aside=of_units,
        slots=stream.evaluation_slots or EvaluationSlots(period=1),
        block=settings.block,
        of=settings.of,
        counts=_counts(settings, context),
        **context.promise,
    )


def _counts(settings: EvaluationMechanism, context: BuildContext) -> Counts:
    publications = len(settings.of)
    match context.stream.task:
        case Classification(classes=classes):
            try:
                return ClassCounts(
                    classes=classes, publications=publications, bins=settings.bins, shortened=settings.shortened
                )
            except ValueError as problem:
                raise Refused("mechanism.of", str(problem)) from None
        case Regression(bound=bound):
            return ErrorSums(bound=bound, publications=publications, shortened=settings.shortened)
        case _:
            raise Refused(
                "mechanism.kind",
                f"{settings.kind} compares predictions with labels: it needs a classification or regression stream",
            )


FAMILY = MechanismFamily(
    settings=EvaluationMechanism,
    source="Perennial",
    summary="how well other publications predict, counted on slots that none of them reads",
    build=build,
    examples={
        "evaluation": {"kind": "evaluation", "of": ["a", "b"], "block": 4},
        "evaluation, shortened": {"kind": "evaluation", "of": ["a", "b"], "block": 4, "shortened": True},
    },
    accuracy_setting="mechanism.block",
    takes=(),
    evaluates=True,
    not_evaluated=lambda _: "an evaluation predicts nothing",
)
