"""How far one record can move sums, and bend an objective, recomputed from what their release says of them."""

import math
from collections.abc import Mapping
from typing import Any

from service.privacy import sensitivity
from service.privacy.accounting.events import NoisySecondMoments, NoisyStatistics, PrivacyEvent, TiltedObjective
from service.privacy.accounting.events.objective import curvature

_LESS = 1.0 - 2.0**-40  # rounding here may go either way
_LEAST_TOLERANCE = 2.0**-16  # of a minimiser, as a part of what one of n records adds to a gradient
_CURVED = 0.49  # of ε, where Λ was raised: the curvature then costs half of all but the output noise


def least_sensitivity(event: PrivacyEvent, model: Mapping[str, Any]) -> float:
    """Return how far one record moves the sums that noise was added to; 0.0 where the release does not say.

    In exact arithmetic: what was stated allows for rounding too, and is more. model: the release's description.
    """
    if isinstance(event, NoisySecondMoments):
        return sensitivity.second_moments()
    if isinstance(event, NoisyStatistics):
        return sensitivity.sufficient_statistics(**vars(event.weights), codes=max(model["classes"] or 0, 2))
    if isinstance(event, TiltedObjective):
        return _LESS * 2.0 * _steepest(model["loss"], model["shape"][0]) * float(model["norm_bound"])
    return 0.0


def _steepest(loss: str, rows: int) -> float:
    """Return the norm of the steepest gradient that one record of norm 1 has, of a loss with so many rows of weights.

    The derivative in a score is at most 1 of a logistic loss and of each row of a hinge; p - e_y is at most √2 long.
    """
    return {"logistic": 1.0, "softmax": math.sqrt(2.0), "huber_hinge": math.sqrt(rows)}[loss]


def is_too_flat(event: TiltedObjective, model: Mapping[str, Any]) -> bool:
    """Return whether one record can bend an objective more than its release was charged for (`events.objective`).

    The second derivative of one record's loss in its scores has rank 1 and trace 1/4 at most for a logistic loss, those
    of diag(p) - ppᵀ for a softmax, and for a hinge of width h at most 1 and 1/(2h) for each row of weights.
    """
    rows = model["shape"][0]
    match model["loss"]:
        case "logistic":
            rank, trace = 1, 0.25
        case "softmax":
            rank, trace = rows - 1, 1.0 - 1.0 / rows
        case "huber_hinge":
            rank, trace = rows, rows / (2.0 * model["huber_width"])
        case other:
            raise ValueError(f"no bound is proved on how far one record bends an objective of loss {other}")
    return event.rank < rank or event.steepness < _LESS * trace * float(model["norm_bound"]) ** 2


def overstates_regularization(
    event: TiltedObjective, configuration: Mapping[str, Any], records: int, epsilon: float
) -> bool:
    """Return whether Λ is more than its publication says, though a charge of that ε was not too small for it.

    It is raised for no other reason (`learning.objective_perturbation`). The larger Λ is, the less the curvature costs.
    Where the publication says none, any is right.
    """
    promised = (configuration.get("learner") or {}).get("regularization")
    if promised is None or event.regularization <= promised:
        return False
    cost = curvature(rank=event.rank, steepness=event.steepness, records=records, regularization=event.regularization)
    return cost < _CURVED * epsilon


def overstates_solver_accuracy(event: TiltedObjective, model: Mapping[str, Any], records: int) -> bool:
    """Return whether its output noise is for a minimiser nearer than any is ever found: both of τ/Λ off (there)."""
    steepest = _steepest(model["loss"], model["shape"][0]) * float(model["norm_bound"])
    least = 2.0 * _LEAST_TOLERANCE * steepest / (records * event.regularization)
    return event.output_sensitivity < _LESS * least
