"""Noise for a vector of whole numbers: discrete Laplace (pure ε) and discrete Gaussian (zCDP), both exact.

Statement. Let v be a vector of whole numbers such that replacing one record by another, or by none (R⊥), changes at
most c of its coordinates, each by at most u. Published is v + z, z independent of v:
 - discrete Laplace of scale s in each coordinate, P(z) ∝ exp(-|z|/s): it costs c·u/s of pure ε;
 - discrete Gaussian of scale σ in each coordinate, P(z) ∝ exp(-z²/(2σ²)): it costs c·u²/(2σ²) of ρ.

Why. The L1 distance of neighbours is at most c·u and the square of their L2 distance at most c·u². Coordinates are
whole, so noise around a neighbour's vector is the same noise, shifted by whole numbers: probabilities of the Laplace
vector differ by at most exp(c·u/s), and the Gaussian's divergences of order a are at most a·u²/(2σ²) in each of the c
coordinates and add (Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Theorem 4).

Nothing is rounded: both laws are drawn exactly (`samplers`), and the sum is one of whole numbers below 2^53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from service.privacy.currency import Currency, round_up
from service.privacy.noise.additive import Gaussian, Unaffordable, root
from service.privacy.noise.samplers import discrete_gaussian, discrete_laplaces

if TYPE_CHECKING:
    from numpy.typing import NDArray

DISTRIBUTIONS = {Currency.PURE: "discrete_laplace", Currency.ZCDP: "discrete_gaussian"}
LARGEST_SCALE = 2.0**45
"""Noise of a larger scale could pass 2^53, beyond which doubles hold not every whole number."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """The public bound on one record's change of the counts: at most `counts` of them, by at most `largest` each."""

    counts: int
    largest: int

    @property
    def l1(self) -> int:
        """Return the L1 sensitivity under R⊥."""
        return self.counts * self.largest

    @property
    def squared_l2(self) -> int:
        """Return the square of the L2 sensitivity under R⊥."""
        return self.counts * self.largest**2


@dataclass(frozen=True, kw_only=True)
class CountNoise:
    """Independent noise of one scale in each of `dimension` counts.

    >>> noise = CountNoise(currency=Currency.PURE, scale=4.0, dimension=3)
    >>> noise.cost(Change(counts=2, largest=1))  # ε, where one record moves two counts by 1
    Fraction(1, 2)
    """

    currency: Currency
    scale: float
    dimension: int

    def sample(self) -> NDArray[np.int64]:
        """Return a fresh draw, shape (dimension,)."""
        if self.currency is Currency.PURE:
            return np.array(discrete_laplaces(Fraction(self.scale), self.dimension), dtype=np.int64)
        return discrete_gaussian(Fraction(self.scale) ** 2, self.dimension)

    def cost(self, change: Change) -> Fraction:
        """Return what it costs each record, exactly: an ε (PURE) or a ρ (ZCDP)."""
        if self.currency is Currency.PURE:
            return Fraction(change.l1) / Fraction(self.scale)
        return Fraction(change.squared_l2) / (2 * Fraction(self.scale) ** 2)

    def deviation(self) -> float:
        """Return the standard deviation of the noise in one count; the Gaussian's is at most that."""
        if self.currency is Currency.ZCDP:
            return self.scale
        return 1.0 / (math.sqrt(2.0) * math.sinh(0.5 / self.scale))  # variance 2q/(1 - q)² with q = exp(-1/s)


def sensitivity(currency: Currency, change: Change) -> float:
    """Return the sensitivity that the noise is scaled to, rounded up: L1 for PURE, L2 for ZCDP."""
    return round_up(Fraction(change.l1) if currency is Currency.PURE else root(Fraction(change.squared_l2)))


def calibrate(currency: Currency, change: Change, *, charge: float, dimension: int) -> CountNoise:
    """Return the least noise that costs at most `charge` > 0, an ε (PURE) or a ρ (ZCDP).

    Raises Unaffordable where the noise would pass `LARGEST_SCALE`.
    """
    if not 0.0 < charge < math.inf:
        raise ValueError("noise can only be calibrated to a positive finite charge")
    if currency is Currency.PURE:
        scale = round_up(Fraction(change.l1) / Fraction(charge))
    else:
        scale = Gaussian.least_scale(root(Fraction(change.squared_l2)), charge)
    if scale > LARGEST_SCALE:
        raise Unaffordable("the charge is too small: the noise would pass the largest whole number of a double")
    return CountNoise(currency=currency, scale=scale, dimension=dimension)
