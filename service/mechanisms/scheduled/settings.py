"""The settings of mechanisms that fit models on a public schedule."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Count, Exponent, Growth, Shape, Share
from service.mechanisms.limits import MAX_BLOCKS


class MultiResolutionMechanism(Shape):
    """A model of every block of `base`·2^k records, the largest newest (paper A, Algorithm 2)."""

    kind: Literal["multi_resolution"]
    base: Count


class ContinualMechanism(Shape):
    """Bases at doubling counts and updates in between (paper A, Algorithm 4).

    `shares`: `equal`, the same noise at every level and the whole budget; `paper`, its constants made valid, noisier;
    `improving`, a base over more records has less noise, and the updates get what the bases leave.
    """

    kind: Literal["continual"]
    base: Count
    update_every: Count
    shares: Literal["equal", "paper", "improving"] = "equal"


class SlidingWindowMechanism(Shape):
    """A model of the last `blocks` blocks (paper A, Algorithm 5).

    `shares`: `equal`, the same noise in every bucket and the whole budget; `paper`, its constants. `warm_up`: what is
    released before the first window is full, nothing or a model of all blocks so far after each block.
    """

    kind: Literal["sliding_window"]
    block: Count
    blocks: Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
    shares: Literal["equal", "paper"] = "equal"
    warm_up: Literal["none", "continual"] = "none"


class IndependentBatchesMechanism(Shape):
    """Each batch fitted once, for the whole budget of its records; with `warm_start` near the release before it."""

    kind: Literal["independent_batches"]
    batch: Count
    warm_start: Annotated[bool, Field(strict=True)] = False


class ScheduledBlackBoxMechanism(Shape):
    """A fit of all records so far at `first` of them and whenever they have grown by `growth` (paper C, BBScheduler).

    Give either `growth`, or the `accuracy` that growth/(1 + growth) is.
    """

    kind: Literal["scheduled_black_box"]
    first: Count
    growth: Annotated[
        Growth | None, Field(description="γ: each fit reads 1 + γ times as many records as the one before")
    ] = None
    accuracy: Annotated[
        Share | None,
        Field(description="α: by how much a mean over all records may move before the next fit; then γ = α/(1 - α)"),
    ] = None
    warm_start: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.growth is None) == (self.accuracy is None):
            raise PydanticCustomError("growth", "give either growth or accuracy: each follows from the other")
        return self


class ImprovingBlackBoxMechanism(Shape):
    """A fit of all records so far at `first` of them and `every` so many more (paper C, BBImprover)."""

    kind: Literal["improving_black_box"]
    first: Count
    every: Count
    exponent: Exponent = Field(
        Decimal("0.25"),
        description="c: the ε of a fit of t records falls as t^-(1/2 + c), and pure as t^-(1 + c)",
        json_schema_extra={"default": 0.25},
    )
    warm_start: Annotated[bool, Field(strict=True)] = False
