"""A model that says which records it wants labelled, and learns from those alone: FLSW and FLMB (paper E, 3 and 4).

Statement. Private: the records, each x and its label, given with it or later by a person, or never. Neighbours: R⊥.
Released: every iterate, for ever. Over the whole run, whoever chooses the records adaptively, one record loses at most
`capacity`: ε_s + ε_g, or a ρ of ε_s²/2 + ρ_g. The time at which an operator erased a slot is public, the same in both
neighbours; what was in it, and whether it came empty, is not. Somebody may besides see every request for a label. Then
the same holds for replacing one non-empty record by another, and no more: a slot without bytes is shown to nobody.

Why. `active_learning.active_gradient` has it, for slots in one batch each, batches that public numbers and coins alone
close, and no step for an empty batch. Here: slots are taken in order, each once; its coin is tossed with the iterate
that was released last. A batch closes when it has run over `longest` slots or holds `size` selected ones, whichever is
first:
 - `fixed_window`, FLSW: longest = size. The window is over, whatever was selected in it.
 - `fixed_batch`, FLMB: `longest` is so far off that only a batch in PATIENCE·e^-30 ever gets there; it is what bounds
   which records a later step may want.
Every slot is charged for all of that when its coin is tossed, selected or not; so a release charges nothing more.

Labels that people give. Requests are committed together with the coins, so that no coin is ever tossed twice.
Once a batch is closed, nothing is selected until each of its labels is there or was waited for long enough; then its
step is taken with the labels that came. A label that did not come adds nothing, |B| still counts it: windows are by
slot, batches by what was selected, never by what was answered. A selected slot without bytes, erased or come empty,
is one whose label does not come: it counts in |B|, and is waited for as long (`service.store.labels`). So, given its
coin, all that is released has the same law as if nobody had labelled it. The guarantee is about records, a label
being part of its own: whether it comes, and which, must not depend on the records of others. When a release comes out
does depend on who labels, and the moments are not protected.

Where it differs from paper E: the corrections of paper-audit.md 5.1, told in the modules that this one builds on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.records import Records
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.mechanism import CarriedState, Charge, Model, Release, StateLost, StatePart, Step, parts_of
from service.mechanisms.on_schedule import describe_noise
from service.mechanisms.units import of_fits
from service.privacy.accounting.obligations import AtArrival, Labelling
from service.streams.units import contributions, distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.learning.optimization.losses import Floats
    from service.mechanisms.active_learning.active_gradient import ActiveGradient
    from service.mechanisms.mechanism import Mechanism
    from service.privacy.accounting.events import NoisySelectedGradients
    from service.privacy.accounting.groups import UnitBound
    from service.privacy.accounting.obligations import Obligations

PATIENCE = 64  # times the slots that a batch takes on average at worst: it takes more with probability < e^-(30·size)
LONGEST = 2**40
AT_ONCE = 4096  # slots that are read at a time


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch that is being gathered: of the slots of [start, seen), which are selected. As secret as the records."""

    start: int
    seen: int
    selected: tuple[int, ...] = ()

    @classmethod
    def of(cls, chain: Sequence[CarriedState]) -> Batch:
        """Return the batch that earlier steps left in the chain."""
        if not chain:
            return cls(start=0, seen=0)
        (part,) = parts_of(chain, 1)
        if part.values.ndim != 1 or part.values.size < 2:
            raise StateLost("the state with the selected records is missing, and can't be drawn again")
        start, seen, *selected = (int(value) for value in part.values)
        return cls(start=start, seen=seen, selected=tuple(selected))

    def part(self, number: int) -> StatePart:
        """Return the batch as a part of the state that the next step starts from."""
        return StatePart(number=number, values=np.array([self.start, self.seen, *self.selected], dtype=np.float64))


@dataclass(frozen=True, kw_only=True, eq=False)
class ActiveLearning(LinearMechanism):
    """A publication that selects what it learns from. Its schedule is the slots that a batch runs over at most."""

    learner: ActiveGradient
    size: int
    by_window: bool
    """FLSW; else FLMB."""
    asks: bool
    """Whether labels come from people, so that a step needs those that earlier ones asked for."""
    label_seconds: int
    """Seconds for which a label is requested."""
    lease_seconds: int
    """Seconds after which another person may be asked."""

    @staticmethod
    def most_slots(learner: ActiveGradient, size: int, *, by_window: bool) -> int:
        """Return the most slots over which a batch runs."""
        if by_window:
            return size
        chance = learner.least_probability()
        return LONGEST if chance * LONGEST <= PATIENCE * size else ceil(PATIENCE * size / chance)

    def next_time(self, after: int) -> int:
        """Return the end of the window, or the next slot where coins are tossed as records arrive."""
        return self.schedule.next_time(after) if self.by_window and not self.asks else after + 1

    def taken_at(self, due: int, records: int) -> int:
        """Return the time up to which one step tosses coins at most: a window's end, or about the length of a batch."""
        if self.by_window:
            return min(records, self.schedule.next_time(due - 1))
        return min(records, due + self._at_once)

    def needs(self, after: int) -> int:
        """Return the earliest slot at which the present batch may have begun."""
        return max(0, after - self._longest)

    def reads(self, time: int) -> int:  # noqa: ARG002 - at no time more than at others
        """Return the most slots that one step reads: those of its coins, or those of the batch before them."""
        return self._longest if self.by_window else self.size + self._at_once

    def terms(self, time: int) -> dict[str, Any] | None:  # noqa: ARG002 - at no time others
        """Return the coin and the noise that the slots of a batch have been charged for."""
        return self._perturbation(1).to_json()

    def step(
        self, time: int, chain: Sequence[CarriedState], next_version: int, read: Callable[[int, int], Records]
    ) -> Step:
        """Toss the coins of slots up to `time` or until the batch is closed, and learn from it; see `Mechanism.step`.

        Where labels are asked for, the step that closes a batch releases nothing, and the next one, at the same time,
        learns from it: by then `read` has the labels that came.
        """
        batch, number = (
            Batch.of(chain),
            max((item.number for item in chain if isinstance(item, StatePart)), default=0) + 1,
        )
        weights = next((item.parameters for item in chain if isinstance(item, Model)), self.origin)
        if self._closed(batch):  # the step before asked for its labels
            return self._learnt(batch, (), weights, next_version, number, read)
        seen, requested = batch.seen, len(batch.selected)
        batch, empty = self._tossed(batch, min(time, batch.start + self._longest), weights, next_version, read)
        charges = (Charge(start=seen, stop=batch.seen, amount=self._charged_at_arrival),)
        asks = batch.selected[requested:] if self.asks else ()
        closed = self._closed(batch)
        if closed and batch.selected and not self.asks:
            return self._learnt(batch, charges, weights, next_version, number, read)
        if closed and not batch.selected:
            batch = Batch(start=batch.seen, seen=batch.seen)
        return Step(
            releases=(),
            chain=(*(item for item in chain if isinstance(item, Model)), batch.part(number)),
            charges=charges,
            reached=batch.seen,
            asks=asks,
            empty=empty if self.asks else (),
            awaits=closed and bool(batch.selected),
        )

    def _closed(self, batch: Batch) -> bool:
        full = not self.by_window and len(batch.selected) == self.size
        return full or batch.seen - batch.start == self._longest

    def _tossed(
        self, batch: Batch, time: int, weights: Floats, update: int, read: Callable[[int, int], Records]
    ) -> tuple[Batch, tuple[int, ...]]:
        """Return the batch extended to `time`, or to the slot that closes it; and which of the new slots are empty."""
        seen, selected = batch.seen, list(batch.selected)
        empty: list[int] = []
        while seen < time and (self.by_window or len(selected) < self.size):
            end = min(time, seen + AT_ONCE)
            most = None if self.by_window else self.size - len(selected)
            records = read(seen, end)
            filled = records.filled(seen, end)
            open_slots = self.training.among(seen, end)
            if records.pattern is not None:  # the other slots are empty for ever, which is public
                open_slots = records.pattern.counting
            newly, seen = self.learner.select(records, seen, end, weights, update, most, open_slots)
            selected += newly
            empty += [slot for slot in newly if slot not in filled]
        return Batch(start=batch.start, seen=seen, selected=tuple(selected)), tuple(empty)

    def _learnt(
        self,
        batch: Batch,
        charges: tuple[Charge, ...],
        weights: Floats,
        update: int,
        number: int,
        read: Callable[[int, int], Records],
    ) -> Step:
        """Return the step along the gradients of a closed batch."""
        perturbation = self._perturbation(update)
        records, count = self._gathered(batch.selected, read)
        parameters = self.learner.update(records, count, weights, self.origin, perturbation, update)
        release = Release(
            version=update,
            role="model",
            time=batch.seen,
            window=(0, batch.seen),
            fit=(batch.start, batch.seen),
            parent=update - 1 or None,
            parameters=parameters,
            perturbation=perturbation,
            charge=self._charged_at_arrival,
            at_arrival=True,
        )
        following = Batch(start=batch.seen, seen=batch.seen)
        return Step(
            releases=(release,),
            chain=(Model(version=update, parameters=parameters), following.part(number)),
            charges=charges,
            reached=batch.seen,
        )

    def _gathered(self, selected: tuple[int, ...], read: Callable[[int, int], Records]) -> tuple[Records, int]:
        """Return the selected records that are still present, and the number of their slots, or units.

        With units they have as weights what part of its unit's selected slots each is.
        """
        slots = np.array(selected)
        parts, whose, there = [], [], []
        while slots.size:
            first, near = int(slots[0]), slots[slots < slots[0] + AT_ONCE]
            end = int(near[-1]) + 1
            records = read(first, end)
            parts.append(records[np.isin(records.in_slots(first, end), near)])
            there.append(np.isin(near, records.in_slots(first, end)))
            if records.pattern is not None:
                whose.append(records.pattern.pseudonyms[near - first])
            slots = slots[near.size :]
        x, y = (np.concatenate([getattr(part, name) for part in parts]) for name in ("x", "y"))
        if not whose:
            return Records(x=x, y=y), len(selected)
        units, places = distinct(np.concatenate(whose))
        weights = contributions(places)[np.concatenate(there)]
        return Records(x=x, y=y, weights=weights, units=len(units)), len(units)

    def check_units(self) -> None:
        """Raise nothing: a unit adds the mean of its selected records' gradients to a batch."""

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return m: every coin and every batch has noise of its own."""
        return of_fits(bound, self.size)

    @property
    def _longest(self) -> int:
        return self.schedule.next_time(0)

    @property
    def _at_once(self) -> int:
        return 4 * self.size + 60

    @property
    def _charged_at_arrival(self) -> float:
        return self._charge(Fraction(1))

    def _perturbation(self, update: int) -> NoisySelectedGradients:
        return self.learner.perturbation(
            self.currency, self._charged_at_arrival, self.learner.batch, self.origin, update
        )

    def draws(self) -> int:
        """Return the number of nearly exact draws that a record moves: its batch's update; coins are exact."""
        return self._perturbation(1).draws

    @property
    def charging(self) -> AtArrival:
        """Return the charging: each record pays when its coin is tossed, for the coin and the update of its batch."""
        return AtArrival(self._perturbation(1))

    def obligations(self) -> Obligations:
        """Return the obligations: charges at arrival, and requests for labels."""
        labelling = Labelling(seconds=self.label_seconds, lease_seconds=self.lease_seconds) if self.asks else None
        return replace(super().obligations(), labelling=labelling, ticks=False)

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record, and how it asks for labels."""
        plan = super().plan()
        if not self.by_window:
            plan["first_releases"] = []  # how long a batch takes is not known in advance
        first = self.learner.selection(1)
        coin = self.currency.worth(first.loss()) / self.capacity
        plan["lifetime"]["parts"] = [
            {"what": what, "fits": 1, "share": f"{float(share):.4g}", **self._loss(share)}
            for what, share in (("its coin", coin), ("the update of its batch", 1 - coin))
        ]
        plan["arrival"] = {
            "charge": self._charged_at_arrival,
            "noise": self._perturbation(1).to_json(),
            "when": "each record when its coin is tossed, selected or not",
        }
        plan["labels"] = (
            {"from": "people", "seconds": self.label_seconds, "lease_seconds": self.lease_seconds}
            if self.asks
            else {"from": "the stream"}
        )
        plan["selection"] = {
            **first.described(),
            "loss": {"epsilon": float(first.loss())},
            "probability": {"nearest": first.most(), "farthest": first.least()},
            "least_threshold": self.learner.threshold.at(2**62),
        }
        return plan

    def _fits(self) -> list[dict[str, Any]]:
        """Return an update as JSON."""
        perturbation = self._perturbation(1)
        noise = describe_noise(perturbation)
        when = (
            f"every {self.size} records, from those of the last {self.size} that were selected"
            if self.by_window
            else f"as soon as {self.size} records are selected, from those"
        )
        return [
            {
                "what": "update",
                "when": f"{when}; at the first update its step is {self.learner.rate(perturbation, 1):.6g} long",
                "records": self.learner.batch,
                "share": "1",
                "charge": self._charged_at_arrival,
                "learning_rate": self.learner.rate(perturbation, 1),
                "sensitivity": noise.pop("sensitivity"),
                "noise": noise,
            }
        ]
