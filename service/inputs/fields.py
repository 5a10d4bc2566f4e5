"""Parts of the shapes that a user writes: exact decimals, counts and numbers within bounds.

Numbers are exact: ε, δ and whatever shares of them follow from are decimals as written.
"""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

MAX_DIGITS = 15  # significant digits of a decimal: as many as every double keeps
MAX_COUNT = 2**40
LARGEST_WEIGHT = 1e9
LARGEST_CENTER = 9e15  # a column's middle: whole numbers up to this are exact as doubles and in stored JSON
LEAST_DELAY, LARGEST_DELAY = Decimal("0.05"), Decimal(86_400)  # seconds


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _decimal(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise PydanticCustomError("decimal_number", "must be a number")
    exact = value if isinstance(value, Decimal) else Decimal(str(value))
    if not exact.is_finite():
        raise PydanticCustomError("not_finite", "must be a finite number")
    exact = exact.normalize()
    if len(exact.as_tuple().digits) > MAX_DIGITS:
        raise PydanticCustomError("decimal_digits", "must have at most 15 significant digits")
    return exact


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _at_least(delta: Decimal) -> Decimal:
    if 0 < delta < Decimal("1e-100"):
        raise PydanticCustomError("delta_too_small", "must be 0 or at least 1e-100")
    return delta


_Exact = Annotated[
    Decimal,
    BeforeValidator(_decimal),
    PlainSerializer(_number, return_type=int | float, when_used="json"),
    WithJsonSchema({"type": "number"}),
]
Epsilon = Annotated[_Exact, Field(ge=Decimal("1e-9"), le=Decimal(1000))]
Delta = Annotated[_Exact, Field(ge=Decimal(0), lt=Decimal(1)), AfterValidator(_at_least)]
Growth = Annotated[_Exact, Field(ge=Decimal("0.01"), le=Decimal(100))]
Share = Annotated[_Exact, Field(ge=Decimal("0.01"), le=Decimal("0.99"))]
Exponent = Annotated[_Exact, Field(ge=Decimal("0.01"), le=Decimal("0.5"))]
Rho = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0, le=100)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Steps = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-6, le=1e6)]
Weight = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)]
ColumnCenter = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST_CENTER, le=LARGEST_CENTER)]
ColumnScale = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-6, le=LARGEST_CENTER)]


def _delay(value: Decimal) -> Decimal:
    if value and not LEAST_DELAY <= value <= LARGEST_DELAY:
        raise PydanticCustomError("publish_delay", "must be 0, or between 0.05 and 86400 seconds")
    return value


PublishDelay = Annotated[_Exact, AfterValidator(_delay)]
"""Seconds: 0, or from LEAST_DELAY to LARGEST_DELAY."""


def _one_line(text: str) -> str:
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") or character == "\ufffd" for character in text):
        raise PydanticCustomError("one_line", "must be one line of text in UTF-8, without control characters")
    return text


OneLine = Annotated[str, StringConstraints(min_length=1, max_length=80), AfterValidator(_one_line)]
"""A short text that people can read and PostgreSQL can hold. U+FFFD: bytes of an address that are no UTF-8."""
