"""The accuracy to expect of a mechanism where a stream drifts: measured for all of them, and shown beside a plan.

`python -m benchmarks.drift` measured it; docs/choosing.md ("Drift, measured") shows the same table and says how.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.mechanisms.family import Line
from service.mechanisms.registry import MECHANISMS

if TYPE_CHECKING:
    from service.mechanisms.configuration import PublicationConfiguration
    from service.streams.schema import StreamSchema

STREAMS = ("weather", "electricity", "kernel changes")
WHAT = (
    "Accuracy of the latest release on the next records of three streams that drift, a release after every block, "
    "windows of 7 blocks, (1, 1e-6) per record for ever: docs/choosing.md, Drift, measured."
)
_BASELINES = (
    Line(place=0, title="same label as before", accuracies=(0.680, 0.853, 0.565)),
    Line(place=1, title="window without noise, NOT private", accuracies=(0.788, 0.778, 0.322)),
)


def lines() -> list[Line]:
    """Return all that was measured, in the order of the table."""
    measured = [line for family in MECHANISMS for line in family.measured]
    return sorted((*_BASELINES, *measured), key=lambda line: line.place)


def expectation() -> str:
    """Return which mechanisms to expect most from, as one sentence, and what to do where none is good enough."""
    named = sorted(
        (line.recommendation for line in lines() if line.recommendation is not None), key=lambda each: each.place
    )
    forgetting = _listed([each.name for each in named if each.forgets])
    keeping = _listed([each.name for each in named if not each.forgets])
    return (
        f"Where a stream drifts, expect most from {forgetting} if old records must be forgotten; if they may stay, "
        f"from {keeping}, which come out alike. "
        "Where `same label as before` is better than all of them, look for better features first."
    )


def _listed(names: list[str]) -> str:
    *others, last = names or ["none that is here"]
    return f"{', '.join(others)} or {last}" if others else last


def measured(schema: StreamSchema, configuration: PublicationConfiguration) -> dict[str, Any] | None:
    """Return what a plan tells of it beside what was planned: it promises nothing, and is no part of what is kept.

    None where records come without classes: accuracies say nothing of regressions, histograms and labels asked for.
    """
    if schema.task.kind != "classification":
        return None
    return {
        "what": WHAT,
        "expect": expectation(),
        "lines": [
            {
                "what": each.title,
                "accuracy": dict(zip(STREAMS, each.accuracies, strict=True)),
                "this": each.describes(configuration.mechanism, configuration.learner),
            }
            for each in lines()
        ],
    }
