"""How long a publication's fits may take and how much memory, from public quantities alone.

The estimate is coarse and high on purpose. A fit that is ready only after its tick appears at a later one, which tells
something of its records; so a plan warns when all the fits that may queue on a worker take more than half of T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

SECONDS_AT_LEAST = 0.02  # of any step
PRODUCTS_PER_SECOND = 1e9  # of a record's feature with a weight, on one core
PRODUCTS_OF_A_SCORE = 64  # so many more take as long as all else that is done with a record's score
MOST_PASSES = 30  # of a solver over all records of a fit, where its plan states none; `exact` needs at least 2
SECONDS_OF_A_STEP = 1.5e-6  # of stochastic gradient descent, for each record of a pass
BYTES_OF_A_RECORD = 64
BYTES_OF_A_FEATURE = 8  # of each record: its value is in memory twice while segments are read


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a fit may take: seconds on one core, and bytes of memory beside what its process holds anyway."""

    seconds: float
    bytes: int


def fit_cost(plan: Mapping[str, Any], records: int) -> Cost:
    """Return what a fit of so many records may take, by a publication's plan."""
    model = plan.get("model", {})
    rows, columns = model.get("shape") or (1, model.get("cardinality") or 1)
    weights = max(rows * (columns + PRODUCTS_OF_A_SCORE), model.get("encoder", {}).get("dimension", 0))
    passes = _stated_passes(plan) or MOST_PASSES
    seconds = SECONDS_AT_LEAST + passes * records * weights / PRODUCTS_PER_SECOND
    return Cost(
        seconds=seconds + SECONDS_OF_A_STEP * records * model.get("passes", 0),
        bytes=records * (BYTES_OF_A_RECORD + BYTES_OF_A_FEATURE * columns),
    )


def _stated_passes(plan: Mapping[str, Any]) -> int:
    """Return how often a fit reads its records; 0 where that depends on them."""
    model = plan.get("model", {})
    stated = [model.get("steps"), model.get("passes"), *(each["noise"].get("steps") for each in plan.get("fits", ()))]
    return max(int(each or 0) for each in stated)


def largest_cost(plan: Mapping[str, Any]) -> Cost:
    """Return what the largest of the kinds of fits in a plan may take, the first time."""
    return fit_cost(plan, max((each.get("records") or 0 for each in plan.get("fits", ())), default=0))


def timing(plan: Mapping[str, Any], delay: Decimal, queued: float = 0.0) -> dict[str, Any]:
    """Return when releases appear, as a plan says it.

    Args:
        plan: the publication's.
        delay: T, in seconds; 0: a release appears when its fit is ready.
        queued: seconds that the fits of other publications may take which queue before this one's on a worker.
    """
    largest = largest_cost(plan)
    own = largest.seconds
    told: dict[str, Any] = {
        "publish_delay": float(delay),
        "fit_seconds": round(own, 3),
        "fit_bytes": largest.bytes,
        "queue_seconds": round(own + queued, 3),
    }
    if not delay and plan.get("fits"):
        told["warning"] = (
            "publish_delay is 0: each release appears as soon as its fit is ready, and the time that a fit takes tells "
            "of its records"
        )
    elif delay and own + queued > float(delay) / 2:
        told["warning"] = (
            f"fits that queue on one worker may take {own + queued:.3g} s, more than half of publish_delay = "
            f"{float(delay):.3g} s: a release whose fit is late appears at a later tick, which tells of its records. "
            "Ask for a longer publish_delay, or run more workers"
        )
    return told
