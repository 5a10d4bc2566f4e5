"""Noise for vectors: spherical Laplace (pure ε) and Gaussian (zCDP), and the scale that a charge buys.

Statement. Let v in R^D be a function of the records whose L2 sensitivity under R⊥ is Δ.
 - v + SphericalLaplace(s), density ∝ exp(-‖z‖₂/s), is (Δ/s)-differentially private (mechanisms.md N1). The radius
   ‖z‖ follows Gamma(shape D, scale s), the direction is uniform. (Paper A writes Lap(·) for a vector: independent
   Laplace noise of that scale in each coordinate would cost up to √D times as much, mechanisms.md N2.)
 - v + Gaussian(σ), independent N(0, σ²) per coordinate, is Δ²/(2σ²)-zCDP (N3).

What is exact: charges, scales and the inequality between them (fractions, rounded towards more noise). What is only
nearly so: the sampler computes log, cos and sqrt in doubles from 64-bit uniforms, so its law is the stated one up to
relative errors near 2^-50 and a cut of probability 2^-64 per coordinate in the tail, and v + z is added in doubles and
then rounded to a public grid, which hides low-order bits but is no proof against them. A sampler that is exact on a
lattice would close that gap; this is not one.

Randomness comes from the operating system at every call: nothing to seed, nothing that a fork could copy.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from service.privacy.loss import Kind, round_up

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRID_BITS = 40  # a release is rounded to a power of two that is at most scale · 2^-GRID_BITS


def _uniforms(count: int) -> NDArray[np.float64]:
    """Return independent uniforms in (0, 1], each from 64 bits of the operating system's generator."""
    words = np.frombuffer(os.urandom(8 * count), dtype="<u8")
    return np.asarray((words.astype(np.float64) + 1.0) * 2.0**-64)


def _normals(count: int) -> NDArray[np.float64]:
    """Return independent standard normals (Box-Muller)."""
    half = (count + 1) // 2
    radius = np.sqrt(-2.0 * np.log(_uniforms(half)))
    angle = (2.0 * math.pi) * _uniforms(half)
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]


class Noise(Protocol):
    """Noise that can be added to a vector of a known L2 sensitivity."""

    @property
    def distribution(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def dimension(self) -> int: ...
    def sample(self) -> NDArray[np.float64]:
        """Return a fresh draw, float64 of shape (dimension,)."""

    def charge(self, sensitivity: float) -> float:
        """Return what adding this noise to a vector of that L2 sensitivity costs, rounded up."""

    def expected_norm(self) -> float:
        """Return the mean L2 norm of a draw (the Gaussian's is bounded by σ√D, and near it)."""


@dataclass(frozen=True, kw_only=True)
class _Vector:
    scale: float
    dimension: int

    def __post_init__(self) -> None:
        if not (0.0 < self.scale < math.inf and self.dimension >= 1):
            raise ValueError("noise needs a positive finite scale and at least one dimension")


@dataclass(frozen=True, kw_only=True)
class SphericalLaplace(_Vector):
    """Density ∝ exp(-‖z‖₂/scale) on R^dimension. Costs Δ/scale of pure ε. `scale` is that of the radius' gamma law."""

    distribution: ClassVar[str] = "spherical_laplace"

    def sample(self) -> NDArray[np.float64]:
        """Return a fresh draw: a radius from Gamma(dimension, scale), a sum of exponentials, and a direction."""
        radius = self.scale * float(-np.log(_uniforms(self.dimension)).sum())
        while not (length := float(np.linalg.norm(direction := _normals(self.dimension)))) > 0.0:
            pass
        return np.asarray(radius * (direction / length))

    def charge(self, sensitivity: float) -> float:
        """Return sensitivity/scale, an ε, rounded up."""
        return round_up(Fraction(sensitivity) / Fraction(self.scale))

    def expected_norm(self) -> float:
        """Return E‖z‖ = dimension · scale."""
        return self.dimension * self.scale


@dataclass(frozen=True, kw_only=True)
class Gaussian(_Vector):
    """Independent N(0, scale²) in each coordinate. Costs Δ²/(2·scale²) of ρ."""

    distribution: ClassVar[str] = "gaussian"

    def sample(self) -> NDArray[np.float64]:
        """Return a fresh draw."""
        return self.scale * _normals(self.dimension)

    def charge(self, sensitivity: float) -> float:
        """Return sensitivity²/(2·scale²), a ρ, rounded up."""
        return round_up(Fraction(sensitivity) ** 2 / (2 * Fraction(self.scale) ** 2))

    def expected_norm(self) -> float:
        """Return scale·√dimension, the root of E‖z‖², just above E‖z‖."""
        return self.scale * math.sqrt(self.dimension)


def calibrate(kind: Kind, *, sensitivity: float, charge: float, dimension: int) -> SphericalLaplace | Gaussian:
    """Return the least noise whose charge for that sensitivity is at most `charge`; the scale is rounded up.

    sensitivity > 0 (L2, R⊥), charge > 0 (ε for PURE, ρ for ZCDP), both finite.
    """
    if not (0.0 < sensitivity < math.inf and 0.0 < charge < math.inf):
        raise ValueError("noise can only be calibrated to a positive finite sensitivity and charge")
    if kind is Kind.PURE:
        return SphericalLaplace(scale=round_up(Fraction(sensitivity) / Fraction(charge)), dimension=dimension)
    bound = Fraction(sensitivity) ** 2 / (2 * Fraction(charge))  # σ² must reach this

    def enough(scale: float) -> bool:
        return Fraction(scale) ** 2 >= bound

    scale = sensitivity / math.sqrt(2.0 * charge)
    while not enough(scale):
        scale = math.nextafter(scale, math.inf)
    while enough(smaller := math.nextafter(scale, 0.0)):
        scale = smaller
    return Gaussian(scale=scale, dimension=dimension)


def add(values: NDArray[np.float64], noise: Noise) -> NDArray[np.float64]:
    """Return values + one fresh draw of the noise, rounded to the public grid 2^⌊log2(scale)⌋ · 2^-GRID_BITS.

    values: float64, any shape with `noise.dimension` elements; the result has that shape. The grid depends on the scale
    alone, so the rounding is post-processing (see the module docstring for what it does and does not achieve).
    """
    if values.size != noise.dimension:
        raise ValueError("the noise has another dimension than the values")
    _, exponent = math.frexp(noise.scale)
    grid = math.ldexp(1.0, exponent - 1 - GRID_BITS)
    noisy = values + noise.sample().reshape(values.shape)
    return np.asarray(np.rint(noisy / grid) * grid)
