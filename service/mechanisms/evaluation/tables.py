"""Whole numbers that say how well models predict the records of one block of evaluation slots.

Statement. Private: the records in the block's slots. Neighbours (R⊥): one record is replaced by any other, or by none;
the models and every setting are public or released before. One replaced record changes the counts of a block at most by

| counts | L2 | L1 |
|---|---|---|
| classification, one publication: the K×K table | √2 | 2 |
| the table and the calibration bins | 2 | 4 |
| regression, one publication, in units of 2^20 | √2 | 2 |
| P publications together | √P times that | P times that |
| each compared pair of publications | as one more table | as one more table |
| how many records each publication's model shortens | 1 more under the root for each of P | 1 more for each of P |
| the moments of the target, in units of 2^20 | at most as one more publication | at most as one more publication |

and no less: neighbours exist that attain every line but the last, all together. In a regression the shortened are
counted in units of 2^20, too. An erased record changes fewer.

Why. A record adds 1 to one cell of each table, to one cell of each bins, and to at most one cell of each pair. Another
record adds its 1 elsewhere: two cells differ by 1 each. Each publication has one cell of shortened records, to which a
record adds 1 or nothing: another record changes it by 1 at most. In a regression each of a publication's two sums gets
a whole number from 0 to 2^20 from each record, and the cell of the shortened gets 2^20 or nothing. An empty slot adds
nothing at all. Rounding is done record by record, so it changes no sensitivity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.privacy.noise.counts import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from service.mechanisms.released_models import Predictions

BINS = 10
UNIT = 2**20
"""A regression's sums count multiples of 1/UNIT of the largest error, or of its square."""
LARGEST_SIZE = 2**20
_RIGHT, _WRONG = 0, 1


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """The layout of a classification's counts.

    Publication by publication its table, then its bins; then the pairs; then the shortened of each publication.
    """

    classes: int
    publications: int
    bins: bool = True
    pairs: tuple[tuple[int, int], ...] = ()
    """Publications (a, b) to compare: how many records a alone predicts right, and how many b alone."""
    shortened: bool = False
    """Whether records that a publication's model shortens are counted."""

    def __post_init__(self) -> None:
        if self.classes < 2 or self.publications < 1:
            raise ValueError("an evaluation needs at least 2 classes and at least 1 publication")
        if any(not 0 <= a < b < self.publications for a, b in self.pairs) or len(set(self.pairs)) < len(self.pairs):
            raise ValueError("each pair names two publications in their order, and no pair comes twice")
        if self.size > LARGEST_SIZE:
            raise ValueError(f"an evaluation has {self.size} counts, and may have {LARGEST_SIZE}: name fewer at once")

    @property
    def size(self) -> int:
        """Return how many counts a block has."""
        return self.publications * (self._stride + self.shortened) + 2 * len(self.pairs)

    @property
    def change(self) -> Change:
        """Return how one replaced record changes them."""
        moved = 2 * (self.publications * (1 + self.bins) + len(self.pairs))
        return Change(counts=moved + self.publications * self.shortened, largest=1)

    @property
    def _stride(self) -> int:
        return self.classes**2 + 2 * BINS * self.bins

    def count(self, labels: NDArray[np.generic], predictions: Sequence[Predictions | None]) -> NDArray[np.int64]:
        """Return a block's counts, shape (size,).

        labels: (n,); no class 0 … K-1: the slot is empty. predictions: one for each publication, None where it has no
        model yet and adds nothing.
        """
        known = np.isfinite(labels) & np.isin(labels, np.arange(self.classes))
        y = np.where(known, labels, 0).astype(np.int64)
        counts = np.zeros(self.size, dtype=np.int64)
        rights: list[NDArray[np.bool_] | None] = []
        for number, model in enumerate(predictions):
            if model is None:
                rights.append(None)
                continue
            predicted, bins = self._cells(model)
            right = predicted == y
            rights.append(right)
            table, calibration = self._places(number)
            counts[table] = np.bincount((y * self.classes + predicted)[known], minlength=self.classes**2)
            if self.shortened:
                counts[number - self.publications] = model.count_shortened(known)
            if bins is not None and self.bins:
                counts[calibration] = np.bincount(
                    (2 * bins + np.where(right, _RIGHT, _WRONG))[known], minlength=2 * BINS
                )
        for number, (a, b) in enumerate(self.pairs):
            first, second = rights[a], rights[b]
            if first is not None and second is not None:
                place = self._pair_place(number)
                counts[place] = [(first & ~second & known).sum(), (second & ~first & known).sum()]
        return counts

    def _cells(self, predictions: Predictions) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the predicted class and the bin of each slot; class 0 and bin 0 where a prediction is none."""
        labels = predictions.labels.astype(np.float64)
        usable = np.isfinite(labels) & (labels >= 0) & (labels < self.classes)
        if predictions.confidences is not None:
            usable &= np.isfinite(predictions.confidences)
        predicted = np.where(usable, labels, 0).astype(np.int64)
        if predictions.confidences is None:
            return predicted, None
        above = np.where(usable, predictions.confidences, 0.0) * self.classes - 1.0
        bins = np.clip(np.floor(above * (BINS / (self.classes - 1))), 0, BINS - 1).astype(np.int64)
        return predicted, bins

    def table(self, counts: NDArray[np.generic], publication: int) -> NDArray[np.generic]:
        """Return a publication's K×K table: rows are labels, columns predictions."""
        return counts[self._places(publication)[0]].reshape(self.classes, self.classes)

    def calibration(self, counts: NDArray[np.generic], publication: int) -> NDArray[np.generic]:
        """Return a publication's bins, shape (BINS, 2): how many predictions were right, and how many wrong."""
        return counts[self._places(publication)[1]].reshape(-1, 2)

    def alone(self, counts: NDArray[np.generic], pair: int) -> NDArray[np.generic]:
        """Return how many records the first of a pair alone predicts right, and how many the second alone."""
        return counts[self._pair_place(pair)]

    def shortened_by(self, counts: NDArray[np.generic], publication: int) -> float:
        """Return how many records a publication's model shortens, where they are counted."""
        return float(counts[publication - self.publications])

    def middles(self) -> NDArray[np.float64]:
        """Return the middle of each bin: BINS equal parts of the greatest probability's range, 1/K to 1."""
        least = 1.0 / self.classes
        return least + (1.0 - least) * (np.arange(BINS) + 0.5) / BINS

    def _places(self, publication: int) -> tuple[slice, slice]:
        start, end = publication * self._stride, (publication + 1) * self._stride
        return slice(start, start + self.classes**2), slice(start + self.classes**2, end)

    def _pair_place(self, pair: int) -> slice:
        start = self.publications * self._stride + 2 * pair
        return slice(start, start + 2)

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "counts": "classes",
            "classes": self.classes,
            "bins": BINS if self.bins else 0,
            "pairs": [list(pair) for pair in self.pairs],
        } | ({"shortened": True} if self.shortened else {})


@dataclass(frozen=True, kw_only=True)
class ErrorSums:
    """The layout of a regression's counts.

    Publication by publication the sum of errors and that of squares; then the shortened of each publication; then the
    moments. With |y| and predictions within ±Y: Σ min(|e|, 2Y)/2Y and Σ min(e², 4Y²)/4Y², in units of 1/UNIT. The
    target's moments are Σ (y + Y)/2Y and Σ y²/Y², of y clipped to ±Y: R² needs them.
    """

    bound: float
    publications: int
    moments: bool = False
    shortened: bool = False
    """Whether records that a publication's model shortens are counted, each as UNIT."""

    def __post_init__(self) -> None:
        if not 0 < self.bound < np.inf or self.publications < 1:
            raise ValueError("an evaluation needs a positive finite bound of the target and at least 1 publication")

    @property
    def size(self) -> int:
        """Return how many counts a block has."""
        return self.publications * (2 + self.shortened) + 2 * self.moments

    @property
    def change(self) -> Change:
        """Return how one replaced record changes them."""
        return Change(counts=self.size, largest=UNIT)

    def count(self, labels: NDArray[np.generic], predictions: Sequence[Predictions | None]) -> NDArray[np.int64]:
        """Return a block's counts, shape (size,).

        labels: (n,); not finite: the slot is empty. predictions: one for each publication, None where it has no model
        yet and adds nothing. An error that is not finite counts as 2Y.
        """
        known = np.isfinite(labels)
        y = labels[known].astype(np.float64)
        counts = np.zeros(self.size, dtype=np.int64)
        for number, model in enumerate(predictions):
            if model is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    share = np.abs(y - model.labels[known].astype(np.float64)) / (2.0 * self.bound)
                counts[2 * number : 2 * number + 2] = _sums(np.where(share <= 1.0, share, 1.0))
                if self.shortened:
                    counts[2 * self.publications + number] = UNIT * model.count_shortened(known)
        if self.moments:
            target = np.clip(y, -self.bound, self.bound) / self.bound
            counts[-2:] = [_units((target + 1.0) / 2.0), _units(target**2)]
        return counts

    def errors(self, counts: NDArray[np.generic], publication: int) -> NDArray[np.generic]:
        """Return a publication's two sums, in units of 1/UNIT."""
        return counts[2 * publication : 2 * publication + 2]

    def shortened_by(self, counts: NDArray[np.generic], publication: int) -> float:
        """Return how many records a publication's model shortens, in units of 1/UNIT, where they are counted."""
        return float(counts[2 * self.publications + publication])

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        shortened = {"shortened": True} if self.shortened else {}
        return {"counts": "errors", "bound": self.bound, "unit": UNIT, "moments": self.moments} | shortened


Counts = ClassCounts | ErrorSums


def described_counts(model: Mapping[str, Any]) -> Counts:
    """Return the layout that a release describes, for a reader that recomputes its sensitivity.

    model: `described`, with the publications' names in `of`. ValueError for any other.
    """
    publications, shortened = len(model["of"]), model.get("shortened", False)
    if model["counts"] == "classes":
        pairs = tuple((a, b) for a, b in model["pairs"])
        return ClassCounts(
            classes=model["classes"],
            publications=publications,
            bins=bool(model["bins"]),
            pairs=pairs,
            shortened=shortened,
        )
    if model["counts"] == "errors":
        return ErrorSums(bound=model["bound"], publications=publications, moments=model["moments"], shortened=shortened)
    raise ValueError("an evaluation counts classes or errors")


def _sums(share: NDArray[np.float64]) -> tuple[int, int]:
    return _units(share), _units(share**2)


def _units(shares: NDArray[np.float64]) -> int:
    """Return a sum of numbers in [0, 1], each rounded to a multiple of 1/UNIT, in these."""
    return int(np.rint(shares * UNIT).astype(np.int64).sum())
