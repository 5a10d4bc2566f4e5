"""The settings of a window of private statistics."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.inputs.fields import Count, Positive, Shape
from service.mechanisms.limits import MAX_BLOCKS


class WindowStatisticsMechanism(Shape):
    """A model of the last `blocks` blocks, solved from private sums in which each record is counted once.

    It takes the learner output_perturbation: its loss, intercept and origin.
    """

    kind: Literal["window_statistics"]
    block: Count
    blocks: Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
    ridge: Annotated[
        Positive | None, Field(description="α, the pull towards the origin; default: as strong as the noise asks for")
    ] = None
