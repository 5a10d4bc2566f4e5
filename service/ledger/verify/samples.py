"""How many slots and steps a release is of, and what it lets expire, recomputed from what its publication promises."""

from collections.abc import Mapping
from typing import Any

from service.privacy.accounting.events import NoisyGradientSums, NoisyRunningSums, NoisySampledWeights, PrivacyEvent
from service.privacy.noise.window_tree import WindowTree


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


def expires_as_promised(event: PrivacyEvent, configuration: Mapping[str, Any]) -> bool:
    """Return whether the noise of a release declassifies the records that its publication says, mostly none."""
    promised = configuration.get("mechanism") or {}
    factor = event.factor if isinstance(event, NoisyRunningSums) else None
    if not isinstance(factor, WindowTree):
        return bool(promised.get("expiry", "never") == "never")
    return (factor.window, factor.expiry) == (promised.get("window"), promised.get("expiry"))
