"""Settings that several feature maps have."""

from typing import Annotated, Literal

from pydantic import Field

MAX_MAPPED = 2**16  # numbers that a feature map of a size of its own choice may make of a record


Mapped = Annotated[int, Field(strict=True, ge=1, le=MAX_MAPPED, description="Numbers in a mapped record")]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63, description="Public; another seed is another map")]
Version = Annotated[Literal[1], Field(description="A version never computes anything else")]
