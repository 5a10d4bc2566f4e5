"""Publications made at the times of a schedule, and what their plans tell.

All times and records here are relative to the publication's start; the caller shifts them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from service.mechanisms.mechanism import Mechanism
from service.privacy.accounting.events import AddedNoise, SelectedCandidate
from service.privacy.currency import Currency, round_down
from service.privacy.noise.additive import Unaffordable

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats
    from service.schedules.schedule import Fit, Pattern, Schedule

Perturbation = AddedNoise | SelectedCandidate
"""How a fit is made private."""

_GROWS = (
    "the sensitivity is proportional to norm_bound·‖c‖ + bound, c being the released model that the fit is kept near; "
    "these are the figures for c = 0"
)


class PlannedLearner(Protocol):
    """The public part of how models are made: their `shape`, and the noise of each fit for a charge."""

    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def same_everywhere(self) -> bool:
        """Return whether a fit is perturbed alike near every centre, so that a plan can state it for all fits."""

    def perturbation(
        self, currency: Currency, charge: float, records: int, center: Floats | None = None
    ) -> Perturbation:
        """Return how a fit of n = `records` slots near `center` (0 if None) spends at most `charge`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OnSchedule(Mechanism):
    """A publication of a learner's models, made at the times of a schedule."""

    schedule: Schedule
    learner: PlannedLearner
    origin: Floats

    def next_time(self, after: int) -> int:
        """Return the first time > after at which something is released."""
        return self.schedule.next_time(after)

    def needs(self, after: int) -> int:
        """Return the oldest record that any step at a time > after may read."""
        return self.schedule.needs(after)

    def reads(self, time: int) -> int:
        """Return the most records that one fit of the step at `time` reads."""
        return max((fit.end - fit.start for fit in self.schedule.fits(time)), default=0)

    def draws(self) -> int:
        """Return the most fits that read one record, times what one of them draws."""
        return self.schedule.most_fits() * max(self._planned(pattern).draws for pattern in self.schedule.patterns())

    def slots_of(self, fit: Fit) -> int:
        """Return the n of a fit, how many slots it may read. Raises Unaffordable if there are none."""
        if slots := self.training.count(fit.start, fit.end):
            return slots
        raise Unaffordable("all slots that this fit could read are evaluation slots: use larger batches")

    def fewest_slots(self) -> int:
        """Return the least n of any fit."""
        return min(self.training.least(pattern.records) for pattern in self.schedule.patterns())

    @abstractmethod
    def planned_model(self) -> dict[str, Any]:
        """Return what a plan tells of the model and its learner, as JSON."""

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and to its models, as JSON: for a person to judge."""
        lifetime = self.schedule.lifetime()
        return {
            "kind": self.currency.value,
            "guarantee": self.guarantee(),
            "first_releases": self._first_times(),
            "model": self.planned_model(),
            "fits": self._fits(),
            "lifetime": {
                "record": lifetime.record,
                **self._loss(lifetime.share),
                "share": str(lifetime.share),
                **({} if lifetime.note is None else {"note": lifetime.note}),
                "parts": [
                    {"what": part.what, "fits": part.fits, "share": str(part.share), **self._loss(part.share)}
                    for part in lifetime.parts
                ],
            },
        }

    def _first_times(self) -> list[int]:
        times = [0]
        for _ in range(8):
            times.append(self.next_time(times[-1]))
        return times[1:]

    def _charge(self, share: Fraction) -> float:
        return round_down(share * self.capacity)

    def _loss(self, share: Fraction) -> dict[str, float]:
        return self.loss_of(share * self.capacity * self.factor)

    def _fits(self) -> list[dict[str, Any]]:
        """Return the kinds of fits as JSON."""
        return [self._pattern(pattern) for pattern in self.schedule.patterns()]

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a kind of fit as JSON; where its noise is not known in advance, with the least that it can have."""
        unknown = self.unknown(pattern)
        known = unknown is None
        noise = describe_noise(self._planned(pattern) if known else self._least(pattern))
        sensitivity = noise.pop("sensitivity")
        least = {"sensitivity": sensitivity} | {name: noise[name] for name in ("scale", "steps") if name in noise}
        if not known:
            noise |= dict.fromkeys({"scale", "steps", "expected_norm"} & noise.keys())
        return {
            "what": pattern.what,
            "when": pattern.when,
            "records": self.training.least(pattern.records),
            "share": str(pattern.share),
            "charge": self._charge(pattern.share),
            "sensitivity": sensitivity if known else None,
            "noise": noise,
            **({} if known else {"at_least": least | {"why": unknown}}),
        }

    def _planned(self, pattern: Pattern) -> Perturbation:
        return self._perturbed(pattern, self.training.least(pattern.records))

    def _least(self, pattern: Pattern) -> Perturbation:
        """Return how such a fit is perturbed where its noise is least."""
        return self._planned(pattern)

    def _perturbed(self, pattern: Pattern, records: int) -> Perturbation:
        charge, center = self._charge(pattern.share), self.origin if self._has_known_center(pattern) else None
        return self.learner.perturbation(self.currency, charge, records, center)

    def unknown(self, pattern: Pattern) -> str | None:
        """Return why the noise of such a fit is not known in advance; None: it is known."""
        return None if self._has_known_center(pattern) else _GROWS

    def _has_known_center(self, pattern: Pattern) -> bool:
        return pattern.near_origin or self.learner.same_everywhere


def describe_noise(perturbation: Perturbation) -> dict[str, Any]:
    """Return a perturbation as the JSON of a plan."""
    noise = perturbation.noise
    return perturbation.to_json() | {"expected_norm": noise.expected_norm(), "slack": noise.slack}
