"""The event of whole numbers that were counted and released with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from service.privacy.accounting.events.event import PrivacyEvent, count, positive
from service.privacy.noise.counts import DISTRIBUTIONS, Change, CountNoise, sensitivity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from fractions import Fraction

    from service.privacy.currency import Currency


@dataclass(frozen=True, kw_only=True)
class NoisyCounts(PrivacyEvent):
    """`noise` was added to counts; `change` bounds how many of them one record moves, and how far."""

    added_to: ClassVar[str] = "evaluation_counts"
    draws: ClassVar[int] = 0
    noise: CountNoise
    change: Change

    def dimension(self, shape: Sequence[int]) -> int:
        """Return one coordinate for each count."""
        return math.prod(shape)

    def to_json(self) -> dict[str, Any]:
        """Return the law, its scale and how one record changes the counts."""
        return {
            "distribution": DISTRIBUTIONS[self.noise.currency],
            "scale": self.noise.scale,
            "sensitivity": sensitivity(self.noise.currency, self.change),
            "dimension": self.noise.dimension,
            "added_to": self.added_to,
            "change": {"counts": self.change.counts, "largest": self.change.largest},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event that JSON states."""
        currencies = [kind for kind, name in DISTRIBUTIONS.items() if name == content["distribution"]]
        if not currencies:
            raise ValueError(f"noise of distribution {content['distribution']} is not added to counts")
        change = Change(counts=count(content["change"], "counts"), largest=count(content["change"], "largest"))
        noise = CountNoise(
            currency=currencies[0], scale=positive(content, "scale"), dimension=count(content, "dimension")
        )
        return cls(noise=noise, change=change)

    def _cost(self, currency: Currency, records: int) -> Fraction:  # noqa: ARG002
        if currency is not self.noise.currency:
            expected = DISTRIBUTIONS[currency]
            raise ValueError(f"counts have {expected} noise in this currency, not {DISTRIBUTIONS[self.noise.currency]}")
        return self.noise.cost(self.change)


@dataclass(frozen=True, kw_only=True)
class NoisyCellCounts(NoisyCounts):
    """`noise` was added to how many values of each feature are in each of some public cells."""

    added_to: ClassVar[str] = "cell_counts"
