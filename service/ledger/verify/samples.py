"""How many slots a release was to be made of, and in how many steps, recomputed from what its publication promises."""

from collections.abc import Mapping
from typing import Any

from service.privacy.accounting.events import NoisyGradientSums, NoisySampledWeights, PrivacyEvent


def is_of_its_sample(event: PrivacyEvent, configuration: Mapping[str, Any], slots: int) -> bool:
    """Return whether a release of a range of so many slots states the sample that its publication draws, or none."""
    promised = (configuration.get("learner") or {}).get("sample")
    drawn = promised if promised is not None and promised < slots else None
    stated = event.sample if isinstance(event, NoisySampledWeights) else None
    return bool(stated == drawn)


def is_of_its_steps(event: PrivacyEvent, configuration: Mapping[str, Any]) -> bool:
    """Return whether a release states the number of steps that its publication takes; where that says none, any."""
    promised = (configuration.get("learner") or {}).get("steps")
    return promised is None or not isinstance(event, NoisyGradientSums) or bool(event.steps == promised)
