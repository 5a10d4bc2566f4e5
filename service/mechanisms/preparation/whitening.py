"""A feature map that makes the first N records' features alike in size and uncorrelated, released once.

Statement. Private: every record of the stream. Neighbours: R⊥. Released, when N slots are numbered: Σ a⊗a with noise,
a = x/R being a record as models read it (after the stream's map and the released map that it names, if any, and
shortened to the norm R), and the matrix that follows from it. One record loses at most `capacity`: an ε or a ρ.
Records from slot N on lose nothing.

Why. ‖a‖ ≤ 1, so a record moves the sum, as the triangle on and above the diagonal with √2 off it, by at most √2 where
it is replaced and by 1 where it is removed: `sensitivity.second_moments`. The computed sum is within E of the exact one
(`_error`), so Δ = √2 + 2E, with a margin. Noise for Δ costs the whole capacity (`noise.additive`). The matrix is
computed from the noisy sum and public numbers alone. For those who name it the map is like a public one, as with
`mechanism`.

The matrix. With M the noisy sum, M₊ without its negative eigenvalues, and λ the size of the noise as a matrix (√(2d)
times the standard deviation of the noise on the diagonal), W = g·(M₊ + λ)^(-1/2)/R. The floor λ holds back directions
that noise alone shows. The gain g makes Σ‖Wx‖² of the N slots N·FULL²·d, as M₊ has it: rows then fill the norm √d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from service.learning.optimization.objective import MARGIN
from service.learning.optimization.solvers import SLACK, UNIT, Inaccurate
from service.learning.records import PreparedRows
from service.mechanisms.limits import FULL
from service.mechanisms.preparation.once import MapOfFirstRecords
from service.mechanisms.sufficient_statistics import CHUNK, deviation
from service.mechanisms.units import NotForUnits
from service.privacy import sensitivity
from service.privacy.accounting.events import NoisySecondMoments
from service.privacy.noise import additive

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats

MAX_FEATURES = 128
"""Each release of those who name it carries the matrix."""
_LEAST_SEEN = 0.01  # the least sum in the gain, as a share of d: noise alone gives at least this
_DIGITS = 9
_ROUGH = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Whitening(MapOfFirstRecords):
    """A publication of a matrix that whitens the first `records` slots. `norm_bound`: R, of what it reads."""

    of: ClassVar[str] = "whiten"
    what: ClassVar[str] = "second moments"
    norm_bound: float

    def event(self) -> NoisySecondMoments:
        """Return how the whole capacity is spent. Raises Unaffordable or Inaccurate."""
        moved = MARGIN * (sensitivity.second_moments() + 2.0 * self._error())
        entries = self.features * (self.features + 1) // 2
        noise = additive.calibrate(self.currency, sensitivity=moved, charge=self._charge(), dimension=entries)
        return NoisySecondMoments(noise=noise, sensitivity=moved)

    def measured(self, pieces: Iterable[NDArray[np.floating]]) -> Floats:
        """Return the noisy Σ a⊗a of the records, (d, d)."""
        noisy = additive.add(self.moments(pieces)[self._triangle] * self._weights, self.event().noise) / self._weights
        square = np.zeros((self.features, self.features))
        square[self._triangle] = noisy
        return np.asarray(square + np.triu(square, 1).T)

    def moments(self, pieces: Iterable[NDArray[np.floating]]) -> Floats:
        """Return Σ a⊗a of the records that are there, (d, d). NOT private without noise."""
        total = np.zeros((self.features, self.features))
        for x in pieces:
            finite = np.isfinite(x).all(axis=1)
            present, _ = PreparedRows.of(x[finite], norm_bound=self.norm_bound, intercept=False, own=True)
            for start in range(0, len(present), CHUNK):
                a = present[start : start + CHUNK].rows() / self.norm_bound
                total += a.T @ a
        return total

    def map_step(self, noisy: Floats, slots: int) -> dict[str, Any]:  # noqa: ARG002 - it is not learnt of units
        """Return the matrix that follows from the noisy sum."""
        return {"kind": "linear", "version": 1, "matrix": _rounded(self.matrix(noisy))}

    def check_units(self) -> None:
        """Raise NotForUnits: a unit would be in the sum with all its records."""
        raise NotForUnits("a matrix is learnt of records: ask for scale")

    def matrix(self, noisy: Floats) -> Floats:
        """Return W of the module, (d, d)."""
        values, vectors = np.linalg.eigh(noisy)
        seen = np.maximum(values, 0.0)
        floored = seen + self.floor()
        shown = max(float((seen / floored).sum()), _LEAST_SEEN * self.features)
        gain = FULL * math.sqrt(self.features * self.slots / shown) / self.norm_bound
        return np.asarray(gain * (vectors / np.sqrt(floored)) @ vectors.T)

    def floor(self) -> float:
        """Return λ, the size of the noise as a matrix."""
        return math.sqrt(2.0 * self.features) * deviation(self.event().noise)

    @property
    def released_shape(self) -> list[int]:
        """Return the shape of the matrix."""
        return [self.features, self.features]

    def expected(self) -> dict[str, Any]:
        """Return how large the noise is beside the sum's mean eigenvalue, if all rows are as long as they may be."""
        part = self.floor() * self.features / self.slots
        rough: dict[str, Any] = {"noise": part}
        if part > _ROUGH:
            rough["warning"] = (
                f"noise is {part:.2g} times as large as what an average direction shows: ask for more records or a "
                "larger epsilon, or use the scales alone"
            )
        return {"whitening": rough}

    def noise_details(self) -> dict[str, Any]:
        """Return how near the law of the noise is to the stated one; `whitening` says how long it is."""
        return {"expected_norm": None, "slack": self.event().noise.slack}

    def _error(self) -> float:
        """Return how far the computed sum may be from the exact one; see `sufficient_statistics`."""
        error = max(SLACK, 2.0 * UNIT * self.records * (CHUNK + self.records / CHUNK + 16.0))
        if not error <= 0.5:
            raise Inaccurate("double precision cannot add up so many records: use fewer")
        return error

    @property
    def _triangle(self) -> tuple[Any, Any]:
        return np.triu_indices(self.features)

    @property
    def _weights(self) -> Floats:
        upper, right = self._triangle
        return np.where(upper == right, 1.0, math.sqrt(2.0))


def _rounded(matrix: Floats) -> list[list[float]]:
    return [[float(f"{value:.{_DIGITS}g}") for value in row] for row in matrix.tolist()]
