"""The objective of a fit and its derivatives at one point after the other, in double or in single precision.

J(w) = (1/n)·Σ a_i·loss(w; x_i, y_i) + (α/2)·‖w - c‖² + ⟨t, w - c⟩, a_i the records' shares, all 1 where they have no
units. The error bound in `solvers` is about what is computed here in doubles, and how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from service.learning.records import PIECE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats, Loss
    from service.learning.records import PreparedRows

MAX_PIECES = 64  # per chunk of a gradient
ROWS = PIECE + MAX_PIECES  # additions that a chunk's gradient takes: public, it enters the error bound
_CHUNK_BYTES = 3 << 19  # bytes of a chunk's features, so that they stay in a processor's second cache
MARGIN = 1.0 + 2.0**-20  # covers the rounding of norms
_ROUGH_ROWS = 512


def chunk_rows(features: int, dtype: type[np.floating]) -> int:
    """Return how many rows of that many features are worked on at a time, in whole pieces. Public."""
    return PIECE * min(MAX_PIECES, max(1, _CHUNK_BYTES // (PIECE * features * np.dtype(dtype).itemsize)))


def norm(values: Floats) -> float:
    """Return an upper bound on the Frobenius norm, at most 2^-19 above it relatively."""
    return float(np.linalg.norm(values)) * MARGIN


def evaluate(
    loss: Loss,
    x: PreparedRows,
    y: NDArray[np.generic],
    records: int,
    regularization: float,
    center: Floats,
    weights: Floats,
    curvature: NDArray[np.float32] | None = None,
    *,
    roughly: bool = False,
    tilt: Floats | None = None,
    shares: Floats | None = None,
) -> tuple[float, Floats]:
    """Return J and ∇J at `weights`, and put what `Loss.curve` needs into `curvature` if given.

    The error bound in `solvers` is about these very lines, but for `roughly`: in single precision.
    """
    total_value, total = summed(loss, x, y, weights, curvature, roughly=roughly, shares=shares)
    return completed(total_value, total, records, regularization, center, weights, tilt)


def completed(
    total_value: float,
    total: Floats,
    records: int,
    regularization: float,
    center: Floats,
    weights: Floats,
    tilt: Floats | None = None,
) -> tuple[float, Floats]:
    """Return J and ∇J at `weights` from the sums of all records there."""
    offset = weights - center
    gradient = total / records + regularization * offset
    value = total_value / records + 0.5 * regularization * float(np.vdot(offset, offset))
    if tilt is not None:
        gradient += tilt
        value += float(np.vdot(tilt, offset))
    return value, gradient


def summed(
    loss: Loss,
    x: PreparedRows,
    y: NDArray[np.generic],
    weights: Floats,
    curvature: NDArray[np.float32] | None = None,
    *,
    roughly: bool = False,
    steepest: Floats | None = None,
    shares: Floats | None = None,
) -> tuple[float, Floats]:
    """Return Σ a_i·loss and the sum of its gradients at `weights`; see `evaluate`.

    steepest: (m,), positive, the norm to which each record's derivative in its scores is clipped; None: not at all.
    shares: a_i, (m,), what part of its loss, and of its gradient after clipping, a record adds; None: all. Those of one
    unit add up to at most 1, so that it moves the sum as far as one record can. All errors shrink with them but one
    rounding more.
    """
    dtype: type[np.floating] = np.float32 if roughly else np.float64
    chunk = chunk_rows(x.shape[1], dtype)
    room = x.room(chunk, dtype)
    total, correction = np.zeros(weights.shape), np.zeros(weights.shape)
    added, virtual = np.empty(weights.shape), np.empty(weights.shape)
    weights = weights.astype(dtype, copy=False)
    shares = None if shares is None else shares.astype(dtype, copy=False)
    values = []
    for start in range(0, len(y), chunk):
        rows, labels = x[start : start + chunk].astype(dtype, room), y[start : start + chunk]
        losses, slopes, curved = loss.derivatives(rows.scores(weights), labels)
        if curvature is not None:
            curvature[start : start + chunk] = curved
        if steepest is not None:
            limit = steepest[start : start + chunk, None]
            slopes = slopes * (limit / np.maximum(limit, MARGIN * np.linalg.norm(slopes, axis=1, keepdims=True)))
        if shares is not None:
            slopes = slopes * shares[start : start + chunk, None]
            losses = losses * shares[start : start + chunk]
        values.append(float(losses.sum()))
        part = rows.gathered(slopes)
        if roughly:
            total += part
            continue
        np.add(total, part, out=added)  # two-sum: `correction` gathers what the additions lose
        np.subtract(added, total, out=virtual)
        part -= virtual
        total -= np.subtract(added, virtual, out=virtual)
        correction += total
        correction += part
        total, added = added, total
    return math.fsum(values), total + correction


@dataclass(frozen=True, kw_only=True, eq=False)
class CurvatureSample:
    """A sample of a fit's records, used where no proof depends on it: rows (s, D), curvature (s, k) and weights."""

    rows: Floats
    curvature: NDArray[np.float32]
    stands_for: Floats
    """(s,): how many of the n records each stands for, divided by n"""


class MinimizationProblem(Protocol):
    """J near c and its derivatives at one point after the other."""

    @property
    def loss(self) -> Loss: ...
    @property
    def regularization(self) -> float: ...
    @property
    def center(self) -> Floats: ...
    def evaluate(self, weights: Floats, *, roughly: bool = False) -> tuple[float, Floats]:
        """Return J and ∇J, and remember the point; `roughly`: in single precision."""

    def curve(self, direction: Floats) -> Floats:
        """Return about ∇²J · direction at the point last evaluated."""

    def sampled(self, number: int, at_least_every: int) -> CurvatureSample | None:
        """Return every so many-th record, at most twice `number`, with its curvature at the point last evaluated.

        None if those were more than one in `at_least_every`.
        """


class Objective:
    """J and its derivatives at one point after the other."""

    def __init__(
        self,
        loss: Loss,
        x: PreparedRows,
        y: NDArray[np.generic],
        records: int,
        regularization: float,
        center: Floats,
        tilt: Floats | None = None,
        shares: Floats | None = None,
    ) -> None:
        self.loss, self.x, self.y, self.shares = loss, x, y, shares
        self.records, self.regularization, self.center, self.tilt = records, regularization, center, tilt
        self.rough = x.astype(np.float32)  # the certificate does not depend on it
        self.curvature = np.empty((center.shape[0], len(y)), dtype=np.float32).T

    def evaluate(self, weights: Floats, *, roughly: bool = False) -> tuple[float, Floats]:
        """Return J and ∇J, and remember the curvature there."""
        return evaluate(
            self.loss,
            self.rough if roughly else self.x,
            self.y,
            self.records,
            self.regularization,
            self.center,
            weights,
            self.curvature,
            roughly=roughly,
            tilt=self.tilt,
            shares=self.shares,
        )

    def sampled(self, number: int, at_least_every: int) -> CurvatureSample | None:
        """Return every so many-th record; None: products with all of them cost no more."""
        every = max(1, len(self.y) // number)
        if every < at_least_every:
            return None
        number = min(number, len(self.y))
        sample = slice(0, every * number, every)
        stands_for = np.full(number, len(self.y) / (number * self.records))
        if self.shares is not None:
            stands_for = stands_for * self.shares[sample]
        return CurvatureSample(rows=self.rough[sample].rows(), curvature=self.curvature[sample], stands_for=stands_for)

    def curve(self, direction: Floats) -> Floats:
        """Return about ∇²J · direction at the point last evaluated, in single precision."""
        total = np.zeros(direction.shape)
        for start in range(0, len(self.y), _ROUGH_ROWS):
            rows = self.rough[start : start + _ROUGH_ROWS]
            curved = self.loss.curve(self.curvature[start : start + _ROUGH_ROWS], rows.scores(direction))
            if self.shares is not None:
                curved = curved * self.shares[start : start + _ROUGH_ROWS, None]
            total += rows.gathered(curved)
        return total / self.records + self.regularization * direction
