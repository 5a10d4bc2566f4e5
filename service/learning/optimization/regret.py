"""Regret: what a sequence of models lost on a stream more than the best fixed one would have, in hindsight.

FOR PUBLIC STREAMS ONLY, offline. Nothing here is noisy: regrets, best fixed points and losses are functions of the
records themselves, so any such number of a private stream, however coarse, would be a leak that no ledger knows of.
Nothing that the service runs may import this (pyproject.toml holds it); it is for comparing mechanisms on evaluation
streams.

Paper B's definition 3, with the losses that `online_gradient` has: f_i(w) = loss(w; x_i, y_i) + (μ/2)·‖w - c‖²,
    regret(n) = Σ_{i<n} f_i(w_i) - min_{w in C} Σ_{i<n} f_i(w),
w_i being the model that was the latest when record i came, C a convex set.

The minimum is certified. J is the mean of f_0 … f_(n-1), β-smooth, at least μ-strongly convex. At any point v, inside
C or not, and with q(w; κ) = J(v) + <∇J(v), w - v> + (κ/2)·‖w - v‖²,
    q(w; μ) ≤ J(w) ≤ q(w; β) for all w,    q(w; μ) ≥ q(p; μ) + <∇q(p; μ), w - p> for all w and any p.
So q(p; β) for a p of C is at least min_C J. At most that is q(p; μ) + min_(w in C) <∇q(p; μ), w - p>, a linear oracle
away: Frank and Wolfe's gap for μ = 0, and sharp for μ > 0 and the projection p of v - ∇J(v)/μ. Every step of an
accelerated projected gradient (Beck and Teboulle 2009, with the restarts of O'Donoghue and Candès 2015) brings both
bounds. They hold in real arithmetic, however far from exact a projection is; the rounding of J, about 1e-15 of it, is
not in the gap.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from service.learning.optimization.objective import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from service.learning.optimization.constraint_sets import ConstraintSet
    from service.learning.optimization.losses import Floats, Loss
    from service.learning.records import PreparedRows

MAX_STEPS = 100_000


class Uncertified(ArithmeticError):
    """The best fixed point was not found to the gap that was asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Best:
    """A point of the set, with its loss and the proven gap to the least loss."""

    weights: Floats
    loss: float
    """Σ f_i there"""
    gap: float
    """the least loss in the set is at most so much less"""


@dataclass(frozen=True, kw_only=True)
class Regret:
    """After so many records: the regret is at least `value`, and at most value + gap."""

    records: int
    value: float
    gap: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Hindsight:
    """A public stream of losses and the set that models are chosen from.

    x: (m, D) and y: (m,), as `Linear.prepared` makes them of records that are all present; origin: c, (rows, D), a
    point of the set; strong_convexity: μ ≥ 0; precision: of the mean loss of a best fixed point, what it may be off by.
    """

    loss: Loss
    x: PreparedRows
    y: NDArray[np.generic]
    constraint: ConstraintSet
    origin: Floats
    strong_convexity: float = 0.0
    precision: float = 1e-5
    _bests: dict[int, Best] = field(default_factory=dict, init=False, repr=False)

    def regret(self, plays: Iterable[tuple[int, Floats]], after: Sequence[int]) -> list[Regret]:
        """Return the regret after each of the given numbers of records, rising from 1 to m.

        plays: (start, weights (rows, D)): from record `start` on that is the model; the first starts at 0, then they
        rise. ValueError if that is not so; Uncertified where no best fixed point is found.
        """
        lost = self._lost(plays, after)
        best = [self.best(records) for records in after]
        return [
            Regret(records=records, value=total - optimum.loss, gap=optimum.gap)
            for records, total, optimum in zip(after, lost, best, strict=True)
        ]

    def best(self, records: int) -> Best:
        """Return the best fixed point for the first so many records, 1 to m; gap ≤ records·precision.

        It is remembered. Raises Uncertified if it is not found.
        """
        if not 1 <= records <= len(self.y):
            raise ValueError(f"there are no {records} records")
        if records not in self._bests:
            self._bests[records] = self._search(records)
        return self._bests[records]

    def _search(self, records: int) -> Best:
        x, y = self.x[:records], self.y[:records]
        steepest = (self.loss.smoothness(float(x.norms().max())) + self.strong_convexity) or 1.0
        at = ahead = self.origin if not self._bests else self._bests[max(self._bests)].weights
        momentum, least = 1.0, -math.inf

        def mean(weights: Floats) -> tuple[float, Floats]:
            return evaluate(self.loss, x, y, records, self.strong_convexity, self.origin, weights)

        for _ in range(MAX_STEPS):
            value, slope = mean(ahead)
            projected = self.constraint.project(ahead - slope / steepest, self.origin)
            offset = projected - ahead
            most = value + float(np.vdot(slope, offset)) + steepest / 2.0 * float(np.vdot(offset, offset))
            least = max(least, value + self._least(ahead, slope))
            if most - least <= self.precision:
                value, _ = mean(projected)
                return Best(weights=projected, loss=records * value, gap=records * max(0.0, value - least))
            if np.vdot(offset, projected - at) < 0.0:  # momentum points uphill
                momentum = 1.0
            before, momentum = momentum, (1.0 + math.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            at, ahead = projected, projected + (before - 1.0) / momentum * (projected - at)
        raise Uncertified(f"no point was proved to be within {self.precision:g} of the best mean loss")

    def _least(self, near: Floats, slope: Floats) -> float:
        """Return a lower bound of <slope, w - near> + (μ/2)·‖w - near‖² for all w of the set."""
        convexity = self.strong_convexity
        projected = self.constraint.project(near - slope / convexity, self.origin) if convexity else near
        offset = projected - near
        rest = slope + convexity * offset
        beyond = self.constraint.lowest(rest, self.origin) - projected
        return float(np.vdot(slope, offset) + convexity / 2.0 * np.vdot(offset, offset) + np.vdot(rest, beyond))

    def _lost(self, plays: Iterable[tuple[int, Floats]], after: Sequence[int]) -> list[float]:
        """Return Σ f_i(w_i) over the first m records, for each m given."""
        starts, models = zip(*plays, strict=True)
        if starts[0] != 0 or any(start >= end for start, end in pairwise(starts)):
            raise ValueError("the first model must start at record 0, and each later model after the one before")
        if after[0] < 1 or after[-1] > len(self.y) or any(start >= end for start, end in pairwise(after)):
            raise ValueError("numbers of records must be from 1 to m, rising")
        lost, totals = 0.0, []
        for start, end in pairwise(sorted({*starts, *after})):
            lost += self._loss(models[bisect_right(starts, start) - 1], slice(start, end))
            if end in after:
                totals.append(lost)
            if end == after[-1]:
                break
        return totals

    def _loss(self, weights: Floats, which: slice) -> float:
        """Return Σ f_i(weights) over the records."""
        y, offset = self.y[which], weights - self.origin
        values, _, _ = self.loss.derivatives(self.x[which].scores(weights), y)
        return float(values.sum()) + len(y) * self.strong_convexity / 2.0 * float(np.vdot(offset, offset))
