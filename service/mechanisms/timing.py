"""How long a publication's fits may take, from public quantities alone, and whether that fits its tick.

The estimate is coarse and high on purpose. A fit that is ready only after its tick appears at a later one, which tells
something of its records; so a plan warns when all the fits that may queue on a worker take more than half of T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

SECONDS_AT_LEAST = 0.02  # of any step
PRODUCTS_PER_SECOND = 1e9  # of a record's feature with a weight, on one core
MOST_PASSES = 50  # of a solver over all records of a fit; `exact` needs 2 to some 30


def fit_seconds(plan: Mapping[str, Any]) -> float:
    """Return how long the longest of the kinds of fits in a plan may take on one core."""
    weights = plan.get("model", {}).get("dimension") or plan.get("model", {}).get("cardinality") or 1
    records = max((each.get("records") or 0 for each in plan.get("fits", ())), default=0)
    return SECONDS_AT_LEAST + MOST_PASSES * records * weights / PRODUCTS_PER_SECOND


def timing(plan: Mapping[str, Any], delay: Decimal, queued: float = 0.0) -> dict[str, Any]:
    """Return when releases appear, as a plan says it.

    Args:
        plan: the publication's.
        delay: T, in seconds; 0: a release appears when its fit is ready.
        queued: seconds that the fits of other publications may take which queue before this one's on a worker.
    """
    own = fit_seconds(plan)
    told: dict[str, Any] = {
        "publish_delay": float(delay),
        "fit_seconds": round(own, 3),
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
