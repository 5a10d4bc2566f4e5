"""Obligations of a publication, whatever it releases: when records are charged, who labels, how large fits are.

A mechanism states its obligations when its publication is created, and they are stored beside the plan. The ledger, the
workers and the API decide by them alone: a plan is text for people, and no key of a plan decides anything.

The JSON is stored and never rewritten. `version` is that of its form.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from service.privacy.accounting import events
from service.privacy.accounting.composition import Slots
from service.privacy.accounting.events import OpenedInstance, PrivacyEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1


@dataclass(frozen=True)
class WithEachRelease:
    """Each release is charged to the records that it read."""

    def to_json(self) -> dict[str, Any]:
        """Return as JSON when records are charged: with each release."""
        return {"when": "release"}


@dataclass(frozen=True)
class AtArrival:
    """Each record is charged once, at arrival, for all later releases."""

    event: PrivacyEvent

    def to_json(self) -> dict[str, Any]:
        """Return as JSON when records are charged, at arrival, and the price."""
        return {"when": "arrival", "event": self.event.to_json()}


@dataclass(frozen=True)
class OnOpening:
    """Each record is charged for every instance that opens over it or is open when it arrives; then with each release.

    `first` is the first instance. Each release says which instance follows.
    """

    first: OpenedInstance

    def to_json(self) -> dict[str, Any]:
        """Return as JSON when records are charged, and the first instance."""
        return {"when": "opening", "event": self.first.to_json()}


Charging = WithEachRelease | AtArrival | OnOpening


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """People are asked for labels: for each during `seconds`, the next person after `lease_seconds`."""

    seconds: int
    lease_seconds: int


@dataclass(frozen=True, kw_only=True)
class FitSize:
    """Sizes from which the time and the memory of a fit follow (`mechanisms.timing`)."""

    records: int
    """of the largest kind of fit, the first time; 0: nothing is fitted"""
    rows: int
    """of the model"""
    columns: int
    encoder: int
    """weights of the encoder; 0: there is none"""
    passes: int
    """how often a fit reads its records; 0: as often as they ask for"""
    descent_passes: int
    """how many of the passes take a step for few records"""
    sample: int = 0
    """how many slots at most a fit is made of, which it draws; 0: it is made of all"""
    numbers: int = 0
    """that a fit holds beside its records, each of 8 bytes; 0: few"""
    products: int = 0
    """that a fit computes beside those with its records' features; 0: few"""

    def to_json(self) -> dict[str, int]:
        """Return the sizes as they are stored; those that are optional only where they are not 0."""
        return {name: size for name, size in vars(self).items() if name not in _OPTIONAL or size}

    @classmethod
    def from_json(cls, content: Any) -> FitSize:
        """Return the sizes that JSON states; sizes of no fit for anything else.

        Estimates of fits only order work: a record that somebody changed is found where charges are looked at.
        """
        names = [field.name for field in fields(cls)]
        sizes = content if isinstance(content, dict) else {}
        return cls(**{name: size if isinstance(size := sizes.get(name), int) else 0 for name in names})


_OPTIONAL = {field.name for field in fields(FitSize) if field.default == 0}


@dataclass(frozen=True, kw_only=True)
class Obligations:
    """What a publication owes, whatever it releases; stored when it is created."""

    charging: Charging
    labelling: Labelling | None = None
    """None: people are not asked for labels."""
    cells: int | None = None
    """The number of categories, where queries are compared with records; None: there are no queries."""
    ticks: bool = True
    """Whether its steps are due at public times, so that its releases appear at public ticks."""
    slots: Slots = Slots.TRAINING
    """Which slots of a stream it reads and charges."""
    fit: FitSize
    draws: int | None = None
    """How many draws of nearly exact noise one record can move in its life; stated where publications share a slack."""
    unit: dict[str, Any] | None = None
    """The bound on units, and how many times a slot's charge counts for its unit; None: the stream has no units."""

    def to_json(self) -> dict[str, Any]:
        """Return the obligations as JSON, in the stored form."""
        stated = {name: value for name in ("draws", "unit") if (value := getattr(self, name)) is not None}
        return (
            stated
            | {
                "version": VERSION,
                "charging": self.charging.to_json(),
                "labelling": None if self.labelling is None else vars(self.labelling),
                "cells": self.cells,
                "ticks": self.ticks,
                "fit": self.fit.to_json(),
            }
            | ({} if self.slots is Slots.TRAINING else {"slots": self.slots.value})
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Obligations:
        """Return what `to_json` returned. ValueError, KeyError or TypeError if it is nothing of the kind."""
        if content["version"] != VERSION:
            raise ValueError(f"obligations of version {content['version']} are not known: use a newer release")
        labelling = content["labelling"]
        return cls(
            charging=_charging(content["charging"]),
            labelling=None if labelling is None else Labelling(**labelling),
            cells=content["cells"],
            ticks=content["ticks"],
            slots=Slots(content.get("slots", Slots.TRAINING)),
            fit=FitSize.from_json(content["fit"]),
            draws=content.get("draws"),
            unit=content.get("unit"),
        )


def _charging(content: Mapping[str, Any]) -> Charging:
    match content["when"]:
        case "release":
            return WithEachRelease()
        case "arrival":
            return AtArrival(events.from_json(content["event"]))
        case "opening":
            return OnOpening(OpenedInstance.from_json(content["event"]))
        case other:
            raise ValueError(f"records are not charged at {other}")
