"""The records of a fit, and the record map: what is done to one record before anything else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 256  # rows worked on at a time, so that temporaries stay small

_INFLATION = 1.0 + 2.0**-20
_HALF = math.sqrt(0.5) * (1.0 - 2.0**-50)  # a double just below 1/√2


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records still present in a range: x of shape (m, d), float32 or float64, and y of shape (m,).

    Erased records are simply absent and contribute nothing. The public number of slots n of a range is its length,
    whatever m ≤ n is, and is passed separately.
    """

    x: NDArray[np.float32] | NDArray[np.float64]
    y: NDArray[np.generic]

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.y.shape != self.x.shape[:1]:
            raise ValueError("records are x of shape (m, d) and y of shape (m,)")


def prepare(x: NDArray[np.float32] | NDArray[np.float64], *, norm_bound: float, intercept: bool) -> NDArray[np.float64]:
    """Return the rows that enter the loss: float64 of shape (m, d), or (m, d + 1) with an intercept.

    Each row becomes x·min(1, R/‖x‖), then with an intercept (x, R)/√2 (mechanisms.md 0, record map). A function of
    each record alone. For finite x the norm of every row is at most R in real arithmetic: the norm is computed in
    doubles and inflated by 1 + 2^-20, far more than every rounding here, and 1/√2 is rounded down.
    """
    rows, features = x.shape
    prepared = np.empty((rows, features + intercept))
    for start in range(0, rows, CHUNK):
        piece = prepared[start : start + CHUNK, :features]
        piece[...] = x[start : start + CHUNK]
        with np.errstate(over="ignore", under="ignore", divide="ignore"):
            norm = np.sqrt(np.einsum("ij,ij->i", piece, piece)) * _INFLATION
            factor = np.minimum(1.0, norm_bound / norm)
            if intercept:
                factor *= _HALF
            piece *= factor[:, None]
    if intercept:
        prepared[:, features] = norm_bound * _HALF
    return prepared
