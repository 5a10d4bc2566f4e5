"""How many slots of its range a release was to be made of, recomputed from what its publication promises."""

from collections.abc import Mapping
from typing import Any

from service.privacy.accounting.events import NoisySampledWeights, PrivacyEvent


def is_of_its_sample(event: PrivacyEvent, configuration: Mapping[str, Any], slots: int) -> bool:
    """Return whether a release of a range of so many slots states the sample that its publication draws, or none."""
    promised = (configuration.get("learner") or {}).get("sample")
    drawn = promised if promised is not None and promised < slots else None
    stated = event.sample if isinstance(event, NoisySampledWeights) else None
    return bool(stated == drawn)
