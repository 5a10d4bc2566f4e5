"""Read ids of units, texts or whole numbers, one per record. No error repeats an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.arrow_tables import as_numpy
from perennial.errors import InvalidData
from perennial.masks import unmasked

Array: TypeAlias = NDArray[Any]


def ids_of(values: Any, place: str = "The units") -> Array:
    """Return (m,) texts and whole numbers. Raises InvalidData where a value is neither, or missing."""
    values = unmasked(values, place)
    ids = _listed(values) if isinstance(values, list | tuple) else np.asarray(as_numpy(values, place))
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.ndim != 1:
        raise InvalidData(f"{place}: there must be one id for each record.")
    if ids.dtype.kind not in "iuUTO" and len(ids):
        raise InvalidData(f"{place}: values of type {ids.dtype} are neither texts nor whole numbers.")
    ids = ids.astype(object)
    for row, unit in enumerate(ids.tolist()):
        known = isinstance(unit, str | int | np.integer) and not isinstance(unit, bool)
        if not known or (isinstance(unit, str) and not _can_be_written(unit)):
            raise InvalidData(f"{place}: the id in row {row}, counted from 0, is neither a text nor a whole number.")
        if isinstance(unit, np.integer):
            ids[row] = int(unit)  # json can't write numpy's integers
    return ids


def _listed(values: Sequence[Any]) -> Array:
    """Return each value as it is: numpy would make texts of all where one is a text."""
    ids = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        ids[row] = value
    return ids


def _can_be_written(text: str) -> bool:
    """Return whether a text can be written in UTF-8, that is, has no lone surrogates."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
