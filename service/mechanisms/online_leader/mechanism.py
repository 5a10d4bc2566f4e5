"""A model after every batch: steps along each batch's gradients, with the noise of running sums (paper B's setting).

Statement. Private: every record of the stream. Neighbours: R⊥. Released: the model after every batch, for ever. Over
the whole run, whoever chooses the records adaptively, one record loses at most `capacity`: an ε or a ρ. With expiry
that holds for all that is released before its batch is `declassified`, and from then on nothing does.

Why. A record is in one batch, whose slots are public. It enters one sum of clipped gradients, and everything that is
ever released is a function of that sum's noisy estimate and of others that do not read it:
`online_leader.online_gradient` and `noise.running_sums`. Its charge, the whole capacity, is for all of that, and is
taken with the first release that depends on it.

With several `steps` a batch's slots are split, by their numbers alone, into as many parts, and each step is along the
gradients of one. All above holds of parts in the place of batches: a record is in one part, so it enters one sum. Fewer
models are released than steps are made, which shows less. A run of steps begins with a batch: either the run never
ends, or its number of steps is a power of two, as the batch's is.

A step leaves `StatePart`s for the next; they are noise and iterates, secret, and committed with the release or
not at all. Lost or rolled back they may not be made again: the publication then can't go on.

Where it differs from paper B: steps are along mini-batches' gradients; the noise is `correlated`'s, whose running sums
are up to four times nearer the truth than a tree's; with a tree, a record is in ⌈log₂ W⌉ + 1 nodes and Δ is 2C, not
L + μD (paper-audit.md 2). Nothing expires unless that is asked for (`window_tree`): the guarantee is for a record's
lifetime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import CarriedState, Release, Step, numbered, parts_of
from service.mechanisms.on_schedule import describe_noise
from service.mechanisms.units import NotForUnits, of_carried_noise
from service.privacy.accounting import groups
from service.privacy.noise.running_sums import Doubling, moved_draws
from service.privacy.noise.window_tree import WindowTree
from service.schedules.schedule import MAX_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.learning.records import Records
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.online_leader.online_gradient import OnlineGradient, State
    from service.privacy.accounting.events import NoisyRunningSums
    from service.privacy.accounting.groups import UnitBound
    from service.schedules.schedule import Fit

# Publications that run with `auto` go by these for ever: with others they would halt (`terms`).
STEPS = (1, 2, 4, 8, 16)
NOISE = 1.0  # the largest noise in the mean gradient of a part, in clipped gradients, that `auto` accepts
PART = 125  # the least records of a part


@dataclass(frozen=True, kw_only=True, eq=False)
class OnlineLeader(LinearMechanism):
    """A publication that learns from each batch once; its schedule is the batches."""

    learner: OnlineGradient
    steps: int = 1
    """of a batch, one after another, each along the gradients of its own part: a power of two"""

    def step(
        self, time: int, chain: Sequence[CarriedState], next_version: int, read: Callable[[int, int], Records]
    ) -> Step:
        """Take the steps of the batch that ends at `time`; see `Mechanism.step`."""
        (fit,) = self.schedule.fits(time)
        number = fit.start // self._batch * self.steps
        parts = parts_of(chain, self.learner.remembers(number))
        perturbation = self._noise(number)
        state: State = tuple(part.values for part in parts) or self.learner.start(self.origin)
        ranges = self._ranges(fit)
        slots = [self.slots_of(part) for part in ranges]
        present = read(fit.start, fit.end)
        for index, (part, n) in enumerate(zip(ranges, slots, strict=True)):
            own = present if self.steps == 1 else present.between(part.start, part.end, fit.start, fit.end)
            state = self.learner.advance(state, own, n, self.origin, perturbation, number + index)
        release = Release(
            version=next_version,
            role=fit.role,
            time=time,
            window=(0, time),
            fit=(fit.start, fit.end),
            parent=next_version - 1 if fit.start else None,
            parameters=state[-1],
            perturbation=perturbation,
            charge=self._charge(fit.share),
            model=self.described(present),
        )
        return Step(releases=(release,), chain=numbered(state, parts))

    def terms(self, time: int) -> dict[str, Any] | None:
        """Return the noise and the factor of the run that continues at `time`; None where a run begins."""
        (fit,) = self.schedule.fits(time)
        number = fit.start // self._batch * self.steps
        return self._noise(number).to_json() if self.learner.runs.at(number)[1] else None

    def fewest_slots(self) -> int:
        """Return the least n of any step."""
        return self.training.least(self._batch // self.steps)

    def check_units(self) -> None:
        """Raise NotForUnits where records expire, or where a unit might have several contributions to a batch."""
        if isinstance(self.learner.runs.at(0)[0], WindowTree):
            raise NotForUnits("no record may be declassified: leave mechanism.expiry at never")
        if self.steps > 1:
            raise NotForUnits("a unit has one contribution a batch, which is one step: leave mechanism.steps out")

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
        return self._noise(0)

    def most_steps(self) -> int:
        """Return how many steps `auto` makes of a batch: as many as noise allows; from public quantities alone.

        A step of n slots goes along their mean gradient, with noise of length ‖z‖/n, z hardly depending on n. More
        steps come nearer to a batch's minimiser, as long as noise and the draw of a part are not longer than that
        gradient (`benchmarks.defaults`).
        """
        needed = max(PART, self.first_noise().noise.expected_norm() / (NOISE * self.learner.longest))
        return max(steps for steps in STEPS if steps == 1 or self.training.least(self._batch // steps) >= needed)

    def declassified(self, time: int) -> int:
        """Return how many records, the first ones, are declassified at `time`: their exact gradient sums are public."""
        batch = self._batch
        factor, step = self.learner.runs.at(max(0, time // batch - 1))
        return batch * factor.declassified(step) if isinstance(factor, WindowTree) else 0

    def draws(self) -> int:
        """Return the number of draws that a record moves in the longest possible run."""
        factor, _ = self.learner.runs.at(max(0, self.steps * (MAX_RECORDS // self._batch) - 1))
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

    def _ranges(self, fit: Fit) -> list[Fit]:
        """Return the fit's parts, in order: by the numbers of slots alone, whichever of them hold records."""
        ends = [fit.start + index * (fit.end - fit.start) // self.steps for index in range(self.steps + 1)]
        return [replace(fit, start=start, end=end) for start, end in pairwise(ends)]

    def _noise(self, step: int) -> NoisyRunningSums:
        """Return the noise of step number `step`, counted over all batches: that of the longest part of a batch."""
        longest = -(-self._batch // self.steps)
        return self.learner.perturbation(self.currency, self._charge(Fraction(1)), longest, self.origin, step)

    def _fits(self) -> list[dict[str, Any]]:
        """Return a step of each kind of run as JSON."""
        slots, along = self.fewest_slots(), f"the last {self._batch}"
        if self.steps > 1:
            along = f"a part of the last {self._batch}, {self.steps} steps one after another"
        fits, follows = [], self.learner.strong_convexity is not None
        for step in self.learner.runs.samples():
            perturbation = self._noise(step)
            noise = describe_noise(perturbation)
            fits.append(
                {
                    "what": "step",
                    "when": f"every {self._batch} records, along the gradients of {along}; from step {step + 1} on",
                    "records": slots,
                    **({} if self.steps == 1 else {"steps": self.steps}),
                    "share": "1",
                    "charge": self._charge(Fraction(1)),
                    "learning_rate": None if follows else self.learner.rate(perturbation, slots),
                    "sensitivity": noise.pop("sensitivity"),
                    "noise": noise,
                }
            )
        return fits
