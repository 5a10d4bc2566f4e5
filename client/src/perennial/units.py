"""Ids of units: whose each record is, a text or a whole number. No error repeats an id."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.errors import InvalidData

Array: TypeAlias = NDArray[Any]


def ids_of(values: Any, place: str = "The units") -> Array:
    """Return (m,) texts and whole numbers. Raises InvalidData where a value is neither, or missing."""
    ids = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.ndim != 1:
        raise InvalidData(f"{place}: there must be one id for each record.")
    if ids.dtype.kind not in "iuUTO" and len(ids):
        raise InvalidData(f"{place}: values of type {ids.dtype} are neither texts nor whole numbers.")
    ids = ids.astype(object)
    for row, each in enumerate(ids.tolist()):
        if not isinstance(each, str | int | np.integer) or isinstance(each, bool):
            raise InvalidData(f"{place}: the id in row {row}, counted from 0, is neither a text nor a whole number.")
    return ids
