"""Public histograms over categories, and linear queries of them.

A histogram holds a share for each of N categories; what is missing from 1 is the share of empty slots (⊥). A linear
query gives each category a weight in [0, 1] and ⊥ none; its answer is the mean weight of the slots. Whatever is
computed from a released histogram is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.small_database import error_bound as error_of_selection
from service.privacy.noise.sparse_vector import STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.learning.small_database import Queries

MAX_CARDINALITY = 2**20


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearQuery:
    """Weights of some categories, in 1/STEPS: 0 … STEPS; all others weigh nothing."""

    weights: NDArray[np.int64]
    categories: NDArray[np.int64] | slice
    """Which, each once; a slice of all: every category in order."""

    @staticmethod
    def weighing(weights: NDArray[np.float64]) -> LinearQuery:
        """Return the query with these weights in [0, 1], one for each category, rounded to multiples of 1/STEPS."""
        return LinearQuery(weights=np.rint(weights * STEPS).astype(np.int64), categories=slice(None))

    @staticmethod
    def holding(categories: NDArray[np.int64]) -> LinearQuery:
        """Return the query for the share of slots in any of these categories."""
        once = np.unique(categories)
        return LinearQuery(weights=np.full(len(once), STEPS, dtype=np.int64), categories=once)

    def within(self, queries: Queries) -> bool:
        """Return whether it is one of a class: of points or intervals all that weigh something weigh the same."""
        places = np.flatnonzero(self.weights) if isinstance(self.categories, slice) else self.categories
        together = places[-1] - places[0] + 1 == len(places) if len(places) else True
        alike = len(np.unique(self.weights[self.weights > 0])) <= 1
        return queries == "all" or bool(alike and together and (queries == "intervals" or len(places) <= 1))

    def count(self, counts: NDArray[np.int64]) -> int:
        """Return the weights of all counted records together, in 1/STEPS; exact for up to 2^42 of them."""
        return int(self.weights @ counts[self.categories])

    def of(self, shares: NDArray[np.float64]) -> float:
        """Return the answer that a histogram gives, in [0, 1]."""
        return min(1.0, float(self.weights @ shares[self.categories]) / STEPS)


@dataclass(frozen=True, kw_only=True, eq=False)
class Histogram:
    """Shares of N categories among the first `time` slots, float64 of shape (N,), ≥ 0, together at most 1."""

    shares: NDArray[np.float64]
    time: int

    @staticmethod
    def uniform(cardinality: int, time: int) -> Histogram:
        """Return the histogram that knows nothing: ⊥ has the share of a category."""
        return Histogram(shares=np.full(cardinality, 1.0 / (cardinality + 1)), time=time)

    def grown(self, time: int) -> Histogram:
        """Return the histogram for `time` ≥ self.time slots, with new slots spread evenly over the categories.

        After each slot y ← (t-1)/t·y + 1/t·uniform (paper C, Algorithm 4; paper-audit.md 3.1), which telescopes.
        """
        old = self.time / time
        return Histogram(shares=old * self.shares + (1.0 - old) / (len(self.shares) + 1), time=time)

    def moved(self, query: LinearQuery, gap: float) -> Histogram:
        """Return it after a step of multiplicative weights towards an answer that is larger by `gap`.

        y ∝ y·exp(4·gap·f), over the N categories and ⊥. If the true answer is d above this histogram's, its relative
        entropy to the truth falls by at least 2d² - 2(gap - d)²: by 4·gap·d - ln E_y exp(4·gap·(f - E_y f)), whose
        logarithm is at most (4·gap)²/8 (Hoeffding's lemma, f being within [0, 1]).
        """
        shares = self.shares.copy()
        shares[query.categories] *= np.exp(4.0 * gap * query.weights / STEPS)
        empty = max(0.0, 1.0 - float(self.shares.sum()))
        return Histogram(shares=shares / (shares.sum() + empty), time=self.time)


def error_bound(model: Mapping[str, Any], noise: Mapping[str, Any], query: LinearQuery) -> float | None:
    """Return a bound on the error of a released histogram's answer, failing with `FAILURE`; None: no bound is known.

    model, noise: as the release tells them. It is known of a small database, for the queries that it was chosen for.
    """
    if noise["added_to"] != "candidates" or not query.within(model["queries"]):
        return None
    return error_of_selection(model, noise["scale"])


def described(cardinality: int, **more: Any) -> dict[str, Any]:
    """Return what a release of a histogram says of its model, as JSON."""
    return {"kind": "histogram", "cardinality": cardinality, **more}
