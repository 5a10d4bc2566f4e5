"""A fit of a secret sample: how much less it costs each slot than the same fit of all slots would.

Statement. Private: which slots are drawn, and the records of all n slots. Neighbours: R⊥, the record of one slot
replaced by another or by none. Let M be ε_h-differentially private for data sets of h slots, under replacement of one
slot's content by any other or by nothing, and let it have the same guarantee whatever the order of the slots. Draw h of
n slots uniformly, without replacement, independently of all records and of everything that was ever drawn before; give
M the contents of these slots and nothing else. Then each of the n slots loses at most

    ε = ln(1 + (h/n)·(e^ε_h - 1))

(Balle, Barthe, Gaboardi, "Privacy Amplification by Subsampling: Tight Analyses via Couplings and Divergences", 2018:
the theorem on sampling without replacement with neighbours by substitution, here for δ = 0.)

Why. Let slot i be the one that differs, γ = h/n the probability that it is drawn, and P₀, P₁, P₁′ the laws of M given
that i is not drawn, that it is drawn with its one content, and with the other. The law of the release is
P = (1-γ)·P₀ + γ·P₁ on the one stream and P′ = (1-γ)·P₀ + γ·P₁′ on the other. For every event E
 - P₁(E) ≤ e^ε_h·P₁′(E): the samples differ in one slot's content;
 - P₁(E) ≤ e^ε_h·P₀(E): a uniform sample with i becomes a uniform one without i when a uniform slot that was not drawn
   takes i's place; that, too, replaces one content.
So with m = min(P₀(E), P₁′(E)): P₁(E) ≤ e^ε_h·m and m ≤ P′(E), hence
P(E) ≤ (1-γ)·P₀(E) + γ·m + γ·(e^ε_h - 1)·m ≤ P′(E) + γ·(e^ε_h - 1)·P′(E).
Some mechanisms lose exactly that: `tests/privacy/test_sampling.py`.

Slots are drawn, not records: a slot that came empty or was erased is drawn like any other, and M is told h, not how
many records the sample holds. If h of the records present were drawn, a record's absence would change how likely each
other one is drawn, and h/n would be a function of the records.

Only for pure ε: what a fit of a sample costs in ρ follows another formula, which is not proved here.

Rounding. `epsilon_of_sample` is rounded down and `cost_of_sample` up, by decimals of `_DIGITS` digits whose exp and ln
enclose the true ones; so what is charged is never less than what the release costs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from service.privacy.currency import round_down
from service.privacy.noise.samplers import enclosed_exp, log_above
from service.privacy.randomness import random_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGITS = 60  # far more than doubles have, also where a cost of 10^-12 is the logarithm of a number just above 1
_LARGE = 512  # from this ε on, sampling is assumed to save nothing: an upper bound for every ε


def cost_of_sample(epsilon: Fraction, drawn: int, slots: int) -> Fraction:
    """Return the ε that each of n = `slots` slots pays for a fit of h = `drawn` of them that costs the h epsilon.

    ln(1 + (h/n)·(e^ε_h - 1)), rounded up, and never more than ε_h. epsilon > 0. ValueError unless 1 ≤ h < n.
    """
    _check(drawn, slots)
    if epsilon >= _LARGE:
        return epsilon
    least, _ = enclosed_exp(epsilon, _DIGITS)  # at most e^-ε_h
    return min(epsilon, log_above(1 + Fraction(drawn, slots) * (1 / least - 1), _DIGITS))


@lru_cache(maxsize=256)
def epsilon_of_sample(charge: float, drawn: int, slots: int) -> float:
    """Return ε_h, which a fit of h = `drawn` of n = `slots` slots may spend on its sample for a charge on all n slots.

    ln(1 + (n/h)·(e^charge - 1)), rounded down to a double whose `cost_of_sample` is at most the charge; never less than
    the charge. charge > 0, an ε. ValueError unless 1 ≤ h < n.
    """
    _check(drawn, slots)
    if charge >= _LARGE:
        return charge
    _, most = enclosed_exp(Fraction(charge), _DIGITS)  # at least e^-charge
    epsilon = min(float(_LARGE), round_down(log_above(1 + Fraction(slots, drawn) * (1 / most - 1), _DIGITS)))
    while epsilon > charge and cost_of_sample(Fraction(epsilon), drawn, slots) > charge:
        epsilon = math.nextafter(epsilon, 0.0)
    return max(epsilon, charge)


def draw(drawn: int, slots: int) -> NDArray[np.int64]:
    """Return a uniform secret sample of `drawn` of the slots 0 … slots - 1: int64 (drawn,), rising.

    Every set of so many slots is equally likely, and drawn from the operating system's generator. Why: slots are drawn
    one by one, with replacement, until so many different ones are there. To name the slots otherwise changes nothing of
    that, so sets of that one size are equally likely. Where more than half are drawn, the others are.
    """
    _check(drawn, slots)
    if 2 * drawn > slots:
        left = np.ones(slots, dtype=np.bool_)
        left[draw(slots - drawn, slots)] = False
        return np.flatnonzero(left)
    chosen = np.empty(0, dtype=np.int64)
    while len(chosen) < drawn:
        chosen = np.union1d(chosen, _uniform(slots, drawn - len(chosen)))
    return chosen


def _uniform(end: int, count: int) -> NDArray[np.int64]:
    """Return `count` independent uniform whole numbers below `end`, at most 2^62."""
    numbers = np.empty(0, dtype=np.int64)
    greatest = np.uint64(2**64 - 2**64 % end - 1)  # words up to it fall on each remainder equally often
    while len(numbers) < count:
        words = np.frombuffer(random_bytes(8 * (count - len(numbers))), dtype=np.uint64)
        numbers = np.concatenate((numbers, (words[words <= greatest] % np.uint64(end)).astype(np.int64)))
    return numbers


def _check(drawn: int, slots: int) -> None:
    if not 1 <= drawn < slots:
        raise ValueError("a sample has at least one slot, and fewer than there are")
