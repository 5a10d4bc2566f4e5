"""Mechanisms that answer queries: an open instance compares them with the records, until a hard query closes it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.mechanisms.histogram import LinearQuery
from service.mechanisms.mechanism import Mechanism, StateLost, StatePart
from service.privacy.noise.sparse_vector import Instance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from service.mechanisms.histogram import Histogram
    from service.mechanisms.mechanism import CarriedState, Step

_LIMB = 2.0**31

NO_CATEGORY = LinearQuery.holding(np.zeros(0, dtype=np.int64))
"""A query whose answer is 0 for any records. To measure it closes an instance and leaves the histogram as it is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """The noisy answer, in [0, 1], to the query that closes an instance, and the histogram that follows from it."""

    answer: float
    moved: Histogram


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open instance, its secret threshold, and the number of slots that have paid for it."""

    number: int
    instance: Instance
    noise: int
    paid: int

    def part(self) -> StatePart:
        """Return it as what the next step starts from."""
        high, low = divmod(self.noise, int(_LIMB))
        values = np.array([self.instance.opened, self.instance.scale, high, low, self.paid], dtype=np.float64)
        return StatePart(number=self.number, values=values)


def opened(chain: Sequence[CarriedState]) -> Opened | None:
    """Return the open instance that earlier steps left; None: it is frozen. Raises StateLost if they left neither."""
    parts = [item for item in chain if isinstance(item, StatePart)]
    if len(parts) != 1 or parts[0].values.size not in (0, 5):
        raise StateLost("its threshold is not there, and can't be drawn again")
    part = parts[0]
    if part.values.size == 0:
        return None
    slots, scale, high, low, paid = part.values.tolist()
    return Opened(
        number=part.number,
        instance=Instance(opened=int(slots), scale=scale),
        noise=int(high) * int(_LIMB) + int(low),
        paid=int(paid),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class InteractiveMechanism(Mechanism):
    """A publication of one histogram over `cardinality` categories, from which queries are answered."""

    cardinality: int

    @property
    @abstractmethod
    def height(self) -> float:
        """How far off a query is that counts as hard, in parts of the slots."""

    @abstractmethod
    def measure(self, now: Opened, query: LinearQuery, counts: NDArray[np.int64], shown: Histogram) -> Measurement:
        """Measure a query with fresh noise, once for an instance, and move the histogram towards the answer.

        Args:
            now: the open instance, which this closes.
            query: the hard query; or `NO_CATEGORY`, if the instance is to be closed without one.
            counts: of the records among the first `shown.time` slots, at most `now.paid`.
            shown: the histogram as it stands there.
        """

    @abstractmethod
    def close(self, now: Opened, measurement: Measurement, spent: Fraction, next_version: int) -> Step:
        """Close an instance by its measurement: release the moved histogram and open the next instance, or freeze.

        Args:
            now: the instance, with all slots that have paid for it by now: perhaps more than were measured.
            measurement: what `measure` returned for this instance.
            spent: what the slot that has paid most has paid until now.
            next_version: of the release.
        """

    @abstractmethod
    def error_of_easy(self, instance: Instance) -> float:
        """Return how far an easy answer is from the truth at most, but for the publication's failure probability."""

    @abstractmethod
    def error_of_measured(self, instance: Instance, time: int) -> float:
        """Return the same of a measured answer over `time` slots."""
