"""Privacy losses and how they convert: exact, or rounded towards more privacy, never the other way.

Neighbours (R⊥): two streams that differ in the record of ONE slot, which is replaced by any other record or by
nothing at all. Slots, their number and every setting are public. All losses here are with respect to R⊥.

Two currencies. PURE: a loss is an ε and losses of one record add. ZCDP: a loss is a ρ (zero-concentrated differential
privacy) and losses of one record add; a total ρ implies (ε, δ) for every δ > 0 (`zcdp_epsilon`).

An amount is a `Fraction`. A charge is a finite double, so that charges written to a ledger add up exactly as
`Fraction`s; whoever turns an amount into a double says in which direction (`round_down`, `round_up`).
"""

from __future__ import annotations

import math
import sys
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal


class Currency(StrEnum):
    """The currency in which the losses of one publication add."""

    PURE = "pure"
    ZCDP = "zcdp"

    def power(self) -> int:
        """Return p such that, at equal noise, a loss is proportional to sensitivity^p: Δ/scale or Δ²/(2σ²)."""
        return 1 if self is Currency.PURE else 2

    def worth(self, epsilon: Fraction) -> Fraction:
        """Return how much an ε of pure loss counts: ε itself, or ε²/2 of ρ."""
        return epsilon if self is Currency.PURE else epsilon**2 / 2


def round_down(amount: Fraction) -> float:
    """Return the largest double ≤ amount. Raises OverflowError beyond the doubles."""
    nearest = amount.numerator / amount.denominator  # correctly rounded by Python's integers
    return nearest if Fraction(nearest) <= amount else math.nextafter(nearest, -math.inf)


def round_up(amount: Fraction) -> float:
    """Return the smallest double ≥ amount. Raises OverflowError beyond the doubles."""
    nearest = amount.numerator / amount.denominator
    return nearest if Fraction(nearest) >= amount else math.nextafter(nearest, math.inf)


# Every term below is a few correctly-behaved operations on doubles; this covers 32 roundings of each.
_INFLATION = 2.0**-48


def _epsilon_at(order: float, rho: float, log_inverse_delta: float) -> float:
    """Return the ε that order a = 1 + `order` proves, rounded up (`order` is a - 1, kept precise near 1)."""
    terms = (
        (1.0 + order) * rho,
        log_inverse_delta / order,
        -math.log1p(1.0 / order),  # ln(1 - 1/a)
        -math.log1p(order) / order,
    )
    return math.fsum(terms) + _INFLATION * math.fsum(abs(term) for term in terms)


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an ε such that every ρ-zCDP mechanism is (ε, δ)-differentially private, rounded up.

    ε = min over a > 1 of aρ + [ln(1/δ) + (a-1)·ln(1 - 1/a) - ln a] / (a-1)   (paper-audit.md N3).

    Every a proves a bound, so the search for the best one needs no proof; only the value at the a it ends with is
    used, and that is inflated for the error of floating point.

    rho ≥ 0, 0 < delta < 1; ValueError otherwise.
    """
    if not (0.0 <= rho < math.inf and 0.0 < delta < 1.0):
        raise ValueError("zcdp_epsilon needs 0 <= rho < infinity and 0 < delta < 1")
    if rho == 0.0:
        return 0.0
    log_inverse_delta = -math.log(delta)
    # The best a - 1 lies near sqrt(ln(1/δ)/ρ); the bracket around it is wide. Golden section on its logarithm.
    middle = 0.5 * math.log((log_inverse_delta + 1.0) / rho)
    low, high = middle - 24.0, middle + 4.0
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left = _epsilon_at(math.exp(left), rho, log_inverse_delta)
    at_right = _epsilon_at(math.exp(right), rho, log_inverse_delta)
    best = min(at_left, at_right)
    while high - low > 2.0**-28:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = _epsilon_at(math.exp(left), rho, log_inverse_delta)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = _epsilon_at(math.exp(right), rho, log_inverse_delta)
        best = min(best, at_left, at_right)
    return max(0.0, best)


@lru_cache(maxsize=1024)  # cached: a nested search, repeated whenever a publication goes on
def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return nearly the largest ρ with zcdp_epsilon(ρ, δ) ≤ ε; the inequality always holds for the result.

    epsilon > 0, 0 < delta < 1; ValueError otherwise.
    """
    if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0):
        raise ValueError("zcdp_rho needs 0 < epsilon < infinity and 0 < delta < 1")
    low, high = 0.0, 1.0
    while zcdp_epsilon(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    while (middle := low + (high - low) / 2.0) not in (low, high):
        if high - low < sys.float_info.epsilon * high:
            break
        if zcdp_epsilon(middle, delta) <= epsilon:
            low = middle
        else:
            high = middle
    return low


def capacity(epsilon: Decimal, delta: Decimal) -> tuple[Currency, Fraction]:
    """Return what one record may lose to a publication that promises (epsilon, delta), in the currency it spends.

    delta = 0: exactly epsilon, pure. delta > 0: the largest ρ that implies (epsilon, delta), rounded down.
    """
    if delta == 0:
        return Currency.PURE, Fraction(epsilon)
    return Currency.ZCDP, Fraction(zcdp_rho(round_down(Fraction(epsilon)), round_down(Fraction(delta))))
