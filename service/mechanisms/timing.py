"""Estimates of the time and memory of a publication's fits, from public quantities alone.

The estimate is coarse and high on purpose. A fit that is ready only after its tick appears at a later one, which tells
something of its records; so a plan warns when all the fits that may queue on a worker take more than half of T.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.privacy.accounting.obligations import FitSize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

SECONDS_AT_LEAST = 0.02  # seconds for the shortest step
PRODUCTS_PER_SECOND = 1e9  # products of a feature and a weight per second on one core
PRODUCTS_OF_A_SCORE = 64  # the other work for a record's score takes as long as this many products
MAX_PASSES = 30  # passes over the records of a fit, where their number depends on the data; `exact` needs at least 2
MAX_PASSES_OF_BLOCKS = 90  # passes of a fit made of blocks, each of which reads the records again
SECONDS_OF_A_STEP = 1.5e-6  # seconds of stochastic gradient descent per record and pass
BYTES_OF_A_RECORD = 64
BYTES_AT_LEAST = 2**20  # bytes for everything but records
BYTES_OF_A_NUMBER = 8
BYTES_OF_A_FEATURE = 8  # bytes per record and feature: values are in memory twice while segments are read
BYTES_OF_BLOCKS = 96 * 2**20  # bytes for one block and what is computed from it
# The most bytes of records in memory at once; larger fits are made of blocks if the learner can (`optimization.sums`).
LARGE_BYTES = 128 * 2**20


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The most that a fit may take: seconds on one core, and bytes of memory beside what its process holds anyway."""

    seconds: float
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The most numbers that a fit holds at once, and products that it computes, however few records it has."""

    numbers: int = 0
    products: int = 0

    @property
    def small(self) -> bool:
        """Return whether a workspace is too small to change the cost of any fit."""
        bytes_, seconds = BYTES_OF_A_NUMBER * self.numbers, self.products / PRODUCTS_PER_SECOND
        return bytes_ <= BYTES_AT_LEAST and seconds <= SECONDS_AT_LEAST


def fit_size(plan: Mapping[str, Any], workspace: Workspace = Workspace()) -> FitSize:
    """Return the size of a publication's fits, as the mechanism planned them."""
    beside = Workspace() if workspace.small else workspace
    model, fits = plan["model"], plan.get("fits", ())
    rows, columns = model.get("shape") or (1, model.get("cardinality") or 1)
    stated = [model.get("steps"), model.get("passes"), *(fit["noise"].get("steps") for fit in fits)]
    return FitSize(
        records=max((fit["records"] * fit.get("steps", 1) for fit in fits), default=0),
        rows=rows,
        columns=columns,
        encoder=model.get("encoder", {}).get("dimension", 0),
        passes=max(steps or 0 for steps in stated),
        descent_passes=model.get("passes") or 0,
        sample=model.get("sample") or 0,
        numbers=beside.numbers,
        products=beside.products,
    )


def fit_cost(size: FitSize, records: int, *, in_blocks: bool = False) -> Cost:
    """Return what a fit of that many records may take; `in_blocks`: they are never all in memory.

    A fit of a sample reads all records once, and solves for those that it drew.
    """
    if 0 < size.sample < records:
        fitting = fit_cost(size, size.sample)
        reading = records * (size.columns + PRODUCTS_OF_A_SCORE) / PRODUCTS_PER_SECOND
        read_at_once = BYTES_OF_BLOCKS if in_blocks else bytes_at_once(records, size.columns)
        return Cost(seconds=fitting.seconds + reading, bytes=fitting.bytes + read_at_once)
    weights = max(size.rows * (size.columns + PRODUCTS_OF_A_SCORE), size.encoder)
    passes = size.passes or (MAX_PASSES_OF_BLOCKS if in_blocks else MAX_PASSES)
    seconds = SECONDS_AT_LEAST + (passes * records * weights + size.products) / PRODUCTS_PER_SECOND
    reading = BYTES_OF_BLOCKS if in_blocks else bytes_at_once(records, size.columns)
    return Cost(
        seconds=seconds + SECONDS_OF_A_STEP * records * size.descent_passes,
        bytes=reading + BYTES_OF_A_NUMBER * size.numbers,
    )


def bytes_at_once(records: int, columns: int) -> int:
    """Return the bytes of a fit that reads that many records and features at once."""
    return records * (BYTES_OF_A_RECORD + BYTES_OF_A_FEATURE * columns)


def largest_cost(size: FitSize, *, in_blocks: bool = False) -> Cost:
    """Return what the largest of the kinds of fits may take, the first time."""
    return fit_cost(size, size.records, in_blocks=in_blocks)


def timing(size: FitSize, delay: Decimal, queued: float = 0.0, *, in_blocks: bool = False) -> dict[str, Any]:
    """Return when releases appear, for people to read beside a plan.

    Args:
        size: of the publication's fits.
        delay: T, in seconds; 0: a release appears when its fit is ready.
        queued: seconds that the fits of other publications may take which queue before this one's on a worker.
        in_blocks: whether its largest fit reads its records block by block.
    """
    largest = largest_cost(size, in_blocks=in_blocks)
    own = largest.seconds
    answer: dict[str, Any] = {
        "publish_delay": float(delay),
        "fit_seconds": round(own, 3),
        "fit_bytes": largest.bytes,
        "queue_seconds": round(own + queued, 3),
    }
    if not delay and size.records:
        answer["warning"] = (
            "publish_delay is 0: each release appears as soon as its fit is ready, and the time that a fit takes tells "
            "of its records"
        )
    elif delay and own + queued > float(delay) / 2:
        answer["warning"] = (
            f"fits that queue on one worker may take {own + queued:.3g} s, more than half of publish_delay = "
            f"{float(delay):.3g} s: a release whose fit is late appears at a later tick, which tells of its records. "
            "Ask for a longer publish_delay, or run more workers"
        )
    return answer
