"""The law of what noise adds to a sum of counts. It is public, so everything here costs nothing.

A sum of m noisy counts holds m independent draws of one discrete Laplace or Gaussian law. Its weights are computed by
convolution, with errors below 1e-12. Where a draw's deviation is below 2·FINENESS, the weights are those of the exact
law on the whole numbers. A wider law is put on multiples of a step of about deviation/FINENESS, with the exact
variance: its quantiles are then off by less than one step, which `quantile` adds. A normal number much wider than the
noise makes steps as long as it takes for MAX_STEPS of them to reach the end of the law, each below 10^-4 of its
deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from service.privacy.currency import Currency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.privacy.noise.counts import CountNoise

FINENESS = 64
MAX_STEPS = 2**18
_DEVIATIONS = 12.0  # standard deviations beyond which the weight of a sum is neglected
_SCALES = 40.0


@dataclass(frozen=True, kw_only=True, eq=False)
class SumLaw:
    """A symmetric law on the multiples of `step`."""

    step: int
    survival: NDArray[np.float64]
    """P(Z > (j - 1/2)·step) for j = -reach … reach."""

    def above(self, value: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Return P(Z > value). Exact for a step of 1 where 2·value is an odd whole number."""
        reach = len(self.survival) // 2
        edges = np.arange(-reach, reach + 1) - 0.5
        return np.interp(np.asarray(value) / self.step, edges, self.survival, left=1.0, right=0.0)

    def quantile(self, probability: float) -> float:
        """Return the least q, on the lattice, with P(Z > q) ≤ probability ≤ 1/2."""
        reach = len(self.survival) // 2
        first = int(np.searchsorted(-self.survival, -probability))  # negated, since survival falls
        return (first - reach - 0.5) * self.step - 0.5 + (self.step > 1) * self.step


def total(noise: CountNoise, draws: int, variance: float = 0.0) -> SumLaw:
    """Return the law of the sum of that many draws of the noise, and of a normal number of that variance."""
    return _of_noise(noise, draws) if variance == 0.0 else _convolved(noise, draws, variance)


@lru_cache(maxsize=256)
def _of_noise(noise: CountNoise, draws: int) -> SumLaw:
    """Return the law of `total`, cached: all figures of an evaluation need few laws."""
    return _convolved(noise, draws, 0.0)


def _convolved(noise: CountNoise, draws: int, variance: float) -> SumLaw:
    kind, scale, deviation = noise.currency, noise.scale, noise.deviation()
    deviations = _DEVIATIONS * math.sqrt(draws * deviation**2 + variance)
    farthest = deviations + _SCALES * scale * (kind is Currency.PURE)
    step = max(1, int(deviation / FINENESS), math.ceil(farthest / MAX_STEPS))
    reach = math.ceil(farthest / step) + 1
    length = 1 << (2 * reach).bit_length()
    places: NDArray[np.float64] = np.fft.fftfreq(length, 1.0 / length).astype(np.float64)  # 0, 1, …, -2, -1
    exponents = _exponents(kind, scale if step == 1 else None, deviation / step, places)
    weights = np.exp(-exponents)
    transformed = np.fft.rfft(weights / weights.sum()) ** draws
    frequencies = 2.0 * math.pi * np.arange(len(transformed)) / length
    transformed *= np.exp(-variance / step**2 * frequencies**2 / 2.0)
    law = np.fft.fftshift(np.fft.irfft(transformed, length))
    middle = length // 2
    law = np.maximum(law[middle - reach : middle + reach + 1], 0.0)
    survival = np.cumsum(law[::-1])[::-1]
    return SumLaw(step=step, survival=np.minimum(survival / survival[0], 1.0))


def _exponents(
    currency: Currency, scale: float | None, deviation: float, places: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return -ln of one draw's weights; without a scale, of the law with that deviation."""
    if currency is Currency.ZCDP:
        return (places / (scale or deviation)) ** 2 / 2.0
    return np.abs(places) / (scale or 0.5 / math.asinh(math.sqrt(0.5) / deviation))
