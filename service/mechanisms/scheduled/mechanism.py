"""Schedule × learner × kind of guarantee: models fitted on a public schedule, each released for its charge.

Statement. Private: every record of the stream. Neighbours: R⊥, one slot's record replaced or emptied. The release is
every `Release` of the infinite run, with its noise. Over the whole run one record loses at most `capacity`, also where
an adversary chooses the records adaptively: an ε (currency PURE) or a ρ (ZCDP), hence (ε, δ).

Why. A fit reads a range fixed by the schedule alone; its centre is an earlier release, never an exact minimiser, so
given the past its output depends on that range only, also where it is made of a secret sample of the range, drawn anew
for each fit. Whether it can be made at all follows from its centre; where it can't, the fits before it at the same time
are charged and released, and the publication ends. The learner keeps to its charge, and rounds the scale of its noise
up for that; the charge is share·capacity rounded down; and the shares of the fits that read one record add up to at
most 1 in exact arithmetic. The ledger theorem (paper-audit.md L1) does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from service.inputs.refused import Refused
from service.learning.noisy_gradient_descent import FAMILY as NOISY
from service.learning.noisy_gradient_descent import NoisyGradientDescent
from service.learning.objective_perturbation import ObjectivePerturbation
from service.learning.optimization.solvers import Inaccurate
from service.learning.optimization.sums import MAX_WEIGHTS
from service.learning.output_perturbation import NoisyFit, NoisySampledFit, OutputPerturbation
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import CarriedState, Model, Release, Step
from service.mechanisms.on_schedule import OnSchedule, PlannedLearner, describe_noise
from service.mechanisms.timing import LARGE_BYTES, Workspace, bytes_at_once
from service.mechanisms.units import NotForUnits, of_fits
from service.privacy.noise.additive import Unaffordable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from fractions import Fraction

    from service.learning.linear import LinearModelLearner
    from service.learning.optimization.losses import Floats
    from service.learning.optimization.sums import Blocks
    from service.learning.records import Records
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.on_schedule import Perturbation
    from service.privacy.accounting.groups import UnitBound
    from service.schedules.schedule import Fit, Pattern

COPIES = 32  # copies of the weights that the exact solver and the noise hold at once, as measured
_TAKING_UNITS = (NoisyGradientDescent, OutputPerturbation, ObjectivePerturbation)
_OF_UNITS = (
    "the noise is for the number of units in a fit, which only its records tell; these are the figures where every "
    "slot is of another unit"
)
_STEPS_OF_UNITS = (
    "a fit of many units takes more steps, or adds up with more rounding, and only its records tell how many it has; "
    "these are the figures of a fit of one unit"
)


class Learner(PlannedLearner, Protocol):
    """Makes a model of a data set, whatever was made before."""

    def release(self, records: Any, n: int, center: Floats, perturbation: Any) -> Floats:
        """Return a model of n slots near `center`, float64 of `shape`, so perturbed: it may be released."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitting(OnSchedule):
    """A publication that fits models on a schedule, each from nothing but its records and an earlier release."""

    learner: Learner
    blocks: Callable[[int, int], Blocks] | None = None
    """Opens the records of a range block by block; None: all of them are read at once"""

    def with_blocks(self, blocks: Callable[[int, int], Blocks]) -> Fitting:
        """Return a copy that reads the records of a range block by block."""
        return replace(self, blocks=blocks)

    def step(
        self, time: int, chain: Sequence[CarriedState], next_version: int, read: Callable[[int, int], Records]
    ) -> Step:
        """Fit and release what the schedule has for `time`, in order."""
        models = [item for item in chain if isinstance(item, Model)]
        releases: list[Release] = []
        for fit in self.schedule.fits(time):
            parent = self._parent(fit, models)
            center = parent.parameters if parent else self.origin
            present = self._opened(fit) or read(fit.start, fit.end)
            charge = self._charge(fit.share)
            try:
                records = self.slots_of(fit) if present.units is None else present.units
                if not records:  # no slot of any unit counts there
                    continue
                perturbation = self.learner.perturbation(self.currency, charge, records, center)
            except (Inaccurate, Unaffordable) as refusal:
                if not releases:
                    raise
                # This depends on the centre, which was just released from records: so they are charged for it.
                return Step(releases=tuple(releases), chain=tuple(models), halts=str(refusal))
            parameters = self.learner.release(present, records, center, perturbation)
            model = Model(version=next_version + len(releases), parameters=parameters)
            models[fit.depth :] = [model]
            releases.append(
                Release(
                    version=model.version,
                    role=fit.role,
                    time=time,
                    window=fit.window,
                    fit=(fit.start, fit.end),
                    parent=parent.version if parent else None,
                    parameters=model.parameters,
                    perturbation=perturbation,
                    charge=charge,
                    model=self.described(present),
                )
            )
        return Step(releases=tuple(releases), chain=tuple(models))

    def _opened(self, fit: Fit) -> Blocks | None:
        """Return the records of a fit as blocks; None: they are read at once."""
        if self.blocks is None or not self.reads_blocks(fit.end - fit.start):
            return None
        return self.blocks(fit.start, fit.end)

    def _parent(self, fit: Fit, models: Sequence[Model]) -> Model | None:
        """Return the model of the chain that a fit stays near; None: the origin.

        On a stream with units a fit of no unit left no model, so that the chain may be shorter: then the last one.
        """
        if len(models) >= max(fit.depth, 0 if fit.near is None else fit.near + 1):
            return None if fit.near is None else models[fit.near]
        if self.unit is None:
            raise ValueError("the chain is too short for this time: steps were left out")
        return models[-1] if models and fit.near is not None else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Scheduled(Fitting, LinearMechanism):
    """A schedule of linear models."""

    learner: LinearModelLearner

    @property
    def workspace(self) -> Workspace:
        """Return the size of a fit's arrays that are as long as the weights."""
        return Workspace(numbers=COPIES * self.learner.dimension)

    def reads_blocks(self, records: int) -> bool:
        """Return whether a fit of that many slots reads blocks, by its public need of memory."""
        learner = self.learner
        able = isinstance(learner, OutputPerturbation) and learner.takes_blocks and learner.dimension <= MAX_WEIGHTS
        return able and self.unit is None and bytes_at_once(records, self.learner.shape[1]) > LARGE_BYTES

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a kind of fit as JSON, with its pull where that is known and not the same for all fits."""
        planned = self._planned(pattern)
        own = isinstance(self.learner, OutputPerturbation) and self.learner.score_noise is not None
        if not (own and isinstance(planned, NoisyFit | NoisySampledFit)) or self.unknown(pattern) is not None:
            return super()._pattern(pattern)
        return super()._pattern(pattern) | {"strong_convexity": planned.regularization}

    def check_units(self) -> None:
        """Raise NotForUnits, or Refused, unless the learner makes one contribution of all records of a unit."""
        if isinstance(self.learner, OutputPerturbation) and self.learner.sample is not None:
            raise Refused("learner.sample", "a sample is of slots, and this stream protects units: leave it out")
        if not isinstance(self.learner, _TAKING_UNITS):
            raise NotForUnits(f"fits on a schedule need a learner that units enter once: use {NOISY.kind}")

    def unknown(self, pattern: Pattern) -> str | None:
        """Return why it is not known how such a fit is perturbed: by how many units it has, where that matters."""
        if self.unit is None:
            return super().unknown(pattern)
        if not isinstance(self.learner, NoisyGradientDescent):
            return _OF_UNITS
        same = describe_noise(self._planned(pattern)) == describe_noise(self._least(pattern))
        return super().unknown(pattern) if same else _STEPS_OF_UNITS

    def _least(self, pattern: Pattern) -> Perturbation:
        """Return how such a fit is perturbed where its noise is least: gradients of the fewest units."""
        of_units = self.unit is not None and isinstance(self.learner, NoisyGradientDescent)
        return self._perturbed(pattern, 1) if of_units else super()._least(pattern)

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return m: each fit's noise is its own, whatever fits overlap, and a unit enters it once."""
        self.check_units()
        return of_fits(bound, max(pattern.records for pattern in self.schedule.patterns()))
