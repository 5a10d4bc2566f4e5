"""Histograms of categories made on a public schedule, each of the records of its fit alone: no fit is near another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from service.mechanisms import histogram
from service.mechanisms.scheduled.mechanism import Fitting
from service.mechanisms.timing import Workspace

if TYPE_CHECKING:
    from service.learning.family import HistogramLearner
    from service.schedules.schedule import Pattern


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduledHistograms(Fitting):
    """A publication of histograms."""

    learner: HistogramLearner

    def planned_model(self) -> dict[str, Any]:
        """Return the class of queries and the candidates, as JSON."""
        rows, columns = self.learner.shape
        return {"shape": [rows, columns], "dimension": columns, "learner": self.learner.kind, **self.learner.describe()}

    def model_description(self) -> dict[str, Any]:
        """Return what the released shares are of, as JSON."""
        return histogram.described(self.learner.cardinality, **self.learner.describe(), **self.names.to_json())

    @property
    def workspace(self) -> Workspace:
        """Return what the histograms take that a fit selects from."""
        return Workspace(numbers=self.learner.numbers, products=self.learner.products)

    def _pattern(self, pattern: Pattern) -> dict[str, Any]:
        """Return a kind of fit as JSON, and how far off its answers are."""
        described = super()._pattern(pattern)
        return described | {"error_bound": self.learner.error_bound(described["noise"]["scale"])}
