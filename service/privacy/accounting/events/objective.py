"""The event in which the minimiser of a randomly tilted objective was released (`learning.objective_perturbation`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from service.privacy.accounting.events.added_noise import AddedNoise
from service.privacy.accounting.events.event import (
    Noise,
    cost_of_noise,
    count,
    noise_from_json,
    noise_to_json,
    positive,
)
from service.privacy.currency import Currency, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDED = 1 + Fraction(1, 2**45)  # covers rounding errors of log1p


@dataclass(frozen=True, kw_only=True)
class TiltedObjective(AddedNoise):
    """`noise` is the tilt; one record moves the tilt that a minimiser implies by at most `sensitivity`."""

    added_to: ClassVar[str] = "objective"
    regularization: float
    """Λ"""
    rank: int
    steepness: float
    """T·R²"""
    output: Noise
    """the noise added to the minimiser, since it is never quite found"""
    output_sensitivity: float

    @property
    def draws(self) -> int:
        """Return the nearly exact draws of the tilt and of the output noise."""
        return super().draws + int(self.output.slack > 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the tilt, the regularization, the curvature of one record's loss and the output noise."""
        return super().to_json() | {
            "regularization": self.regularization,
            "curvature": {"rank": self.rank, "steepness": self.steepness},
            "output": noise_to_json(self.output, self.output_sensitivity),
        }

    @classmethod
    def _fields(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        curved, output = content["curvature"], content["output"]
        return super()._fields(content) | {
            "regularization": positive(content, "regularization"),
            "rank": count(curved, "rank"),
            "steepness": positive(curved, "steepness"),
            "output": noise_from_json(output),
            "output_sensitivity": positive(output, "sensitivity"),
        }

    def _cost(self, currency: Currency, records: int) -> Fraction:
        curved = curvature(
            rank=self.rank, steepness=self.steepness, records=records, regularization=self.regularization
        )
        tilt = cost_of_noise(Currency.PURE, self.noise, self.sensitivity)
        output = cost_of_noise(Currency.PURE, self.output, self.output_sensitivity)
        return currency.worth(tilt + Fraction(curved) + output)


def curvature(*, rank: int, steepness: float, records: int, regularization: float) -> float:
    """Return what the curvature of a tilted objective costs, an ε: rank·ln(1 + steepness/(rank·n·Λ)), rounded up.

    Statement (paper-audit.md 5.2). Let A ⪰ nΛ·I, and H, H' ⪰ 0 of at most that rank and with traces of at
    most that steepness. Then |ln det(A + H) - ln det(A + H')| is at most this.

    Why. ln det(A + H') ≥ ln det A, and det(A + H)/det A = det(I + A^(-1/2)·H·A^(-1/2)) = Π (1 + h_i), where the at most
    `rank` positive h_i add up to tr(A⁻¹H) ≤ tr(H)/(nΛ); for a given sum the product is largest where all are equal.
    """
    ratio = round_up(Fraction(steepness) / (rank * records * Fraction(regularization)))
    return round_up(rank * Fraction(math.log1p(ratio)) * _ROUNDED)
