"""Sensitivities: how far one record can move a value before noise is added. Always rounded up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from service.privacy.currency import round_up


def regularized_minimizer(*, lipschitz: float, strong_convexity: float, records: int, tolerance: float) -> float:
    """Return the L2 sensitivity of a certified approximate minimiser, 2L/(αn) + 2τ/α, rounded up.

    Statement (paper-audit.md S1, S2): let J(w) = (1/n)·Σ loss(w; z_i) + (α/2)·‖w - c‖² over R^D, n the PUBLIC number of
    slots (an empty slot adds 0 and n stays), every loss convex and L-Lipschitz in w, c public or released before. The
    exact minimisers of two neighbours (R⊥) are at most 2L/(αn) apart. A w with ‖∇J(w)‖ ≤ τ is within τ/α of the
    exact one, so two certified ones are at most 2L/(αn) + 2τ/α apart. τ is public and holds for every data set.

    Paper A prints 4L/(λ·b_0·ε) as the noise of every update; that is this sensitivity for α = λ only when the update
    has b_0 records. Here n is the number of slots the fit really reads (paper-audit.md 1.1).

    lipschitz L > 0 (the UNregularised loss, Frobenius norm), strong_convexity α > 0, records n ≥ 1, tolerance τ ≥ 0.
    """
    alpha = _checked(lipschitz, strong_convexity, records, tolerance)
    return round_up(2 * Fraction(lipschitz) / (alpha * records) + 2 * Fraction(tolerance) / alpha)


def permutation_sgd(*, lipschitz: float, strong_convexity: float, slots: int, tolerance: float) -> float:
    """Return the L2 sensitivity of permutation SGD's last iterate, 2L/(αN) + 2τ/α, rounded up.

    Statement (paper-audit.md S4, proved in `optimization.descent`): steps over b of N public slots each, every slot
    once a pass, always divided by b; step sizes min(1/β_tot, 1/(αt)) with t over all passes, each of them off by at
    most 2^-51 relatively; τ/α the public distance of a computed iterate from the exact one. Any number of passes.

    lipschitz L > 0 (the UNregularised loss, where the iterates are), strong_convexity α > 0, slots N ≥ 1 (the public
    number, padded to whole batches), tolerance τ ≥ 0.
    """
    alpha = _checked(lipschitz, strong_convexity, slots, tolerance)
    return round_up(_ROUNDED * 2 * Fraction(lipschitz) / (alpha * slots) + 2 * Fraction(tolerance) / alpha)


def gradient_descent(
    *, lipschitz: float, strong_convexity: float, records: int, step: float, steps: int, tolerance: float
) -> float:
    """Return the L2 sensitivity of T steps of gradient descent, (2L/(αn))·(1 - (1 - ηα)^T) + 2τ/α, rounded up.

    Statement (paper-audit.md S3): full gradients of n public slots, a public or released start, step size
    η ≤ 2/(β_tot + α), T fixed, τ/α the public distance of the computed iterate from the exact one. Fewer steps move a
    model less.

    lipschitz, strong_convexity, records, tolerance: as for `regularized_minimizer`; 0 < step·α <= 1, steps ≥ 1.
    """
    alpha = _checked(lipschitz, strong_convexity, records, tolerance)
    contraction = step * strong_convexity
    if not (0.0 < contraction <= 1.0 and steps >= 1):
        raise ValueError("a sensitivity needs 0 < step·α <= 1 and at least one step")
    moved = Fraction(1)
    if contraction < 0.999:  # closer to 1, log1p would lose its digits
        moved = min(moved, _ROUNDED * Fraction(-math.expm1(steps * math.log1p(-contraction))))
    return round_up(moved * 2 * Fraction(lipschitz) / (alpha * records) + 2 * Fraction(tolerance) / alpha)


@dataclass(frozen=True, kw_only=True)
class StatisticsWeights:
    """The public factors of each part of a record's statistics before noise: s, f, l, k of `sufficient_statistics`."""

    second: float
    first: float = 0.0
    label: float
    count: float = 0.0

    def to_json(self) -> dict[str, float]:
        """Return the factors of all parts that the statistics have, as JSON."""
        return {name: value for name, value in vars(self).items() if value}


@lru_cache(maxsize=64)
def sufficient_statistics(*, second: float, first: float, label: float, count: float, codes: int) -> float:
    """Return how far one record moves a sum of (s·a⊗a, f·a, l·v⊗a, k·v) in L2 norm, rounded up.

    Statement (paper-audit.md 4.2, L2DP-C with an intercept that is known): ‖a‖ ≤ 1; v is one of `codes` = K ≥ 2
    unit vectors whose inner products are -1/(K - 1), or for K = 2 a number in [-1, 1]; an empty slot adds zero. a⊗a is
    in the Frobenius norm. Then two records are at most √(max of `moments_square`, alike and not) apart under R⊥, and
    some are, for a ⊥ a' or nearly so.

    Why. For two records with codes at inner product g, lengths α, α' and angle cosine κ, with p = αα', B = f² + l² and
    G = |f² + g·l²| ≤ B, the square of the distance is
        s²(α⁴ + α'⁴ - 2p²κ²) + B(α² + α'²) - 2pκ(f² + g·l²) + k²(2 - 2g).
    (A number v enters as a convex function, so ±1 are the worst.) Over κ, -2s²p²κ² - 2pκ(…) is at most G²/(2s²), and
    the rest grows with α and α': that is the bound where G ≤ 2s², attained at α = α' = 1. Where G > 2s² that κ is
    beyond 1, for every p ≤ 1, so κ = ±1 is the worst: s²(α² - α'²)² + B(α² + α'²) + 2pG, which grows if both lengths
    are scaled up to α = 1 and is then at most 2B + 2G, since s²(1 - α'²)² ≤ B(1 - α'²) by B ≥ 2s². From an empty slot
    a record is s² + B + k² away, less than the mean of both bounds.

    second s > 0, first f, label l > 0 and count k: at least 0.
    """
    if not (second > 0 and label > 0 and first >= 0 and count >= 0 and codes >= 2):
        raise ValueError("a sensitivity of moments needs positive weights and two codes at least")
    weighted = {"second": second, "first": first, "label": label, "count": count}
    square = max(moments_square(**weighted, codes=codes, alike=alike) for alike in (True, False))
    return math.nextafter(math.sqrt(round_up(square)), math.inf)


def second_moments() -> float:
    """Return how far one record moves a sum of a⊗a with ‖a‖ ≤ 1, in the Frobenius norm under R⊥, rounded up.

    ‖a⊗a - b⊗b‖² = ‖a‖⁴ + ‖b‖⁴ - 2⟨a, b⟩² ≤ 2, attained for unit vectors a ⊥ b; from an empty slot a record is at most
    1 away.
    """
    return math.nextafter(math.sqrt(2.0), math.inf)


def moments_square(
    *,
    second: Fraction | float,
    first: Fraction | float,
    label: Fraction | float,
    count: Fraction | float,
    codes: int,
    alike: bool,
) -> Fraction:
    """Return the largest squared distance of records of one code (`alike`) or two; see `sufficient_statistics`."""
    seconds, firsts, labels, counts = (Fraction(part) ** 2 for part in (second, first, label, count))
    inner = Fraction(1) if alike else Fraction(-1, codes - 1)
    across = abs(firsts + inner * labels)
    turned = seconds + across**2 / (4 * seconds) if across <= 2 * seconds else across
    return 2 * (firsts + labels + turned + counts * (1 - inner))


_ROUNDED = 1 + Fraction(1, 2**40)  # covers rounding of step sizes, expm1 and log1p


def _checked(lipschitz: float, strong_convexity: float, records: int, tolerance: float) -> Fraction:
    """Return α as a Fraction. ValueError where an argument is out of range."""
    if not (lipschitz > 0 and strong_convexity > 0 and records >= 1 and tolerance >= 0):
        raise ValueError("a sensitivity needs L > 0, strong convexity > 0, at least one record and a tolerance >= 0")
    return Fraction(strong_convexity)
