"""A model after every batch: steps along each batch's gradients, with the noise of running sums (paper B's setting).

Statement. Private: every record of the stream. Neighbours: R⊥. Released: the model after every batch, for ever. Over
the whole run, whoever chooses the records adaptively, one record loses at most `capacity`: an ε or a ρ. With expiry
that holds for all that is released before its batch is `declassified`, and from then on nothing does.

Why. A record is in one batch, whose slots are public. It enters one sum of clipped gradients, and everything that is
ever released is a function of that sum's noisy estimate and of others that do not read it:
`online_leader.online_gradient` and `noise.running_sums`. Its charge, the whole capacity, is for all of that, and is
taken with the first release that depends on it.

A step leaves `Part`s for the next; they are noise and iterates, secret, and committed with the release or
not at all. Lost or rolled back they may not be made again: the publication then can't go on.

Where it differs from paper B: steps are along mini-batches' gradients; the noise is `correlated`'s, whose running sums
are up to four times nearer the truth than a tree's; with a tree, a record is in ⌈log₂ W⌉ + 1 nodes and Δ is 2C, not
L + μD (paper-audit.md 2). Nothing expires unless that is asked for (`window_tree`): the guarantee is for a record's
lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import Kept, Release, Step, numbered, parts_of
from service.mechanisms.on_schedule import noise_told
from service.mechanisms.units import NotForUnits, of_carried_noise
from service.privacy.accounting import groups
from service.privacy.noise.running_sums import Doubling, moved_draws
from service.privacy.noise.window_tree import WindowTree
from service.schedules.schedule import MOST_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.learning.records import Records
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.online_leader.online_gradient import OnlineGradient
    from service.privacy.accounting.events import NoisyRunningSums
    from service.privacy.accounting.groups import UnitBound


@dataclass(frozen=True, kw_only=True, eq=False)
class OnlineLeader(LinearMechanism):
    """A publication that learns from each batch once; its schedule is the batches."""

    learner: OnlineGradient

    def step(self, time: int, chain: Sequence[Kept], next_version: int, read: Callable[[int, int], Records]) -> Step:
        """Take the step of the batch that ends at `time`; see `Mechanism.step`."""
        (fit,) = self.schedule.fits(time)
        records = fit.end - fit.start
        number = fit.start // records
        parts = parts_of(chain, self.learner.remembers(number))
        charge = self._charge(fit.share)
        perturbation = self.learner.perturbation(self.currency, charge, records, self.origin, number)
        present = read(fit.start, fit.end)
        state = self.learner.advance(
            tuple(part.values for part in parts) or self.learner.start(self.origin),
            present,
            self.slots_of(fit),
            self.origin,
            perturbation,
            number,
        )
        release = Release(
            version=next_version,
            role=fit.role,
            time=time,
            window=(0, time),
            fit=(fit.start, fit.end),
            parent=next_version - 1 if number else None,
            parameters=state[-1],
            perturbation=perturbation,
            charge=charge,
            model=self.described(present),
        )
        return Step(releases=(release,), chain=numbered(state, parts))

    def terms(self, time: int) -> dict[str, Any] | None:
        """Return the noise and the factor of the run that goes on at `time`; None where one begins."""
        (fit,) = self.schedule.fits(time)
        records = fit.end - fit.start
        number = fit.start // records
        if self.learner.runs.at(number)[1] == 0:
            return None
        return self.learner.perturbation(self.currency, self._charge(fit.share), records, self.origin, number).to_json()

    def check_units(self) -> None:
        """Raise NotForUnits where records expire, which would end the promise for their units."""
        if isinstance(self.learner.runs.at(0)[0], WindowTree):
            raise NotForUnits("no record may be declassified: leave mechanism.expiry at never")

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:
        """Return g of the noise of running sums, in which a unit has one contribution a batch."""
        self.check_units()
        runs = self.learner.runs
        if isinstance(runs, Doubling):
            return groups.group_factor(groups.shared(bound))
        return of_carried_noise(
            bound, self._batch, self.first_noise(), lambda factor: cast("OnlineLeader", charging(factor)).first_noise()
        )

    def first_noise(self) -> NoisyRunningSums:
        """Return the noise of the first step."""
        return self.learner.perturbation(self.currency, self._charge(Fraction(1)), self._batch, self.origin, 0)

    def declassified(self, time: int) -> int:
        """Return how many records' batches were in the clear, their exact sum of gradients, at `time`."""
        batch = self._batch
        factor, step = self.learner.runs.at(max(0, time // batch - 1))
        return batch * factor.declassified(step) if isinstance(factor, WindowTree) else 0

    def draws(self) -> int:
        """Return how many draws a record moves in the longest run that there can be."""
        factor, _ = self.learner.runs.at(max(0, MOST_RECORDS // self._batch - 1))
        return moved_draws(factor) if super().draws() else 0

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record, and from when on it no longer protects it."""
        plan = super().plan()
        factor, _ = self.learner.runs.at(0)
        if not isinstance(factor, WindowTree):
            return plan
        last, after = 0, "its own"
        if factor.expiry == "block":
            last, after = factor.block - 1, f"the last one of its block of {factor.block}"
        plan["lifetime"]["note"] = "until it is declassified; what it loses from then on is unbounded"
        plan["declassification"] = {
            "expiry": factor.expiry,
            "protected_releases": {"least": factor.window, "most": factor.window + last},
            "first_time": (factor.window + last + 1) * self._batch,
            "when": f"a record is declassified by the release of the batch that comes {factor.window} after {after}",
            "epsilon": None,
            "note": "from then on the record is not protected at all, by anything on this stream: what it loses is "
            "unbounded (epsilon null), and stopping the publication does not take it back",
        }
        return plan

    @property
    def _batch(self) -> int:
        (pattern,) = self.schedule.patterns()
        return pattern.records

    def _fits(self) -> list[dict[str, Any]]:
        """Return a step of each kind of run as JSON."""
        (pattern,) = self.schedule.patterns()
        charge, slots = self._charge(pattern.share), self.training.least(pattern.records)
        fits, steps = [], self.learner.strong_convexity is None
        for step in self.learner.runs.samples():
            perturbation = self.learner.perturbation(self.currency, charge, pattern.records, self.origin, step)
            noise = noise_told(perturbation)
            fits.append(
                {
                    "what": "step",
                    "when": f"every {pattern.records} records, along the gradients of the last {pattern.records}; "
                    f"from step {step + 1} on",
                    "records": slots,
                    "share": str(pattern.share),
                    "charge": charge,
                    "learning_rate": self.learner.rate(perturbation, slots) if steps else None,
                    "sensitivity": noise.pop("sensitivity"),
                    "noise": noise,
                }
            )
        return fits
