"""Noise for running sums: what one step adds, later steps take back, so that sums over a stream stay near the truth.

Statement. Private: vectors v_0, v_1, … in R^D, ‖v_t‖ ≤ V, each a function of records of its own and of what was
released before; replacing one record (R⊥) moves one of them, by at most Δ. Released at step t: ĝ_t, an estimate of v_t,
whose running sums are those of v and little noise. The infinite release costs the worst record
 - Gaussian(σ): (‖c‖₂·Δ + √L·r)²/(2σ²) of ρ, c being the largest column of the factor C, L its length, r for rounding;
 - SphericalLaplace(s): (‖c‖₁·Δ + L·r)/s of pure ε.
In exact arithmetic ĝ = v + C⁻¹z for fresh noise z of every step, the matrix mechanism of C⁻¹ and C: with A the running
sums, A·ĝ = A·v + B·z, B = A·C⁻¹ (Denisov et al. 2022; Choquette-Choo et al. 2023; Dvijotham et al. 2024 for `Blt`).

| factor C | column c | remembers |
|---|---|---|
| `Toeplitz` | c_l = γ^l·binom(2l, l)/4^l for l < K: that of √A (γ = 1), or one for ever (γ < 1) | K - 1 vectors |
| `Blt` | c_0 = 1, c_l = Σ_j scale_j·decay_j^(l-1): a few decays, within 1% of that | a vector per decay |
| `Tree` | a 1 for each node that holds the step, of a binary tree over 2^e steps: h = e + 1 at most | e vectors |

Why. A step computes ĝ_t = round(v_t - m_t) + z_t on the lattice of z_t (`noise`), m_t from what is remembered of the
noises n_s = ĝ_s - v_s of steps before. Fix what was released before and all records but one, of step i. Then for both
of two neighbours all n_s are the same but n_i, which differs by what v_i does. So v_t - m_t is a vector that differs by
at most Δ at t = i, and later by what m_t makes of n_i, c_(t-i)·Δ; z_t is independent of everything before, and its cost
for a vector that moves so far is that of `noise`. The steps add up (paper-audit.md L1; that v_t depends on what was
released is allowed for). Nothing correlated is ever rounded or drawn: paper-audit.md 7.1, where rounded noise
through a real factor tells its parity, does not arise. A draw is used in one step and never drawn again. The memory
holds noise, which together with the releases tells v: it is as secret as the records.

 - Toeplitz: m_t = Σ_j c_j·n_(t-j). Blt: m_t = Σ_j scale_j·s_j, s_j ← decay_j·s_j + n_t, from nothing every `steps`
   steps, so that a record is in one run only. In both c_l is by what n_i enters m_(i+l), and C·n = z.
 - Tree: step t completes a node that ends there, of the noise N_t = n_t + m_t, where m_t adds up the noises of the
   remembered nodes that it holds. In exact arithmetic N_t = z_t, and ĝ_t is how the sum of the noisy nodes that cover
   the steps so far changes. n_i enters m_t for the t at which a node that holds i is completed. A tree of n steps is
   followed by another: of as many (every record is then in at most h nodes for ever: paper B's window tree of a window
   n, strict, paper-audit.md 2), or of twice as many.

Rounding. All that is remembered is clipped to ±R, R = 2^55 steps g of the lattice (16 to 32 standard deviations of a
Gaussian), or r_j·R: that hardly ever happens, and brings no two neighbours further apart. With u = 2^-53 what
is computed of v_t - m_t is then apart by at most c_l·Δ + 2uV + α·u·R·√D, where u·R = 4g:
 - ĝ - v is off by uR once clipped, so two neighbours' n_i are apart by 2uR per coordinate more than their v_i; m_t and
   v - m_t are off by what sums of so many products are.
 - Toeplitz: α = 2(K + 1)·(1 + Σ_(l≥1) c_l).
 - Blt, of k decays: s_j gets 2uR·r_j in each update, and decays. α = 3 + Σ scale_j·r_j·(4/(1 - decay_j) + 2(k + 2)).
 - Tree: n is clipped at (h + 1)R; in at most h completions a node's noise gets 2(h² + h + 2)uR each. α = 2(h + 2)³.
Rounding to the lattice adds g√D. Together r = 2uV + (4α + 1)·g√D, in at most L steps: K, `steps`, h. By Minkowski's
inequality √(Σ (c_l·Δ + r)²) ≤ ‖c‖₂·Δ + √L·r.

Exact are the lattice, the draws, and the cost (fractions, rounded up; a Toeplitz column's squares are summed to
2^-50). Nothing is left out but SphericalLaplace's slack (`noise`), once for each of the L draws that a record moves.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from service.privacy.currency import Currency, round_up
from service.privacy.noise import additive as noises
from service.privacy.noise.additive import Gaussian, SphericalLaplace, Unaffordable, root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Memory = tuple[Floats, ...]

_UNIT = Fraction(1, 2**53)
_RANGE_BITS = 55  # remembered vectors stay within 2^55 steps of the lattice
_MAX_DECAYS = 16
_SUMMED = 1 + Fraction(1, 2**50)  # covers squaring doubles and rounding their exact sum


class ColumnNorms(NamedTuple):
    """The numbers that bound the cost of the record that pays most (see the module). Exact, or rounded up."""

    square: Fraction
    """‖c‖₂²"""
    total: Fraction
    """‖c‖₁"""
    length: int
    """L, the steps in which neighbours can differ"""
    rounding: Fraction
    """α"""


class Factor(Hashable, Protocol):
    """C, for one run of steps 0, 1, …; public. The memory is a tuple of vectors, older ones before newer ones.

    There are none before the run and after it.
    """

    @property
    def steps(self) -> int | None:
        """Return the length of a run, after which nothing of it is remembered; None: it never ends."""

    @property
    def column(self) -> ColumnNorms: ...
    def remembers(self, step: int) -> int:
        """Return how many vectors are remembered when this step begins."""

    def carried(self, memory: Memory, step: int) -> Floats | float:
        """Return m_t, the earlier noise that this step subtracts again; 0.0 if there is none."""

    def remember(self, memory: Memory, noise: Floats, step: int, limit: float) -> Memory:
        """Return the memory for the next step; noise: n_t, limit: R. The arrays of `memory` are not changed."""

    def described(self) -> dict[str, Any]:
        """Return it as JSON, from which `running_sums.of` makes it again."""


@dataclass(frozen=True, kw_only=True)
class Toeplitz:
    """The square root of running sums, times decay^l, cut off after `bands` coefficients; as doubles they are exact.

    Cut off, it is still invertible and stable: the coefficients fall, so no zero of Σ c_l·x^l is within the unit disc
    (Eneström and Kakeya).
    """

    kind: ClassVar[str] = "toeplitz"
    steps: ClassVar[int | None] = None
    bands: int
    decay: float

    def __post_init__(self) -> None:
        if not (1 <= self.bands <= 2**20 and 0.0 < self.decay <= 1.0):
            raise ValueError("a Toeplitz factor needs 1 to 2^20 bands and 0 < decay <= 1")

    @staticmethod
    def for_ever(decay: float) -> Toeplitz:
        """Return the factor for an endless stream, cut off where decay^l falls below 1%. 0 < decay < 1."""
        return Toeplitz(bands=math.ceil(math.log(0.01) / math.log(decay)), decay=decay)

    @cached_property
    def coefficients(self) -> Floats:
        """Return c, (bands,), the first column of C."""
        later = np.arange(1.0, self.bands)
        return np.concatenate(([1.0], np.cumprod((1.0 - 0.5 / later) * self.decay)))

    @cached_property
    def column(self) -> ColumnNorms:
        total = _SUMMED * Fraction(math.fsum(self.coefficients))
        square = _SUMMED * Fraction(math.fsum(self.coefficients**2))
        return ColumnNorms(square=square, total=total, length=self.bands, rounding=2 * (self.bands + 1) * total)

    def remembers(self, step: int) -> int:
        return min(step, self.bands - 1)

    def carried(self, memory: Memory, step: int) -> Floats | float:  # noqa: ARG002
        return sum((c * noise for c, noise in zip(self.coefficients[1:], reversed(memory), strict=False)), start=0.0)

    def remember(self, memory: Memory, noise: Floats, step: int, limit: float) -> Memory:  # noqa: ARG002
        return (*memory, np.clip(noise, -limit, limit))[-(self.bands - 1) :] if self.bands > 1 else ()

    def described(self) -> dict[str, Any]:
        return {"kind": self.kind, "bands": self.bands, "decay": self.decay}


@dataclass(frozen=True, kw_only=True)
class Blt:
    """A buffered linear Toeplitz factor: a vector per decay, whatever the number of steps.

    Any coefficients are private, since ‖c‖² = 1 + Σ scale_j·scale_k/(1 - decay_j·decay_k) follows from them.
    """

    kind: ClassVar[str] = "blt"
    decays: tuple[float, ...]
    scales: tuple[float, ...]
    steps: int

    def __post_init__(self) -> None:
        fits = len(self.decays) == len(self.scales) >= 1 and self.steps >= 1
        if not (
            fits and all(0 < decay < 1 for decay in self.decays) and min(self.scales) > 0 and sum(self.scales) <= 1
        ):
            raise ValueError("a BLT factor needs as many scales, of sum 1 at most, as decays, all in (0, 1)")
        if len(self.decays) > _MAX_DECAYS:  # computing the exact cost takes too long for more decays
            raise ValueError(f"a BLT factor has at most {_MAX_DECAYS} decays")

    @staticmethod
    @lru_cache(maxsize=64)
    def decaying(decay: float) -> Blt:
        """Return a factor within 1% of the square root of running sums times decay^l. 0 < decay <= 1.

        In runs of 2^16 steps. The coefficients are the best known for 2^10 steps or for 2^16 (paper-audit.md 8.1).
        """
        decays, scales = _SHORT if decay <= 1.0 - 2.0**-8 else _LONG
        return Blt(
            decays=tuple(number * decay for number in decays),
            scales=tuple(number * decay for number in scales),
            steps=2**16,
        )

    @cached_property
    def column(self) -> ColumnNorms:
        decays, scales = [Fraction(number) for number in self.decays], [Fraction(number) for number in self.scales]
        pairs = list(zip(decays, scales, strict=True))
        square = 1 + sum((a * b / (1 - x * y) for x, a in pairs for y, b in pairs), start=Fraction(0))
        rounding = sum(
            (
                a * Fraction(reach) * (4 / (1 - x) + 2 * (len(pairs) + 2))
                for (x, a), reach in zip(pairs, self._reaches, strict=True)
            ),
            start=Fraction(3),
        )
        total = 1 + sum((a / (1 - x) for x, a in pairs), start=Fraction(0))
        return ColumnNorms(square=square, total=total, length=self.steps, rounding=rounding)

    @cached_property
    def _reaches(self) -> tuple[float, ...]:
        """Return r_j, the standard deviation of s_j for independent noise: an upper bound."""
        return tuple(1.0 / math.sqrt(1.0 - decay * decay) for decay in self.decays)

    def remembers(self, step: int) -> int:
        return len(self.decays) if step else 0

    def carried(self, memory: Memory, step: int) -> Floats | float:  # noqa: ARG002
        return sum((a * buffer for a, buffer in zip(self.scales, memory, strict=False)), start=0.0)

    def remember(self, memory: Memory, noise: Floats, step: int, limit: float) -> Memory:
        if step + 1 == self.steps:
            return ()
        noise = np.clip(noise, -limit, limit)
        buffers: Sequence[Floats | float] = memory or (0.0,) * len(self.decays)
        return tuple(
            np.clip(decay * buffer + noise, -limit * reach, limit * reach)
            for decay, reach, buffer in zip(self.decays, self._reaches, buffers, strict=True)
        )

    def described(self) -> dict[str, Any]:
        return {"kind": self.kind, "decays": list(self.decays), "scales": list(self.scales), "steps": self.steps}


_SHORT = (0.99897285, 0.97855964, 0.74328276), (0.04444111, 0.12054534, 0.31138952)
_LONG = (0.99998078, 0.9994787, 0.98973267, 0.81598152), (0.00624631, 0.02166079, 0.09460906, 0.33025664)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The nodes of a binary tree over 2^e steps that end where some prefix does: left children, and the root."""

    kind: ClassVar[str] = "tree"
    steps: int
    """2^e"""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.steps & (self.steps - 1):
            raise ValueError("a tree has a power of two of leaves")

    @property
    def levels(self) -> int:
        """Return h, the number of levels."""
        return self.steps.bit_length()

    @property
    def column(self) -> ColumnNorms:
        levels = self.levels
        return ColumnNorms(
            square=Fraction(levels), total=Fraction(levels), length=levels, rounding=Fraction(2 * (levels + 2) ** 3)
        )

    def remembers(self, step: int) -> int:
        return step.bit_count()

    def carried(self, memory: Memory, step: int) -> Floats | float:
        return sum(memory[len(memory) - _completed(step) :], start=0.0)

    def remember(self, memory: Memory, noise: Floats, step: int, limit: float) -> Memory:
        if step + 1 == self.steps:
            return ()
        wide = (self.levels + 1) * limit
        node = np.clip(np.clip(noise, -wide, wide) + self.carried(memory, step), -limit, limit)
        return (*memory[: len(memory) - _completed(step)], node)

    def described(self) -> dict[str, Any]:
        return {"kind": self.kind, "steps": self.steps}


def _completed(step: int) -> int:
    """Return how many of the nodes that cover steps 0 … step - 1 the one that `step` completes holds."""
    return (~step & (step + 1)).bit_length() - 1


@dataclass(frozen=True, kw_only=True)
class Correlated:
    """A factor, the noise z of every step, and V, the public bound on the norm of every v."""

    factor: Factor
    noise: Gaussian | SphericalLaplace
    largest: float

    def charge(self, sensitivity: float) -> float:
        """Return what a run costs a record that moves one of its vectors by at most that, rounded up: a ρ or an ε."""
        moved = _moved(self, Fraction(sensitivity))
        scale = Fraction(self.noise.scale)
        return round_up(moved / scale if isinstance(self.noise, SphericalLaplace) else moved**2 / (2 * scale**2))

    def release(self, values: Floats, memory: Memory, step: int) -> tuple[Floats, Memory]:
        """Return ĝ_t, which the record's one charge pays for, and the memory for the next step.

        values: v_t, (dimension,), ‖v_t‖ ≤ V. step: its number in the run; memory: what the step before returned. Both
        results are lost together or kept together: a step that is run twice is charged twice.
        """
        if [array.shape for array in memory] != [values.shape] * self.factor.remembers(step):
            raise ValueError("the remembered state belongs to another step")
        released = noises.add(values - self.factor.carried(memory, step), self.noise)
        limit = math.ldexp(self.noise.grid, _RANGE_BITS)
        return released, self.factor.remember(memory, released - values, step, limit)


@lru_cache(maxsize=64)
def calibrate(
    currency: Currency, *, factor: Factor, sensitivity: float, largest: float, charge: float, dimension: int
) -> Correlated:
    """Return the least noise for which a run costs a record at most `charge`: an ε (PURE) or a ρ (ZCDP).

    sensitivity Δ and largest V: see the module docstring. Unaffordable where rounding would cost more than the records.

    The estimate of one step is released with noise, and its state goes to the next step:

    >>> factor = Toeplitz(bands=3, decay=1.0)
    >>> factor.coefficients.tolist()
    [1.0, 0.5, 0.375]
    >>> run = calibrate(Currency.ZCDP, factor=factor, sensitivity=1.0, largest=10.0, charge=0.5, dimension=2)
    >>> estimate, memory = run.release(np.array([3.0, 4.0]), (), step=0)
    >>> estimate.shape, len(memory)
    ((2,), 1)
    """
    if not (0.0 < sensitivity < math.inf and 0.0 < charge < math.inf and 0.0 <= largest < math.inf):
        raise ValueError("noise can only be calibrated to a positive finite sensitivity and charge")
    law = SphericalLaplace if currency is Currency.PURE else Gaussian
    norm = factor.column.total if currency is Currency.PURE else root(factor.column.square)
    least = law.least_scale(norm * Fraction(sensitivity), charge)
    calibrated = Correlated(factor=factor, noise=law(scale=least, dimension=dimension), largest=largest)
    while (scale := law.least_scale(_moved(calibrated, Fraction(sensitivity)), charge)) != calibrated.noise.scale:
        if scale > 2.0 * least:
            raise Unaffordable("the charge is too small: rounding would cost more than the records")
        calibrated = Correlated(factor=factor, noise=law(scale=scale, dimension=dimension), largest=largest)
    return calibrated


def _moved(correlated: Correlated, sensitivity: Fraction) -> Fraction:
    """Return ‖c‖·Δ and what rounding adds, in the norm that the noise's cost is in: an upper bound."""
    column, noise = correlated.factor.column, correlated.noise
    lattice = (4 * column.rounding + 1) * Fraction(noise.grid) * root(Fraction(noise.dimension))
    rounding = 2 * _UNIT * Fraction(correlated.largest) + lattice
    if isinstance(noise, SphericalLaplace):
        return column.total * sensitivity + column.length * rounding
    return root(column.square) * sensitivity + root(Fraction(column.length)) * rounding
