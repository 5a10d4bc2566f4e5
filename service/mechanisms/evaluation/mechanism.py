"""Evaluate published models by noisy counts on slots that none of them reads.

Statement. Private: every record of the stream. Neighbours: R⊥. Released, after every `block` evaluation slots: the
counts of those slots (`tables`), of all evaluated publications together, with noise (`noise.counts`). Over the whole
run, whoever chooses the records and which publications run, one record loses at most `capacity`: an ε or a ρ.

Why. The versions that a block uses are released before, so for the block they are public. A slot is in one block, which
slots are in it is public, and only that block's counts read the slot. The noise is for all counts of all publications
together (`Change`), and costs the whole capacity. Everything else, `figures` and `drift`, is computed from releases.

Units. Neighbours: U⊥. Only one record of a unit in a block counts, that of its first slot there, by the public
pattern; none counts where that slot is empty. So all of them together change a block's counts as one record does; a
unit is in at most m blocks, each with noise of its own, and every slot is charged 1/m of the capacity (`groups`).

Where a stream with units sets units aside, every k-th, a block is n·k slots, in which evaluated units have n slots on
average; which ones, their pseudonyms say. All slots of a unit are charged by evaluations, or all by other publications:
parallel composition over a public partition of the units.

Times and ranges are relative to the publication's start, as of every mechanism; evaluation slots and the times of the
evaluated publications' releases are absolute (`streams.slots`). A release's `fit` is the range of its block; of that
range only the evaluation slots are charged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from service.mechanisms.evaluation.noise_sums import total
from service.mechanisms.evaluation.tables import UNIT, ClassCounts, Counts
from service.mechanisms.mechanism import CarriedState, Mechanism, Release, Step
from service.mechanisms.released_models import has_passed, version_used
from service.mechanisms.units import of_fits
from service.privacy.accounting.composition import Slots
from service.privacy.accounting.events import NoisyCounts
from service.privacy.currency import round_down
from service.privacy.noise.counts import calibrate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from service.learning.records import Records
    from service.mechanisms.released_models import Models, Predictions
    from service.privacy.accounting.groups import UnitBound
    from service.privacy.noise.counts import CountNoise
    from service.streams.slots import EvaluationSlots

_ERROR = 0.05
_FIRST_RELEASES = 8
AT_ONCE = 2**16  # slots of a block, training slots included, in memory at a time


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation(Mechanism):
    """A publication of noisy counts of how well `of` predict each `block` of evaluation slots."""

    start: int
    """The publication's first slot, absolute."""
    slots: EvaluationSlots
    block: int
    of: tuple[str, ...]
    counts: Counts
    units_aside: int = 1
    """k, every k-th unit being set aside for evaluations; 1: none is"""
    reads_models: ClassVar[bool] = True
    models: Models | None = None
    """None: it can be planned, and takes no step."""

    def __post_init__(self) -> None:
        if self.block < 1 or len(self.of) != self.counts.publications or len(set(self.of)) < len(self.of):
            raise ValueError("an evaluation counts at least 1 slot a block, of publications that differ")

    @property
    def length(self) -> int:
        """Return the slots of a block; n of them are evaluated, with units on average."""
        return self.block * self.units_aside

    def next_time(self, after: int) -> int:
        """Return the end of the first block that ends after a time: just after the block's last evaluation slot."""
        return self._end(self._ended(after))

    def first_slot(self, time: int) -> int:
        """Return the first evaluation slot, absolute, of the block that ends at a time."""
        return self.slots.slot(self._first + (self._ended(time) - 1) * self.length)

    def needs(self, after: int) -> int:
        """Return where the block begins that ends first after a time."""
        return self._begin(self._ended(after))

    def reads(self, time: int) -> int:
        """Return the length of the range whose evaluation slots the step at `time` counts."""
        return time - self._begin(self._ended(time) - 1)

    def is_ready(self, time: int) -> bool:
        """Return whether every evaluated publication has passed the first slot of the block that ends at a time."""
        models, slot = self._models(), self.first_slot(time)
        return all(has_passed(models.progress(name, slot), slot) for name in self.of)

    def versions(self, time: int) -> tuple[int | None, ...]:
        """Return the version of each evaluated publication that the block which ends at `time` uses."""
        models, slot = self._models(), self.first_slot(time)
        return tuple(version_used(models.progress(name, slot).releases, slot) for name in self.of)

    def with_models(self, models: Models) -> Evaluation:
        """Return a copy with a reader of the models whose predictions it counts."""
        return replace(self, models=models)

    # no step saves any state
    def step(
        self,
        time: int,
        chain: Sequence[CarriedState],  # noqa: ARG002
        next_version: int,
        read: Callable[[int, int], Records],
    ) -> Step:
        """Count the block that ends at `time` and release the counts with noise; see `Mechanism.step`.

        The caller has waited until `is_ready`. read: its records say in which slots they are, unless none is
        missing.
        """
        begin = time - self.reads(time)
        x, y, present = self._block(begin, time, read)
        versions = self.versions(time)
        counted = self.counts.count(y, [self._predictions(*used, x) for used in zip(self.of, versions, strict=True)])
        noise = self.noise()
        release = Release(
            version=next_version,
            role="model",
            time=time,
            window=(begin, time),
            fit=(begin, time),
            parent=None,
            parameters=(counted + noise.sample()).astype(np.float64)[None, :],
            perturbation=NoisyCounts(noise=noise, change=self.counts.change),
            charge=self._charge(),
            model=self.model_description() | {"versions": list(versions), "slots": present},
        )
        return Step(releases=(release,), chain=())

    def noise(self) -> CountNoise:
        """Return the noise that the whole capacity buys. Raises Unaffordable."""
        return calibrate(self.currency, self.counts.change, charge=self._charge(), dimension=self.counts.size)

    @property
    def reads_slots(self) -> Slots:
        """Return which slots it reads: all, like any publication, where the stream sets none aside."""
        return Slots.EVALUATION if self._has_slots_of_its_own else Slots.TRAINING

    def draws(self) -> int:
        """Return 0: the noise is exact."""
        return 0

    def check_units(self) -> None:
        """Do nothing: a unit is counted once."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return m: a unit is counted once in a block, with noise of its own."""
        return of_fits(bound, self._records)

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and how wide its intervals are, as JSON: for a person."""
        noise = self.noise()
        described = NoisyCounts(noise=noise, change=self.counts.change).to_json()
        return {
            "kind": self.currency.value,
            "guarantee": self.guarantee(),
            "first_releases": [self._end(number) for number in range(_FIRST_RELEASES)],
            "model": self.model_description(),
            "fits": [
                {
                    "what": "block",
                    "when": f"every {self._records} records, {self._counted}",
                    "records": self.block,
                    "share": "1",
                    "charge": self._charge(),
                    "sensitivity": described.pop("sensitivity"),
                    "noise": described | {"expected_norm": noise.deviation() * noise.dimension**0.5, "slack": 0.0},
                }
            ],
            "lifetime": {
                "record": self._first_read,
                **self.loss_of(self.capacity * self.factor),
                "share": "1",
                "note": "all slots, like any other publication: the stream sets none aside"
                if not self._has_slots_of_its_own
                else "evaluation slots only: no other publication reads them, and this one reads no other",
                "parts": [{"what": "block", "fits": 1, "share": "1", **self.loss_of(self.capacity * self.factor)}],
            },
            "accuracy" if isinstance(self.counts, ClassCounts) else "error": planned_width(
                noise, self.counts, self.block
            ),
        }

    def model_description(self) -> dict[str, Any]:
        """Return what a release says of its counts, as JSON, but for the versions it used."""
        return {"kind": "evaluation", "of": list(self.of), "block": self.block, **self.counts.described()}

    def _block(
        self, begin: int, time: int, read: Callable[[int, int], Records]
    ) -> tuple[NDArray[np.floating], NDArray[np.float64], int]:
        """Return x and y of every evaluation slot of the block, and how many of them were not erased.

        Each slot has its public place; x of an empty one is zeros, and its label is NaN. So it is of a slot that is not
        the first of its unit, which nobody counts. A library may compute of a row what depends on its place and on how
        many there are, and no record may move what others are counted as.
        """
        first = self.slots.before(self.start + begin)
        x, y, present = np.zeros((self.length, 0), dtype=np.float32), np.full(self.length, np.nan), 0
        # All at once with units: only then is it known which slot is a unit's first.
        at_once = AT_ONCE if self.unit is None else time - begin
        for start in range(begin, time, at_once):
            stop = min(time, start + at_once)
            records = read(start, stop).one_of_each_unit()
            slots = records.in_slots(start, stop) + self.start
            evaluated = self.slots.among(slots)
            filled = evaluated & np.isfinite(records.x).all(axis=1)
            places = self.slots.before(slots[filled]) - first
            if x.shape[1] != records.x.shape[1]:
                x = np.zeros((self.length, records.x.shape[1]), dtype=records.x.dtype)
            x[places], y[places] = records.x[filled], records.y[filled]
            present += int(evaluated.sum())
        return x, y, present

    @property
    def _has_slots_of_its_own(self) -> bool:
        return self.training.evaluation is not None or self.units_aside > 1

    @property
    def _records(self) -> int:
        """Return how many records of the stream a block is of."""
        return self.length * self.slots.period

    @property
    def _counted(self) -> str:
        if self.units_aside > 1:
            return f"those of units set aside, {self.block} on average"
        return f"their {self.block} evaluation slots"

    @property
    def _first_read(self) -> int:
        """Return the first record that this may charge, counted from its start; 0 with units, whose slots vary."""
        return self.slots.first_from(self.start, evaluation=True) - self.start

    @property
    def _first(self) -> int:
        """Return the number of the first evaluation slot of the publication."""
        return self.slots.before(self.start)

    def _ended(self, time: int) -> int:
        """Return how many blocks have ended at a time."""
        return self.slots.evaluation(self.start, self.start + time) // self.length

    def _end(self, number: int) -> int:
        return self.slots.slot(self._first + (number + 1) * self.length - 1) + 1 - self.start

    def _begin(self, number: int) -> int:
        return self._end(number - 1) if number else 0

    def _predictions(self, name: str, version: int | None, x: NDArray[np.floating]) -> Predictions | None:
        return None if version is None else self._models().predict(name, version, x)

    def _models(self) -> Models:
        if self.models is None:
            raise ValueError("an evaluation without a reader of models can be planned, not run")
        return self.models

    def _charge(self) -> float:
        return round_down(Fraction(self.capacity))


def planned_width(noise: CountNoise, counts: Counts, block: int) -> dict[str, float]:
    """Return how far a figure will be off, before any data: standard deviations, and half an interval of 95 %.

    For the accuracy, or for the mean error as a share of the largest, 2Y. Sampling has the largest possible variance.
    """
    cells, unit = (counts.classes, 1) if isinstance(counts, ClassCounts) else (1, UNIT)
    whole = block * unit
    both = total(noise, cells, block * 0.25 * float(unit) ** 2).quantile(_ERROR / 2) / whole
    return {
        "noise": noise.deviation() * cells**0.5 / whole,
        "sampling": 0.5 / block**0.5,
        "block": total(noise, cells).quantile(_ERROR / 2) / whole,
        "population": max(both, NormalDist().inv_cdf(1 - _ERROR / 2) * 0.5 / block**0.5),
        "confidence": 1.0 - _ERROR,
    }
