"""Privacy events: how a release used the records that it read, and the cost; a class for each way.

| `added_to` | class | what was released | its cost |
|---|---|---|---|
| weights | `NoisyWeights` | values and noise | the noise's charge for the values' sensitivity |
| sampled_weights | `NoisySampledWeights` | the same, of a secret sample of the slots | `sampling.cost_of_sample` |
| gradient_sums | `NoisyGradientSums` | `steps` sums of gradients, each with noise of its own | `steps` times the same |
| disjoint_gradient_sums | `NoisyDisjointGradientSums` | a sum for each batch; no record is in two | the charge, once |
| running_sums | `NoisyRunningSums` | a running sum, with noise that later steps take back | that of the whole run |
| statistics | `NoisyStatistics` | the same, of each block's statistics | that of the whole run |
| second_moments | `NoisySecondMoments` | a sum of a⊗a with noise, once | the noise's charge for its sensitivity |
| selected_gradients | `NoisySelectedGradients` | a sum over the selected records | of coin and noise |
| objective | `TiltedObjective` | the minimiser of a randomly tilted objective | of tilt, curvature and noise |
| candidates | `SelectedCandidate` | one of many, the likelier the less it is off | of selecting it |
| query | `MeasuredQuery` | one count, whatever follows from it | the noise's charge for `STEPS` |
| evaluation_counts | `NoisyCounts` | whole numbers with noise | the noise's charge for the counts a record changes |
| cell_counts | `NoisyCellCounts` | the same, of values in public cells | the same |
| comparisons | `OpenedInstance` | answers of the sparse vector technique, up to a yes | 2·STEPS/scale, an ε |

A noise's charge is an ε (spherical Laplace) or a ρ (Gaussian), see `noise`. An ε counts ε²/2 where a publication's
currency is ρ; a ρ is worth nothing where it is ε.

An instance of the sparse vector technique decides which queries are hard. `OpenedInstance` is charged by itself,
without a version, to each record that was there while the instance was open.

Mechanisms make events. The ledger stores their JSON with each release; a verifier reads them from there (`from_json`)
and prices them anew. So a class is never removed, and neither its JSON nor its cost ever changes: another cost is
another class, with another `added_to`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.privacy.accounting.events.added_noise import (
    AddedNoise,
    NoisyDisjointGradientSums,
    NoisyGradientSums,
    NoisyRunningSums,
    NoisySampledWeights,
    NoisySecondMoments,
    NoisySelectedGradients,
    NoisyStatistics,
    NoisyWeights,
)
from service.privacy.accounting.events.counted import NoisyCellCounts, NoisyCounts
from service.privacy.accounting.events.event import PrivacyEvent
from service.privacy.accounting.events.objective import TiltedObjective
from service.privacy.accounting.events.selected import MeasuredQuery, OpenedInstance, SelectedCandidate

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EVENTS",
    "AddedNoise",
    "MeasuredQuery",
    "NoisyCellCounts",
    "NoisyCounts",
    "NoisyDisjointGradientSums",
    "NoisyGradientSums",
    "NoisyRunningSums",
    "NoisySampledWeights",
    "NoisySecondMoments",
    "NoisySelectedGradients",
    "NoisyStatistics",
    "NoisyWeights",
    "OpenedInstance",
    "PrivacyEvent",
    "SelectedCandidate",
    "TiltedObjective",
    "from_json",
]

EVENTS: dict[str, type[PrivacyEvent]] = {
    event.added_to: event
    for event in (
        NoisyWeights,
        NoisySampledWeights,
        NoisyGradientSums,
        NoisyDisjointGradientSums,
        NoisyRunningSums,
        NoisyStatistics,
        NoisySecondMoments,
        NoisySelectedGradients,
        TiltedObjective,
        SelectedCandidate,
        MeasuredQuery,
        NoisyCounts,
        NoisyCellCounts,
        OpenedInstance,
    )
}


def from_json(content: Mapping[str, Any]) -> PrivacyEvent:
    """Return the event that a release states. ValueError if it states none."""
    try:
        if (event := EVENTS.get(content["added_to"])) is None:
            raise ValueError(f"noise cannot be added to {content['added_to']}")
        return event.from_json(content)
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the noise lacks something, or something is of another type: {problem}") from None
    except OverflowError:
        raise ValueError("the noise costs more than any charge") from None
