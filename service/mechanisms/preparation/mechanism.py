"""A feature map from private histograms of the first N records, released once.

Statement. Private: every record of the stream. Neighbours: R⊥. Released, when N slots are numbered: for each of d
features the counts of its values in 161 public cells (`cells`), with noise, and the scales that follow from these
counts (`scales`). One record loses at most `capacity`: an ε or a ρ. Records from slot N on lose nothing.

Why. The counts are read from x as it is stored: after the stream's public map, before any shortening. A record is in
exactly one cell of each feature, or in none if it is empty or not finite. So replacing one record by another, or by
none, moves at most 2d of all counts of all features together, each by at most 1: their L1 distance is at most 2d and
their L2 distance at most √(2d), and both are met by records that differ in the cell of every feature. Exact discrete
noise for that change costs the whole capacity (`noise.counts`). Scales are computed from the noisy counts alone.

For those who name it: the released map, a clip to ±3 behind it and a shortening to the norm √d are functions of one
record and of released numbers. So for a publication that names it they are like a public feature map, for the first N
records too; what it charges and what this charged add up (adaptive composition). Its guarantee holds whatever the map
is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from service.mechanisms.mechanism import Kept, Mechanism, Release, Step
from service.mechanisms.preparation.cells import CELLS, counts_of
from service.mechanisms.preparation.scales import LIMIT, Scaling, full_scales, scales
from service.privacy.accounting.events import NoisyCellCounts
from service.privacy.currency import Currency, round_down, round_up, zcdp_epsilon
from service.privacy.noise.counts import Change, calibrate
from service.streams.feature_maps import followed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from service.learning.records import Records
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
    rule: Literal[1, 2] = 1
    """How counts become scales: see `scales`."""

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
        noisy = self._counts(read) + noise.sample().reshape(self.features, CELLS)
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
            model=self.released_model(noisy),
        )
        return Step(releases=(release,), chain=(), finishes=True)

    def released_model(self, noisy: NDArray[np.integer]) -> dict[str, Any]:
        """Return what a release says of itself: the whole map from a record as it is sent, and the map's norm."""
        scaling = self._scaling(noisy)
        map_step = {
            "kind": "clipped_scale",
            "version": 1,
            "center": scaling.center.tolist(),
            "factor": scaling.factor.tolist(),
            "limit": scaling.limit,
        }
        return self.model_description() | {"feature_map": followed_by(self.feature_map.description, map_step)}

    def _scaling(self, noisy: NDArray[np.integer]) -> Scaling:
        records = self.training.count(0, self.records)
        if self.rule == 1:
            center, factor = scales(noisy, records)
            return Scaling(center=center, factor=factor, limit=LIMIT)
        return full_scales(noisy, records, self.noise().deviation())

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

    def _counts(self, read: Callable[[int, int], Records]) -> NDArray[np.int64]:
        at_once = max(1, READ_AT_ONCE // self.features)
        total = np.zeros((self.features, CELLS), dtype=np.int64)
        for start in range(0, self.records, at_once):
            total += counts_of(read(start, min(start + at_once, self.records)).x)
        return total

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
        amount = round_up(self.capacity)
        if self.currency is Currency.PURE:
            return {"epsilon": amount}
        return {"rho": amount, "epsilon": zcdp_epsilon(amount, round_down(Fraction(self.privacy.delta)))}
