"""The settings of a preparation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from service.inputs.fields import Count, Shape


class PreparationMechanism(Shape):
    """A feature map that is learnt privately from the first `records` records and released once.

    It takes no learner. Other publications of the stream name it in `features`.
    """

    kind: Literal["preparation"]
    records: Annotated[Count, Field(description="N: the first so many records are read, once")]
    of: Annotated[
        Literal["scale", "whiten"],
        Field(
            description="the map: `scale`, a center and a factor for each feature; `whiten`, a matrix after the map "
            "in `features` that makes features alike in size and uncorrelated"
        ),
    ] = "scale"
    rule: Literal[1, 2] | None = Field(
        None,
        exclude_if=lambda rule: rule is None,
        description="How counts become scales. Default 2; of preparations that were made before there was another, 1",
    )

    def begun(self) -> Self:
        """Return it with what a publication gets that begins now and does not say otherwise."""
        return self if self.rule is not None or self.of == "whiten" else self.model_copy(update={"rule": 2})
