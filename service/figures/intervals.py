"""Intervals around figures of noisy counts. The law of the noise is public, so they cost nothing.

Each figure has two intervals. `block` holds the figure of the records that were counted, but for a probability of
`error`: it allows for the noise. `population` holds the figure that records of the same kind have in the long run: it
allows for the noise and for which records came. Sampling is that of independent records, not necessarily alike.

| figure | block | population |
|---|---|---|
| `share` of the slots: a sum of cells | exact | exact: every p under which the noisy count is no rarer than error/2 |
| `difference` of two sums of cells | exact | normal sampling, of a variance that is estimated from the counts |
| `ratio` of a sum to a larger private one | Fieller's set | Fieller's set with Wilson's variance |
| `mean` of numbers in [0, 1] | exact | normal sampling, of an estimated variance |

Exact means a coverage of at least 1 - error, whatever the counts are. For the others coverage is tested by simulation.
`share`: R has the binomial law, to which the noise Z is added; P(R + Z ≥ r) rises with p. For records that are not
alike R is less spread than the binomial of the same mean (Hoeffding 1956).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from service.mechanisms.evaluation.noise_sums import total

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from service.mechanisms.evaluation.noise_sums import SumLaw
    from service.privacy.noise.counts import CountNoise

_HALVINGS = 30
_SMALL_SAMPLE = 2.0  # records of either sign that a difference's variance assumes at least


@dataclass(frozen=True)
class Interval:
    """A figure lies from `low` to `high`, both included."""

    low: float
    high: float

    def within(self, low: float, high: float) -> Interval:
        """Return the interval cut to a range that contains the figure."""
        return Interval(min(max(self.low, low), high), min(max(self.high, low), high))

    def scaled(self, factor: float, shift: float = 0.0) -> Interval:
        """Return the interval of the figure times a positive factor, plus a shift."""
        return Interval(self.low * factor + shift, self.high * factor + shift)

    def holds(self, value: float) -> bool:
        """Return whether a value is in it."""
        return self.low <= value <= self.high


@dataclass(frozen=True, kw_only=True)
class Figure:
    """An estimate, with its intervals for the records of the block and for records of their kind."""

    estimate: float
    block: Interval
    population: Interval

    def scaled(self, factor: float, shift: float = 0.0) -> Figure:
        """Return the figure times a positive factor, plus a shift."""
        block, population = self.block.scaled(factor, shift), self.population.scaled(factor, shift)
        return Figure(estimate=self.estimate * factor + shift, block=block, population=population)

    def within(self, low: float, high: float) -> Figure:
        """Return the figure where it is known to lie in that range."""
        block, population = self.block.within(low, high), self.population.within(low, high)
        return Figure(estimate=min(max(self.estimate, low), high), block=block, population=population)

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "estimate": self.estimate,
            "block": [self.block.low, self.block.high],
            "population": [self.population.low, self.population.high],
        }


@dataclass(frozen=True, kw_only=True)
class CountLaw:
    """The public facts of noisy counts: their noise, the slots, and the number of blocks added up.

    slots: of all blocks, less those that the operator had erased, which is public. A slot that came empty is not known,
    and counts as one for which no prediction is right.
    """

    noise: CountNoise
    slots: int
    blocks: int = 1
    error: float = 0.05

    def share(self, count: float, cells: int) -> Figure:
        """Return which share of the slots a sum of that many cells is. `count`: the noisy sum."""
        block = self._around(count, self._law(cells), self.slots)
        population = Interval(_least(self, cells, count), 1.0 - _least(self, cells, self.slots - count))
        return Figure(estimate=count / self.slots, block=block, population=population).within(0.0, 1.0)

    def difference(self, plus: float, minus: float, cells: int, *, discordant: float | None = None) -> Figure:
        """Return by how much one noisy sum exceeds another that counts other records, as a share of the slots.

        cells: of both sums. discordant: the most records that both sums count together; None: as many as they say.
        """
        gap = plus - minus
        seen = (plus + minus if discordant is None else discordant) + self._spread(cells)
        share = min(1.0, max((seen + 2 * _SMALL_SAMPLE) / self.slots, abs(gap) / self.slots))
        variance = self.slots * share
        block, population = self._law(cells), total(self.noise, cells * self.blocks, variance)
        return Figure(
            estimate=gap / self.slots,
            block=self._around(gap, block, self.slots),
            population=self._around(gap, population, self.slots),
        ).within(-1.0, 1.0)

    def mean(self, total_units: float, unit: int, variance: float) -> Figure:
        """Return the mean of numbers in [0, 1] from their noisy sum, in units of 1/unit.

        variance: of one record's number, an upper estimate of it.
        """
        whole = self.slots * unit
        block, population = self._law(1), total(self.noise, self.blocks, self.slots * variance * float(unit) ** 2)
        return Figure(
            estimate=total_units / whole,
            block=self._around(total_units, block, whole),
            population=self._around(total_units, population, whole),
        ).within(0.0, 1.0)

    def ratio(self, part: float, rest: float, part_cells: int, rest_cells: int) -> Figure:
        """Return part/(part + rest), both noisy sums; 0 to 1 where the noise leaves open whether there is a whole."""
        figure = self._ratio(part, rest, part_cells, rest_cells)
        if figure is None:
            return Figure(estimate=0.5, block=Interval(0.0, 1.0), population=Interval(0.0, 1.0))
        return figure.within(0.0, 1.0)

    def mean_ratio(self, parts: Sequence[float], rests: Sequence[float], part_cells: int, rest_cells: int) -> Figure:
        """Return the mean of part/(part + rest) over several of these, which count different records.

        If the noise leaves open whether some whole is there, each ratio's interval gets its part of the error.
        """
        equal_weights = [1.0 / len(parts)] * len(parts)
        ratios = [self._ratio(*pair, part_cells, rest_cells) for pair in zip(parts, rests, strict=True)]
        if all(figure is not None for figure in ratios):
            return added([figure for figure in ratios if figure is not None], equal_weights).within(0.0, 1.0)
        strict = replace(self, error=self.error / len(parts))
        figures = [strict.ratio(*pair, part_cells, rest_cells) for pair in zip(parts, rests, strict=True)]
        return Figure(
            estimate=sum(figure.estimate for figure in figures) / len(parts),
            block=_mean_interval([figure.block for figure in figures]),
            population=_mean_interval([figure.population for figure in figures]),
        )

    def _law(self, cells: int) -> SumLaw:
        return total(self.noise, cells * self.blocks)

    def _spread(self, cells: int) -> float:
        """Return the standard deviation of the noise in a sum of that many cells."""
        return self.noise.deviation() * math.sqrt(cells * self.blocks)

    def _around(self, count: float, law: SumLaw, whole: int) -> Interval:
        off = law.quantile(self.error / 2)
        return Interval((count - off) / whole, (count + off) / whole)

    def deviations(self) -> float:
        """Return d such that a sum of noise, of one draw or many, exceeds d deviations with probability `error`."""
        alone = total(self.noise, 1).quantile(self.error / 2) / self.noise.deviation()
        return max(NormalDist().inv_cdf(1.0 - self.error / 2), alone)

    def _ratio(self, part: float, rest: float, part_cells: int, rest_cells: int) -> Figure | None:
        """Return part/(part + rest), which noise can take out of [0, 1]; None: it could be anything."""
        whole = part + rest
        block = self._fieller(part, whole, part_cells, rest_cells, 0.0)
        population = self._fieller(part, whole, part_cells, rest_cells, min(max(whole, 1.0), self.slots))
        if block is None or population is None:
            return None
        return Figure(estimate=part / whole, block=block, population=population)

    def _fieller(self, part: float, whole: float, part_cells: int, rest_cells: int, records: float) -> Interval | None:
        """Return the interval of shares a for which |part - a·whole| is within its deviation (Fieller).

        records: how many there are about to sample from; 0: the noise alone. None: the set is wider than [0, 1].
        """
        z = self.deviations() ** 2
        noise = self.noise.deviation() ** 2 * self.blocks
        square = whole**2 - z * (noise * (part_cells + rest_cells) - records)
        linear = -2 * part * whole + z * (2 * noise * part_cells - records)
        constant = part**2 - z * noise * part_cells
        discriminant = linear**2 - 4 * square * constant
        if whole <= 0 or square <= 0 or not 0 <= discriminant <= square**2:
            return None
        root = math.sqrt(discriminant)
        return Interval((-linear - root) / (2 * square), (-linear + root) / (2 * square))


def added(figures: Sequence[Figure], weights: Sequence[float]) -> Figure:
    """Return the weighted sum of figures whose errors are independent (Zou and Donner 2008, "MOVER")."""
    return Figure(
        estimate=sum(weight * figure.estimate for weight, figure in zip(weights, figures, strict=True)),
        block=_recovered(figures, [figure.block for figure in figures], weights),
        population=_recovered(figures, [figure.population for figure in figures], weights),
    )


def _mean_interval(intervals: Sequence[Interval]) -> Interval:
    count = len(intervals)
    return Interval(
        sum(interval.low for interval in intervals) / count, sum(interval.high for interval in intervals) / count
    )


def _recovered(figures: Sequence[Figure], intervals: Sequence[Interval], weights: Sequence[float]) -> Interval:
    middle = below = above = 0.0
    for figure, interval, weight in zip(figures, intervals, weights, strict=True):
        estimate = min(max(figure.estimate, interval.low), interval.high)
        middle += weight * estimate
        down, up = weight * (estimate - interval.low), weight * (interval.high - estimate)
        below += (down if weight > 0 else up) ** 2
        above += (up if weight > 0 else down) ** 2
    return Interval(middle - math.sqrt(below), middle + math.sqrt(above))


@lru_cache(maxsize=2**16)
def _least(counted: CountLaw, cells: int, count: float) -> float:
    """Return the least p for which a noisy count as large as this one is no rarer than error/2."""
    law = total(counted.noise, cells * counted.blocks)

    def is_rare(p: float) -> bool:
        return _as_large(law, counted.slots, p, count) <= counted.error / 2

    if not is_rare(0.0):
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_rare(middle) else (low, middle)
    return low


def _as_large(law: SumLaw, slots: int, p: float, count: float) -> float:
    """Return P(R + Z ≥ count) for a binomial R of that many slots and noise Z of that law."""
    hits, weights = _binomial(slots, p)
    return float(weights @ law.above(count - hits - 0.5))


def _binomial(n: int, p: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the whole numbers with more than negligible probability in a binomial law, and their weights."""
    reach = 12.0 * math.sqrt(n * p * (1.0 - p)) + 40.0
    low, high = max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach))
    hits = np.arange(low, high + 1, dtype=np.float64)
    if p in (0.0, 1.0):
        return hits, (hits == n * p).astype(np.float64)
    steps = np.log((n - hits[:-1]) / (hits[:-1] + 1.0)) + math.log(p / (1.0 - p))
    logs = np.concatenate(([0.0], np.cumsum(steps)))
    weights = np.exp(logs - logs.max())
    return hits, weights / weights.sum()
