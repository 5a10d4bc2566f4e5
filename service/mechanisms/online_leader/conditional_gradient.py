"""Following the leader without projections: paper B's Algorithm 2 (WDP-COCOL), made right (paper-audit.md 2).

After step t = 1, 2, … with estimates g_1 … g_t and points w_1 = c, w_2, …, all public, the leader is the minimiser over
a set P of
    F_t(w) = Σ_s <g_s + μ(w_s - c), w> + (μ/2)·‖w - w_s‖² + (C₀μ/2)·‖w - c‖² = (β_t/2)·‖w - c_t‖² + const,
    β_t = μ(t + C₀),   c_t = c - (g_1 + … + g_t)/β_t.
One move goes a little towards a point that a local linear oracle finds: p in P with <p, ∇> ≤ <y, ∇> for every y of P
within r of w_t, and ‖p - w_t‖ ≤ κr (Garber and Hazan 2016), ∇ = ∇F_t(w_t) = β_t(w_t - c_t):
    w_(t+1) = w_t + (p - w_t)/(2κ²).
r is large enough to reach the leader. If F_(t-1)(w_t) is within H of its least value, then F_t(w_t) is within
    H̄ = H + ‖g_t + μ(w_t - c)‖·(√(2H/β_(t-1)) + ‖c_t - c_(t-1)‖),
as leaders are projections of c_(t-1) and c_t, and within the gap max_p <∇, w_t - p>. With the smaller one
r = √(2H̄/β_t), and F_t(w_(t+1)) is within (1 - 1/(4κ²))·H̄.

| set, of D numbers | oracle | κ |
|---|---|---|
| simplex of r₀ | mass min(r₀, √D·r/2) goes from where ∇ is largest to where it is least | √(D/2) |
| l1 ball of r₀ | the same among its corners and c, for points c + r₀·Σ λ_i·(±e_i); mass min(1, √D·r/r₀) | 2√D |
| box | each coordinate r against the sign of ∇, within the box | √D |

Where it differs from paper B: its line 7 gives the oracle the point c_t for the gradient ∇F_t(w_t), its radius is
dimensionally inconsistent, and its constants are far larger. It is post-processing throughout: nothing here can cost a
record anything. An exact projection onto these sets costs no more; this is for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.learning.optimization.objective import norm

if TYPE_CHECKING:
    from service.learning.optimization.constraint_sets import ConstraintSet
    from service.learning.optimization.losses import Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Pursuit:
    """The pursuit of a leader; `constraint` is any set but a ball, `convexity` μ."""

    constraint: ConstraintSet
    origin: Floats
    convexity: float

    @property
    def reach(self) -> float:
        """Return κ of the local linear oracle."""
        size = self.origin.size
        return {"simplex": math.sqrt(size / 2), "l1_ball": 2 * math.sqrt(size), "box": math.sqrt(size)}[
            self.constraint.name
        ]

    @property
    def head_start(self) -> float:
        """C₀: by as much as a move covers, so that early leaders do not run away."""
        return 4.0 * self.reach**2

    def step(
        self, weights: Floats, apart: Floats, before: Floats, estimate: Floats, step: int
    ) -> tuple[Floats, Floats]:
        """Return w_(t+1) and a bound on its distance from the leader, (1,), t = step + 1; before: g_1 + … + g_(t-1).

        weights: w_t; apart: H; estimate: g_t.
        """
        beta_before = self.convexity * (step + self.head_start)
        beta = beta_before + self.convexity
        moved = norm((before + estimate) / beta - before / beta_before)
        steepness = norm(estimate + self.convexity * (weights - self.origin))
        lag = float(apart[0])
        lag += steepness * (math.sqrt(2.0 * lag / beta_before) + moved)
        gradient = beta * (weights - self.origin) + before + estimate
        lag = max(0.0, min(lag, float(np.vdot(gradient, weights - self.constraint.lowest(gradient, self.origin)))))
        towards = self.oracle(weights, math.sqrt(2.0 * lag / beta), gradient)
        rate = 1.0 / (2.0 * self.reach**2)
        return weights + rate * (towards - weights), np.array([(1.0 - rate / 2.0) * lag])

    def oracle(self, weights: Floats, radius: float, gradient: Floats) -> Floats:
        """Return p: as good along the gradient as any point of the set within `radius` of the weights, or better."""
        bound, size = self.constraint.radius, self.origin.size
        if self.constraint.name == "box":
            return self.constraint.project(weights - radius * np.sign(gradient), self.origin)
        if self.constraint.name == "simplex":
            mass = min(bound, math.sqrt(size) * radius / 2.0)
            return _shifted(weights.ravel(), gradient.ravel(), mass).reshape(weights.shape)
        offset = (weights - self.origin).ravel() / bound
        shares = np.concatenate((np.maximum(offset, 0.0), np.maximum(-offset, 0.0), [1.0 - np.abs(offset).sum()]))
        costs = np.concatenate((gradient.ravel(), -gradient.ravel(), [0.0]))
        shares = _shifted(np.maximum(shares, 0.0), costs, min(1.0, math.sqrt(size) * radius / bound))
        return self.origin + bound * (shares[:size] - shares[size:-1]).reshape(weights.shape)


def _shifted(shares: Floats, costs: Floats, mass: float) -> Floats:
    """Return shares with `mass` moved from where it costs most to where it costs least; their sum stays."""
    order = np.argsort(-costs)
    falling = shares[order]
    taken = np.clip(mass - (np.cumsum(falling) - falling), 0.0, falling)
    left = shares.copy()
    left[order] = falling - taken
    left[np.argmin(costs)] += taken.sum()
    return left
