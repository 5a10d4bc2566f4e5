"""Convex sets that weights are projected to. Projection is post-processing, so it costs no privacy.

All but the simplex lie around the origin c of a publication, which they hold. A point is a whole array of
weights, whatever its shape: D numbers.

| set | holds | exact projection |
|---|---|---|
| ball | ‖w - c‖₂ ≤ r | scale |
| l1_ball | ‖w - c‖₁ ≤ r | shrink all by what brings the sum down to r (Duchi et al. 2008) |
| box | |w_i - c_i| ≤ r | clip |
| simplex | w_i ≥ 0, Σ w_i = r | subtract what brings the sum of what stays positive to r |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from service.learning.optimization.objective import norm

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats

Name = Literal["ball", "simplex", "l1_ball", "box"]


@dataclass(frozen=True, kw_only=True)
class ConstraintSet:
    """A convex set of radius r > 0."""

    name: Name
    radius: float

    def farthest(self, origin: Floats) -> float:
        """Return a bound on the norm of any weights in the set."""
        if self.name == "simplex":
            return self.radius
        return norm(origin) + self.radius * (math.sqrt(origin.size) if self.name == "box" else 1.0)

    def holds(self, weights: Floats, origin: Floats) -> bool:
        """Return whether the weights are in the set, to a relative 1e-9."""
        return norm(self.project(weights, origin) - weights) <= 1e-9 * (self.radius + norm(weights))

    def project(self, weights: Floats, origin: Floats) -> Floats:
        """Return the nearest weights in the set; finite where they are."""
        offset = weights - origin
        match self.name:
            case "ball":
                return origin + offset * (self.radius / max(norm(offset), self.radius))
            case "box":
                return np.asarray(origin + np.clip(offset, -self.radius, self.radius))
            case "simplex":
                return _left(weights, self.radius)
            case "l1_ball":
                sizes = np.abs(offset)
                if sizes.sum() <= self.radius:
                    return weights
                return np.asarray(origin + np.sign(offset) * _left(sizes, self.radius))

    def lowest(self, slope: Floats, origin: Floats) -> Floats:
        """Return weights in the set with the least <slope, weights>: the linear oracle."""
        match self.name:
            case "ball":
                return origin - slope * (self.radius / (float(np.linalg.norm(slope)) or 1.0))
            case "box":
                return np.asarray(origin - self.radius * np.sign(slope))
            case "simplex":
                corner = np.zeros(slope.size)
                corner[np.argmin(slope)] = self.radius
                return corner.reshape(slope.shape)
            case "l1_ball":
                corner, steepest = np.zeros(slope.size), np.argmax(np.abs(slope))
                corner[steepest] = -self.radius * np.sign(slope.ravel()[steepest])
                return np.asarray(origin + corner.reshape(slope.shape))


def _left(values: Floats, total: float) -> Floats:
    """Return max(values - t, 0) for the t at which these add up to `total`.

    They are counted from the largest one, so that `total` is not lost beside values however large.
    """
    below = values - values.max()
    falling = np.sort(below, axis=None)[::-1]
    excesses = (np.cumsum(falling) - total) / np.arange(1.0, len(falling) + 1.0)
    return np.asarray(np.maximum(below - excesses[np.flatnonzero(falling > excesses)[-1]], 0.0))
