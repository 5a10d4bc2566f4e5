"""A small synthetic database that answers linear queries as the records do (paper C's SmallDB, Blum, Ligett, Roth).

Statement. Private: the records a fit reads. Neighbours: R⊥. From n slots over N categories, some of them maybe empty
(⊥), the release is a histogram y whose shares are multiples of 1/m, selected with

> P(y) ∝ exp(-error(y)/scale), error(y) = max over f in F of |f(x) - f(y)|,

x being that of the slots and f(x) = Σ f_j·x_j with weights f_j in [0, 1] and none for ⊥. F is public. Replacing one
record moves each f(x), and so each error, by at most 1/n: `noise.exponential` says what that costs and how it is
drawn exactly. Every share is a whole number of m-ths, so n·m·error is a whole number too.

The classes F, each in the next:

| queries | F | error(y), d = x - y over the N categories |
|---|---|---|
| points | the share of one category | max |d_j| |
| intervals | the share of neighbouring categories together | the largest less the smallest of 0, d_1, d_1 + d_2, … |
| all | any weights in [0, 1] | the larger of Σ max(d_j, 0) and Σ max(-d_j, 0) |

Why some y is near, and how large m is for `accuracy` α. Let some y have error at most α/2; then all but the selection
itself adds no more than that. Points and intervals: m ≥ 2/α, since with the prefix sums of x rounded down to multiples
of 1/m each is off by less than 1/m, and so is their difference. All: m ≥ (N + 1)/(2α), since if m·x is rounded down and
then up where the remainders are largest, R of the N + 1 cells with ⊥, what those that were not gain falls short by is
at most R·(N + 1 - R)/(N + 1) ≤ (N + 1)/4 m-ths (they have the smaller remainders, whose mean over all cells is R/(N +
1)).

Where it differs from the paper (paper-audit.md 3.4). Its m = ⌈2·ln(2|F| + 1)/α²⌉ is from sampling m of the records, for
any F; for these classes rounding does with far fewer. Candidates are multisets, each as likely as its error says (the
paper's N^m lists weigh a multiset by its orders); there are C(N + m, m), and so the bound has that in the place of N^m.

| here | paper C, paper-audit.md 3.4 |
|---|---|
| queries | F |
| accuracy, size | α, m |
| cardinality | N |
| Selection.scale | 2/(εn) |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from service.inputs.fields import Shape, Share
from service.inputs.refused import Refused
from service.learning.family import HistogramFamily
from service.privacy.accounting.events import SelectedCandidate
from service.privacy.currency import round_up
from service.privacy.noise.exponential import MAX_CANDIDATES, ExponentialSelection, select

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.currency import Currency

Queries = Literal["points", "intervals", "all"]

MAX_NUMBERS = 2**24  # numbers in all candidates together
FAILURE = 0.05  # probability with which the error that a plan states may be exceeded
_ROWS = 2**14  # candidates compared at a time


class SmallDatabaseLearner(Shape):
    """Select a small synthetic database that answers linear queries as the records do. It needs categories."""

    kind: Literal["small_database"]
    queries: Annotated[
        Queries,
        Field(description="The queries to answer: shares of categories, of neighbouring ones, or any weights"),
    ] = "all"
    accuracy: Annotated[
        Share, Field(description="α: half of it is how near the nearest database is; the smaller, the more candidates")
    ]


def error_bound(description: Mapping[str, Any], scale: float) -> float:
    """Return how far off the answer to any query of the class is at most, but for a probability of FAILURE.

    description: what a database's learner `describe`s; scale: of the selection.
    """
    return float(description["accuracy"] / 2 + scale * math.log(description["candidates"] / FAILURE))


@dataclass(frozen=True, kw_only=True)
class SmallDatabase:
    """The learner; its model has shape (1, N)."""

    kind: ClassVar[str] = "small_database"
    same_everywhere: ClassVar[bool] = True
    cardinality: int
    queries: Queries
    accuracy: Fraction

    @property
    def shape(self) -> tuple[int, int]:
        """Return (1, N): one row of shares."""
        return 1, self.cardinality

    @property
    def size(self) -> int:
        """Return m, the number of records in a candidate database."""
        cells = self.cardinality + 1
        return math.ceil((Fraction(cells, 2) if self.queries == "all" else 2) / self.accuracy)

    @property
    def candidates(self) -> int:
        """Return how many histograms there are to select from."""
        return math.comb(self.cardinality + self.size, self.size)

    @property
    def too_many(self) -> bool:
        """Return whether there are more candidates than a selection can compare."""
        return self.candidates > MAX_CANDIDATES or self.candidates * self.cardinality > MAX_NUMBERS

    @property
    def numbers(self) -> int:
        """Return how many numbers of 8 bytes a selection holds at once, or some more.

        They are all candidates, of 4 bytes each, while they are made; then the errors of some of them at a time, and
        all weights.
        """
        at_once = min(self.candidates, _ROWS)
        return (2 * self.candidates + 4 * at_once) * self.cardinality + 8 * self.candidates

    @property
    def products(self) -> int:
        """Return how many products take as long as a selection, which makes and compares all candidates."""
        made = 8 * self.cardinality // (self.size + 2)
        return (64 + made) * self.candidates * self.cardinality

    def error_bound(self, scale: float) -> float:
        """Return how far off the answer to any query of the class is at most, but for a probability of FAILURE.

        scale: of the selection.
        """
        return error_bound(self.describe(), scale)

    def describe(self) -> dict[str, Any]:
        """Return the learner's description as JSON."""
        return {
            "queries": self.queries,
            "accuracy": float(self.accuracy),
            "size": self.size,
            "candidates": self.candidates,
        }

    def perturbation(
        self,
        currency: Currency,
        charge: float,
        records: int,
        center: Floats | None = None,  # noqa: ARG002
    ) -> SelectedCandidate:
        """Return the selection among candidates that the charge buys."""
        sensitivity = round_up(Fraction(1, records))
        noise = ExponentialSelection.calibrated(
            currency, sensitivity=sensitivity, charge=charge, dimension=self.cardinality
        )
        return SelectedCandidate(noise=noise, sensitivity=sensitivity)

    def release(self, records: Records, n: int, center: Floats, perturbation: SelectedCandidate) -> Floats:  # noqa: ARG002
        """Return the selected histogram of n slots, shares of shape (1, N). Other values count as empty."""
        y = records.y.astype(np.int64)
        counts = np.bincount(y[(y >= 0) & (y < self.cardinality)], minlength=self.cardinality)
        rate = 1 / (Fraction(perturbation.noise.scale) * n * self.size)
        return self._database(select(self.errors(counts, n), rate))

    def errors(self, counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
        """Return n·m·error of each candidate, int64 (candidates,), exactly. counts: of each category, together ≤ n."""
        rows = _multisets(self.cardinality, self.size)
        worst_errors = np.empty(len(rows), dtype=np.int64)
        for start in range(0, len(rows), _ROWS):
            off = self.size * counts - n * rows[start : start + _ROWS].astype(np.int64)
            worst_errors[start : start + _ROWS] = _largest(self.queries, off)
        return worst_errors

    def _database(self, index: int) -> Floats:
        return _multisets(self.cardinality, self.size)[None, index] / self.size


def _largest(queries: Queries, off: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest |f(off)| over the class for each row of off (K, N), int64 (K,)."""
    largest: NDArray[np.int64]
    match queries:
        case "points":
            largest = np.abs(off).max(axis=1)
        case "intervals":
            prefix = np.cumsum(off, axis=1)
            largest = np.maximum(prefix.max(axis=1), 0) - np.minimum(prefix.min(axis=1), 0)
        case "all":
            largest = np.maximum(np.maximum(off, 0).sum(axis=1), np.maximum(-off, 0).sum(axis=1))
    return largest


@lru_cache(maxsize=2)
def _multisets(categories: int, size: int) -> NDArray[np.int32]:
    """Return how often each category is in each multiset of `size` of them and ⊥s, int32 (candidates, categories)."""
    rows, left = np.zeros((1, 0), dtype=np.int32), np.array([size], dtype=np.int32)
    for _ in range(categories):
        choices = left + 1
        ends = np.cumsum(choices)
        taken = (np.arange(ends[-1]) - np.repeat(ends - choices, choices)).astype(np.int32)
        rows = np.column_stack((np.repeat(rows, choices, axis=0), taken))
        left = np.repeat(left, choices) - taken
    return rows


def _build(cardinality: int, settings: SmallDatabaseLearner) -> SmallDatabase:
    learner = SmallDatabase(cardinality=cardinality, queries=settings.queries, accuracy=Fraction(settings.accuracy))
    if learner.too_many:
        raise Refused(
            "learner.accuracy",
            f"there are too many databases of {learner.size} records over {learner.cardinality} categories to look at "
            f"each: at most {MAX_CANDIDATES}, and {MAX_NUMBERS} numbers in all; ask for less accuracy, or for fewer "
            "queries (intervals, points)",
        )
    return learner


FAMILY = HistogramFamily(
    settings=SmallDatabaseLearner,
    source="paper C's SmallDB; Blum, Ligett, Roth 2008",
    summary="in the selection among many histograms",
    examples={
        queries: {"kind": "small_database", "accuracy": 0.5, "queries": queries}
        for queries in ("points", "intervals", "all")
    },
    build=_build,
    accuracy_setting="learner.accuracy",
)
