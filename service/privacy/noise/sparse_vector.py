"""The sparse vector technique over a growing number of slots: finding a hard query costs one query's price.

Statement. Private: every record; a query is a count S, a whole number that one slot moves by at most STEPS (a sum of
weights that are multiples of 1/STEPS in [0, 1]). Neighbours: R⊥. An instance opens over n slots with a secret
threshold, and compares any number of queries, chosen adaptively and each over t ≥ n slots by then, with one public
guess each: is |S/t - guess| about `height` or more? Whatever it tells until, and with, its first yes costs each slot
2·STEPS/scale of pure ε, those that arrive while it is open too. After a yes it tells nothing more.

The noise: with the discrete Laplace law P(z) ∝ exp(-|z|/s) on the whole numbers (`samplers`, exact), the threshold is
height + z with s = scale, drawn once; every query is compared with fresh z of s = 2·scale. All in steps of the lattice
on which a record among n slots weighs STEPS: the query's value is v = |round(S·n/t) - round(guess·n·STEPS)|.

Why (Lyu, Su, Li, "Understanding the Sparse Vector Technique", 2017, Algorithm 1; paper-audit.md 3.1 for the slots that
arrive). One slot moves S·n/t by at most STEPS·n/t ≤ STEPS, a whole number, so by rounding it moves no further, and nor
does the distance from a guess, which is public. Let v_1 … v_k be the values with one stream and v'_1 … v'_k with a
neighbour, z the threshold's noise, height left out for it is public. For answers no, …, no, yes:
 Σ_z P(z)·Π_{i<k} P(v_i + Z < z)·P(v_k + Z ≥ z) ≤ e^(2·STEPS/scale)·(the same with v'), for putting z + STEPS for z
 - makes P(z) larger by a factor of at most e^(STEPS/scale),
 - makes each P(v'_i + Z < z + STEPS) at least P(v_i + Z < z), since v'_i ≤ v_i + STEPS, and
 - P(v'_k + Z ≥ z + STEPS) at least e^(-2·STEPS/(2·scale)) times P(v_k + Z ≥ z), since v'_k ≥ v_k - STEPS.
Without a yes the last factor is missing, which is cheaper. A query that a slot has not been there for has v = v'.

One comparer. The bound holds for answers up to one yes, and for all that can be seen, time included. So after a yes,
published or not, nothing may be compared with the same threshold: a comparison takes microseconds, and what a second
yes would need, a transaction, takes milliseconds. A reader who told the two apart would have the answers to any number
of queries for the price of one. One process at a time compares; it keeps a yes that it could not publish until it has
(`service.queries.answering`). A process that takes over from one that may have kept a yes closes the instance first.

Redrawn for a later comparison, or shared by two yeses, a threshold costs more than is said here: see the tests.

| here | paper-audit.md 3.1 | paper C |
|---|---|---|
| opened n | ts | t of the last hard query |
| scale | 3·STEPS/e | in units of a slot among ts: 1/(ts·e/3)·(ts·STEPS) |
| noise of a comparison | b2 = 2/(ts·e/3) | |
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from service.privacy.noise.samplers import discrete_laplace

STEPS = 2**20
"""The most by which one slot moves a count: weights of queries are multiples of 1/STEPS."""
LARGEST_SCALE = 2.0**56
"""So that noise of twice this scale stays, to any probability that matters, within 62 bits."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """The public part of one threshold: over how many slots it opened, and the scale of its noise in steps."""

    opened: int
    scale: float

    def __post_init__(self) -> None:
        if not (self.opened >= 1 and 1.0 <= self.scale <= LARGEST_SCALE):
            raise ValueError("an instance opens over at least one slot, with a scale of 1 to 2^56 steps")

    @property
    def cost(self) -> Fraction:
        """Return the exact pure ε that all comparisons together cost each slot; the count after a yes costs extra."""
        return 2 * STEPS / Fraction(self.scale)

    @property
    def step(self) -> Fraction:
        """Return a step of its lattice, in parts of the slots: 1/(opened·STEPS)."""
        return Fraction(1, self.opened * STEPS)

    def threshold_noise(self) -> int:
        """Return the threshold's noise, in steps: secret, drawn once for the life of the instance."""
        return discrete_laplace(Fraction(self.scale))

    def value(self, count: int, slots: int, guess: float) -> int:
        """Return how far a query's answer is from its guess, in steps. As secret as the records.

        count: S, in 1/STEPS, over the so many slots there are now, at least as many as when the instance opened.
        """
        if slots < self.opened:
            raise ValueError("an instance cannot have fewer slots than when it opened")
        return abs(round(Fraction(count * self.opened, slots)) - self.steps(guess))

    def steps(self, share: float) -> int:
        """Return a public share of the slots in steps, rounded."""
        return round(Fraction(share) / self.step)

    def is_above(self, value: int, height: float, noise: int) -> bool:
        """Return whether a query exceeds the threshold, with fresh noise; noise: the threshold's; height: public."""
        return value + discrete_laplace(2 * Fraction(self.scale)) >= self.steps(height) + noise
