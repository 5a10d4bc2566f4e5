"""A finished step as it will be written down: by absolute record numbers, and without its mechanism.

It can be packed to bytes and back, so that a step which waits for its tick is published by any process with the same
bytes. A packed step is as secret as the records: it may never be released, and holds what the next steps remember.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from safetensors.numpy import load, save

from service.mechanisms.mechanism import Mechanism, Model, StatePart, Step
from service.store import step_records
from service.store.step_records import NewCharge, NewRelease, SavedChange, SavedState, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.store.publications import Publication
    from service.store.step_records import Values


NOTHING_LEFT = SavedChange(numbers=(), new={}, digest=None)


@dataclass(frozen=True, kw_only=True)
class PendingStep:
    """One step. `most` is what its publication may charge any record in all.

    `charges` of releases come first, in the order of those releases that have one of their own; where a release has
    none, its records paid when they arrived. `halts`: the reason why the publication ends with this step, which may
    release nothing. `finishes`: it ends with this step, since no other follows.
    """

    most: Fraction
    releases: tuple[NewRelease, ...] = ()
    at_arrival: tuple[bool, ...] = ()
    charges: tuple[NewCharge, ...] = ()
    left: SavedChange = NOTHING_LEFT
    position: int = 0
    due: int = 0
    chain: tuple[int, ...] = ()
    asks: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    awaits: bool = False
    halts: str | None = None
    finishes: bool = False

    @property
    def size(self) -> int:
        """The number of bytes that it writes."""
        written = [each.parameters.nbytes for each in self.releases]
        return sum(written) + sum(values.nbytes for values in self.left.new.values())

    def following(self, publication: Publication) -> Publication:
        """Return the publication as the next step finds it; its seal and sums are not of that state."""
        moved = self.moved(publication)
        return moved if self.halts is None else replace(moved, state="halted", reason=self.halts)

    def moved(self, publication: Publication) -> Publication:
        """Return the publication moved on by this step, still running; its seal and sums are not of that state."""
        models = [each.version for each in self.releases if each.role == "model"]
        return replace(
            publication,
            position=self.position,
            due=self.due,
            version=self.releases[-1].version if self.releases else publication.version,
            latest=max(models, default=publication.latest),
            chain=list(self.chain),
        )


def prepare(start: int, mechanism: Mechanism, step: Step, position: int) -> PendingStep:
    """Return a step of a publication that began at `start` as it will be written; `position`: the time it is for."""
    charges = [
        NewCharge(start=start + each.fit[0], stop=start + each.fit[1], version=each.version, amount=each.charge)
        for each in step.releases
        if not each.at_arrival
    ] + [
        NewCharge(start=start + each.start, stop=start + each.stop, version=None, amount=each.amount)
        for each in step.charges
    ]
    model = mechanism.model_description()
    releases = tuple(
        NewRelease(
            version=each.version,
            time=start + each.time,
            role=each.role,
            window=(start + each.window[0], start + each.window[1]),
            fit=(start + each.fit[0], start + each.fit[1]),
            parent=each.parent,
            parameters=each.parameters,
            model=model if each.model is None else each.model,
            noise=each.perturbation.to_json(),
        )
        for each in step.releases
    )
    reached = position if step.reached is None else step.reached
    following = reached if step.awaits else mechanism.next_time(reached)
    remembered = {each.number: each.values for each in step.chain if isinstance(each, StatePart)}
    memory = step_records.remembered(remembered, mechanism.terms(following))
    return PendingStep(
        most=mechanism.capacity,
        releases=releases,
        at_arrival=tuple(each.at_arrival for each in step.releases),
        charges=tuple(charges),
        left=SavedChange(numbers=tuple(remembered), new=remembered, digest=memory.digest),
        position=reached,
        due=start + following,
        chain=tuple(each.version for each in step.chain if isinstance(each, Model)),
        asks=tuple(start + each for each in step.asks),
        empty=tuple(start + each for each in step.empty),
        awaits=step.awaits,
        halts=step.halts,
        finishes=step.finishes,
    )


def halting(publication: Publication, reason: str) -> PendingStep:
    """Return the end of a publication as a step of its own, so that it is seen at a tick like any other."""
    return PendingStep(
        most=Fraction(0),
        position=publication.position,
        due=publication.due,
        chain=tuple(publication.chain),
        halts=reason,
    )


_PLAIN = ("at_arrival", "position", "due", "chain", "asks", "empty", "awaits", "halts", "finishes")
_RELEASE = ("version", "time", "role", "window", "fit", "parent", "model", "noise")


def packed(step: PendingStep, known: Mapping[int, Values]) -> bytes:
    """Return it as bytes. known: parts that are stored already, by their numbers; they are not packed again."""
    arrays = {f"release {index}": each.parameters for index, each in enumerate(step.releases)}
    arrays |= {f"part {number}": values for number, values in step.left.new.items() if number not in known}
    content: dict[str, Any] = {name: getattr(step, name) for name in _PLAIN}
    content |= {
        "most": str(step.most),
        "releases": [{name: getattr(each, name) for name in _RELEASE} for each in step.releases],
        "charges": [vars(each) for each in step.charges],
        "parts": step.left.numbers,
        "digest": step.left.digest,
    }
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    metadata = {"step": to_json(content | {"shapes": shapes})}
    return save({name: array.astype("<f8").reshape(-1) for name, array in arrays.items()}, metadata)


def unpacked(content: bytes) -> PendingStep:
    """Return what was packed."""
    length = int.from_bytes(content[:8], "little")
    step = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["step"])
    arrays = {name: array.reshape(step["shapes"][name]) for name, array in load(content).items()}
    releases = tuple(
        NewRelease(
            **each | {"window": tuple(each["window"]), "fit": tuple(each["fit"])},
            parameters=arrays[f"release {index}"],
        )
        for index, each in enumerate(step["releases"])
    )
    new = {number: arrays[name] for number in step["parts"] if (name := f"part {number}") in arrays}
    step.setdefault("finishes", False)  # an older version parked it
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value := step[name], list) else value for name in _PLAIN}
    return PendingStep(
        most=Fraction(step["most"]),
        releases=releases,
        charges=tuple(NewCharge(**each) for each in step["charges"]),
        left=SavedChange(numbers=tuple(step["parts"]), new=new, digest=step["digest"]),
        **plain,
    )


def remembered_after(memory: SavedState, steps: list[PendingStep]) -> SavedState:
    """Return what a publication remembers after steps that follow on from what it remembers now."""
    for step in steps:
        if step.left.digest is not None:
            have = {**memory.parts, **step.left.new}
            memory = SavedState(parts={number: have[number] for number in step.left.numbers}, digest=step.left.digest)
    return memory
