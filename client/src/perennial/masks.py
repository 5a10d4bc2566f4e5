"""Detect missing values. numpy's plain copies of masked arrays would send the values under the mask."""

from __future__ import annotations

import sys
from typing import Any, TypeGuard, TypeVar

import numpy as np

from perennial.errors import InvalidRow

Values = TypeVar("Values")


def unmasked(values: Values, place: str) -> Values:
    """Return the values. Raises InvalidRow where something is masked in an array, or in a list of those."""
    if _is_masked(values):
        places = np.argwhere(np.atleast_1d(np.ma.getmaskarray(values)))
        if len(places):
            raise InvalidRow(place, int(places[0][0]))
    elif isinstance(values, list | tuple):
        for row, value in enumerate(values):
            if _is_masked(value) and np.ma.is_masked(value):
                raise InvalidRow(place, row)
    return values


def _is_masked(values: object) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    """Return whether values are a masked array, without loading numpy.ma, which takes 10 ms."""
    return "numpy.ma" in sys.modules and isinstance(values, np.ma.MaskedArray)


def is_missing(value: object) -> bool:
    """Return whether a value stands for one that is not there: None, NaN, NaT or pandas' NA."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaN alone is not itself
    except (ArithmeticError, TypeError, ValueError):
        return type(value).__name__ == "NAType"
