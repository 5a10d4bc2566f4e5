"""How far one record can move sums, recomputed from what their release says of them."""

from collections.abc import Mapping
from typing import Any

from service.privacy import sensitivity
from service.privacy.accounting.events import NoisySecondMoments, NoisyStatistics, PrivacyEvent


def least_sensitivity(event: PrivacyEvent, model: Mapping[str, Any]) -> float:
    """Return how far one record moves the sums that noise was added to; 0.0 where the release does not say.

    In exact arithmetic: what was stated allows for rounding too, and is more. model: the release's description.
    """
    if isinstance(event, NoisySecondMoments):
        return sensitivity.second_moments()
    if isinstance(event, NoisyStatistics):
        return sensitivity.sufficient_statistics(**vars(event.weights), codes=max(model["classes"] or 0, 2))
    return 0.0
