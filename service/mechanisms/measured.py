"""The accuracy to expect of mechanisms where a stream drifts, and what the explorer offers: read from measured.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from service.inputs.registry import FamilySettings
    from service.mechanisms.configuration import PublicationConfiguration
    from service.streams.schema import StreamSchema


@dataclass(frozen=True, kw_only=True)
class MeasuredLine:
    """A line of the table of accuracies on the three streams; measured.toml describes its fields."""

    title: str
    accuracies: list[float]
    mechanism: Mapping[str, Any] | None = None
    learner: str | None = None

    def describes(self, mechanism: FamilySettings, learner: FamilySettings | None) -> bool:
        """Return whether these settings were measured, but for numbers of records, budget and regularization."""
        if self.mechanism is None or learner is None or learner.kind != self.learner:
            return False
        if getattr(learner, "sample", None) is not None:  # no measured line fits a sample
            return False
        return all(getattr(mechanism, name, None) == value for name, value in self.mechanism.items())


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A mechanism and a learner that the explorer's page offers; measured.toml describes its fields."""

    name: str
    title: str
    mechanism: Mapping[str, Any]
    sizes: Mapping[str, int]
    learner: str
    delta: float = 1e-6
    candidates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    forgets: bool = False

    def settings(self, records: int) -> dict[str, Any]:
        """Return the mechanism's settings for that many records a release."""
        return {**self.mechanism, **{name: records * times for name, times in self.sizes.items()}}


FILE = Path(__file__).with_suffix(".toml")
_TABLE = tomllib.loads(FILE.read_text())
STREAMS: list[str] = _TABLE["streams"]
LINES = [MeasuredLine(**line) for line in _TABLE["lines"]]
OFFERS = [Offer(**offer) for offer in _TABLE["offers"]]
_MEASUREMENT = (
    "Accuracy of the latest release on the next records of three streams that drift, a release after every block, "
    "windows of 7 blocks, (1, 1e-6) per record for ever: docs/choosing.md, Drift, measured."
)


def _expectation() -> str:
    """Return which mechanisms to expect most from, as one sentence, and what to do where none is good enough."""
    forgetting, keeping = (_listed(_TABLE[name]) for name in ("forgetting", "keeping"))
    return (
        f"Where a stream drifts, expect most from {forgetting} if old records must be forgotten; if they may stay, "
        f"from {keeping}, which come out alike. "
        "Where `same label as before` is better than all of them, look for better features first."
    )


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def measured(schema: StreamSchema, configuration: PublicationConfiguration) -> dict[str, Any] | None:
    """Return the accuracies to show beside a plan, as JSON: they are no promise and are never stored.

    None where records come without classes: accuracies say nothing of regressions, histograms and labels asked for.
    """
    if schema.task.kind != "classification":
        return None
    return {
        "what": _MEASUREMENT,
        "expect": _expectation(),
        "lines": [
            {
                "what": line.title,
                "accuracy": dict(zip(STREAMS, line.accuracies, strict=True)),
                "this": line.describes(configuration.mechanism, configuration.learner),
            }
            for line in LINES
        ],
    }
