"""Sums of what each record says about a linear model, for a window of blocks, and the model that is solved from them.

Statement. Private: the records, each of which is in one block of n public slots. Neighbours: R⊥. With an intercept a
row is (x, R)/√2 here, else x, ‖x‖ ≤ R, and a = x/R its part without the intercept, ‖a‖ ≤ 1. A record with label code v,
‖v‖ ≤ 1, adds to its block's sum
    (s·a⊗a, f·a, l·v⊗a, k·v),
a⊗a as the triangle on and above the diagonal, with √2 off it; without an intercept f = k = 0, and neither part is
there. Each block's estimate is released for the records' whole charge (`noise.correlated`, Δ below); everything
else is computed from estimates of the last W blocks and public numbers, and reads no record again. So a record is
charged once, whatever W is, and W blocks later nothing depends on it: the noise that is taken back from later estimates
is independent of every record (`noise.correlated`: in exact arithmetic it is C⁻¹z). (L2DP-C of paper-audit.md 4.2, over
a window: paper-audit.md 8.6.)

Codes. Two classes: v = ±1. K > 2: v = √(K/(K - 1))·(e_y - 1/K), unit vectors with inner products -1/(K - 1). A
regression: v = y/Y, y clipped to ±Y. The number of slots is public and needs no noise; an empty one adds nothing.

How far one record moves the exact sum: `sensitivity.sufficient_statistics`. A unit adds the mean of what its records
would add: it lies in their convex hull, and that of all records and 0 has the same diameter. The computed
sum is within E, with u = 2^-53 and F the norm of (s, f, l, k): entries are dot products in chunks of CHUNK rows, added
one after the other, each within (CHUNK + n/CHUNK + 16)·u of the sum of its terms' sizes, for which n·F is a bound of
the norm. E is twice that, and at least SLACK·F, so that Δ normally depends on nothing else. (A computed a is no longer
than 1: `Prepared` has a margin.)

Weights, `weights`: only ratios matter, so l = 1. k is as large as is free: pairs of different labels are then as far
apart as pairs of the same one. s and f are those of a grid for which the noise moves the normal equations least, for a
model that explains a fair part of the labels: ‖w‖² = LENGTH but for the intercept, BIAS for that. In exact arithmetic:
they decide what noise is added to.

Solving. The losses' second-order expansions at zero have gradients -c·v⊗φ and the curvature h·φ⊗φ in each row of
weights, so the minimiser of their sum over the window and (α/2)·‖w - w₀‖² per slot is
    w = w₀ + (g·V - w₀·M)·(M + λ)⁻¹,   g = c/h,   λ = α·slots/h,
V and M being the estimates of Σ v⊗φ and Σ φ⊗φ, M without its negative eigenvalues. For `squared` that is ridge
regression, for the others the degree-2 classifier of paper-audit.md 4.2: least squares on codes, which is Fisher's
discriminant. Where `ridge` (α) is not given, λ is a third of √(2p) times the standard deviation of the noise on M's
diagonal: that is the size of noise as a matrix of p columns, and what is not longer than it is not to be believed. The
third was found on noaa_weather and elec2, the root also holds on 54 columns of covtype.

| loss | c·v | h | g |
|---|---|---|---|
| squared | y | 1 | Y |
| logistic | ±1/2 | 1/4 | 2 |
| softmax | e_y - 1/K | 1/K | √(K(K - 1)) |

With an `intercept_scale` the rows of the loss are others, and the model is released as weights of those: the same
products, from the same minimiser. Sums do not depend on it, and the pull is that of (x, R)/√2.

Tried, and no better on those: shrinking or flooring eigenvalues instead of adding to them, Tikhonov's v/(v² + λ²), an
intercept that is not pulled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from service.learning.linear import Linear
from service.learning.optimization.losses import Squared
from service.learning.optimization.objective import MARGIN
from service.learning.optimization.solvers import SLACK, UNIT, Inaccurate
from service.learning.output_perturbation import FAMILY as OUTPUT
from service.learning.records import row_scales
from service.mechanisms.timing import Workspace
from service.privacy import sensitivity
from service.privacy.accounting.events import NoisyStatistics
from service.privacy.currency import Currency, round_down
from service.privacy.noise import correlated
from service.privacy.noise.additive import Gaussian
from service.privacy.noise.correlated import Toeplitz
from service.privacy.sensitivity import StatisticsWeights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.noise.additive import SphericalLaplace
    from service.privacy.noise.correlated import Factor, Memory

CHUNK = 1024
MATRICES = 18  # matrices in memory during a step: an upper bound, measured, like the constants below
COPIES = 3  # copies of the remembered state in memory while it is read and summed
PRODUCTS_OF_A_DRAW = 1000  # drawing the noise of one entry takes as long as this many products
LENGTH = 2
BIAS = Fraction(1, 4)
_FIRST = 256  # blocks after which the noise of a block is cancelled as far as it ever is
_TWENTIETHS = tuple(Fraction(twentieths, 20) for twentieths in range(4, 31))


@lru_cache(maxsize=64)
def weights(features: int, classes: int, *, intercept: bool) -> StatisticsWeights:
    """Return the weights for that many features and classes, 0 for a regression; see the module."""
    codes = max(classes, 2)  # labels of a regression lie between two opposite codes
    contrasts = codes - 1

    def counted(second: Fraction, first: Fraction) -> Fraction:
        """Return k², the square of the weight of label sums."""
        same, other = (
            sensitivity.moments_square(second=second, first=first, label=1, count=0, codes=codes, alike=alike)
            for alike in (True, False)
        )
        return (same - other) * (codes - 1) / (2 * codes)

    def error(second: Fraction, first: Fraction) -> Fraction:
        moved = Fraction(features + 1, 2) * LENGTH / second**2 + contrasts * features
        if intercept:
            moved += (features * BIAS + LENGTH) / first**2 + contrasts / counted(second, first)
        return moved * sensitivity.moments_square(second=second, first=first, label=1, count=0, codes=codes, alike=True)

    second, first = min(product(_TWENTIETHS, _TWENTIETHS if intercept else (Fraction(0),)), key=lambda at: error(*at))
    count = math.sqrt(round_down(counted(second, first))) if intercept else 0.0
    return StatisticsWeights(second=float(second), first=float(first), label=1.0, count=count)


@dataclass(frozen=True, kw_only=True)
class Statistics(Linear):
    """The statistics that a model is solved from (see the module), for any choice of blocks whose estimates add up."""

    kind: ClassVar[str] = OUTPUT.kind
    same_everywhere: ClassVar[bool] = True
    ridge: float | None = None
    """α; None: by its rule"""

    def describe(self, origin: Floats) -> dict[str, Any]:  # noqa: ARG002
        """Return the statistics and their sensitivity as JSON, for a plan."""
        return {
            "weights": self.weights.to_json(),
            "sensitivity": "of the weighted statistics of the one block that a record is in, and rounding",
        }

    @property
    def weights(self) -> StatisticsWeights:
        return weights(self.features, self.classes, intercept=self.intercept)

    @property
    def entries(self) -> int:
        """Return the number of statistics."""
        rows, columns = self.shape
        return columns * (columns + 1) // 2 - self.intercept + rows * columns

    @property
    def most_remembered(self) -> int:
        """Return how many numbers a step leaves for the next one, at most."""
        return self.entries

    @property
    def solutions(self) -> int:
        """Return how many matrices a step decomposes, at most."""
        return 1

    @property
    def workspace(self) -> Workspace:
        """Return the memory and work of a step: matrices, remembered state, noise and solutions."""
        rows, columns = self.shape
        return Workspace(
            numbers=MATRICES * columns * (rows + columns) + COPIES * self.most_remembered,
            products=self.solutions * columns**3 + PRODUCTS_OF_A_DRAW * self.entries,
        )

    def factor(self, currency: Currency) -> Factor:  # noqa: ARG002
        """Return how later blocks cancel earlier noise: not at all."""
        return Toeplitz(bands=1, decay=1.0)

    def perturbation(
        self,
        currency: Currency,
        charge: float,
        records: int,
        center: Floats | None = None,  # noqa: ARG002
    ) -> NoisyStatistics:
        """Return how a block of n = `records` slots spends at most `charge`. Public. May raise Inaccurate."""
        weighted = self.weights
        norm = MARGIN * math.hypot(weighted.second, weighted.first, weighted.label, weighted.count)  # F, rounded up
        error = max(SLACK, 2.0 * UNIT * records * (CHUNK + records / CHUNK + 16.0)) * norm
        if not error <= norm / 2.0:
            raise Inaccurate("double precision cannot add up the statistics of so many records: use smaller blocks")
        moved = MARGIN * (
            sensitivity.sufficient_statistics(
                second=weighted.second,
                first=weighted.first,
                label=weighted.label,
                count=weighted.count,
                codes=max(self.classes, 2),
            )
            + 2.0 * error
        )
        largest = MARGIN * records * norm + moved
        factor = self.factor(currency)
        sums = correlated.calibrate(
            currency, factor=factor, sensitivity=moved, largest=largest, charge=charge, dimension=self.entries
        )
        return NoisyStatistics(noise=sums.noise, sensitivity=moved, factor=factor, largest=largest, weights=weighted)

    def statistics(self, records: Records, n: int) -> Floats:
        """Return the weighted sums over the records present among n slots, (entries,). NOT private without noise."""
        rows, y, shares = self.weighed(records)
        if len(y) > n:
            raise ValueError("more records than slots")
        lines, columns = self.shape
        squares, labels = np.zeros((columns, columns)), np.zeros((lines, columns))
        for start in range(0, len(y), CHUNK):
            piece = slice(start, start + CHUNK)
            a = rows[piece].rows() / self._lengths
            part = a if shares is None else a * shares[piece, None]
            squares += part.T @ a
            labels += self._codes(y[piece]).T @ part
        return np.concatenate((squares[self._triangle], labels.ravel())) * self._scales

    def strength(self, noise: float, slots: int) -> float:
        """Return α for statistics of that many slots whose second moments have noise of that standard deviation."""
        if self.ridge is not None:
            return self.ridge
        _, curvature = self.expansion
        return math.sqrt(2.0 * self.shape[1]) / 3.0 * noise * curvature * self.unit**2 / slots

    def sums(self, total: Floats, slots: int) -> tuple[Floats, Floats]:
        """Return the estimates of Σ (a, 1)⊗(a, 1), columns × columns, and of Σ v⊗(a, 1), rows × columns.

        total: noisy statistics that add up to this, over so many slots. Without an intercept a instead of (a, 1).
        """
        rows, columns = self.shape
        squares, labels = np.split(total / self._scales, [self.entries - rows * columns])
        second = np.zeros((columns, columns))
        second[self._triangle] = squares
        second += np.triu(second, 1).T
        if self.intercept:
            second[-1, -1] = slots
        return second, labels.reshape(rows, columns)

    def solve(self, total: Floats, slots: int, ridge: float, origin: Floats, rank: int | None = None) -> Floats:
        """Return the model of noisy statistics that add up to `total` over that many slots, float64 of `shape`."""
        if origin.shape != self.shape:
            raise ValueError("the origin has another shape than the model")
        second, labels = self.sums(total, slots)
        return self.minimiser(second, labels, slots, ridge, origin, rank)

    def minimiser(
        self, second: Floats, labels: Floats, slots: int, ridge: float, origin: Floats, rank: int | None = None
    ) -> Floats:
        """Return the minimiser w of the module docstring from `sums` over that many slots; labels, origin: any rows.

        rank: along how many eigenvectors of M it may leave the origin, those of the largest eigenvalues; None: all.
        """
        origin = origin / self.turned
        gain, curvature = self.expansion
        values, vectors = np.linalg.eigh(second)
        largest = slice(-(rank or len(values)), None)
        positive, vectors = np.maximum(values[largest], 0.0), vectors[:, largest]
        wanted = gain * labels @ vectors - origin @ vectors * self.unit * positive
        pulled = positive + ridge * slots / (curvature * self.unit**2)
        return np.asarray(origin + (wanted / pulled) @ vectors.T / self.unit) * self.turned

    @cached_property
    def _lengths(self) -> Floats:
        """Return the divisors that make (a, 1) of a row's coordinates, (columns,)."""
        cosine, sine = row_scales(self.intercept_scale) if self.intercept else (1.0, 1.0)
        lengths = np.full(self.shape[1], self.norm_bound * cosine)
        if self.intercept:
            lengths[-1] = self.norm_bound * sine
        return lengths

    @cached_property
    def turned(self) -> Floats:
        """Return the factors, (columns,), that turn weights of (x, R)/√2 into weights of the loss's rows."""
        factors = np.ones(self.shape[1])
        if self.intercept_scale is not None:
            cosine, sine = row_scales(self.intercept_scale)
            factors[:-1], factors[-1] = math.sqrt(0.5) / cosine, math.sqrt(0.5) / sine
        return factors

    @cached_property
    def _triangle(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return which second moments are counted: all on and above the diagonal but the number of records."""
        upper, right = np.triu_indices(self.shape[1])
        return (upper[:-1], right[:-1]) if self.intercept else (upper, right)

    @cached_property
    def _scales(self) -> Floats:
        """Return the weight of each statistic, (entries,)."""
        weighted, (lines, columns) = self.weights, self.shape
        upper, right = self._triangle
        squares = np.where(upper == right, weighted.second, math.sqrt(2.0) * weighted.second)
        labels = np.full((lines, columns), weighted.label)
        if self.intercept:
            squares[right == columns - 1] = weighted.first
            labels[:, -1] = weighted.count
        return np.concatenate((squares, labels.ravel()))

    @property
    def unit(self) -> float:
        """Return a row's length where ‖a‖ = 1, without the intercept."""
        return self.norm_bound * (math.sqrt(0.5) if self.intercept else 1.0)

    @property
    def expansion(self) -> tuple[float, float]:
        """Return (g, h) of the loss's expansion at zero: see the module docstring."""
        if isinstance(self.loss, Squared):
            return self.loss.bound, 1.0
        if self.shape[0] == 1:
            return 2.0, 0.25
        return math.sqrt(self.classes * (self.classes - 1.0)), 1.0 / self.classes

    def _codes(self, y: NDArray[np.generic]) -> Floats:
        """Return v of each label, (m, rows)."""
        if isinstance(self.loss, Squared):
            return np.asarray(np.clip(y.astype(np.float64) / self.loss.bound, -1.0, 1.0)[:, None])
        if self.shape[0] == 1:
            return np.where(y == 1, 1.0, -1.0)[:, None]
        own = y.astype(np.intp)[:, None] == np.arange(self.classes)
        return np.asarray(math.sqrt(self.classes / (self.classes - 1.0)) * (own - 1.0 / self.classes))


@lru_cache(maxsize=64)
def spreads(factor: Factor, blocks: int) -> tuple[float, ...]:
    """Return the standard deviation of the sum of the last blocks' noises, of draws of 1, after each of some steps.

    The numbers are those of the first; later ones hardly differ.
    """
    memory: Memory = ()
    noises: list[float] = []
    for step in range(min(4 * blocks, factor.steps or 4 * blocks)):
        noise = np.full(1, 0.0 if step else 1.0) - factor.carried(memory, step)
        memory = factor.remember(memory, noise, step, math.inf)
        noises.append(float(noise[0]))
    sums = np.cumsum(noises)
    sums[blocks:] -= sums[:-blocks].copy()
    return tuple(np.sqrt(np.cumsum(sums**2)).tolist())


def deviation(noise: Gaussian | SphericalLaplace) -> float:
    """Return the standard deviation of a coordinate of one draw."""
    spread = 1.0 if isinstance(noise, Gaussian) else math.sqrt(noise.dimension + 1.0)
    return noise.scale * spread


def spread(factor: Factor, blocks: int) -> float:
    """Return the standard deviation of the sum of the noises of all blocks so far, of draws of 1.

    In one run without end. Where the response to a draw is over, each further block adds the same.
    """
    first = spreads(factor, _FIRST)[:_FIRST]
    known = first[min(blocks, len(first)) - 1]
    return math.sqrt(known**2 + max(0, blocks - len(first)) / float(factor.column.total) ** 2)
