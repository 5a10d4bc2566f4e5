"""The interface of a mechanism: steps at public times, each from records and the state of earlier steps.

A mechanism is pure: it reads no clock, no socket and no database. All times and records are relative to the
publication's start; the caller shifts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from service.mechanisms.timing import Workspace, fit_size
from service.mechanisms.units import NotForUnits
from service.privacy.accounting.composition import Slots
from service.privacy.accounting.obligations import Obligations, WithEachRelease
from service.privacy.currency import Currency, round_down, round_up, zcdp_epsilon
from service.privacy.noise.sampler_distance import added_delta
from service.streams.names import UNNAMED
from service.streams.slots import ALL_SLOTS, TrainingSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from decimal import Decimal

    from service.learning.optimization.losses import Floats
    from service.learning.optimization.sums import Blocks
    from service.learning.records import Records
    from service.mechanisms.privacy import Privacy
    from service.mechanisms.released_models import Models
    from service.mechanisms.units import UnitTerms
    from service.privacy.accounting.events import PrivacyEvent
    from service.privacy.accounting.groups import UnitBound
    from service.privacy.accounting.obligations import Charging
    from service.schedules.schedule import Role
    from service.streams.names import Names


class StateLost(Exception):
    """Raised where saved state of earlier steps is missing or changed: lost noise can't be drawn again, so it halts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A released model that later fits may start from."""

    version: int
    parameters: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class StatePart:
    """A piece of what a mechanism has to remember, written once: values as secret as the records, numbered by age."""

    number: int
    values: Floats


CarriedState = Model | StatePart


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """One noisy model. Everything in it is public; ranges are relative to the publication's start."""

    version: int
    role: Role
    time: int
    window: tuple[int, int]
    fit: tuple[int, int]
    parent: int | None
    parameters: Floats
    perturbation: PrivacyEvent
    charge: float
    at_arrival: bool = False
    """Whether its records were charged at arrival; the last charge ends where `fit` ends."""
    model: dict[str, Any] | None = None
    """The description with which to use it, as JSON; None: the mechanism's `model_description`."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The price that each record of [start, stop) pays for being there, whatever is released; relative to the start."""

    start: int
    stop: int
    amount: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of one step, committed as a whole.

    Releases in order, each with its charge; then charges of records at arrival; and the chain that the next step starts
    from.
    """

    releases: tuple[Release, ...]
    chain: tuple[CarriedState, ...]
    charges: tuple[Charge, ...] = ()
    reached: int | None = None
    """The record up to which the step went, if that is earlier than the requested time."""
    asks: tuple[int, ...] = ()
    """Records whose labels are asked for, counted from the start."""
    empty: tuple[int, ...] = ()
    """The records in `asks` whose slots are empty, so that nobody can be shown them."""
    awaits: bool = False
    """Whether the next step, at the same time, has to wait until every label asked for has come or can't come."""
    finishes: bool = False
    """Whether the publication ends with this step, which frees its reserves on later records."""
    halts: str | None = None
    """Why the publication halts with this step: the remaining fits due at its time can't be made."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism(ABC):
    """A publication as it runs."""

    currency: Currency
    capacity: Fraction
    """The most that a record may lose, in the currency `kind`; with units, the most that a slot may be charged."""
    privacy: Privacy
    training: TrainingSlots = ALL_SLOTS
    """The slots of a range that it may fit; it reads the records of these slots only."""
    unit: UnitTerms | None = None
    reads_models: ClassVar[bool] = False
    """Whether a step reads what other publications released, and its records in pieces."""
    names: Names = UNNAMED
    """Names of the stream's columns and classes, for the description of a model."""

    @abstractmethod
    def next_time(self, after: int) -> int:
        """Return the first time > after at which there is a step to take."""

    def taken_at(self, due: int, records: int) -> int:  # noqa: ARG002 - by default at its own time
        """Return the time up to which the step due at `due` is taken, `records` ≥ `due` being numbered."""
        return due

    def is_ready(self, time: int) -> bool:  # noqa: ARG002 - by default a step needs records alone
        """Return whether other publications have released everything that the step at `time` needs."""
        return True

    @abstractmethod
    def needs(self, after: int) -> int:
        """Return the oldest record that any step at a time > after may read."""

    def declassified(self, time: int) -> int:  # noqa: ARG002 - of most mechanisms, never any
        """Return how many of the first records the releases up to `time` have declassified.

        time: 0, or one at which something is released. Those records' loss is unbounded. The number never falls.
        """
        return 0

    def terms(self, time: int) -> dict[str, Any] | None:  # noqa: ARG002 - of most, every step stands for itself
        """Return what the step at `time` must have in common with the one before it, as JSON; None: nothing.

        A record's charge covers later steps only while they go on as was reckoned with then. The store keeps these
        beside what a step left, and lets no other version of this code go on where it says otherwise.
        """
        return None

    @abstractmethod
    def reads(self, time: int) -> int:
        """Return the most records that one fit of the step at `time` reads."""

    def reads_blocks(self, records: int) -> bool:  # noqa: ARG002
        """Return whether a fit of that many slots reads them block by block, so that they are never all in memory."""
        return False

    def with_models(self, models: Models) -> Mechanism:  # noqa: ARG002 - most read none
        """Return a copy with a reader of the models that other publications released."""
        return self

    def with_blocks(self, blocks: Callable[[int, int], Blocks]) -> Mechanism:  # noqa: ARG002 - most read none
        """Return a copy that can read the records of a range block by block."""
        return self

    @abstractmethod
    def step(
        self, time: int, chain: Sequence[CarriedState], next_version: int, read: Callable[[int, int], Records]
    ) -> Step:
        """Make and release what there is for `time`, in order.

        chain: what the step before returned, () at the start. next_version: of the first release made here.
        read(start, end): the records still present in a range. Raises Inaccurate where double precision cannot
        certify a fit, Unaffordable where no noise is large enough, and StateLost: all before anything is drawn, and so
        of public reasons alone. Models that are drawn are returned, and so charged, also where the rest of the step
        can't be made (`Step.halts`). A step is run once: what it returns is published or lost, never drawn again.
        """

    @abstractmethod
    def draws(self) -> int:
        """Return how many draws of nearly exact noise one record can move, over the publication's whole life."""

    @abstractmethod
    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and to its releases, as JSON: for a person to judge."""

    @property
    def charging(self) -> Charging:
        """Return when a record is charged, and for what: by default with each release that reads it."""
        return WithEachRelease()

    @property
    def reads_slots(self) -> Slots:
        """Return the kind of slots that it reads and charges: training slots, except for evaluations."""
        return Slots.TRAINING

    @property
    def workspace(self) -> Workspace:
        """Return the memory and work of a fit that do not grow with its records; by default little."""
        return Workspace()

    def obligations(self) -> Obligations:
        """Return the obligations of a publication, which are stored when it is created."""
        unit = None if self.unit is None else self.unit.to_json()
        size = fit_size(self.plan(), self.workspace)
        return Obligations(charging=self.charging, slots=self.reads_slots, fit=size, unit=unit)

    def check_units(self) -> None:
        """Raise NotForUnits unless a fit or batch makes one contribution of all records of a unit."""
        raise NotForUnits("use a mechanism of running sums, which each unit enters once")

    def group_factor(self, bound: UnitBound, charging: Callable[[Fraction], Mechanism]) -> Fraction:  # noqa: ARG002
        """Return how many times the ρ of one slot all slots of a unit cost together. Raises NotForUnits.

        charging: this mechanism, where a slot may be charged so small a part of the capacity.
        """
        self.check_units()
        raise NotForUnits("it is not known what its records cost together: use a mechanism of running sums")

    @property
    def factor(self) -> Fraction:
        """Return how many times the charge of one slot counts."""
        return Fraction(1) if self.unit is None else self.unit.factor

    @property
    def draws_of_a_unit(self) -> int:
        """Return how many draws of nearly exact noise one record, or all of a unit, can move."""
        return self.draws() * (1 if self.unit is None else self.unit.bound.max_records)

    def described(self, records: Records | Blocks) -> dict[str, Any] | None:
        """Return the model of a release with the number of units that it is of; None: the stream has no units."""
        return None if records.units is None else self.model_description() | {"units": records.units}

    def guarantee(self) -> dict[str, Any]:
        """Return the promise to one record, or to all records of one unit, as JSON."""
        units = {} if self.unit is None else {"unit": self.unit.to_json()}
        return units | {
            "neighbours": "one record replaced by any other, or by none" if self.unit is None else _NEIGHBOURS,
            "epsilon": _number(self.privacy.epsilon),
            "delta": _number(self.privacy.delta),
            "capacity": float(self.capacity * self.factor),
            "currency": "epsilon" if self.currency is Currency.PURE else "rho",
            "sampling": {
                "draws": (draws := self.draws_of_a_unit),
                "delta": round_up(added_delta(Fraction(self.privacy.epsilon), draws)),
            },
        }

    def loss_of(self, amount: Fraction) -> dict[str, float]:
        """Return an amount of the currency, rounded up, and of a ρ also the ε that it implies at δ: for a plan."""
        rounded = round_up(amount)
        if self.currency is Currency.PURE:
            return {"epsilon": rounded}
        return {"rho": rounded, "epsilon": zcdp_epsilon(rounded, round_down(Fraction(self.privacy.delta)))}

    @abstractmethod
    def model_description(self) -> dict[str, Any]:
        """Return the description by which releases are used, as JSON; a release's own description comes first."""


def parts_of(chain: Sequence[CarriedState], needed: int) -> list[StatePart]:
    """Return the parts of the state that earlier steps saved. Raises StateLost unless their number is as needed."""
    parts = [item for item in chain if isinstance(item, StatePart)]
    if len(parts) != needed:
        raise StateLost("the saved state of its earlier steps is missing, and can't be made again")
    return parts


def numbered(state: Sequence[Floats], parts: Sequence[StatePart]) -> tuple[StatePart, ...]:
    """Return the state as parts with rising numbers; an unchanged array keeps the number of its earlier part."""
    known = {id(part.values): part.number for part in parts}
    number, newest = 0, max(known.values(), default=0)
    changed: list[StatePart] = []
    for values in state:
        number, before = known.get(id(values), 0), number
        if number <= before:
            number = newest = newest + 1
        changed.append(StatePart(number=number, values=values))
    return tuple(changed)


_NEIGHBOURS = (
    "all records of one unit, of which max_records count, each replaced by any other or by none; public: which records "
    "are of one unit"
)


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)
