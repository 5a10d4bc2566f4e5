"""A feature map from private histograms of the first N records, released once.

Statement. Private: every record of the stream. Neighbours: R⊥. Released, when N slots are numbered: for each of d
features the counts of its values in 161 public cells (`cells`), with noise, and the scales that follow from these
counts (`scales`). One record loses at most `capacity`: an ε or a ρ. Records from slot N on lose nothing.

Why. The counts are read from x as it is stored: after the stream's public map, before any shortening. A record is in
exactly one cell of each feature, or in none if it is empty or not finite. So replacing one record by another, or by
none, moves at most 2d of all counts of all features together, each by at most 1: their L1 distance is at most 2d and
their L2 distance at most √(2d), and both are met by records that differ in the cell of every feature. Exact discrete
noise for that change costs the whole capacity (`noise.counts`). Scales are computed from the noisy counts alone.

Units. Neighbours: U⊥. All records of a unit among the first N are one: that of the unit's first slot there which
counts, by the public pattern, or none where that slot is empty. So a unit is in one cell of each feature or in none,
all its records together move the counts as far as one record does, and the same noise is right. The ledger charges
every slot 1/m of the capacity, so that a unit with slots behind N, too, stays within its promise (`groups`). Scales are
of n units, by the pattern.

For those who name it: the released map, a clip to ±3 behind it and a shortening to the norm √d are functions of one
record and of released numbers. So for a publication that names it they are like a public feature map, for the first N
records too; what it charges and what this charged add up (adaptive composition). Its guarantee holds whatever the map
is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from service.mechanisms.preparation.cells import CELLS, counts_of
from service.mechanisms.preparation.once import MapOfFirstRecords
from service.mechanisms.preparation.scales import LIMIT, Scaling, full_scales, scales
from service.mechanisms.units import of_fits
from service.privacy.accounting.events import NoisyCellCounts
from service.privacy.accounting.groups import Batching
from service.privacy.noise.counts import Change, calibrate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from fractions import Fraction

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats
    from service.mechanisms.mechanism import Mechanism
    from service.privacy.accounting.groups import UnitBound
    from service.privacy.noise.counts import CountNoise

_ROUGH = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Preparation(MapOfFirstRecords):
    """A publication of scales of the first `records` slots."""

    of: ClassVar[str] = "scale"
    what: ClassVar[str] = "counts"
    rule: Literal[1, 2] = 1
    """How counts become scales: see `scales`."""

    def measured(self, pieces: Iterable[NDArray[np.floating]]) -> Floats:
        """Return the noisy counts of the records, (d, CELLS)."""
        total = np.zeros((self.features, CELLS), dtype=np.int64)
        for x in pieces:
            total += counts_of(x)
        noisy = total + self.noise().sample().reshape(self.features, CELLS)
        return noisy.astype(np.float64)

    def map_step(self, noisy: Floats, slots: int) -> dict[str, Any]:
        """Return the scales that follow from noisy counts of that many slots, or units."""
        scaling = self._scaling(noisy, slots)
        return {
            "kind": "clipped_scale",
            "version": 1,
            "center": scaling.center.tolist(),
            "factor": scaling.factor.tolist(),
            "limit": scaling.limit,
        }

    def check_units(self) -> None:
        """Do nothing: a unit is counted once."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return m: a unit is counted once in N, with noise of its own."""
        return of_fits(bound, self.records)

    def _scaling(self, noisy: Floats, slots: int) -> Scaling:
        if self.rule == 1:
            center, factor = scales(noisy, slots)
            return Scaling(center=center, factor=factor, limit=LIMIT)
        return full_scales(noisy, slots, self.noise().deviation())

    @property
    def change(self) -> Change:
        """Return how one record changes the counts of all features together."""
        return Change(counts=2 * self.features, largest=1)

    def noise(self) -> CountNoise:
        """Return the noise that the whole capacity buys. Raises Unaffordable."""
        return calibrate(self.currency, self.change, charge=self._charge(), dimension=self.features * CELLS)

    def event(self) -> NoisyCellCounts:
        """Return how the whole capacity is spent."""
        return NoisyCellCounts(noise=self.noise(), change=self.change)

    @property
    def released_shape(self) -> list[int]:
        """Return the shape: a scale for each feature."""
        return [1, self.features]

    def expected(self) -> dict[str, Any]:
        """Return how far off a quantile may be: the deviation of noise in half the cells, as a share of the records."""
        off = self.noise().deviation() * math.sqrt(CELLS / 2) / self._counted
        rough: dict[str, Any] = {"rank_deviation": off}
        if off > _ROUGH:
            counted = "records" if self.unit is None else "units"
            rough["warning"] = (
                f"each quantile may be off by {off:.0%} of the {counted}: ask for more records or a larger epsilon, or "
                "give the stream a public standardize"
            )
        return {"scales": rough}

    @property
    def _counted(self) -> int:
        """Return the number of slots that it reads; with units, the least number of units in these slots."""
        if self.unit is None:
            return self.slots
        of_one = Batching(bound=self.unit.bound, batch=self.records, one_contribution=False).contributions()
        return -(-self.slots // of_one)
