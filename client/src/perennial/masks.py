"""Values that are missing. Plain arrays that numpy makes of masked ones would send what the mask hides."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from perennial.errors import InvalidRow

Values = TypeVar("Values")


def unmasked(values: Values, place: str) -> Values:
    """Return the values. Raises InvalidRow where something is masked in an array, or in a list of those."""
    if isinstance(values, np.ma.MaskedArray):
        places = np.argwhere(np.atleast_1d(np.ma.getmaskarray(values)))
        if len(places):
            raise InvalidRow(place, int(places[0][0]))
    elif isinstance(values, list | tuple):
        for row, each in enumerate(values):
            if isinstance(each, np.ma.MaskedArray) and np.ma.is_masked(each):
                raise InvalidRow(place, row)
    return values


def is_missing(value: object) -> bool:
    """Return whether a value stands for one that is not there: None, NaN, NaT or pandas' NA."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaN alone is not itself
    except (ArithmeticError, TypeError, ValueError):
        return type(value).__name__ == "NAType"
