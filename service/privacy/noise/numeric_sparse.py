"""The number that follows a yes of the sparse vector technique: one noisy count, paid for by itself.

Statement. Private: every record; neighbours: R⊥. S is a count that one slot moves by at most STEPS
(`sparse_vector`). The release is S + z, z a whole number of
 - the discrete Laplace law, P(z) ∝ exp(-|z|/scale), for pure ε: it costs STEPS/scale;
 - the discrete Gaussian of standard deviation `scale`, for zCDP: it costs STEPS²/(2·scale²) of ρ.

Why. S is a whole number, so noise around it is the same noise, shifted, around a neighbour's: probabilities differ by
at most exp(STEPS/scale); the Gaussian's divergence is that of `noise` (Canonne, Kamath, Steinke 2020, Theorem 4). Both
laws are drawn exactly. All that follows from S + z, as the histogram that is moved towards it, is post-processing.

With an instance of the same scale a yes and its number cost, in all, ε = 3·STEPS/scale, or (sparse vector's pure ε
counted as ε²/2) ρ = (2·STEPS/scale)²/2 + (STEPS/scale)²/2 = (5/2)·(STEPS/scale)². With e = 3·STEPS/scale,
paper-audit.md 3.1 has ε = e and ρ = e²/2; here ρ = (5/18)·e², for the two are composed as what they are.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from service.privacy.currency import Currency
from service.privacy.noise.samplers import discrete_gaussian, discrete_laplace
from service.privacy.noise.sparse_vector import STEPS

if TYPE_CHECKING:
    from service.privacy.noise.sparse_vector import Instance

DISTRIBUTIONS = {Currency.PURE: "discrete_laplace", Currency.ZCDP: "discrete_gaussian"}


def measured(currency: Currency, scale: float, count: int) -> int:
    """Return a count, in steps, with fresh noise."""
    if currency is Currency.PURE:
        return count + discrete_laplace(Fraction(scale))
    return count + int(discrete_gaussian(Fraction(scale) ** 2, 1)[0])


def cost(currency: Currency, scale: float) -> Fraction:
    """Return the exact cost of `measured` for each slot, in a publication's currency."""
    ratio = STEPS / Fraction(scale)
    return ratio if currency is Currency.PURE else ratio**2 / 2


def cost_of_opening(currency: Currency, instance: Instance) -> Fraction:
    """Return the exact cost of an instance for each slot present while it is open, in a publication's currency."""
    return instance.cost if currency is Currency.PURE else instance.cost**2 / 2


def reach(currency: Currency, scale: float, failure: float) -> float:
    """Return a bound on |noise| in steps, which fails with probability at most `failure`.

    Laplace: P(|z| ≥ m) = 2·e^(-m/s)/(1 + e^(-1/s)) ≤ e^(-m/s)·(1 + 1/s). Gaussian: 2·e^(-m²/(2s²)), as the
    continuous one (Canonne, Kamath, Steinke 2020, Proposition 25).
    """
    if currency is Currency.PURE:
        return scale * (math.log(1.0 / failure) + 1.0 / scale) + 1.0
    return scale * math.sqrt(2.0 * math.log(2.0 / failure)) + 1.0
