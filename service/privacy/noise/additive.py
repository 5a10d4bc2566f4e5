"""Noise for vectors on a lattice: spherical Laplace (pure ε) and Gaussian (zCDP), and the scale that a charge buys.

Statement. Let v in R^D be a function of the records whose L2 sensitivity under R⊥ is Δ. The release is
g·(round(v/g) + z), rounded to doubles. The grid g is a power of two that depends on scale and dimension alone, and z
is a vector of whole numbers, independent of v:
 - Gaussian(σ): independent coordinates with P(z_i) ∝ exp(-(g·z_i)²/(2σ²)). Costs (Δ + g√D)²/(2σ²) of ρ.
 - SphericalLaplace(s): P(z) ∝ exp(-g‖z‖₂/s) on Z^D. Costs (Δ + g√D)/s of pure ε, see SLACK.
On a grid this fine (2^-50 of a coordinate's spread) they are, to any test, N(0, σ²) per coordinate and the density ∝
exp(-‖z‖₂/s) of paper-audit.md N3 and N1. (Paper A writes Lap(·) for a vector: independent Laplace noise of that scale
in each coordinate would cost up to √D times as much, paper-audit.md N2.)

Why (paper-audit.md 7.1: continuous noise that is added in doubles leaks through its low-order bits, Mironov 2012).
 - Rounding moves each coordinate by at most g/2, so neighbours that were Δ apart are at most Δ + g√D apart, and the
   charge is for that. Before, coordinates are clipped to a public range, which brings no two values further apart.
 - Noise around one whole vector is the same noise, shifted, around another. Spherical Laplace: probabilities differ
   by a factor of at most exp(g‖shift‖/s), the triangle inequality. Gaussian, for a shift m of one coordinate, an
   order a > 1 and τ = σ/g: Σ P(z - m)^a·P(z)^(1-a) = exp(a(a-1)m²/(2τ²))·Σ exp(-(z - am)²/(2τ²))/Σ exp(-z²/(2τ²)),
   and no real centre makes that quotient exceed 1 (Poisson summation); so the Rényi divergence is at most a·m²/(2τ²),
   and coordinates add (Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Theorem 4).
 - The sum is computed exactly. Rounding it to doubles afterwards is post-processing.

Exact are charges, scales and the inequality between them (fractions, rounded towards more noise); the rounding
of v and the sum; the Gaussian, and spherical Laplace in one dimension (`samplers`).

Only nearly exact, and counted, is spherical Laplace in two dimensions or more. It is a mixture of Gaussians,
exp(-√q) = ∫ exp(-q/(4G))·w(G) dG with w(G) ∝ G^(-1/2)·exp(-G) (Lévy's law, for 1/(4G)). So with q = (g‖z‖/s)², z
given G is discrete Gaussian of variance τ² = 2G(s/g)², and G has a density ∝ w(G)·θ^D, where θ = Σ exp(-k²/(2τ²))
over the whole numbers is √(2π)·τ·r with an r ≥ 1. Without r^D that is Gamma((D + 1)/2), from which `sample` draws it.
Hence a draw's law is within SLACK = 2^-100 of the stated one in total variation, for D ≤ 2^24:
 - Leaving out r^D: at most E[r^D] - 1 under the gamma law. r^D - 1 ≤ 3D·exp(-2π²τ²) < 2^-800 where G ≥ 2^-70, since
   there τ² ≥ 2^5; r^D < 1.2 where G is less and τ ≥ 1, of probability < 2^-105 (the shape is at least 3/2); r ≤ 1.4/τ
   where τ < 1, which adds < 2^-110.
 - G of finitely many bits (`samplers.gamma`): but for probability 2^-102 it is within 2^-130 of an exact one,
   relatively, and what that changes in the law of z is at most D/2 times as much, < 2^-106.
A publication in which one record can move d draws is thus (ε, δ + (1 + e^ε)·d·SLACK)-differentially private where it
promises (ε, δ), and it may begin only where the last summand is at most 2^-60 (`sampler_distance`).

Not counted: noise that needs more than 62 bits, hundreds of times its usual length (probability below 2^-1000).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from service.privacy.currency import Currency, round_up
from service.privacy.noise.samplers import discrete_gaussian, discrete_laplace, gamma

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRID_BITS = 50  # a coordinate's noise is about 2^50 steps of the lattice, which leaves 2^10 times that within 62 bits
SLACK = 2.0**-100
_RANGE_BITS = 500  # scales lie within 2^±500, and what is published within 2^500 steps
_LIMB = 31
MAX_LAPLACE_DIMENSION = 2**24  # the proof of SLACK holds up to here


class Unaffordable(ValueError):
    """Raised for a charge so small that the noise's lattice would be too coarse for the values. Public."""


class Noise(Protocol):
    """A law of noise for vectors of a known L2 sensitivity."""

    @property
    def distribution(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def dimension(self) -> int: ...
    @property
    def grid(self) -> float:
        """Return the step of the lattice on which values are rounded and noise is drawn: a power of two, public."""

    @property
    def slack(self) -> float:
        """Return how far, in total variation, a draw's law may be from the stated one. 0: exact."""

    def sample(self) -> NDArray[np.int64]:
        """Return a fresh draw in steps of the grid, shape (dimension,)."""

    def charge(self, sensitivity: float) -> float:
        """Return what adding this noise to a vector of that L2 sensitivity costs, rounding included, rounded up."""

    def expected_norm(self) -> float:
        """Return the mean L2 norm of a draw (the Gaussian's is bounded by σ√D, and near it)."""


@dataclass(frozen=True, kw_only=True)
class _Vector:
    scale: float
    dimension: int

    def __post_init__(self) -> None:
        if not (2.0**-_RANGE_BITS <= self.scale <= 2.0**_RANGE_BITS and self.dimension >= 1):
            raise ValueError("noise needs a positive finite scale, within 2^±500, and at least one dimension")

    def _grid(self, spread_bits: int) -> float:
        """Return the grid for coordinates that spread over about scale·2^spread_bits."""
        return math.ldexp(1.0, math.frexp(self.scale)[1] - 1 + spread_bits - GRID_BITS)


@dataclass(frozen=True, kw_only=True)
class SphericalLaplace(_Vector):
    """P ∝ exp(-‖z‖₂/scale). Costs Δ/scale of pure ε. `scale` is that of the radius' law, Gamma(dimension, scale)."""

    distribution: ClassVar[str] = "spherical_laplace"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dimension > MAX_LAPLACE_DIMENSION:
            raise ValueError(f"spherical Laplace noise has at most {MAX_LAPLACE_DIMENSION} dimensions")

    @property
    def grid(self) -> float:
        """Return 2^-50 of scale·√(dimension + 1), a coordinate's spread, within a factor of 4."""
        return self._grid((self.dimension.bit_length() + 1) // 2)

    @property
    def slack(self) -> float:
        """Return 0 in one dimension, else SLACK (see the module docstring)."""
        return 0.0 if self.dimension == 1 else SLACK

    def sample(self) -> NDArray[np.int64]:
        """Return a fresh draw in steps of the grid."""
        scale = Fraction(self.scale) / Fraction(self.grid)
        if self.dimension == 1:
            return np.array([discrete_laplace(scale)])
        return discrete_gaussian(2 * gamma(self.dimension + 1) * scale**2, self.dimension)

    def charge(self, sensitivity: float) -> float:
        """Return (sensitivity + grid·√dimension)/scale, an ε, rounded up."""
        return round_up(_moved(sensitivity, self) / Fraction(self.scale))

    def expected_norm(self) -> float:
        """Return E‖z‖ = dimension · scale."""
        return self.dimension * self.scale

    @staticmethod
    def least_scale(moved: Fraction, charge: float) -> float:
        """Return the least scale for which moving by `moved` costs at most `charge`."""
        return round_up(moved / Fraction(charge))


@dataclass(frozen=True, kw_only=True)
class Gaussian(_Vector):
    """Independent N(0, scale²) in each coordinate, on the grid. Costs Δ²/(2·scale²) of ρ."""

    distribution: ClassVar[str] = "gaussian"
    slack: ClassVar[float] = 0.0

    @property
    def grid(self) -> float:
        """Return 2^-50 of the scale, within a factor of 2."""
        return self._grid(0)

    def sample(self) -> NDArray[np.int64]:
        """Return a fresh draw in steps of the grid."""
        return discrete_gaussian((Fraction(self.scale) / Fraction(self.grid)) ** 2, self.dimension)

    def charge(self, sensitivity: float) -> float:
        """Return (sensitivity + grid·√dimension)²/(2·scale²), a ρ, rounded up."""
        return round_up(_moved(sensitivity, self) ** 2 / (2 * Fraction(self.scale) ** 2))

    def expected_norm(self) -> float:
        """Return scale·√dimension, the root of E‖z‖², just above E‖z‖."""
        return self.scale * math.sqrt(self.dimension)

    @staticmethod
    def least_scale(moved: Fraction, charge: float) -> float:
        """Return the least scale for which moving by `moved` costs at most `charge`."""
        bound = moved**2 / (2 * Fraction(charge))  # σ² must reach this
        scale = float(moved) / math.sqrt(2.0 * charge)
        while Fraction(scale) ** 2 < bound:
            scale = math.nextafter(scale, math.inf)
        while Fraction(smaller := math.nextafter(scale, 0.0)) ** 2 >= bound:
            scale = smaller
        return scale


def _moved(sensitivity: float, noise: Noise) -> Fraction:
    """Return the L2 sensitivity after rounding to the grid: Δ + grid·√dimension, rounded up."""
    return Fraction(sensitivity) + Fraction(noise.grid) * root(Fraction(noise.dimension))


def root(square: Fraction) -> Fraction:
    """Return √square, rounded up to a multiple of 2^-64."""
    return Fraction(math.isqrt(math.ceil(square * 2**128) - 1) + 1, 2**64)


@lru_cache(maxsize=256)
def calibrate(currency: Currency, *, sensitivity: float, charge: float, dimension: int) -> SphericalLaplace | Gaussian:
    """Return the noise with the least scale that costs at most `charge`, rounding included.

    sensitivity > 0 (L2, R⊥), charge > 0 (ε for PURE, ρ for ZCDP), both finite. Unaffordable where the lattice would
    have to be finer: its steps are 2^-50 of the noise, so Δ must not be as small as 2^-50 of it.

    The scale is the least double on the finest grid that allows one; the grid is coarser for a scale past the
    next power of two, which the scale may reach by the rounding it has to cover.

    >>> noise = calibrate(Currency.ZCDP, sensitivity=0.5, charge=0.02, dimension=3)
    >>> round(noise.scale, 6), noise.charge(0.5) <= 0.02
    (2.5, True)
    >>> add(np.zeros((1, 3)), noise).shape
    (1, 3)
    """
    if not (0.0 < sensitivity < math.inf and 0.0 < charge < math.inf):
        raise ValueError("noise can only be calibrated to a positive finite sensitivity and charge")
    law = SphericalLaplace if currency is Currency.PURE else Gaussian
    noise = law(scale=(least := law.least_scale(Fraction(sensitivity), charge)), dimension=dimension)
    while (scale := law.least_scale(_moved(sensitivity, noise), charge)) != noise.scale:
        if scale > 2.0 * least:
            raise Unaffordable("the charge is too small: rounding to the lattice would cost more than the records")
        noise = law(scale=scale, dimension=dimension)
    return noise


def add(values: NDArray[np.float64], noise: Noise) -> NDArray[np.float64]:
    """Return values rounded to the noise's grid plus one fresh draw, both in whole steps, as doubles.

    values: float64, any shape with `noise.dimension` elements; the result has that shape. The values are private, so
    nothing but the noisy sum depends on them, with one exception: ValueError if any is not finite. Then whoever
    computed them broke a promise (no fit returns such a value, whatever its records), and there is nothing to publish.
    """
    if values.size != noise.dimension:
        raise ValueError("the noise has another dimension than the values")
    if not np.isfinite(values).all():
        raise ValueError("noise cannot be added to values that are not finite")
    return _sum(round_to_steps(values, noise.grid), noise.sample().reshape(values.shape)) * noise.grid


def round_to_steps(values: NDArray[np.float64], grid: float) -> NDArray[np.float64]:
    """Return values/grid rounded to whole numbers, exactly, once clipped to ±2^500 steps. grid is a power of two."""
    bound = grid * 2.0**_RANGE_BITS
    return np.rint(np.clip(values, -bound, bound) / grid)


def _sum(whole: NDArray[np.float64], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a double near whole + steps that is a function of that exact sum alone; exact if it is below 2^53.

    With whole = high·2^31 + low the exact sum is (high + carry)·2^31 + rest, 0 ≤ rest < 2^31, and this is the
    only way to write it so. The part `rest` is exact, and high + carry is rounded as doubles are.
    """
    high = np.floor(whole * 2.0**-_LIMB)
    low = (whole - high * 2.0**_LIMB).astype(np.int64) + steps
    high += low >> _LIMB
    return np.asarray(high * 2.0**_LIMB + (low & (2**_LIMB - 1)))
