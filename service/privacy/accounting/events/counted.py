"""The event in which whole numbers were released with noise (`noise.counts`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from service.privacy.accounting.events.event import PrivacyEvent, count, positive
from service.privacy.noise.counts import DISTRIBUTIONS, Change, CountNoise, sensitivity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from service.privacy.loss import Kind


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(PrivacyEvent):
    """`noise` was added to counts, of which one record changes as many, and each as much, as `change` says."""

    added_to: ClassVar[str] = "evaluation_counts"
    draws: ClassVar[int] = 0
    noise: CountNoise
    change: Change

    def dimension(self, shape: Sequence[int]) -> int:
        """Return one coordinate for each count."""
        return math.prod(shape)

    def to_json(self) -> dict[str, Any]:
        """Return the noise, the sensitivity that it is scaled to, and how many counts a record changes."""
        return {
            "distribution": DISTRIBUTIONS[self.noise.kind],
            "scale": self.noise.scale,
            "sensitivity": sensitivity(self.noise.kind, self.change),
            "dimension": self.noise.dimension,
            "added_to": self.added_to,
            "change": {"counts": self.change.counts, "largest": self.change.largest},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event that JSON states."""
        kinds = [kind for kind, name in DISTRIBUTIONS.items() if name == content["distribution"]]
        if not kinds:
            raise ValueError(f"counts have no noise of distribution {content['distribution']}")
        noise = CountNoise(kind=kinds[0], scale=positive(content, "scale"), dimension=count(content, "dimension"))
        change = Change(counts=count(content["change"], "counts"), largest=count(content["change"], "largest"))
        return cls(noise=noise, change=change)

    def _cost(self, currency: Kind, records: int) -> Fraction:  # noqa: ARG002
        if currency is not self.noise.kind:
            stated, expected = DISTRIBUTIONS[self.noise.kind], DISTRIBUTIONS[currency]
            raise ValueError(f"counts have {expected} noise in this currency, not {stated}")
        return self.noise.cost(self.change)
