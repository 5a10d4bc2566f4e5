"""The selection of records to label: a coin for each slot, weighted by its distance from a public hyperplane.

Statement. Private: the slot's record, through its distance d in [0, M] from a hyperplane that was released before.
Neighbours: R⊥, an empty slot has the distance 0. Released: at most the coin, whatever else follows from it. With ε > 0
and a public half-width b of the slab around the hyperplane, the slot is selected with probability
 - `bernoulli`: p = e^ε/(1 + e^ε) if d ≤ b, else 1 - p;
 - `exponential`: q = exp(-max(b, d)·ε/(M - b)), 0 < b < M.
The coin costs `loss`: ε, and for `exponential` max{ε, ln((1 - q_min)/(1 - q_max))}, where q_max = exp(-bε/(M - b)) and
q_min = q_max·e^-ε.

Why. Either coin is a function of d alone, so what it costs is the largest |ln P(s|d) - ln P(s|d')|. `bernoulli`: p and
1 - p are e^ε apart both ways. `exponential`: q lies between q_min and q_max, both are attained, and they are e^ε apart;
not being selected has the probability 1 - q. This is ε in all iff 1 - q_max·e^-ε ≤ e^ε·(1 - q_max), that is
q_max ≤ e^ε/(1 + e^ε), or b/(M - b) ≥ ln(1 + e^-ε)/ε: `least_threshold`. It is b alone that decides, and a wider slab is
the safer: where the slab shrinks, its last width must do.

Where it differs from paper E. Lemma 4.2 asks for exp(-bε/Δ) ≤ 1/2, more than is needed, and section 4.5 then sets b =
0.2, M = 1, ε = 1, which has neither: what is told not to be selected there loses 1.171, not 1 (paper-audit.md 5.1). The
paper's τ is exp(-b); its p is e^ε/(1 + e^ε).

Coins are exact: every decision is one of `samplers`, on exact fractions of ε, b, M and d, all doubles. Losses are
rounded up, thresholds towards the smaller loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from service.privacy.noise.samplers import Uniform, enclosed_exp, fair_coin, log_above

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIGITS = 60  # no draw depends on these digits


class Selection(Protocol):
    """A law by which slots are selected."""

    @property
    def law(self) -> str: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def threshold(self) -> float:
        """Return b, the half-width of the slab around the hyperplane."""

    def select(self, distance: float) -> bool:
        """Toss a fresh coin and return whether a record at that distance ≥ 0 from the hyperplane is selected."""

    def loss(self) -> Fraction:
        """Return the pure ε that the coin costs its slot's record, rounded up."""

    def most(self) -> float:
        """Return about the largest probability of selection: that of a record on the hyperplane."""

    def least(self) -> float:
        """Return about the least probability of selection: that of the farthest record."""

    def described(self) -> dict[str, Any]:
        """Return it as JSON, with all it takes to recompute the loss."""


@dataclass(frozen=True, kw_only=True)
class Bernoulli:
    """Randomised response: whether the record is in the slab (paper E, section 3.1, Lemma 4.1)."""

    law: ClassVar[str] = "bernoulli"
    epsilon: float
    threshold: float

    def __post_init__(self) -> None:
        _check(self.epsilon > 0 and self.threshold >= 0)

    def select(self, distance: float) -> bool:
        """Return the truth about the slab with probability p, else the opposite."""
        return self._truthful() is (distance <= self.threshold)

    def loss(self) -> Fraction:
        """Return ε."""
        return Fraction(self.epsilon)

    def most(self) -> float:
        """Return p."""
        return float(1 / (1 + enclosed_exp(Fraction(self.epsilon), _DIGITS)[0]))

    def least(self) -> float:
        """Return 1 - p."""
        return float(1 / (1 + 1 / enclosed_exp(Fraction(self.epsilon), _DIGITS)[0]))

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"law": self.law, "epsilon": self.epsilon, "threshold": self.threshold}

    def _truthful(self) -> bool:
        """Return True with probability 1/(1 + e^-ε), drawn exactly by rejection."""
        while True:
            if fair_coin():
                return True
            if Uniform.fresh().below_exp(Fraction(self.epsilon)):
                return False


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """The farther, the less likely (paper E, equation 3.3, Lemma 4.2)."""

    law: ClassVar[str] = "exponential"
    epsilon: float
    threshold: float
    norm_bound: float
    """M, farther than which nothing is: a longer distance counts as that."""

    def __post_init__(self) -> None:
        _check(self.epsilon > 0 and 0 < self.threshold < self.norm_bound)

    def select(self, distance: float) -> bool:
        """Return True with probability q."""
        return Uniform.fresh().below_exp(self.exponent(min(max(distance, self.threshold), self.norm_bound)))

    def loss(self) -> Fraction:
        """Return max{ε, ln((1 - q_min)/(1 - q_max))}, the second rounded up."""
        return _loss(self)

    def most(self) -> float:
        """Return q_max."""
        return float(enclosed_exp(self.exponent(self.threshold), _DIGITS)[0])

    def least(self) -> float:
        """Return q_min."""
        return float(enclosed_exp(self.exponent(self.norm_bound), _DIGITS)[0])

    def described(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "law": self.law,
            "epsilon": self.epsilon,
            "threshold": self.threshold,
            "norm_bound": self.norm_bound,
        }

    def exponent(self, distance: float) -> Fraction:
        """Return -ln of the probability with which a slot of that distance, within [b, M], is selected."""
        room = Fraction(self.norm_bound) - Fraction(self.threshold)
        return Fraction(distance) * Fraction(self.epsilon) / room


@lru_cache(maxsize=256)
def _loss(selection: Exponential) -> Fraction:
    """Return the loss of the law, cached: every update needs it, and computing it takes half as long as an update."""
    epsilon, farthest = selection.epsilon, selection.norm_bound
    q_max, q_min = (enclosed_exp(selection.exponent(distance), _DIGITS) for distance in (selection.threshold, farthest))
    return max(Fraction(epsilon), log_above((1 - q_min[0]) / (1 - q_max[1]), _DIGITS))


def least_threshold(epsilon: float, norm_bound: float) -> float:
    """Return the least b, rounded up to four digits, with which an `Exponential` costs no more than ε."""
    ratio = log_above(1 + enclosed_exp(Fraction(epsilon), _DIGITS)[1], _DIGITS) / Fraction(epsilon)
    least = Fraction(norm_bound) * ratio / (1 + ratio)
    digits = Decimal(least.numerator) / Decimal(least.denominator)
    step = Decimal(1).scaleb(digits.adjusted() - 3)
    threshold = digits.quantize(step, rounding=ROUND_CEILING)
    while Fraction(float(threshold)) < least:
        threshold += step
    return float(threshold)


def of(described: Mapping[str, Any]) -> Selection:
    """Return the law that was `described`. ValueError or KeyError if there is no such law."""
    match described["law"]:
        case Bernoulli.law:
            return Bernoulli(epsilon=described["epsilon"], threshold=described["threshold"])
        case Exponential.law:
            return Exponential(**{name: described[name] for name in ("epsilon", "threshold", "norm_bound")})
        case other:
            raise ValueError(f"slots cannot be selected by {other}")


def _check(sound: bool) -> None:
    if not sound:
        raise ValueError("a selection needs an epsilon > 0 and a threshold, for the exponential law within (0, M)")
