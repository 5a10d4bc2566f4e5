"""A model of all tasks so far after every batch, from private statistics that are remembered (paper D's setting).

Statement. Private: every record of the stream. Neighbours: R⊥. Released: a model after every batch of every task, for
ever. Over the whole run, whoever chooses the records adaptively, one record loses at most `capacity`: an ε or a ρ,
whatever the number of tasks, of steps and of releases.

Why. A record is in one batch of one task; both are public ranges of slots (`schedules.tasks`). It enters that batch's
statistics, and everything that is ever released is a function of their noisy estimate and of others that do not read
it: `learning.lifelong`. Its charge, the whole capacity, is for all of that, and is taken with the release of its batch.
Records that differ in every one of m tasks lose m times as much: one record is what is protected.

What a step leaves for the next is in `Part`s. They are committed with the release or not at all, and never made again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from service.learning.records import Records
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import Kept, Release, Step, numbered, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.learning.feature_maps import FeatureMap
    from service.learning.lifelong import TaskStatistics
    from service.learning.moments import InStatistics
    from service.schedules.schedule import Pattern
    from service.schedules.tasks import Tasks


@dataclass(frozen=True, kw_only=True, eq=False)
class Lifelong(LinearMechanism):
    """A publication that learns task after task."""

    schedule: Tasks
    learner: TaskStatistics
    own_map: FeatureMap
    """What is done to the stream's mapped records before they are read; part of `feature_map`."""

    def step(self, time: int, chain: Sequence[Kept], next_version: int, read: Callable[[int, int], Records]) -> Step:
        """Count the batch that ends at `time` and learn from all that is remembered; see `Mechanism.step`."""
        (fit,) = self.schedule.fits(time)
        place, slots = self.schedule.place(fit.start), fit.end - fit.start
        perturbation = self._perturbation()
        parts = parts_of(chain, self.learner.remembers(perturbation, place))
        records = read(fit.start, fit.end)
        state, model = self.learner.advance(
            tuple(part.values for part in parts),
            Records(x=self.own_map(records.x), y=records.y),
            slots,
            self.origin,
            perturbation,
            place,
        )
        release = Release(
            version=next_version,
            role=fit.role,
            time=time,
            window=fit.window,
            fit=(fit.start, fit.end),
            parent=next_version - 1 if self.learner.training == "agem" and place.number else None,
            parameters=model,
            perturbation=perturbation,
            charge=self._charge(fit.share),
        )
        return Step(releases=(release,), chain=numbered(state, parts))

    def terms(self, time: int) -> dict[str, Any] | None:
        """Return the noise, its factor and the weights: estimates with others could not be added up."""
        (fit,) = self.schedule.fits(time)
        return self._perturbation().described() if fit.start else None

    def model_description(self) -> dict[str, Any]:
        """Return all it takes to compute a prediction from released parameters, as JSON."""
        described = super().model_description()
        if self.learner.heads == "shared":
            return described
        rows, columns = self.learner.shape
        return described | {
            "heads": "per_task",
            "shape": [None, columns],
            "dimension": None,
            "rows": f"{rows} of the model of each task remembered, oldest first, then one of each task's scores: the "
            "model of the task with the largest score predicts",
        }

    def _perturbation(self) -> InStatistics:
        """Return the noise of every batch: that for the largest, since those of one run must be alike."""
        return self.learner.perturbation(self.kind, self._charge(self.schedule.lifetime().share), self.schedule.largest)

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a batch as JSON, with the pull after the first one."""
        pull = self.learner.pull(self._perturbation(), pattern.records, 1)
        told = super()._pattern(replace(pattern, records=self.schedule.largest))
        return told | {"records": pattern.records, "ridge": pull}
