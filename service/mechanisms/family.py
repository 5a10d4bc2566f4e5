"""The description of a kind of mechanism. Each folder here exports a `FAMILY`, or several; `registry` lists all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.inputs.registry import Family, S
from service.streams.slots import TrainingSlots

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from service.inputs.registry import FamilySettings
    from service.learning.family import LearnerFamily
    from service.mechanisms.mechanism import Mechanism
    from service.mechanisms.privacy import Privacy
    from service.mechanisms.units import UnitTerms
    from service.privacy.currency import Currency
    from service.streams.schema import StreamSchema


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """Everything beside its own settings that a mechanism is built from."""

    stream: StreamSchema
    learner: FamilySettings | None
    privacy: Privacy
    currency: Currency
    capacity: Fraction
    start: int = 0
    """The publication's first slot, absolute."""
    unit: UnitTerms | None = None

    @property
    def promise(self) -> dict[str, Any]:
        """Return what every mechanism is constructed with."""
        return {
            "currency": self.currency,
            "capacity": self.capacity,
            "privacy": self.privacy,
            "training": TrainingSlots(evaluation=self.stream.evaluation_slots, start=self.start),
            "unit": self.unit,
            "names": self.stream.names(),
        }


def unbounded(settings: Any) -> None:
    """Return None: a model adds up the records of all batches so far."""


def any_settings(settings: Any) -> bool:  # noqa: ARG001
    """Return True."""
    return True


def no_objection(settings: Any) -> None:
    """Return None: nothing is against it."""


@dataclass(frozen=True, kw_only=True)
class MechanismFamily(Family[S]):
    """A kind of mechanism.

    | field | |
    |---|---|
    | build | makes the mechanism from its settings and all else; may raise Refused |
    | accuracy_setting | the field that is refused where double precision is too coarse; None: the learner's |
    | takes | the learners that it takes; None: any; empty: none |
    | has_ticks | its steps are due at public numbers of records |
    | asks_people | on an unlabelled stream people give labels |
    | releases_map | it releases a feature map, which other publications of the stream can name |
    | takes_features | whether it reads features that another publication releases |
    | adds_up | of how many batches, at most, a model adds up the records; None: for ever |
    | evaluates | its releases tell how good other publications are; it has their names in `of` |
    | not_evaluated | why no evaluation may count how well it predicts; None: it may |
    """

    build: Callable[[S, BuildContext], Mechanism]
    accuracy_setting: str | None = None
    takes: tuple[LearnerFamily[Any], ...] | None = None
    has_ticks: bool = True
    asks_people: bool = False
    releases_map: bool = False
    takes_features: Callable[[S], bool] = any_settings
    adds_up: Callable[[S], int | None] = unbounded
    evaluates: bool = False
    not_evaluated: Callable[[S], str | None] = no_objection

    @property
    def takes_any_learner(self) -> bool:
        """Return whether each model is a fit of records, by whichever learner."""
        return self.takes is None

    @property
    def takes_learner(self) -> bool:
        """Return whether publications of this kind need a learner."""
        return self.takes != ()
