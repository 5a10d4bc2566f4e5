"""Publications on streams with units: what all records of one unit cost together, and what a slot may be charged.

A publication promises (ε, δ) to a unit. Its capacity, an ε or a ρ, is that of the unit; a slot may be charged 1/factor
of it. The factor is m in pure ε, and g of the publication's noise in ρ (`privacy.accounting.groups`), rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from service.privacy.accounting.carried_groups import rounding_share, settled
from service.privacy.accounting.groups import Batching, UnitBound, group_factor, independent

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.privacy.accounting.events import NoisyRunningSums
    from service.privacy.noise.correlated import Correlated

_FRACTION_BITS = 40  # binary digits of a factor: charges times a factor are then exact decimals


class NotForUnits(Exception):
    """Raised where no bound is proved on what all records of one unit cost together."""


@dataclass(frozen=True, kw_only=True)
class UnitTerms:
    """The bound on a unit's records, and how often the charge of one slot counts, for one publication."""

    bound: UnitBound
    factor: Fraction
    """how many times the charge of one slot all slots of its unit count"""

    @classmethod
    def rounded(cls, bound: UnitBound, factor: Fraction) -> UnitTerms:
        """Return the terms with the factor rounded up."""
        return cls(bound=bound, factor=Fraction(ceil(factor * 2**_FRACTION_BITS), 2**_FRACTION_BITS))

    def to_json(self) -> dict[str, Any]:
        """Return the terms as JSON that `from_json` reads."""
        return vars(self.bound) | {"factor": str(self.factor)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> UnitTerms:
        """Return the terms that `to_json` wrote. ValueError, KeyError or TypeError for anything else."""
        bound = UnitBound(max_records=content["max_records"], min_separation=content["min_separation"])
        return cls(bound=bound, factor=Fraction(content["factor"]))


def of_carried_noise(
    bound: UnitBound, batch: int, planned: NoisyRunningSums, charged: Callable[[Fraction], NoisyRunningSums]
) -> Fraction:
    """Return g of noise that later batches take back, a unit having one contribution a batch.

    planned: the noise. charged: from g to the noise where a slot may be charged 1/g of the capacity.
    """

    def share_at(factor: Fraction) -> Fraction:
        noisy = charged(factor)
        return rounding_share(cast("Correlated", noisy.sums), noisy.sensitivity)

    return settled(planned.factor, Batching(bound=bound, batch=batch), share_at)


def of_fits(bound: UnitBound, records: int) -> Fraction:
    """Return g of fits with noise of their own, of at most so many slots, a unit having one contribution a fit: m."""
    return group_factor(independent(Batching(bound=bound, batch=records)))
