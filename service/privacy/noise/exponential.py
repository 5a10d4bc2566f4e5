"""The exponential mechanism: one of many candidates, the likelier the smaller its error, drawn exactly.

Statement. Let error(y) ≥ 0 be numbers that one record moves by at most Δ each (R⊥). The release is one candidate
y with P(y) ∝ exp(-error(y)/scale). With ε = 2Δ/scale that costs ε of pure loss, or ε²/8 = Δ²/(2·scale²) of ρ.

Why. Let a record be replaced. Each exp(-error/scale) changes by a factor within e^(±ε/2), their sum over all
candidates by one factor; so L = ln P(y)/P'(y) lies within an interval of length ε that holds 0: |L| ≤ ε. For ρ:
E_P[e^(-L)] is 1, and by Hoeffding's lemma at most exp(-E_P[L] + ε²/8), so E_P[L] ≤ ε²/8. By the lemma once more, for
each order a > 1, ln E_P[e^((a - 1)L)] ≤ (a - 1)·E_P[L] + (a - 1)²·ε²/8 ≤ (a - 1)·a·ε²/8, which is ε²/8-zCDP. (Bounded
range, Dong, Durfee, Rogers 2020; counted as any pure ε it would be ε²/2.)

With probability 1 - β the error of what is published is at most the least one plus scale·ln(K/β), K being the number of
candidates (McSherry, Talwar 2007).

How. The law is exactly that, on the same grounds as `samplers`. Whole weights W ≥ 2^42·exp(-x), x = (error - least
error)/scale, are computed in doubles; a candidate is drawn in proportion to W, by a whole number below their sum, and
kept with probability 2^42·exp(-x)/W, which is decided exactly; otherwise all is drawn again, which is rare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from service.privacy.currency import Currency, round_up
from service.privacy.noise.additive import Gaussian, SphericalLaplace
from service.privacy.noise.samplers import Uniform, uniform_below

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_CANDIDATES = 2**20  # their weights then add up within 64 bits
_ONE = 2.0**42
_INFLATION = 1.0 + 2.0**-30  # doubles are off by less: x·2^-50 in the exponent where x < 2^8, and numpy's exp by 2^-40
_NEGLIGIBLE = 64.0  # for larger x, 2^42·exp(-x) < 1 also with rounding errors


@dataclass(frozen=True, kw_only=True)
class ExponentialSelection:
    """P ∝ exp(-error/scale); what is selected has `dimension` coordinates."""

    distribution: ClassVar[str] = "exponential_mechanism"
    slack: ClassVar[float] = 0.0
    scale: float
    dimension: int

    @staticmethod
    def calibrated(currency: Currency, *, sensitivity: float, charge: float, dimension: int) -> ExponentialSelection:
        """Return the law with the least scale that costs at most `charge` for that sensitivity of the errors."""
        moved = Fraction(sensitivity)
        if currency is Currency.PURE:
            scale = SphericalLaplace.least_scale(2 * moved, charge)
        else:
            scale = Gaussian.least_scale(moved, charge)
        return ExponentialSelection(scale=scale, dimension=dimension)

    def charge(self, currency: Currency, sensitivity: float) -> float:
        """Return 2Δ/scale, an ε (PURE), or Δ²/(2·scale²), a ρ (ZCDP), rounded up."""
        ratio = Fraction(sensitivity) / Fraction(self.scale)
        return round_up(2 * ratio if currency is Currency.PURE else ratio**2 / 2)

    def expected_norm(self) -> None:
        """Return None: this mechanism adds no noise to the released values."""

    def error_bound(self, candidates: int, failure_probability: float) -> float:
        """Return a bound on selected error minus least error; it fails with at most that probability."""
        return self.scale * math.log(candidates / failure_probability)


def select(errors: NDArray[np.int64], rate: Fraction) -> int:
    """Return an index i, drawn with P(i) ∝ exp(-rate·errors[i]) exactly. errors: int64 (K,), 0 < K ≤ MAX_CANDIDATES.

    rate ≥ 0. Fresh randomness of the operating system.
    """
    if not 0 < len(errors) <= MAX_CANDIDATES:
        raise ValueError(f"there are 1 to {MAX_CANDIDATES} candidates")
    above = errors - errors.min()
    exponents = np.minimum(above * float(rate), _NEGLIGIBLE)
    ends = np.cumsum(np.floor(_ONE * _INFLATION * np.exp(-exponents)).astype(np.int64) + 1)
    while True:
        index = int(np.searchsorted(ends, uniform_below(int(ends[-1])), side="right"))
        weight = int(ends[index]) - (int(ends[index - 1]) if index else 0)
        if Uniform.fresh().below_exp(int(above[index]) * rate, Fraction(weight, int(_ONE))):
            return index
