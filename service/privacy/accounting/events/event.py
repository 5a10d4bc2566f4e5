"""The base of all privacy events, and how they are read from JSON: nothing that a ledger holds is believed blindly."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian, SphericalLaplace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from service.privacy.noise.exponential import ExponentialSelection

Noise = SphericalLaplace | Gaussian


class PrivacyEvent(ABC):
    """The public description of how a release used the records that it read."""

    added_to: ClassVar[str]

    @property
    @abstractmethod
    def draws(self) -> int:
        """Return how many draws of nearly exact noise one record moves (`noise.sampler_distance`)."""

    def cost(self, currency: Currency, records: int) -> Fraction:
        """Return what the release costs each of the n = `records` records that it read, in a publication's currency.

        ValueError where it has no cost in that currency, or more than any charge.
        """
        count({"records": records}, "records")
        try:
            return self._cost(currency, records)
        except OverflowError:
            raise ValueError("the noise costs more than any charge") from None

    @abstractmethod
    def dimension(self, shape: Sequence[int]) -> int:
        """Return the number of noise coordinates in a release whose parameters have that shape."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON that `from_json` reads."""

    @classmethod
    @abstractmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the event of this class that JSON states. ValueError, KeyError or TypeError if it states none."""

    @abstractmethod
    def _cost(self, currency: Currency, records: int) -> Fraction:
        """Return the cost. ValueError or OverflowError if there is none."""


def cost_of_noise(currency: Currency, noise: Noise, sensitivity: float) -> Fraction:
    """Return the cost of adding noise once to values of that L2 sensitivity, in a publication's currency."""
    return in_currency(currency, noise, noise.charge(sensitivity))


def in_currency(currency: Currency, noise: Noise, charge: float) -> Fraction:
    """Return a charge of that noise, an ε or a ρ, in a publication's currency. ValueError if it can't be converted."""
    if isinstance(noise, SphericalLaplace):
        return currency.worth(Fraction(charge))
    if currency is not Currency.ZCDP:
        raise ValueError(f"noise of distribution {noise.distribution} has no cost in this currency")
    return Fraction(charge)


def noise_to_json(noise: Noise | ExponentialSelection, sensitivity: float) -> dict[str, Any]:
    """Return a law and the sensitivity of what it protects as JSON."""
    return {
        "distribution": noise.distribution,
        "scale": noise.scale,
        "sensitivity": sensitivity,
        "dimension": noise.dimension,
    }


def noise_from_json(content: Mapping[str, Any]) -> Noise:
    """Return the law that JSON states. ValueError if it states none."""
    scale, dimension = positive(content, "scale"), count(content, "dimension")
    if content["distribution"] == SphericalLaplace.distribution:
        return SphericalLaplace(scale=scale, dimension=dimension)
    if content["distribution"] == Gaussian.distribution:
        return Gaussian(scale=scale, dimension=dimension)
    raise ValueError(f"noise of distribution {content['distribution']} has no cost in this currency")


def positive(content: Mapping[str, Any], name: str) -> float:
    """Return a positive finite number: with any other the formulas could be made to say anything, also nothing."""
    value = content[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"the noise needs a positive finite {name}")
    return value


def count(content: Mapping[str, Any], name: str) -> int:
    """Return a whole number of at least 1."""
    value = content[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"the noise needs a whole number of {name}, at least 1")
    return value
