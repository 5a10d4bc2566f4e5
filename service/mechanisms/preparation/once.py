"""A feature map that is released once, from the first N slots: what its kinds share."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from service.mechanisms.mechanism import CarriedState, Mechanism, Release, Step
from service.mechanisms.timing import LARGE_BYTES, bytes_at_once
from service.privacy.currency import round_down
from service.streams.feature_maps import followed_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.accounting.events import PrivacyEvent
    from service.streams.feature_maps import FeatureMap

NEVER = 2**61
"""A time that no stream reaches, which also fits into 64 bits when a publication's start is added."""
READ_AT_ONCE = 2**22  # numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class MapOfFirstRecords(Mechanism):
    """A publication of a feature map that is learnt from the first `records` slots. It ends with its only release."""

    of: ClassVar[str]
    what: ClassVar[str]
    """A name for the released values, for a plan."""
    records: int
    feature_map: FeatureMap
    """The maps that records went through before this reads them."""

    @abstractmethod
    def event(self) -> PrivacyEvent:
        """Return how the whole capacity is spent. Raises Unaffordable or Inaccurate."""

    @abstractmethod
    def measured(self, pieces: Iterable[NDArray[np.floating]]) -> Floats:
        """Return the noisy values to release. pieces: the records that count, arrays of shape (m, d)."""

    @abstractmethod
    def map_step(self, noisy: Floats, slots: int) -> dict[str, Any]:
        """Return the step to append to the earlier map, as JSON, computed from released values alone.

        slots: the number of slots, or of units, that were read.
        """

    @abstractmethod
    def expected(self) -> dict[str, Any]:
        """Return how rough the map is, for a plan."""

    def noise_details(self) -> dict[str, Any]:
        """Return what a plan says of the noise beside its event."""
        return {"expected_norm": None, "slack": 0.0}

    @property
    @abstractmethod
    def released_shape(self) -> list[int]:
        """Return the rows and columns that a plan shows."""

    def next_time(self, after: int) -> int:
        """Return N; after N a time that no stream reaches."""
        return self.records if after < self.records else NEVER

    def needs(self, after: int) -> int:
        """Return 0 until the first N records are read, then `after`: nothing is read again."""
        return 0 if after < self.records else after

    def reads(self, time: int) -> int:  # noqa: ARG002 - there is one
        """Return N."""
        return self.records

    def reads_blocks(self, records: int) -> bool:
        """Return whether that many slots are read in pieces, so that a plan counts the memory of one piece."""
        return self.unit is None and bytes_at_once(records, self.features) > LARGE_BYTES

    def step(
        self,
        time: int,
        chain: Sequence[CarriedState],  # noqa: ARG002
        next_version: int,
        read: Callable[[int, int], Records],
    ) -> Step:
        """Read the first N slots and release their map; see `Mechanism.step`."""
        pieces, units = self._pieces(read)
        noisy = self.measured(pieces)
        release = Release(
            version=next_version,
            role="model",
            time=time,
            window=(0, self.records),
            fit=(0, self.records),
            parent=None,
            parameters=noisy,
            perturbation=self.event(),
            charge=self._charge(),
            model=self.released_model(noisy, units),
        )
        return Step(releases=(release,), chain=(), finishes=True)

    def _pieces(self, read: Callable[[int, int], Records]) -> tuple[Iterable[NDArray[np.floating]], int | None]:
        """Return the records that count, and of how many units they are; None: of records.

        Units are read all at once: only so is it known which slots are the first of theirs.
        """
        if self.unit is None:
            return self.pieces(read), None
        records = read(0, self.records)
        return [records.one_of_each_unit().x], records.units

    def pieces(self, read: Callable[[int, int], Records]) -> Iterator[NDArray[np.floating]]:
        """Yield the records of the first N slots, a few at a time, (m, d)."""
        at_once = max(1, READ_AT_ONCE // self.features)
        for start in range(0, self.records, at_once):
            yield read(start, min(start + at_once, self.records)).x

    def released_model(self, noisy: Floats, units: int | None = None) -> dict[str, Any]:
        """Return the description of a release: the whole map from a record as it is sent, and the map's norm.

        units: of how many units the records were; None: they count by themselves.
        """
        counted = {} if units is None else {"units": units}
        step = self.map_step(noisy, self.slots if units is None else max(1, units))
        return self.model_description() | counted | {"feature_map": followed_by(self.feature_map.description, step)}

    @property
    def features(self) -> int:
        """Return the number d of features."""
        return self.feature_map.features

    @property
    def slots(self) -> int:
        """Return the number of slots that it reads."""
        return self.training.count(0, self.records)

    def draws(self) -> int:
        """Return how many draws of nearly exact noise a record moves."""
        return self.event().draws

    def plan(self) -> dict[str, Any]:
        """Return what this publication does to a record and how rough its map is, as JSON: for a person."""
        described = self.event().to_json()
        what = {"what": self.what, "share": "1"}
        return {
            "kind": self.currency.value,
            "guarantee": self.guarantee(),
            "first_releases": [self.records],
            "model": self.model_description() | {"shape": self.released_shape, "passes": 1},
            "fits": [
                what
                | {
                    "when": f"once, when {self.records} records are numbered",
                    "records": self.training.least(self.records),
                    "charge": self._charge(),
                    "sensitivity": described.pop("sensitivity"),
                    "noise": described | self.noise_details(),
                }
            ],
            "lifetime": {
                "record": 0,
                **self.loss_of(self.capacity * self.factor),
                "share": "1",
                "note": f"the first {self.records} records only",
                "parts": [what | {"fits": 1, **self.loss_of(self.capacity * self.factor)}],
            },
        } | self.expected()

    def model_description(self) -> dict[str, Any]:
        """Return the description of a release, without the map."""
        return {
            "kind": "preparation",
            "of": self.of,
            "features": self.feature_map.input_features,
            "norm_bound": math.sqrt(self.features),
        }

    def _charge(self) -> float:
        return round_down(Fraction(self.capacity))
