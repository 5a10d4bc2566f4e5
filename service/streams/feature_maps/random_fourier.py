"""Random Fourier features (Rahimi and Recht 2007)."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np

from service.inputs.fields import Positive, Shape
from service.streams.feature_maps.settings import Mapped, Seed, Version

if TYPE_CHECKING:
    from service.streams.feature_maps.step import Floats

MAX_RANDOM = 2**23  # random numbers of one map: 64 MiB


class RandomFourierMap(Shape):
    """Random Fourier features of the Gaussian kernel exp(-‖x-x'‖² / (2·width²))."""

    kind: Literal["random_fourier"]
    version: Version = 1
    features: Mapped
    width: Positive = 1.0
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class RandomFourier:
    """Random Fourier features of the Gaussian kernel exp(-‖x-x'‖² / (2·width²)).

    ⟨z(x), z(x')⟩ is the kernel in expectation over W and b, with a standard deviation of at most 1/√p. No mapped record
    is longer than √2, and most are close to 1: E‖z‖² = 1.

    W (p × d) and b (p) are read from the bytes SHAKE-128("perennial random_fourier 1 SEED"), SEED in decimal, as 64-bit
    little-endian integers k, each the uniform number u = (⌊k/2^11⌋ + ½)/2^53 in (0, 1). Two of them, u and v, are two
    standard normals √(-2 ln u)·cos 2πv and √(-2 ln u)·sin 2πv (Box and Muller); W is filled with normals row by row,
    a left-over one is dropped, and b is 2π times the p uniforms that follow.
    """

    input_features: int
    features: int
    width: float
    seed: int

    def __post_init__(self) -> None:
        if self.features * self.input_features > MAX_RANDOM:
            raise ValueError(f"random_fourier: features in times features out must be at most {MAX_RANDOM}")

    def __call__(self, x: Floats) -> Floats:
        frequencies, offsets = public_normals(self.input_features, self.features, self.seed)
        phases = (x / self.width) @ frequencies.T + offsets
        return np.asarray(math.sqrt(2.0 / self.features) * np.cos(phases))


@lru_cache(maxsize=4)
def public_normals(columns: int, rows: int, seed: int) -> tuple[Floats, Floats]:
    """Return W (rows × columns) and b (rows) of `RandomFourier` with width 1: the same everywhere, for ever."""
    pairs = (rows * columns + 1) // 2
    drawn = hashlib.shake_128(f"perennial random_fourier 1 {seed}".encode()).digest(8 * (2 * pairs + rows))
    uniform = ((np.frombuffer(drawn, dtype="<u8") >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[: 2 * pairs : 2]))
    angle = 2.0 * np.pi * uniform[1 : 2 * pairs : 2]
    normal = np.column_stack((radius * np.cos(angle), radius * np.sin(angle))).ravel()
    return normal[: rows * columns].reshape(rows, columns), 2.0 * np.pi * uniform[2 * pairs :]
