"""The settings of a histogram that answers queries."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Count, Shape


class LinearQueriesMechanism(Shape):
    """Answers to linear queries of a categorical stream, and the public histogram they come from (paper C, PMWG).

    It takes no learner. Either `accuracy` is promised, or there are so many `hits`.
    """

    kind: Literal["linear_queries"]
    first: Annotated[
        Count, Field(description="n: how many records there are when queries are first compared with them")
    ]
    accuracy: Annotated[
        float | None,
        Field(
            strict=True,
            allow_inf_nan=False,
            ge=1e-4,
            le=1.0,
            description="α: how far off an answer may be; with hits, default what noise alone does not pass",
        ),
    ] = None
    failure_probability: Annotated[
        float,
        Field(strict=True, allow_inf_nan=False, ge=1e-9, le=0.5, description="β: that some answer is farther off"),
    ] = 0.05
    hits: Annotated[
        int | None,
        Field(strict=True, ge=1, le=10**9, description="H: so many hard queries, each for its share of the budget"),
    ] = None

    @model_validator(mode="after")
    def _accuracy_or_hits(self) -> Self:
        if self.accuracy is None and self.hits is None:
            raise PydanticCustomError("accuracy", "linear_queries needs an accuracy or a number of hits")
        return self
