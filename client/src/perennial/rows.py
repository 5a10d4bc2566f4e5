"""Rows of an iterable, one by one, and the choice of columns to read. No error repeats a value or a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from perennial.errors import InvalidData, InvalidRow
from perennial.names import UNNAMED, Names, as_number

Row: TypeAlias = tuple[Any, Any, Any]
"""A row's features, its label and its unit; None for what it has not."""

NO_COLUMNS = "An array has no columns: give labels and units as arrays, and only the features wanted."
PLACE = "The records"
OTHER_COLUMNS = "has other columns than the first: give all records the same."
LACKS_COLUMN = "lacks a column that the others have."


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The columns to read: the label's, the unit's (None: there is none) and the features' (None: all others).

    And the stream's names. One choice is for the items of one iterable: where the stream has no names, the first item
    says in `first` which columns there are, and in which order. advice: as for `Names.ordered`.
    """

    label: Any = None
    unit: Any = None
    features: list[str] | None = None
    names: Names = UNNAMED
    first: list[Any] = field(default_factory=list)
    advice: str = "or give features=[…]"

    @property
    def is_of_all(self) -> bool:
        """Return whether all columns are features, so that they need no names."""
        return self.label is None and self.unit is None and self.features is None

    def chosen(self, columns: Iterable[Any]) -> list[Any]:
        """Return the columns of features in their order."""
        return self.ordered([name for name in columns if name not in (self.label, self.unit)])

    def ordered(self, columns: list[Any]) -> list[Any]:
        """Return the columns of features, without the label, in the stream's order, else in the first row's."""
        if self.features is not None:
            return self.names.ordered(self.features, self.advice)
        if not self.names.match(columns):
            return self._as_first(columns)
        return self.names.ordered(columns, self.advice)

    def _as_first(self, columns: list[Any]) -> list[Any]:
        if not self.first:
            self.first.extend(columns)
        if set(columns) != set(self.first):
            raise InvalidRow(PLACE, 0, OTHER_COLUMNS)
        return list(self.first)


def depth(value: Any) -> int:
    """Return how many dimensions a value has; of rows of different lengths, 2."""
    try:
        return np.ndim(value)
    except ValueError:
        return 2


def is_row(item: Any) -> bool:
    """Return whether an item is one row, and no table or array of several."""
    if isinstance(item, Mapping):
        return _is_record(item) or all(depth(value) == 0 for value in item.values())
    return isinstance(item, np.ndarray) and item.ndim < 2


def _is_record(item: Mapping[str, Any]) -> bool:
    """Return whether the item is a record in the form of the service's NDJSON."""
    by_name = isinstance(item.get("x"), Mapping)
    return (
        "x" in item
        and (by_name or depth(item["x"]) == 1)
        and set(item) <= {"x", "y", "unit"}
        and depth(item.get("y", 0)) == 0
        and depth(item.get("unit", 0)) == 0
    )


def read_row(item: Any, choice: Choice) -> Row:
    """Return the row. Raises InvalidRow with the number 0 where its columns are not those of the others."""
    if isinstance(item, Mapping):
        return _of_record(item, choice) if _is_record(item) else _by_column(item, choice)
    pair = isinstance(item, tuple) and len(item) == 2 and depth(item[0]) == 1
    if has_names(item) and not (pair and choice.is_of_all):
        return read_row(item._asdict(), choice)
    if pair:
        if choice.label is not None:
            raise InvalidData(NO_COLUMNS)
        x, _, unit = read_row(named(item[0]), choice)
        return x, item[1], unit
    if depth(item) != 1:
        raise InvalidData("A row must be a list of features, a pair of those and a label, or a mapping by column.")
    if not choice.is_of_all:
        raise InvalidData(NO_COLUMNS)
    return item, None, None


def has_names(row: Any) -> bool:
    """Return whether a row says which columns its values are of: a mapping or a named tuple."""
    return isinstance(row, Mapping) or (isinstance(row, tuple) and hasattr(row, "_asdict"))


def named(row: Any) -> Any:
    """Return a series of pandas, which has the names of its columns, as a mapping; any other row as it is."""
    return row.to_dict() if hasattr(row, "to_dict") and depth(row) == 1 else row


def _of_record(record: Mapping[str, Any], choice: Choice) -> Row:
    x = record["x"]
    if isinstance(x, Mapping):
        wanted = choice.ordered(list(x))
        if any(name not in x for name in wanted):
            raise InvalidRow(PLACE, 0, LACKS_COLUMN)
        x = [x[name] for name in wanted]
    elif choice.features not in (None, ["x"]):
        raise InvalidData(NO_COLUMNS)
    return x, record.get("y"), record.get("unit")


def _by_column(row: Mapping[Any, Any], choice: Choice) -> Row:
    others = (choice.label, choice.unit)
    for name in others:
        if name is not None and name not in row:
            raise InvalidRow(PLACE, 0, f"lacks a column: {name!r}.")
    wanted = choice.chosen(row)
    if any(name not in row for name in wanted):
        raise InvalidRow(PLACE, 0, LACKS_COLUMN)
    label, unit = (None if name is None else row[name] for name in others)
    return [row[name] for name in wanted] or None, label, unit


def texts_beside_numbers(column: Any, texts: Iterable[str], other: Any) -> InvalidData:
    """Return why texts can't be read beside another column's numbers: the first that is no number, if any."""
    for row, text in enumerate(texts):
        if as_number(text) is None:
            reason = (
                f"is no number such as 1234.5, but column {other!r} holds numbers: mend it, or leave the column out."
            )
            return InvalidRow(f"Column {column!r}", row, reason)
    return InvalidData(f"Column {column!r} holds texts, and column {other!r} numbers: a stream takes one or the other.")
