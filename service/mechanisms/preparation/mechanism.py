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

What others do with it. The released map, a clip to ±3 behind it and a shortening to the norm √d are functions of one
record and of released numbers. So for a publication that names it they are like a public feature map, for the first N
records too; what it charges and what this charged add up (adaptive composition). Its guarantee holds whatever the map
is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from service.mechanisms.mechanism import Kept, Mechanism, Release, Step
from service.mechanisms.preparation.cells import CELLS, counts_of
from service.mechanisms.preparation.scales import LIMIT, scales
from service.mechanisms.units import of_fits
from service.privacy.accounting.events import NoisyCellCounts
from service.privacy.currency import Currency, round_down, round_up, zcdp_epsilon
from service.privacy.noise.counts import Change, calibrate
from service.streams.feature_maps import followed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from service.learning.records import Records
    from service.privacy.accounting.groups import UnitBound
    from service.privacy.noise.counts import CountNoise
    from service.streams.feature_maps import FeatureMap

NEVER = 2**61
"""A time that no stream reaches, which also fits into 64 bits when a publication's start is added."""
READ_AT_ONCE = 2**22  # numbers
_ROUGH = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class Preparation(Mechanism):
    """A publication of scales of the first `records` slots. It ends with its only release."""

    records: int
    feature_map: FeatureMap
    """What was done to the records before this reads them."""

    def next_time(self, after: int) -> int:
        """Return N, and after it no time that comes."""
        return self.records if after < self.records else NEVER

    def needs(self, after: int) -> int:
        """Return the first record, until it was read."""
        return 0 if after < self.records else after

    def reads(self, time: int) -> int:  # noqa: ARG002 - there is one
        """Return N."""
        return self.records

    def step(self, time: int, chain: Sequence[Kept], next_version: int, read: Callable[[int, int], Records]) -> Step:  # noqa: ARG002 - it is the first
        """Count the first N slots and release the counts with noise; see `Mechanism.step`."""
        noise = self.noise()
        counts, units = self._counted(read)
        noisy = counts + noise.sample().reshape(self.features, CELLS)
        release = Release(
            version=next_version,
            role="model",
            time=time,
            window=(0, self.records),
            fit=(0, self.records),
            parent=None,
            parameters=noisy.astype(np.float64),
            perturbation=NoisyCellCounts(noise=noise, change=self.change),
            charge=self._charge(),
            model=self.released_model(noisy, units),
        )
        return Step(releases=(release,), chain=(), finishes=True)

    def released_model(self, noisy: NDArray[np.integer], units: int | None = None) -> dict[str, Any]:
        """Return what a release says of itself: the whole map from a record as it is sent, and the map's norm.

        units: of how many units the counts are; None: they are of records.
        """
        center, factor = scales(noisy, self.training.count(0, self.records) if units is None else max(1, units))
        counted = {} if units is None else {"units": units}
        map_step = {
            "kind": "clipped_scale",
            "version": 1,
            "center": center.tolist(),
            "factor": factor.tolist(),
            "limit": LIMIT,
        }
        return self.model_description() | counted | {"feature_map": followed_by(self.feature_map.description, map_step)}

    @property
    def features(self) -> int:
        """The number d of features."""
        return self.feature_map.features

    @property
    def change(self) -> Change:
        """How one record changes the counts of all features together."""
        return Change(counts=2 * self.features, largest=1)

    def noise(self) -> CountNoise:
        """Return the noise that the whole capacity buys. Raises Unaffordable."""
        return calibrate(self.currency, self.change, charge=self._charge(), dimension=self.features * CELLS)

    def draws(self) -> int:
        """Return 0: the noise is exact."""
        return 0

    def check_units(self) -> None:
        """Do nothing: a unit is counted once."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return m: a unit is counted once in N, with noise of its own."""
        return of_fits(bound, self.records)

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and how rough its scales are, as JSON: for a person."""
        noise = self.noise()
        described = NoisyCellCounts(noise=noise, change=self.change).to_json()
        what = {"what": "counts", "share": "1"}
        return {
            "kind": self.currency.value,
            "guarantee": self.guarantee(),
            "first_releases": [self.records],
            "model": self.model_description() | {"shape": [1, self.features], "passes": 1},
            "fits": [
                what
                | {
                    "when": f"once, when {self.records} records are numbered",
                    "records": self.training.least(self.records),
                    "charge": self._charge(),
                    "sensitivity": described.pop("sensitivity"),
                    "noise": described | {"expected_norm": None, "slack": 0.0},
                }
            ],
            "lifetime": {
                "record": 0,
                **self._loss(),
                "share": "1",
                "note": f"the first {self.records} records only",
                "parts": [what | {"fits": 1, **self._loss()}],
            },
            "scales": self._expected(noise),
        }

    def model_description(self) -> dict[str, Any]:
        """Return what a release says of itself, but for the map."""
        return {
            "kind": "preparation",
            "of": "scale",
            "features": self.feature_map.input_features,
            "norm_bound": math.sqrt(self.features),
        }

    def _counted(self, read: Callable[[int, int], Records]) -> tuple[NDArray[np.int64], int | None]:
        """Return the counts of the first N slots, and of how many units they are; None: of records.

        Units are read all at once: only so is it known which slots are the first of theirs.
        """
        if self.unit is not None:
            records = read(0, self.records)
            return counts_of(records.one_of_each_unit().x), records.units
        at_once = max(1, READ_AT_ONCE // self.features)
        total = np.zeros((self.features, CELLS), dtype=np.int64)
        for start in range(0, self.records, at_once):
            total += counts_of(read(start, min(start + at_once, self.records)).x)
        return total, None

    def _expected(self, noise: CountNoise) -> dict[str, Any]:
        """Return how far off a quantile may be: the deviation of noise in half the cells, as a share of the records."""
        off = noise.deviation() * math.sqrt(CELLS / 2) / self.records
        told: dict[str, Any] = {"rank_deviation": off}
        if off > _ROUGH:
            told["warning"] = (
                f"each quantile may be off by {off:.0%} of the records: ask for more records or a larger epsilon, or "
                "give the stream a public standardize"
            )
        return told

    def _charge(self) -> float:
        return round_down(Fraction(self.capacity))

    def _loss(self) -> dict[str, float]:
        amount = round_up(self.capacity * self.factor)
        if self.currency is Currency.PURE:
            return {"epsilon": amount}
        return {"rho": amount, "epsilon": zcdp_epsilon(amount, round_down(Fraction(self.privacy.delta)))}
