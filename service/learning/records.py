"""The records of a fit, and the record map: the first steps applied to a record."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 64  # rows worked on at a time, so that temporaries stay small
PIECE = 64  # rows of one product: public, it enters the error bound of `solvers`

_INFLATION = 1.0 + 2.0**-20
_LONG = 2.0**64  # larger than every norm bound
_ROUNDED = 2.0**-16  # larger than the rounding error of a norm, _INFLATION included
_HALF = math.sqrt(0.5) * (1.0 - 2.0**-50)  # a double just below 1/√2


def row_scales(intercept_scale: float | None) -> tuple[float, float]:
    """Return (cos θ, sin θ) of the rows (x·cos θ, R·sin θ), sin θ = intercept_scale; None: both 1/√2.

    cos θ is rounded down by 2^-40 of itself, and both 1/√2 by 2^-50. With sin θ ≤ 0.999 that covers the roundings of a
    row, so that no row is longer than R.
    """
    if intercept_scale is None:
        return _HALF, _HALF
    return math.sqrt((1.0 - intercept_scale) * (1.0 + intercept_scale)) * (1.0 - 2.0**-40), intercept_scale


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitShares:
    """The unit of each record in a fit, and the record's share of its unit's contribution."""

    parts: NDArray[np.float64]
    """(m,): 1/k or a little less, so that those of one unit add up to at most 1"""
    owners: NDArray[np.int64]
    """(m,): the same number for records of one unit"""

    def __getitem__(self, which: NDArray[np.generic]) -> UnitShares:
        """Return the shares of the selected records."""
        return UnitShares(parts=self.parts[which], owners=self.owners[which])


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitPattern:
    """The public pattern of a range: the unit of each slot, and which slots may be read and count."""

    pseudonyms: NDArray[np.uint8]
    """(n, 16)"""
    counting: NDArray[np.bool_]
    """(n,)"""


@dataclass(frozen=True, kw_only=True)
class Records:
    """The records still present in a range: x of shape (m, d), float32 or float64, and y of shape (m,).

    Erased records are simply absent and contribute nothing. The public number of slots n of a range is its length,
    whatever m ≤ n is, and is passed separately.
    """

    x: NDArray[np.float32] | NDArray[np.float64]
    y: NDArray[np.generic]
    slots: NDArray[np.int64] | None = None
    """(m,), rising: the number of the slot that each is in; None: it is not told, or they are all of the range."""
    weights: NDArray[np.float64] | None = None
    """(m,): 1/k or a little less, k being how many slots of the record's unit count in the range; None: no units"""
    units: int | None = None
    """n, of how many units slots count in the range, by the public pattern; None: no units"""
    firsts: NDArray[np.bool_] | None = None
    """(m,): whether it is in the first slot of its unit that counts in the range, by the pattern; None: no units"""
    owners: NDArray[np.int64] | None = None
    """(m,): the number of the record's unit among those of the range; None: no units"""
    pattern: UnitPattern | None = None
    """of all slots of the range; None: no units"""

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.y.shape != self.x.shape[:1]:
            raise ValueError("records are x of shape (m, d) and y of shape (m,)")
        if self.slots is not None and self.slots.shape != self.y.shape:
            raise ValueError("each record is in one slot")
        if (self.weights is None) != (self.units is None):
            raise ValueError("records have weights where they have units")

    def one_of_each_unit(self) -> Records:
        """Return the records of units' first slots in the range, for whole-number counts; without units all of them.

        A unit whose first slot is empty is not among them, whatever its other slots hold.
        """
        if self.units is None:
            return self
        if self.firsts is None:
            raise ValueError("it is not known which records are in the first slots of their units")
        slots = None if self.slots is None else self.slots[self.firsts]
        return Records(x=self.x[self.firsts], y=self.y[self.firsts], slots=slots)

    def unit_shares(self) -> UnitShares | None:
        """Return each record's unit and its share of the unit's contribution; None: records have no units."""
        if self.weights is None:
            return None
        if self.owners is None:
            raise ValueError("it is not known which records are of one unit")
        return UnitShares(parts=self.weights, owners=self.owners)

    def in_slots(self, start: int, end: int) -> NDArray[np.int64]:
        """Return each record's slot in [start, end), (m,). ValueError if records are missing and slots are unknown."""
        if self.slots is None and len(self.y) != end - start:
            raise ValueError("some records of the range are missing, and their slots are not given")
        return np.arange(start, end) if self.slots is None else self.slots

    def between(self, start: int, end: int, first: int, last: int) -> Records:
        """Return the records in slots [start, end); these records are from the slots [first, last).

        ValueError where some records are missing and `slots` doesn't say which.
        """
        slots = self.in_slots(first, last)
        return replace(self, slots=slots)[np.flatnonzero((slots >= start) & (slots < end))]

    def filled(self, start: int, end: int) -> set[int]:
        """Return which of the slots of [start, end) hold a record that is finite; the others are empty."""
        return set(self.in_slots(start, end)[np.isfinite(self.x).all(axis=1)].tolist())

    def __getitem__(self, which: NDArray[np.generic]) -> Records:
        """Return the selected records."""
        return replace(
            self,
            x=self.x[which],
            y=self.y[which],
            slots=None if self.slots is None else self.slots[which],
            weights=None if self.weights is None else self.weights[which],
            firsts=None if self.firsts is None else self.firsts[which],
            owners=None if self.owners is None else self.owners[which],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedRows:
    """The rows that enter the loss: row i is factor_i·x_i, and with an intercept one more coordinate, `bias`.

    Each row is x·min(1, R/‖x‖), then with an intercept (x·cos θ, R·sin θ), by default (x, R)/√2 (paper-audit.md D2): a
    function of that record alone. For finite x the norm of every row is at most R in real arithmetic: the norm is
    computed in doubles and inflated by 1 + 2^-20, far more than every rounding here, and cos θ is rounded down.

    Rows are never made but multiplied with, the factor last: x is as it is stored, once, in whatever precision.
    """

    x: NDArray[np.floating]
    factor: NDArray[np.float64]
    """(m,)"""
    bias: float | None = None

    @classmethod
    def of(
        cls,
        x: NDArray[np.floating],
        *,
        norm_bound: float,
        intercept: bool,
        intercept_scale: float | None = None,
        own: bool = False,
    ) -> tuple[PreparedRows, NDArray[np.bool_]]:
        """Return the rows of x and which of them are finite; the values of other rows are undefined.

        own: x may be changed, so that no very long row makes another copy of all.
        """
        norm = _norms(x)
        finite = np.isfinite(norm)
        # Only the direction of a very long row matters: near 1 no product with it can overflow.
        if (long := np.flatnonzero(~(norm < _LONG))).size:
            x = x if own else x.copy()
            x[long], norm[long], finite[long] = _shortened(x[long])
        with np.errstate(divide="ignore", over="ignore"):
            factor = np.minimum(1.0, norm_bound / norm)
        factor[long] = norm_bound / norm[long]
        if not intercept:
            return cls(x=x, factor=factor), finite
        cosine, sine = row_scales(intercept_scale)
        return cls(x=x, factor=factor * cosine, bias=norm_bound * sine), finite

    @classmethod
    def as_they_are(cls, rows: NDArray[np.floating]) -> PreparedRows:
        """Return rows whose norms are within the bound already."""
        return cls(x=rows, factor=np.ones(len(rows)))

    @property
    def shape(self) -> tuple[int, int]:
        rows, features = self.x.shape
        return rows, features + (self.bias is not None)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, which: slice | NDArray[np.generic]) -> PreparedRows:
        """Return the selected rows."""
        return PreparedRows(x=self.x[which], factor=self.factor[which], bias=self.bias)

    def room(self, rows: int, dtype: type[np.floating]) -> NDArray[np.floating] | None:
        """Return a buffer for `astype` to reuse; None if it needs none.

        New memory costs as much as a product: the system hands it out page by page, each one zeroed.
        """
        return None if self.x.dtype == dtype else np.empty((min(rows, len(self)), self.x.shape[1]), dtype)

    def astype(self, dtype: type[np.floating], room: NDArray[np.floating] | None = None) -> PreparedRows:
        """Return the same rows, to be multiplied with in that precision; in `room` if given, until it is used again."""
        if room is None:
            x = self.x.astype(dtype, copy=False)
        else:
            x = room[: len(self)]
            np.copyto(x, self.x)
        return PreparedRows(x=x, factor=self.factor, bias=self.bias)

    def norms(self) -> NDArray[np.float64]:
        """Return ‖row_i‖ or a little more, (m,), each from its own row."""
        norms = _norms(self.x) * self.factor
        return norms if self.bias is None else np.hypot(norms, self.bias) * _INFLATION

    def rows(self) -> NDArray[np.float64]:
        """Return the rows as float64."""
        rows = np.empty(self.shape)
        with np.errstate(under="ignore"):
            np.multiply(self.x, self.factor[:, None], out=rows[:, : self.x.shape[1]])
        if self.bias is not None:
            rows[:, -1] = self.bias
        return rows

    def scores(self, weights: NDArray[np.float64]) -> NDArray[np.floating]:
        """Return rows · weightsᵀ, (m, k) for weights (k, D), in the precision of x."""
        features = self.x.shape[1]
        if not weights.any():  # most fits start at zero
            return np.zeros((len(weights), len(self)), dtype=self.x.dtype).T
        rounded = weights.astype(self.x.dtype, copy=False)
        direct = np.ascontiguousarray(rounded[:, :features])
        scores = np.empty((len(weights), len(self)), dtype=self.x.dtype)
        whole = _whole_pieces(len(self))
        np.matmul(direct, _pieces(self.x[:whole]).swapaxes(1, 2), out=_pieces(scores[:, :whole].T).swapaxes(1, 2))
        np.matmul(direct, self.x[whole:].T, out=scores[:, whole:])
        with np.errstate(under="ignore"):
            scores *= self.factor.astype(scores.dtype, copy=False)
        if self.bias is not None:
            scores += rounded[:, features:] * scores.dtype.type(self.bias)
        return scores.T

    def gathered(self, slopes: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return slopesᵀ · rows, (k, D) for slopes (m, k), in the precision of x.

        Each PIECE rows are summed by themselves; then the sums are added up.
        """
        features, whole = self.x.shape[1], _whole_pieces(len(self))
        slopes = np.asarray(slopes.T, dtype=self.x.dtype, order="C")
        with np.errstate(under="ignore"):
            direct = slopes * self.factor.astype(slopes.dtype, copy=False)
        total = np.empty((len(slopes), self.shape[1]), dtype=self.x.dtype)
        parts = np.matmul(_pieces(direct[:, :whole].T).swapaxes(1, 2), _pieces(self.x[:whole]))
        np.add.reduce(parts, axis=0, out=total[:, :features])
        if whole < len(self):
            total[:, :features] += direct[:, whole:] @ self.x[whole:]
        if self.bias is not None:
            total[:, features] = np.add.reduceat(slopes, range(0, len(self), PIECE), axis=1).sum(axis=1)
            total[:, features] *= self.bias
        return total


def prepare(
    x: NDArray[np.floating], *, norm_bound: float, intercept: bool, intercept_scale: float | None = None
) -> NDArray[np.float64]:
    """Return the `PreparedRows` rows of finite x as an array."""
    rows, _ = PreparedRows.of(x, norm_bound=norm_bound, intercept=intercept, intercept_scale=intercept_scale)
    return rows.rows()


def are_longer(x: NDArray[np.floating], norm_bound: float) -> NDArray[np.bool_]:
    """Return which rows are finite and longer than the bound, (m,), each from its own row.

    By more than rounding: of a producer who makes rows exactly that long, none is.
    """
    return np.asarray(np.isfinite(x).all(axis=1) & (_norms(x) > norm_bound * (1.0 + _ROUNDED)))


def _norms(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ‖x_i‖ or more, NaN or infinite for what is not finite (and where a square of a double overflows)."""
    norms = np.empty(len(x))
    room = np.empty((min(CHUNK, len(x)), x.shape[1]))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for start in range(0, len(x), CHUNK):
            piece = room[: len(x) - start]
            np.copyto(piece, x[start : start + CHUNK])
            norms[start : start + CHUNK] = np.sqrt(np.vecdot(piece, piece)) * _INFLATION
    return norms


def _shortened(
    x: NDArray[np.floating],
) -> tuple[NDArray[np.floating], NDArray[np.float64], NDArray[np.bool_]]:
    """Return rows times powers of two so that each one's largest value is near 1, their norms, and which are finite."""
    finite = np.isfinite(x).all(axis=1)
    x = np.where(finite[:, None], x, x.dtype.type(1))
    with np.errstate(under="ignore"):
        x = np.ldexp(x, -np.frexp(np.abs(x).max(axis=1))[1][:, None])
    return x, _norms(x), finite


def _whole_pieces(rows: int) -> int:
    """Return how many of the rows lie in whole pieces."""
    return rows - rows % PIECE


def _pieces(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return a view of rows (m, k), m a multiple of PIECE, as (m/PIECE, PIECE, k).

    Libraries multiply small matrices in place, and copy large ones first, which costs as much as a thin product.
    """
    return rows.reshape(-1, PIECE, rows.shape[1])
