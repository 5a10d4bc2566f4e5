"""How far one record can move what is computed before noise is added. Rounded up, never down."""

from __future__ import annotations

from fractions import Fraction

from service.privacy.loss import round_up


def regularized_minimizer(*, lipschitz: float, strong_convexity: float, records: int, tolerance: float) -> float:
    """Return the L2 sensitivity of a certified approximate minimiser, 2L/(αn) + 2τ/α, rounded up.

    Statement (mechanisms.md S1, S2): let J(w) = (1/n)·Σ loss(w; z_i) + (α/2)·‖w - c‖² over R^D, n the PUBLIC number of
    slots (an empty slot adds 0 and n stays), every loss convex and L-Lipschitz in w, c public or released before. The
    exact minimisers of two neighbours (R⊥) are at most 2L/(αn) apart. A w with ‖∇J(w)‖ ≤ τ is within τ/α of the
    exact one, so two certified ones are at most 2L/(αn) + 2τ/α apart. τ is public and holds for every data set.

    Paper A prints 4L/(λ·b_0·ε) as the noise of every update; that is this sensitivity for α = λ only when the update
    has b_0 records. Here n is the number of slots the fit really reads (mechanisms.md 1.1).

    lipschitz L > 0 (the UNregularised loss, Frobenius norm), strong_convexity α > 0, records n ≥ 1, tolerance τ ≥ 0.
    """
    if not (lipschitz > 0 and strong_convexity > 0 and records >= 1 and tolerance >= 0):
        raise ValueError("a sensitivity needs L > 0, strong convexity > 0, at least one record and a tolerance >= 0")
    alpha = Fraction(strong_convexity)
    return round_up(2 * Fraction(lipschitz) / (alpha * records) + 2 * Fraction(tolerance) / alpha)
