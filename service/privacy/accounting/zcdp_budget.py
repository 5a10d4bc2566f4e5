"""A stream's budget (ε, δ) that is held in ρ: how much ρ it is, and how much ρ a charge counts.

Statement. Let ρ_B be `capacity_of(ε, δ)`. A stream publishes by steps. Before each step's noise is drawn it is fixed,
by what was published before, what the step costs a record (on a stream with units: a unit), given all before: at most
ρ_t, where ρ_t is
 - the step's ρ if it is zCDP (`loss`, and `groups` for a unit),
 - `pure_rho` of its ε if it is pure: ε·tanh(ε/2) for a record, ε²/2 for a unit.
Publications, starts, caps, stops and later records may be chosen by looking at everything published before. If on no
path any record's Σ ρ_t passes ρ_B, all that is ever published is (ε, δ)-differentially private, slack included.

Why it is a filter. Let P and Q be the laws of all that is published on two neighbouring streams, L_t the logarithm of
their densities' quotient for the first t steps, and a > 1. Under P, E[exp((a-1)·(L_t - L_(t-1))) | past] ≤
exp((a-1)·a·ρ_t), which is what a-Rényi divergence at most a·ρ_t says. So exp((a-1)·(L_t - a·Σ_(s≤t) ρ_s)) is a
supermartingale that begins at 1, ρ_t being known before step t. Its end is at least exp((a-1)·(L - a·ρ_B)), whence
E[exp((a-1)·L)] ≤ exp((a-1)·a·ρ_B): the divergence of P from Q is at most a·ρ_B at every order, as of one ρ_B-zCDP
mechanism, and `zcdp_epsilon` makes it an (ε, δ) (Feldman and Zrnic 2021; Whitehouse et al. 2023).
 - So what is *charged* counts, record by record. A publication that runs may still charge each record from its first on
   what its cap leaves; that is reserved. All that it has not charged when it stops comes back, whyever it was stopped.
 - A step that does not read a record's slot costs that record nothing. So ρ adds up on training slots and on evaluation
   slots each by itself (`composition.Slots`), also where evaluations decide which publications start.
 - A running publication's charges stay within its cap, so a new one may start where caps of running publications and
   charges of stopped ones leave room for its cap on every record that it may read.

Why `pure_rho`. Let a step's densities have a quotient in exp(±ε), mean 1: x^a is convex, so the a-th moment is at most
that of two values exp(±ε), which is randomised response: D_a = ln(cosh((a - ½)ε)/cosh(ε/2))/(a - 1). The function
w ↦ ln cosh(ε·√w) is concave, since tanh(x)/x does not increase; so it lies below its tangent at w = ¼, where its slope
is ε·tanh(ε/2). At w = (a - ½)², which is ¼ + a(a - 1): D_a ≤ a·ε·tanh(ε/2) for all a > 1. For a → 1 it is attained. As
tanh(ε/2) ≤ ε/2, also D_a ≤ a·ε²/2.
 - Of x·tanh(x/2) and x²/2 the value of a sum is at least the sum of values: a slot's charges by one publication count
   no more than their sum does, and that no more than the publication's whole ε, which it reserves.
 - Units count squares: p slots of unequal charges cost (Σ_S ε_i)²/2 ≤ p·Σ_S ε_i²/2, by convexity, and squares add up
   as Gaussian costs do where noise is carried on (`groups`).

Slack. Noise that is drawn only nearly exactly adds (1 + e^ε)·Ση to δ (`sampler_distance`), η of all draws that one
record (or unit) moves in all publications, ε the stream's. Admission keeps that within 2^-60 by `is_small`, and ρ_B is
what implies (ε, δ - 2^-60).
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from service.privacy.currency import Currency, round_down, round_up, zcdp_rho
from service.privacy.noise.sampler_distance import LARGEST_DELTA
from service.privacy.noise.samplers import enclosed_exp

_DIGITS = 40


@lru_cache(maxsize=1024)
def capacity_of(epsilon: Decimal, delta: Decimal) -> Fraction:
    """Return ρ_B, the largest ρ found that implies (epsilon, delta - 2^-60), a double. ValueError if none does."""
    ideal = Fraction(delta) - LARGEST_DELTA
    if not (epsilon > 0 and 0 < ideal < 1):
        raise ValueError("a budget held in zCDP needs epsilon > 0 and 2^-60 < delta < 1")
    return Fraction(zcdp_rho(round_down(Fraction(epsilon)), round_down(ideal)))


@lru_cache(maxsize=4096)
def pure_rho(epsilon: Fraction, *, units: bool) -> Fraction:
    """Return what ε = `epsilon` ≥ 0 of pure loss counts in ρ: ε·tanh(ε/2), or ε²/2 with units; a double, rounded up."""
    count = epsilon**2 / 2
    if epsilon and not units:
        least, _ = enclosed_exp(epsilon, _DIGITS)  # at most e^-ε
        count = min(count, epsilon * (1 - least) / (1 + least))
    return Fraction(round_up(count))


def in_rho(currency: Currency, amount: Fraction, *, units: bool = False) -> Fraction:
    """Return how much ρ an amount counts for a record, or with units a unit, that was charged it in that currency."""
    return pure_rho(amount, units=units) if currency is Currency.PURE else amount
