"""What to expect of a mechanism where a stream drifts: what all of them were measured at, for a plan to tell.

`python -m benchmarks.drift` measured it; docs/choosing.md ("Drift, measured") shows the same table and says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.mechanisms.configuration import PublicationConfiguration
    from service.streams.schema import StreamSchema

STREAMS = ("weather", "electricity", "kernel changes")
WHAT = (
    "Accuracy of the latest release on the next records of three streams that drift, a release after every block, "
    "windows of 7 blocks, (1, 1e-6) per record for ever: docs/choosing.md, Drift, measured."
)
EXPECT = (
    "Where a stream drifts, expect most from window_statistics if old records must be forgotten; if they may stay, "
    "from independent_batches with warm_start, online_leader or continual with improving shares, which come out alike. "
    "Where `same label as before` is better than all of them, look for better features first."
)


@dataclass(frozen=True)
class Line:
    """A mechanism with its settings that matter, a learner, and its accuracies by `STREAMS`; not private: neither."""

    title: str
    accuracies: tuple[float, float, float]
    mechanism: Mapping[str, Any] | None = None
    learner: str | None = None

    def describes(self, configuration: PublicationConfiguration) -> bool:
        """Whether that is what was measured, but for numbers of records, budget and regularization."""
        if self.mechanism is None:
            return False
        mechanism, learner = configuration.mechanism, configuration.learner
        same = all(getattr(mechanism, name, None) == value for name, value in self.mechanism.items())
        return same and learner is not None and learner.kind == self.learner


_WINDOW, _CUMULATIVE = {"kind": "sliding_window"}, {"kind": "continual"}
_BATCHES, _LEADER = {"kind": "independent_batches"}, {"kind": "online_leader"}
_OUTPUT, _DESCENT = "output_perturbation", "noisy_gradient_descent"

LINES = (
    Line("same label as before", (0.680, 0.853, 0.565)),
    Line("window without noise, NOT private", (0.788, 0.778, 0.322)),
    Line(
        "each batch near the release before (`independent_batches`, `warm_start`), noisy gradient descent",
        (0.742, 0.781, 0.149),
        _BATCHES | {"warm_start": True},
        _DESCENT,
    ),
    Line("the same, output perturbation", (0.734, 0.773, 0.175), _BATCHES | {"warm_start": True}, _OUTPUT),
    Line(
        "cumulative (`continual`, `improving`), noisy gradient descent",
        (0.742, 0.775, 0.181),
        _CUMULATIVE | {"shares": "improving"},
        _DESCENT,
    ),
    Line("`window_statistics`", (0.744, 0.766, 0.157), {"kind": "window_statistics"}, _OUTPUT),
    Line(
        "`online_leader`, a batch a block, `averaging` false",
        (0.749, 0.772, 0.174),
        _LEADER | {"averaging": False},
        _DESCENT,
    ),
    Line("`online_leader`, a batch a block", (0.741, 0.762, 0.204), _LEADER | {"averaging": True}, _DESCENT),
    Line("sliding window, noisy gradient descent", (0.695, 0.719, 0.138), _WINDOW, _DESCENT),
    Line("sliding window, output perturbation", (0.691, 0.696, 0.146), _WINDOW, _OUTPUT),
    Line(
        "cumulative (`continual`, `equal`), output perturbation",
        (0.692, 0.695, 0.159),
        _CUMULATIVE | {"shares": "equal"},
        _OUTPUT,
    ),
    Line(
        "each batch by itself, noisy gradient descent",
        (0.687, 0.676, 0.123),
        _BATCHES | {"warm_start": False},
        _DESCENT,
    ),
    Line("each batch by itself, output perturbation", (0.685, 0.661, 0.112), _BATCHES | {"warm_start": False}, _OUTPUT),
)


def measured(schema: StreamSchema, configuration: PublicationConfiguration) -> dict[str, Any] | None:
    """What a plan tells of it beside what was planned: it promises nothing, and is no part of what is kept.

    None where records come without classes: accuracies say nothing of regressions, histograms and labels asked for.
    """
    if schema.task.kind != "classification":
        return None
    return {
        "what": WHAT,
        "expect": EXPECT,
        "lines": [
            {
                "what": each.title,
                "accuracy": dict(zip(STREAMS, each.accuracies, strict=True)),
                "this": each.describes(configuration),
            }
            for each in LINES
        ],
    }
