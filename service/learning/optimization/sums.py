"""A fit whose records are read block by block, as often as its solver needs them, and are never all in memory.

Statement. J, its gradient and its certificate are those of `solvers`, to the same E. A pass over the records asks every
block the same question, and a block answers with integers, multiples of a public 2^exponent. Integers add up exactly in
any order. The blocks are fixed by the number of slots and of features. So a pass has the same result on any number
of processes, in any order, and where a block is done twice. A solver reads nothing but these results.

Rounding. The sum of a block's gradients is computed by the very lines that the bound in `solvers` is about (`summed`).
Between blocks nothing is lost, where it says 4u·L for the compensated addition of chunks: that much is lost in blocks.
New are:
 - a block's sum is rounded to a multiple of 2^exponent ≤ 2^-96·L, each of its k·D coordinates by half of that. There is
   at most a block per slot: ≤ 2^-97·√(k·D)·L for the mean over n, below 2^-20·u·L for k·D ≤ 2^48;
 - the sum of all blocks, an integer, becomes the nearest double: u·L.
Together less than 2u·L. `solvers` reserves 8u·(L + …) for the division by n and the regulariser, which take 5u of them.

The bytes of a block's sum are those of one machine's libraries, with one thread (`SINGLE_THREADED`): machines that
share a pass need processors of one kind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from service.learning.optimization.objective import CurvatureSample, completed, summed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats, Loss
    from service.learning.records import PreparedRows, Records

    Enter = Callable[[Records], tuple[PreparedRows, NDArray[np.generic]]]

BLOCK_VALUES = 2**21  # the most numbers of a block's records: 8 MiB as float32
LEAST_BLOCK = 128  # slots
MAX_WEIGHTS = BLOCK_VALUES // LEAST_BLOCK  # of a model fitted from blocks: a block has at least LEAST_BLOCK slots
SINGLE_THREADED = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""The environment in which a product has the same bytes on machines with more and with fewer cores."""

_PRECISION = 96  # bits of a sum below the norm bound of one record's gradient
_ROUGH_ROWS = 512
_MAX_SAMPLED = 256  # the most records of a preconditioner, read one by one
_BEYOND = 2.0**600


@dataclass(frozen=True)
class Partial:
    """The number of records of some blocks, and their sums as multiples of 2^exponent."""

    records: int = 0
    value: int = 0
    sums: tuple[int, ...] = ()

    def __add__(self, other: Partial) -> Partial:
        """Return the sums over the blocks of both."""
        if not (self.sums and other.sums):
            return self if self.sums else other
        sums = tuple(one + another for one, another in zip(self.sums, other.sums, strict=True))
        return Partial(self.records + other.records, self.value + other.value, sums)


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """The computation of one pass for a block: the sum of its losses and of their gradients at `weights`.

    With a `direction` it asks for the second derivatives there, applied to it, in single precision.
    """

    enter: Enter
    """Return the rows and labels of records that enter the loss."""
    loss: Loss
    exponent: int
    weights: Floats
    direction: Floats | None = None
    roughly: bool = False

    def __call__(self, records: Records) -> Partial:
        """Return the sums over the records of one block."""
        rows, y = self.enter(records)
        if self.direction is None:
            value, sums = summed(self.loss, rows, y, self.weights, roughly=self.roughly)
        else:
            value, sums = 0.0, self._curved(rows, y, self.direction)
        (whole,) = _rounded(np.array([value]), self.exponent)
        return Partial(records=len(y), value=whole, sums=_rounded(sums, self.exponent))

    def _curved(self, rows: PreparedRows, y: NDArray[np.generic], direction: Floats) -> Floats:
        total, rough = np.zeros(direction.shape), rows.astype(np.float32)
        for start in range(0, len(y), _ROUGH_ROWS):
            piece = rough[start : start + _ROUGH_ROWS]
            *_, curvature = self.loss.derivatives(piece.scores(self.weights), y[start : start + _ROUGH_ROWS])
            total += piece.gathered(self.loss.curve(curvature, piece.scores(direction)))
        return total


class Blocks(Protocol):
    """The records of a range, which have no units. They stay the same for as long as the range is read."""

    @property
    def units(self) -> None:
        """The number of units, as of `Records`."""

    @property
    def slots(self) -> int:
        """Return the length of the range."""

    def read(self, start: int, stop: int) -> Records:
        """Return the records in slots [start, stop), counted from the range's first."""

    def add_up(self, question: Question, blocks: Sequence[tuple[int, int]]) -> Partial:
        """Return the sums over all blocks; a block is the slots [start, stop) of the range."""


def answered(question: Question, read: Callable[[int, int], Records], blocks: Iterable[tuple[int, int]]) -> Partial:
    """Return the sums over some blocks, which are read one after the other."""
    return sum((question(read(start, stop)) for start, stop in blocks), start=Partial())


def cut(slots: int, features: int) -> list[tuple[int, int]]:
    """Return the blocks of a range of that many slots. Public: nothing but its arguments decides."""
    size = LEAST_BLOCK
    while 2 * size * max(1, features) <= BLOCK_VALUES:
        size *= 2
    return [(start, min(start + size, slots)) for start in range(0, slots, size)]


class SummedObjective:
    """J and its derivatives at one point after the other, by passes over blocks."""

    def __init__(
        self, blocks: Blocks, enter: Enter, loss: Loss, lipschitz: float, records: int, regularization: float, c: Floats
    ) -> None:
        self._blocks, self._enter, self.loss = blocks, enter, loss
        self._cut = cut(blocks.slots, c.shape[1])
        self.exponent = math.frexp(lipschitz)[1] - 1 - _PRECISION
        self.records, self.regularization, self.center = records, regularization, c
        self._weights, self._total = c, Partial()
        self._evaluated: tuple[bool, bytes] | None = None
        self._sampled: tuple[PreparedRows, NDArray[np.generic]] | None = None
        self.present = 0
        """How many records the last pass read."""

    def evaluate(self, weights: Floats, *, roughly: bool = False) -> tuple[float, Floats]:
        """Return J and ∇J, and remember where."""
        self._weights = weights
        point = roughly, weights.tobytes()
        if point != self._evaluated:
            self._evaluated, self._total = point, self._pass(roughly=roughly)
            self.present = self._total.records
        value = math.ldexp(float(self._total.value), self.exponent)
        return completed(value, self._doubles(self._total), self.records, self.regularization, self.center, weights)

    def curve(self, direction: Floats) -> Floats:
        """Return about ∇²J · direction at the point last evaluated, in single precision."""
        total = self._doubles(self._pass(direction=direction))
        return total / self.records + self.regularization * direction

    def sampled(self, number: int, at_least_every: int) -> CurvatureSample | None:  # noqa: ARG002
        """Return the records of equally spaced slots, and their curvature at the point last evaluated."""
        if self._sampled is None:
            slots = range(0, self._blocks.slots, max(1, self._blocks.slots // min(number, _MAX_SAMPLED)))
            self._sampled = _joined([self._enter(self._blocks.read(slot, slot + 1)) for slot in slots])
        rows, y = self._sampled
        if not len(y):
            return None
        *_, curvature = self.loss.derivatives(rows.scores(self._weights), y)
        stands_for = np.full(len(y), self.present / (len(y) * self.records))
        return CurvatureSample(rows=rows.rows(), curvature=curvature.astype(np.float32), stands_for=stands_for)

    def _pass(self, *, direction: Floats | None = None, roughly: bool = False) -> Partial:
        question = Question(
            enter=self._enter,
            loss=self.loss,
            exponent=self.exponent,
            weights=self._weights,
            direction=direction,
            roughly=roughly,
        )
        return self._blocks.add_up(question, self._cut)

    def _doubles(self, total: Partial) -> Floats:
        """Return the sums as the nearest doubles."""
        return np.ldexp([float(cell) for cell in total.sums], self.exponent).reshape(self.center.shape)


def _rounded(values: Floats, exponent: int) -> tuple[int, ...]:
    """Return the nearest multiples of 2^exponent, in units of it.

    Where a sum is not finite, as single precision makes it of very long weights and some records, it counts as one so
    large that no search stays there and nothing is certified.
    """
    whole = np.rint(np.ldexp(values, -exponent)).ravel()
    return tuple(map(int, np.where(np.isfinite(whole), whole, _BEYOND).tolist()))


def _joined(parts: Sequence[tuple[PreparedRows, NDArray[np.generic]]]) -> tuple[PreparedRows, NDArray[np.generic]]:
    first, _ = parts[0]
    rows = type(first)(
        x=np.concatenate([rows.x for rows, _ in parts]),
        factor=np.concatenate([rows.factor for rows, _ in parts]),
        bias=first.bias,
    )
    return rows, np.concatenate([y for _, y in parts])
