"""The group factor of a release, computed from its noise alone, so that a verifier needs no mechanisms."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from service.privacy.accounting.carried_groups import carried, rounding_share
from service.privacy.accounting.events import (
    MeasuredQuery,
    NoisyCellCounts,
    NoisyCounts,
    NoisyDisjointGradientSums,
    NoisyGradientSums,
    NoisyRunningSums,
    NoisySelectedGradients,
    NoisyWeights,
    OpenedInstance,
    TiltedObjective,
)
from service.privacy.accounting.groups import Batching, UnitBound, group_factor, independent, shared
from service.privacy.currency import Currency

if TYPE_CHECKING:
    from service.privacy.accounting.events import PrivacyEvent
    from service.privacy.noise.correlated import Correlated

_INDEPENDENT = (
    NoisyGradientSums,
    NoisyDisjointGradientSums,
    NoisyWeights,
    TiltedObjective,
    NoisyCounts,
    NoisyCellCounts,
    NoisySelectedGradients,
)


@lru_cache(maxsize=64)
def factor_of(event: PrivacyEvent, currency: Currency, bound: UnitBound, records: int) -> Fraction:
    """Return how many times a slot's charge all slots of a unit cost together (`groups`), with one contribution a fit.

    records: how many slots the release read. ValueError for noise of which nobody has shown it.
    """
    batching = Batching(bound=bound, batch=records)
    if isinstance(event, NoisyRunningSums):
        if currency is Currency.PURE:
            return Fraction(bound.max_records)
        share = rounding_share(cast("Correlated", event.sums), event.sensitivity)
        return group_factor(carried(event.factor, batching, rounding=share))
    if isinstance(event, MeasuredQuery | OpenedInstance):
        return Fraction(bound.max_records) if currency is Currency.PURE else group_factor(shared(bound))
    if isinstance(event, _INDEPENDENT):
        return group_factor(independent(batching))
    raise ValueError("no bound is proved on what its noise costs all records of a unit together")
