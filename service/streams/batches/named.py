"""Records by name, `{"x": {"temp": 3.1, …}, "y": "rain"}`, as rows in the order of the stream's columns and classes.

`read_fast` reads what the fast parser made of a valid batch. Where a batch is read slowly, `wrong_columns` and
`wrong_class` say what is wrong with a record, and `in_order` puts right ones in order. No reason repeats a name that
a record holds.
"""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import simdjson

from service.streams.names import listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from service.streams.layout import RecordLayout
    from service.streams.names import Names

_NUMBERS = {int, float}


class Unusual(ValueError):
    """Raised for a value that the fast reader does not accept."""


def read_fast(name: str, values: Iterable[Any], layout: RecordLayout) -> NDArray[np.float64]:
    """Return a column of parsed values as numbers: x, (m, features), or y, (m,). Raises Unusual, or KeyError."""
    return _features(values, layout) if name == "x" else _labels(values, layout.names)


def _features(rows: Iterable[Any], layout: RecordLayout) -> NDArray[np.float64]:
    columns = layout.names.columns
    ordered = itemgetter(*columns) if len(columns) > 1 else lambda row: (row[columns[0]],)
    ordered_rows = [
        ordered(row.as_dict()) if isinstance(row, simdjson.Object) and columns and len(row) == len(columns) else row
        for row in rows
    ]
    values = [row.as_list() if isinstance(row, simdjson.Array) else row for row in ordered_rows]
    if set(map(len, values)) != {layout.features} or not set(map(type, chain.from_iterable(values))) <= _NUMBERS:
        raise Unusual
    return np.array(values, dtype=np.float64)


def _labels(values: Iterable[Any], names: Names) -> NDArray[np.float64]:
    numbers = names.class_numbers
    labels = [numbers[value] if isinstance(value, str) else value for value in values]
    if not set(map(type, labels)) <= _NUMBERS:
        raise Unusual
    return np.array(labels, dtype=np.float64)


def wrong_columns(record: dict[str, Any], names: Names) -> str | None:
    """Return why an object does not have exactly the stream's columns; None if it does."""
    if not names.columns:
        return "must be an array: this stream has no names of columns"
    if not record.keys() <= set(names.columns):
        return f"has a column that this stream does not have: its columns are {listed(names.columns)}"
    missing = [name for name in names.columns if name not in record]
    return f"lacks {listed(missing)}: give each column, none of them null" if missing else None


def wrong_class(names: Names) -> str:
    """Return the error for a label that is not the name of a class."""
    return f"is no class of this stream: its classes are {listed(names.classes)}"


def in_order(name: str, value: Any, names: Names) -> Any:
    """Return a value of x as an array and a value of y as a number, where they are by name and right."""
    if name == "x" and isinstance(value, dict):
        return [value[column] for column in names.columns]
    return names.class_numbers.get(value, value) if name == "y" and isinstance(value, str) else value
