"""Schedule × learner × kind of guarantee: models fitted on a public schedule, each released for its charge.

Statement. Private: every record of the stream. Neighbours: R⊥, one slot's record replaced or emptied. What is
released: every `Release` of the infinite run, noise and all. Over the whole run, whoever chooses the records
adaptively, one record loses at most `capacity`: an ε (kind PURE) or a ρ (ZCDP), hence (ε, δ).

Why. A fit reads a range fixed by the schedule alone; its centre is an earlier release, never an exact minimiser, so
given the past its output depends on that range only. The learner keeps to its charge, and rounds the scale of its
noise up for that; the charge is share·capacity rounded down; and the shares of the fits that read one record add up to
at most 1 in exact arithmetic. The ledger theorem (paper-audit.md L1) does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import Kept, Model, Release, Step
from service.mechanisms.on_schedule import OnSchedule, PlannedLearner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.learners.linear import LinearModelLearner
    from service.learning.losses import Floats
    from service.learning.records import Records


class Learner(PlannedLearner, Protocol):
    """Makes a model of a data set, whatever was made before."""

    def release(self, records: Records, n: int, center: Floats, perturbation: Any) -> Floats:
        """Return a model of n slots near `center`, float64 of `shape`, so perturbed: it may be released."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitting(OnSchedule):
    """A publication that fits models on a schedule, each from nothing but its records and an earlier release."""

    learner: Learner

    def step(self, time: int, chain: Sequence[Kept], next_version: int, read: Callable[[int, int], Records]) -> Step:
        """Fit and release what the schedule has for `time`, in order."""
        models = [each for each in chain if isinstance(each, Model)]
        releases: list[Release] = []
        for fit in self.schedule.fits(time):
            if len(models) < max(fit.depth, 0 if fit.near is None else fit.near + 1):
                raise ValueError("the chain is too short for this time: steps were left out")
            parent = None if fit.near is None else models[fit.near]
            center = parent.parameters if parent else self.origin
            records = self.slots_of(fit)
            charge = self._charge(fit.share)
            perturbation = self.learner.perturbation(self.kind, charge, records, center)
            parameters = self.learner.release(read(fit.start, fit.end), records, center, perturbation)
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
                )
            )
        return Step(releases=tuple(releases), chain=tuple(models))


@dataclass(frozen=True, kw_only=True, eq=False)
class Scheduled(Fitting, LinearMechanism):
    """Of linear models."""

    learner: LinearModelLearner
