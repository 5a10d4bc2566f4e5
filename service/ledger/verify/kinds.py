"""Which events a publication's releases may state: the same noise costs less of another kind, or lets records expire.

How far a record moves what noise is added to is recomputed for some kinds (`sensitivities`, `counted`), and taken as
stated for others. So which kind it is must follow from what the publication promises.
"""

from collections.abc import Mapping
from typing import Any

from service.privacy.accounting.events import (
    MeasuredQuery,
    NoisyCellCounts,
    NoisyCounts,
    NoisyDisjointGradientSums,
    NoisyGradientSums,
    NoisyRunningSums,
    NoisySampledWeights,
    NoisySecondMoments,
    NoisySelectedGradients,
    NoisyStatistics,
    NoisyWeights,
    PrivacyEvent,
    SelectedCandidate,
    TiltedObjective,
)
from service.privacy.noise.window_tree import WindowTree

Kinds = Mapping[str, tuple[type[PrivacyEvent], ...]]

OF_MECHANISMS: Kinds = {
    "active_learning": (NoisySelectedGradients,),
    "evaluation": (NoisyCounts,),
    "lifelong": (NoisyStatistics, NoisyDisjointGradientSums),
    "linear_queries": (MeasuredQuery,),
    "online_leader": (NoisyRunningSums,),
    "preparation": (NoisyCellCounts, NoisySecondMoments),
    "window_statistics": (NoisyStatistics,),
}
OF_LEARNERS: Kinds = {
    "noisy_gradient_descent": (NoisyGradientSums,),
    "objective_perturbation": (TiltedObjective,),
    "output_perturbation": (NoisyWeights, NoisySampledWeights),
    "small_database": (SelectedCandidate,),
}
"""With all other mechanisms the learner decides."""


def is_of_its_kind(event: PrivacyEvent, configuration: Mapping[str, Any]) -> bool:
    """Return whether a release states an event that its publication makes; where that says none, any."""
    mechanism, learner = ((configuration.get(name) or {}).get("kind", "") for name in ("mechanism", "learner"))
    made = OF_MECHANISMS.get(mechanism) or OF_LEARNERS.get(learner)
    return made is None or type(event) in made


def expires_as_promised(event: PrivacyEvent, configuration: Mapping[str, Any]) -> bool:
    """Return whether the noise of a release declassifies the records that its publication says, mostly none."""
    promised = configuration.get("mechanism") or {}
    factor = event.factor if isinstance(event, NoisyRunningSums) else None
    if not isinstance(factor, WindowTree):
        return bool(promised.get("expiry", "never") == "never")
    return (factor.window, factor.expiry) == (promised.get("window"), promised.get("expiry"))
