"""The names of a stream's columns and classes: public, fixed with its schema, and absent where nobody gave any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import ColumnCenter, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_NAMES = 1024
LONGEST_NAME = 100  # characters
MAX_LISTED = 20  # names in an error
_LEAST_WIDTH = 2e-6  # the least width of a column's range: twice the least scale


def _printable(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise PydanticCustomError("display_name", "must have no control characters, and no blanks at its ends")
    return name


DisplayName = Annotated[
    str, StringConstraints(strict=True, min_length=1, max_length=LONGEST_NAME), AfterValidator(_printable)
]
"""A text of 1 to LONGEST_NAME characters that can be printed, without blanks at its ends."""

ABSENT: dict[str, Any] = {"default": None, "exclude_if": lambda value: value is None}
"""Options of a field that is not in stored JSON where it is not set."""


class Column(Shape):
    """A column of features: its name and, where known, its unit and its public range [lowest, highest].

    A text instead of the object is the name.
    """

    name: DisplayName
    unit: DisplayName | None = Field(**ABSENT)
    range: Annotated[tuple[ColumnCenter, ...], Field(min_length=2, max_length=2)] | None = Field(**ABSENT)

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _range_is_one(self) -> Self:
        if self.range is not None and self.range[1] - self.range[0] < _LEAST_WIDTH:
            raise PydanticCustomError(
                "column_range",
                "range must be [lowest, highest], at least {least} apart: send the column in a smaller unit",
                {"least": _LEAST_WIDTH},
            )
        return self


Columns = Annotated[tuple[Column, ...], Field(min_length=1, max_length=MAX_NAMES)]
ClassNames = Annotated[tuple[DisplayName, ...], Field(min_length=1, max_length=MAX_NAMES)]


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of columns and classes, in their order; () where they have none."""

    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.columns or self.classes)

    @cached_property
    def class_numbers(self) -> dict[str, int]:
        """Return the number of each class by its name."""
        return {name: number for number, name in enumerate(self.classes)}

    def column(self, number: int) -> str:
        """Return how an error calls a column."""
        return f'column {number} ("{self.columns[number]}")' if self.columns else f"column {number}"

    def to_json(self) -> dict[str, list[str]]:
        """Return the names as a release tells them; without those that are absent."""
        named = {"columns": list(self.columns), "class_names": list(self.classes)}
        return {name: values for name, values in named.items() if values}


UNNAMED = Names()


def listed(names: Sequence[str]) -> str:
    """Return names as an error lists them: in quotes, and of many the first ones."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(f'"{name}"' for name in names[:MAX_LISTED]) + more


def check_unique(field: str, names: Sequence[str], expected: int, counted: str) -> None:
    """Raise PydanticCustomError unless there are as many names as expected, and none comes twice."""
    if len(set(names)) < len(names):
        raise PydanticCustomError(field, "a name comes twice in {field}", {"field": field})
    if len(names) != expected:
        raise PydanticCustomError(
            field,
            "{field} has {names} names, but {counted} is {expected}",
            {"field": field, "names": len(names), "counted": counted, "expected": expected},
        )
