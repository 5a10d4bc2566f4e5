"""The charges, releases and saved state of one step, before they are stored; and JSON as columns of tables hold it.

Nothing here imports a library of a database: the process of a fit, which makes such a step, loads none.
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
class SavedState:
    """Saved state of a publication: parts by number, in order, and their digest as stored; None where there is none."""

    parts: Mapping[int, Values]
    digest: str | None


@dataclass(frozen=True, kw_only=True)
class SavedChange:
    """The saved state after a step: numbers of all its parts, the parts that may be new, and the digest of all."""

    numbers: tuple[int, ...]
    new: Mapping[int, Values]
    digest: str | None


def remembered(vectors: Mapping[int, Values], terms: Mapping[str, Any] | None) -> SavedState:
    """Return saved state of these parts, with their digest. terms: of the next step, public, as JSON; also hashed."""
    if not vectors:
        return SavedState(parts={}, digest=None)
    content = [
        [number, list(values.shape), hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()]
        for number, values in vectors.items()
    ]
    return SavedState(parts=vectors, digest=digests.of({"terms": terms, "parts": content}))


def to_json(value: Any) -> str:
    """Return a value as the JSON that columns hold; a Decimal as the nearest double."""
    return json.dumps(value, default=_decimal, allow_nan=False)


def _decimal(value: Any) -> float:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(type(value).__name__)
