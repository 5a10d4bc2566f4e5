"""The cost of drawing some noise only nearly exactly: a small δ, and the largest ε at which it stays small.

Statement. Let one record move d draws of noise over a publication's life, each of a law within η = `noise.SLACK` of the
stated one in total variation, all other draws being what they are. Where the stated laws make the publication
(ε, δ)-differentially private, it is in truth (ε, δ + (1 + e^ε)·d·η)-differentially private.

Why. Let H be the publication with the d draws from the stated law, P the publication as it is, and P', H' the same on
the neighbouring stream. Draws that the record does not move have the same law on both streams, whatever it is. One
draw after the other is replaced, so P and H are within d·η of each other, and so are P' and H'. Hence
P(S) ≤ H(S) + d·η ≤ e^ε·H'(S) + δ + d·η ≤ e^ε·P'(S) + δ + (1 + e^ε)·d·η.

A publication may begin only if the last summand is at most `LARGEST_DELTA` = 2^-60: at η = 2^-100 for every ε up to
ln(2^40/d - 1), which is 27.7 for one draw and 16.6 for 2^16. A publication whose draws are all exact (d = 0) has no
such limit. How many draws a record moves, `Mechanism.draws` says; streams have fewer than 2^63 records.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Decimal
from fractions import Fraction

from service.privacy.noise.additive import SLACK
from service.privacy.noise.samplers import enclosed_exp

LARGEST_DELTA = Fraction(1, 2**60)
_DIGITS = 40  # digits of e^ε; an ε itself has 15
_STEP = Decimal("1e-6")


def added_delta(epsilon: Fraction, draws: int) -> Fraction:
    """Return (1 + e^ε)·d·η, rounded up by less than a part in 10^39, or 1 if that is less. epsilon > 0."""
    if draws == 0:
        return Fraction(0)
    least, _ = enclosed_exp(epsilon, _DIGITS)  # at most e^-ε
    return min(Fraction(1), (1 + 1 / least) * draws * Fraction(SLACK))


def is_small(epsilon: Fraction, draws: int) -> bool:
    """Return whether the δ that these draws add is at most `LARGEST_DELTA`."""
    return added_delta(epsilon, draws) <= LARGEST_DELTA


def largest_epsilon(draws: int) -> Decimal:
    """Return the largest multiple of 10^-6 for which `is_small`. 1 ≤ draws < 2^38."""
    limit = math.log(float(LARGEST_DELTA / Fraction(SLACK) / draws) - 1.0)
    epsilon = Decimal(limit).quantize(_STEP, rounding=ROUND_FLOOR) + _STEP
    while not is_small(Fraction(epsilon), draws):
        epsilon -= _STEP
    return epsilon.normalize()
