"""Masked arrays: numpy forgets the mask where it makes plain arrays of them, and what is missing would be sent."""

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
