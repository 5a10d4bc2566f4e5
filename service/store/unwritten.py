"""A step's part of the record, before it is written there, and JSON as the columns of tables hold it.

Nothing here knows a database, so that a fit's own process, which makes such a step, loads no library of one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.store import digests

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NewCharge:
    """The price of one fit for every record of [start, stop), in its publication's currency: ε if pure, ρ if not."""

    start: int
    stop: int
    version: int | None
    amount: float


@dataclass(frozen=True, kw_only=True)
class NewRelease:
    """One version that is to be stored. Ranges and `time` are absolute record numbers."""

    version: int
    time: int
    role: str
    window: tuple[int, int]
    fit: tuple[int, int]
    parent: int | None
    parameters: NDArray[np.float64]
    model: dict[str, Any]
    noise: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Parts by their numbers, in the order of these, and the digest with which they were left; None: there is none."""

    parts: Mapping[int, Values]
    digest: str | None


@dataclass(frozen=True, kw_only=True)
class Left:
    """The memory that a step leaves: the numbers of all parts, those parts that may be new, and all parts' digest."""

    numbers: tuple[int, ...]
    new: Mapping[int, Values]
    digest: str | None


def remembered(vectors: Mapping[int, Values], terms: Mapping[str, Any] | None) -> Memory:
    """These parts, with the digest of them and of the terms, public and as JSON, on which the next step goes on."""
    if not vectors:
        return Memory(parts={}, digest=None)
    content = [
        [number, list(values.shape), hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()]
        for number, values in vectors.items()
    ]
    return Memory(parts=vectors, digest=digests.of({"terms": terms, "parts": content}))


def to_json(value: Any) -> str:
    """Return a value as the JSON that columns hold; a Decimal as the nearest double."""
    return json.dumps(value, default=_decimal, allow_nan=False)


def _decimal(value: Any) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(type(value).__name__)
