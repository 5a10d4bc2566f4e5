"""The names of a stream's columns and classes: they put records in the stream's order.

No error repeats a name that the records bring: where a file has no header, these are values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.errors import InvalidArgument, InvalidData, InvalidRow

MOST_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names of columns and classes, in their order; () where they have none."""

    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Names:
        """Return the names in a stream's schema, or in the model of a release, as the service's JSON has them."""
        columns = described.get("columns") or ()
        return cls(
            columns=tuple(column if isinstance(column, str) else column["name"] for column in columns),
            classes=tuple(described.get("class_names") or ()),
        )

    def match(self, features: Sequence[Any]) -> bool:
        """Return whether columns of features count by name: the stream has names, and they are not all strange numbers.

        A number is the name of its digits. A single column of another name may hold lists of all features.
        """
        known = any(str(name) in self.columns for name in features)
        if len(features) == 1 and len(self.columns) > 1:
            return known
        numbered = len(features) > 0 and not any(isinstance(name, str) for name in features)
        return bool(self.columns) and (known or not numbered)

    def ordered(self, features: Sequence[Any], advice: str) -> list[Any]:
        """Return the columns of features in the stream's order; as they are where they do not `match`.

        advice: on columns too many, after "leave them out, ".
        Raises InvalidData where columns are missing, or are too many.
        """
        if not self.match(features):
            return list(features)
        by_name = {str(name): name for name in features}
        missing = [name for name in self.columns if name not in by_name]
        if missing:
            raise InvalidData(f"There is no column {_listed(missing)}: the stream's columns are {self._columns}.")
        if len(features) > len(self.columns):
            more = len(features) - len(self.columns)
            there = "is 1 column" if more == 1 else f"are {more} columns"
            raise InvalidData(
                f"There {there} that the stream does not have: leave {'it' if more == 1 else 'them'} out, {advice}; "
                f"the stream's columns are {self._columns}."
            )
        return [by_name[name] for name in self.columns]

    def numbers(self, labels: NDArray[Any], place: str) -> NDArray[np.int64]:
        """Return texts as numbers of classes. A text is a name; where no name looks like a number, it may be a number.

        Raises InvalidRow where one is neither, or is missing.
        """
        texts = labels.tolist()
        known = {text: self._number(text) if isinstance(text, str) else -1 for text in set(texts)}
        numbers = np.array([known[text] for text in texts], dtype=np.int64)
        if len(unknown := np.flatnonzero(numbers < 0)):
            raise InvalidRow(place, int(unknown[0]), f"is no class: the classes are {_listed(self.classes)}.")
        return numbers

    def check_numbers(self, place: str) -> None:
        """Raise InvalidData where the number of a class looks like another class's name: labels must be texts there."""
        for number, name in enumerate(self.classes):
            if as_number(name) not in (None, number) and as_number(name) in range(len(self.classes)):
                raise InvalidData(
                    f'{place}: they are numbers or truth values, but class {number} has the name "{name}", so nobody '
                    "can tell whether they mean names: give the names of the classes, as texts."
                )

    def _number(self, text: str) -> int:
        """Return the number of the class that a text means; -1: of none."""
        if text in self._numbers:
            return self._numbers[text]
        number = None if self._look_like_numbers else as_number(text)
        return int(number) if number is not None and number in range(len(self.classes)) else -1

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def _look_like_numbers(self) -> bool:
        """Return whether any class's name looks like a number."""
        return any(as_number(name) is not None for name in self.classes)

    @property
    def _columns(self) -> str:
        return _listed(self.columns)


UNNAMED = Names()


def described(columns: Any, label: str | None) -> list[Any]:
    """Return columns as the service's JSON has them.

    columns: names or JSON objects; a mapping of names to ranges (lowest, highest) or None; or a frame or table, of
    which the column `label` is left out. No range is read off records.
    """
    if isinstance(columns, Mapping):
        return [
            f"{name}" if entry is None else {"name": f"{name}", "range": _range(name, entry)}
            for name, entry in columns.items()
        ]
    names = getattr(columns, "column_names", getattr(columns, "columns", columns))
    return [
        column if isinstance(column, Mapping) else str(column) for column in listed("columns", names) if column != label
    ]


def listed(argument: str, names: Iterable[Any]) -> list[Any]:
    """Return names as a list. Raises InvalidArgument where they are a single text, whose letters would be names."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise InvalidArgument(f'{argument} must be a list of names, such as ["first", "second"]')
    return list(names)


def _range(name: Any, ends: Any) -> list[Any]:
    try:
        low, high = ends
    except (TypeError, ValueError):
        raise InvalidArgument(f"columns: the range of {name} must be (lowest, highest)") from None
    return [low, high]


def as_number(text: str) -> float | None:
    """Return the number that a text looks like, 0 or 1 of a truth value; None of any other text."""
    word = text.strip().lower()
    if word in ("true", "false"):
        return float(word == "true")
    try:
        number = float(word)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _listed(names: Iterable[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    more = f" and {len(quoted) - MOST_LISTED} more" if len(quoted) > MOST_LISTED else ""
    return ", ".join(quoted[:MOST_LISTED]) + more
