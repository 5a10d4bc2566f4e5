"""The settings of an evaluation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Shape

MAX_PUBLICATIONS = 64
MAX_SLOTS = 2**20

_Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class EvaluationMechanism(Shape):
    """Counts, with noise, how well publications of the same stream predict, on slots that none of them reads.

    It takes no learner. A release after every `block` evaluation slots tells the accuracy of each publication in `of`.
    """

    kind: Literal["evaluation"]
    of: Annotated[
        tuple[_Name, ...],
        Field(min_length=1, max_length=MAX_PUBLICATIONS, description="names of publications of the same stream"),
    ]
    block: Annotated[
        int,
        Field(
            strict=True,
            ge=1,
            le=MAX_SLOTS,
            description="a release after so many evaluation slots, or slots where the stream sets none aside",
        ),
    ]
    bins: Annotated[
        bool,
        Field(
            strict=True,
            description="whether predictions are counted by their probability too: that tells the calibration error, "
            "and doubles what one record changes",
        ),
    ] = True
    shortened: Annotated[
        bool,
        Field(
            strict=True,
            exclude_if=lambda counted: not counted,
            description="whether records that a model shortens to its norm, that is to `norm_bound` or to the norm of "
            "its features, are counted: a quarter is added to what one record changes, without bins a half",
        ),
    ] = False

    @field_validator("of")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise PydanticCustomError("twice", "names a publication twice")
        return value
