"""Figures of evaluated models from released counts, with intervals. Post-processing, which costs nothing.

`ClassFigures` and `ErrorFigures` read the counts of one block, or of several blocks that were added up.

Better than another publication, "b is better than a". Both were counted on the same slots, so the question is how many
records b alone predicts right, and how many a alone. Where the pair was counted (`ClassCounts.pairs`, which costs as
much as one more table) these two cells say so. Otherwise the difference of both accuracies does, with more noise, and
for the population with the largest variance that any two models of these accuracies can have together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from service.figures.intervals import CountLaw, Figure, Interval, added
from service.mechanisms.evaluation.tables import UNIT, ClassCounts, ErrorSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


class BlockCounts(NamedTuple):
    """A block's released counts, shape (layout.size,), and of how many slots they are."""

    slots: int
    counts: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassFigures:
    """Figures of a classification from its released counts, shape (layout.size,)."""

    layout: ClassCounts
    counts: NDArray[np.float64]
    counted: CountLaw

    def accuracy(self, publication: int) -> Figure:
        """Return which share of the records the publication's model predicts right."""
        return self.counted.share(self._right(publication), self.layout.classes)

    def recall(self, publication: int, label: int) -> Figure:
        """Return which share of the records of a class it predicts right."""
        row = self._table(publication)[label]
        right = float(row[label])
        return self.counted.ratio(right, float(row.sum()) - right, 1, self.layout.classes - 1)

    def balanced_accuracy(self, publication: int) -> Figure:
        """Return the mean recall of all classes. A class without records leaves its recall open."""
        table = self._table(publication)
        right = np.diag(table)
        return self.counted.mean_ratio(right.tolist(), (table.sum(axis=1) - right).tolist(), 1, self.layout.classes - 1)

    def commonest(self, publication: int) -> Figure:
        """Return the accuracy of always predicting the commonest class, from the publication's table.

        The largest of K shares. Its lower end may rest on any class, so each is wrong with a K-th of the probability;
        at the upper end only the commonest class's own noise counts.
        """
        sums = self._table(publication).sum(axis=1)
        classes = self.layout.classes
        strict = replace(self.counted, error=self.counted.error / classes)
        return _largest(
            [self.counted.share(float(count), classes) for count in sums],
            [strict.share(float(count), classes) for count in sums],
        )

    def lift(self, publication: int) -> Figure:
        """Return by how much the accuracy exceeds that of the commonest class.

        The least of K differences: right predictions against the records of one class, the cell in both left out.
        """
        classes, table = self.layout.classes, self._table(publication)
        strict = replace(self.counted, error=self.counted.error / classes)
        right = np.diag(table)
        gaps = [
            (float(right.sum() - right[label]), float(table[label].sum() - right[label])) for label in range(classes)
        ]
        return _least(
            [self.counted.difference(plus, minus, 2 * (classes - 1)) for plus, minus in gaps],
            [strict.difference(plus, minus, 2 * (classes - 1)) for plus, minus in gaps],
        )

    def better(self, second: int, first: int) -> Figure:
        """Return by how much the accuracy of `second` exceeds that of `first` on the same slots.

        `second` is better if the lower end of the population's interval is above 0.
        """
        for number, pair in enumerate(self.layout.pairs):
            if set(pair) == {first, second}:
                alone = dict(zip(pair, self.layout.alone(self.counts, number).tolist(), strict=True))
                return self.counted.difference(alone[second], alone[first], 2)
        plus, minus = self._right(second), self._right(first)
        most = min(plus + minus, 2 * self.counted.slots - plus - minus)
        return self.counted.difference(plus, minus, 2 * self.layout.classes, discordant=most)

    def calibration_error(self, publication: int) -> Figure:
        """Return Σ |right - confidence·predictions| over the bins, as a share of the slots.

        Each confidence counts as its bin's middle, at most half a bin's width, (1 - 1/K)/20, from what it is. With d_b
        a bin's true gap, e_b its error and S = Σ |d_b + e_b|: S ≥ Σ |d_b| + Σ ±e_b for some signs, and
        S ≤ Σ |d_b| + Σ |e_b|. So S + z·√Σ v_b is above Σ |d_b|, and S less a quantile of Σ |e_b| below it (v_b: the
        variance of e_b). The estimate is Σ √max(0, gap_b² - v_b): S alone would be too large.
        """
        bins = self.layout.calibration(self.counts, publication).astype(np.float64)
        middles, slots, error = self.layout.middles(), self.counted.slots, self.counted.error
        gaps = bins[:, 0] * (1.0 - middles) - bins[:, 1] * middles
        noise = self.counted.noise.deviation() ** 2 * self.counted.blocks * ((1.0 - middles) ** 2 + middles**2)
        filled = np.clip(bins.sum(axis=1), 0.0, slots)
        sampling = filled * middles * (1.0 - middles)
        farthest = self.counted.deviations()
        usual = NormalDist().inv_cdf(1.0 - error / 2)

        def between(variances: NDArray[np.float64]) -> Interval:
            """The mean of |e_b| is at most the deviation √v_b·√(2/π), or smaller, and its variance is below v_b."""
            spread = math.sqrt(float(variances.sum()))
            distance = float(np.abs(gaps).sum())
            above = float(np.sqrt(variances * 2.0 / math.pi).sum()) + usual * spread
            return Interval((distance - above) / slots, (distance + farthest * spread) / slots).within(0.0, 1.0)

        unbiased = np.sqrt(np.maximum(0.0, gaps**2 - noise)).sum() / slots
        block, population = between(noise), between(noise + sampling)
        return Figure(estimate=min(1.0, float(unbiased)), block=block, population=population)

    def shortened(self, publication: int) -> Figure:
        """Return which share of the records the publication's model shortens, where they are counted."""
        return self.counted.share(self.layout.shortened_by(self.counts, publication), 1)

    def _table(self, publication: int) -> NDArray[np.float64]:
        return self.layout.table(self.counts, publication).astype(np.float64)

    def _right(self, publication: int) -> float:
        return float(np.trace(self._table(publication)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ErrorFigures:
    """Figures of a regression from its released counts, shape (layout.size,)."""

    layout: ErrorSums
    counts: NDArray[np.float64]
    counted: CountLaw

    def absolute_error(self, publication: int) -> Figure:
        """Return the mean of |e|, with |e| cut to 2Y, Y being the target's bound."""
        sums = self.layout.errors(self.counts, publication)
        return self._mean(sums[0], sums[1]).scaled(2.0 * self.layout.bound)

    def squared_error(self, publication: int) -> Figure:
        """Return the mean of e², with |e| cut to 2Y. Its sampling variance is taken to be the largest possible."""
        square = self.layout.errors(self.counts, publication)[1]
        return self._mean(square, None).scaled(4.0 * self.layout.bound**2)

    def shortened(self, publication: int) -> Figure:
        """Return which share of the records the publication's model shortens, where they are counted."""
        return self._mean(self.layout.shortened_by(self.counts, publication), None)

    def r_squared(self, publication: int) -> Figure | None:
        """Return 1 - (mean squared error)/(variance of the target), from three sums that share the probability to miss.

        None where the moments were not counted, or the noise leaves open whether the target varies at all.
        """
        if not self.layout.moments:
            return None
        third = replace(self, counted=replace(self.counted, error=self.counted.error / 3))
        error = third.squared_error(publication).scaled(1.0 / self.layout.bound**2)
        shifted, square = self.counts[-2:]
        # t = (y + Y)/2Y has E t² = (1 + E y²/Y²)/4 + (E t - 1/2), from which its variance follows
        second = self.counted.slots * UNIT * 0.25 + square / 4.0 + shifted - self.counted.slots * UNIT * 0.5
        center = third._mean(shifted, second).scaled(2.0, -1.0)  # noqa: SLF001 - of the same class
        power = third._mean(square, None)  # noqa: SLF001

        def between(choose: Callable[[Figure], Interval]) -> Interval | None:
            mean, moment, off = choose(center), choose(power), choose(error)
            nearest = 0.0 if mean.holds(0.0) else min(abs(mean.low), abs(mean.high))
            least, most = moment.low - max(mean.low**2, mean.high**2), moment.high - nearest**2
            return Interval(1.0 - off.high / least, 1.0 - off.low / most) if least > 0 else None

        block, population = between(lambda figure: figure.block), between(lambda figure: figure.population)
        if block is None or population is None:
            return None
        estimate = 1.0 - error.estimate / (power.estimate - center.estimate**2)
        return Figure(estimate=estimate, block=block, population=population)

    def _mean(self, units: float, square: float | None) -> Figure:
        """Return the mean of numbers in [0, 1]; square: the noisy sum of their squares, if there is one."""
        whole = self.counted.slots * UNIT
        mean = min(1.0, max(0.0, units / whole))
        spread = self.counted.noise.deviation() * math.sqrt(self.counted.blocks) / whole
        largest = _variance_below(mean, 2.0 * spread)
        if square is not None:
            largest = min(largest, max(0.0, square / whole + 2.0 * spread - max(0.0, mean - 2.0 * spread) ** 2))
        return self.counted.mean(units, UNIT, largest)


def added_up(blocks: Sequence[BlockCounts], counted: CountLaw) -> tuple[NDArray[np.float64], CountLaw]:
    """Return the counts of several blocks together. counted: how one of them was made, all with the same noise."""
    slots = sum(block.slots for block in blocks)
    together = replace(counted, slots=slots, blocks=counted.blocks * len(blocks))
    return np.sum([block.counts for block in blocks], axis=0), together


def rise(now: Figure, before: Figure) -> Figure:
    """Return how much larger a figure is than the same figure on other slots: the lift over an earlier version."""
    return added([now, before], [1.0, -1.0])


def _largest(figures: Sequence[Figure], strict: Sequence[Figure]) -> Figure:
    return Figure(
        estimate=max(figure.estimate for figure in figures),
        block=Interval(max(figure.block.low for figure in strict), max(figure.block.high for figure in figures)),
        population=Interval(
            max(figure.population.low for figure in strict), max(figure.population.high for figure in figures)
        ),
    )


def _least(figures: Sequence[Figure], strict: Sequence[Figure]) -> Figure:
    return Figure(
        estimate=min(figure.estimate for figure in figures),
        block=Interval(min(figure.block.low for figure in figures), min(figure.block.high for figure in strict)),
        population=Interval(
            min(figure.population.low for figure in figures), min(figure.population.high for figure in strict)
        ),
    )


def _variance_below(mean: float, spread: float) -> float:
    """Return the largest variance of a number in [0, 1] whose mean is within `spread` of this one: m(1 - m)."""
    nearest = min(max(0.5, mean - spread), mean + spread)
    return nearest * (1.0 - nearest)
