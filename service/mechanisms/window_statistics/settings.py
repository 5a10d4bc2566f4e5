"""The settings of a window of private statistics."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.inputs.fields import Count, Positive, Shape
from service.mechanisms.limits import MAX_BLOCKS
from service.streams.names import ABSENT

MAX_CANDIDATES = 16

_Blocks = Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
_Ridge = Annotated[
    Positive | None, Field(description="α, the pull towards the origin; default: as strong as the noise asks for")
]


class Candidate(Shape):
    """Another model of the same private sums."""

    blocks: Annotated[
        _Blocks | None, Field(description="of the last so many blocks, at most the mechanism's `blocks`, the default")
    ] = None
    ridge: _Ridge = None


class WindowStatisticsMechanism(Shape):
    """A model of the last `blocks` blocks, solved from private sums in which each record is counted once.

    It takes the learner output_perturbation: its loss, intercept and origin.
    """

    kind: Literal["window_statistics"]
    block: Count
    blocks: _Blocks
    ridge: _Ridge = None
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=1, max_length=MAX_CANDIDATES)] | None = Field(
        **ABSENT,
        description="other models of the same sums, which each release carries too. They cost nothing, and predictions "
        "are by the publication's own model",
    )
