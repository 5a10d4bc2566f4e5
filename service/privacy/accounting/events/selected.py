"""Events in which noise decided what was released: which candidate, and which query of a growing database."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

from service.privacy.accounting.events.event import PrivacyEvent, count, noise_to_json, positive
from service.privacy.noise import numeric_sparse
from service.privacy.noise.exponential import ExponentialSelection
from service.privacy.noise.sparse_vector import STEPS, Instance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.privacy.currency import Currency

_NO_CANDIDATE = "a candidate is selected by the exponential mechanism, for errors that a record moves by 1/n"
_NO_QUERY = "a measured query has another noise, or another sensitivity, in this currency"


@dataclass(frozen=True, kw_only=True)
class SelectedCandidate(PrivacyEvent):
    """`noise` selected one of many candidates, whose errors one record moves by at most `sensitivity`."""

    added_to: ClassVar[str] = "candidates"
    draws: ClassVar[int] = 0
    noise: ExponentialSelection
    sensitivity: float

    def dimension(self, shape: Sequence[int]) -> int:
        """Return one coordinate for each parameter."""
        return math.prod(shape)

    def to_json(self) -> dict[str, Any]:
        """Return the law of the selection, its scale and the sensitivity of errors."""
        return noise_to_json(self.noise, self.sensitivity) | {"added_to": self.added_to}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event that JSON states."""
        if content["distribution"] != ExponentialSelection.distribution:
            raise ValueError(_NO_CANDIDATE)
        noise = ExponentialSelection(scale=positive(content, "scale"), dimension=count(content, "dimension"))
        return cls(noise=noise, sensitivity=positive(content, "sensitivity"))

    def _cost(self, currency: Currency, records: int) -> Fraction:
        if Fraction(self.sensitivity) * records < 1:
            raise ValueError(_NO_CANDIDATE)
        return Fraction(self.noise.charge(currency, self.sensitivity))


@dataclass(frozen=True, kw_only=True)
class MeasuredQuery(PrivacyEvent):
    """A hard query was measured: a count of which a record weighs at most STEPS, with noise of that scale.

    The step closed an instance of the sparse vector technique and opened another, or none. These events together say
    how much each record had to be charged while each instance was open.
    """

    added_to: ClassVar[str] = "query"
    draws: ClassVar[int] = 0
    currency: Currency
    """It has its law of noise from the currency in which it is charged."""
    scale: float
    closed: Instance
    opened: Instance | None

    def dimension(self, shape: Sequence[int]) -> int:  # noqa: ARG002
        """Return 1: one count was measured, all else follows from it."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """Return the noise of the count and both instances. One slot moves the count by `sensitivity` steps."""
        return {
            "distribution": numeric_sparse.DISTRIBUTIONS[self.currency],
            "scale": self.scale,
            "sensitivity": STEPS,
            "dimension": 1,
            "added_to": self.added_to,
            "instance": vars(self.closed),
            "next": None if self.opened is None else vars(self.opened),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event that JSON states."""
        currencies = [kind for kind, name in numeric_sparse.DISTRIBUTIONS.items() if name == content["distribution"]]
        if not currencies or content["sensitivity"] != STEPS:
            raise ValueError(_NO_QUERY)
        closed, following = _instance(content["instance"]), content["next"]
        opened = None if following is None else _instance(following)
        return cls(currency=currencies[0], scale=positive(content, "scale"), closed=closed, opened=opened)

    def _cost(self, currency: Currency, records: int) -> Fraction:  # noqa: ARG002
        if currency is not self.currency:
            raise ValueError(_NO_QUERY)
        return numeric_sparse.cost(currency, self.scale)


@dataclass(frozen=True, kw_only=True)
class OpenedInstance(PrivacyEvent):
    """An instance of the sparse vector technique compares queries with records until its first yes."""

    added_to: ClassVar[str] = "comparisons"
    draws: ClassVar[int] = 0
    instance: Instance

    def dimension(self, shape: Sequence[int]) -> int:  # noqa: ARG002
        """Raise ValueError: comparisons release no parameters."""
        raise ValueError("comparisons release no parameters")

    def to_json(self) -> dict[str, Any]:
        """Return over how many slots the instance opened, and its scale."""
        return {"added_to": self.added_to, **vars(self.instance)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event that JSON states."""
        return cls(instance=_instance(content))

    def _cost(self, currency: Currency, records: int) -> Fraction:  # noqa: ARG002
        return numeric_sparse.cost_of_opening(currency, self.instance)


def _instance(content: Mapping[str, Any]) -> Instance:
    """Return the instance of the sparse vector technique that JSON states."""
    try:
        return Instance(opened=count(content, "opened"), scale=positive(content, "scale"))
    except (KeyError, TypeError) as problem:
        raise ValueError(f"the instance lacks something, or something is of another type: {problem}") from None
