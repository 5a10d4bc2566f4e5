"""The records of a fit, and the record map: what is done to one record before anything else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 64  # rows worked on at a time, so that temporaries stay small

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


class Prepared:
    """The rows that enter the loss, made when they are asked for: float64 of d coordinates, or d + 1 with an intercept.

    Each row becomes x·min(1, R/‖x‖), then with an intercept (x, R)/√2 (mechanisms.md 0, record map). A function of
    each record alone. For finite x the norm of every row is at most R in real arithmetic: the norm is computed in
    doubles and inflated by 1 + 2^-20, far more than every rounding here, and 1/√2 is rounded down.

    Only a factor per row is kept: doubles of everything would be twice the records, and slower to fetch than to make.
    """

    def __init__(self, x: NDArray[np.float32] | NDArray[np.float64], *, norm_bound: float, intercept: bool) -> None:
        self._x, self._bias = x, norm_bound * _HALF if intercept else None
        self._factor = np.empty(len(x))
        for start in range(0, len(x), CHUNK):
            piece = x[start : start + CHUNK].astype(np.float64)
            with np.errstate(over="ignore", under="ignore", divide="ignore"):
                norm = np.sqrt(np.vecdot(piece, piece)) * _INFLATION
                self._factor[start : start + CHUNK] = np.minimum(1.0, norm_bound / norm)
        if intercept:
            self._factor *= _HALF

    @property
    def shape(self) -> tuple[int, int]:
        rows, features = self._x.shape
        return rows, features + (self._bias is not None)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, which: slice | NDArray[np.intp]) -> NDArray[np.float64]:
        """Return those rows, float64."""
        x = self._x[which]
        rows, features = x.shape
        prepared = np.empty((rows, self.shape[1]))
        prepared[:, :features] = x
        with np.errstate(under="ignore"):
            prepared[:, :features] *= self._factor[which][:, None]
        if self._bias is not None:
            prepared[:, features] = self._bias
        return prepared

    def single(self) -> NDArray[np.float32]:
        """Return all rows in single precision, for what no guarantee rests on."""
        prepared = np.empty(self.shape, dtype=np.float32)
        factor = self._factor.astype(np.float32)[:, None]
        with np.errstate(under="ignore"):
            np.multiply(self._x, factor, out=prepared[:, : self._x.shape[1]], casting="same_kind")
        if self._bias is not None:
            prepared[:, -1] = self._bias
        return prepared


def prepare(x: NDArray[np.float32] | NDArray[np.float64], *, norm_bound: float, intercept: bool) -> NDArray[np.float64]:
    """Return all `Prepared` rows at once."""
    return Prepared(x, norm_bound=norm_bound, intercept=intercept)[:]
