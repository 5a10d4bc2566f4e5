"""One pass of noisy gradient steps over disjoint batches, which an encoder is learnt in: DP-SGD, each record once.

Statement. Private: the records of n public slots. Neighbours: R⊥. The slots are cut into T public batches. At step t,
for batch t and weights w_t, a function of G_1 … G_(t-1) and public numbers,
    G_t = Σ_i clip_C(∇loss(w_t; z_i)) + N(0, σ²I),   clip_C(g) = g·min(1, C/‖g‖), and 0 where g is not finite,
over the records of batch t. One record moves the sum of its batch by at most 2C, whatever w_t is, and every other G_t
only through what was released before: all T together cost it (2C)²/(2σ²) of ρ, once, not T times (paper-audit.md L1,
4.2). The releases follow from G_1 … G_T. (Abadi et al. 2016, without sampling.)

Why nothing has to be known of a network's gradients, neither how long they are nor how exactly a library computes them:
what is clipped is whatever was computed for one slot, a function of that slot's record and of public numbers. Gradients
of many records are taken at once, but by operations in which no record's row meets another's, in arrays in which every
slot has its public place, empty or not. Clipped in doubles, with a norm inflated by 1 + 2^-20, none is longer than C.
There remains the rounding of the sum: n_t terms of at most C add up to within n_t·(n_t + 16)·u·C, with u = 2^-53. E
is twice that and at least SLACK·C, and the sensitivity is 2C + 2E.

    w_(t+1) = w_t - η·G_t/n_t,   released: w_(T+1).

A unit's contribution to a batch is the mean of its records' clipped gradients, so that it is no longer than C either:
all records of one unit in a batch move its sum by at most 2C, and each batch that holds one costs the unit what it
costs a record. Then n_t counts units. A record is a part of its unit by its batch, not by the whole pass.

The loss is the task's, of the scores of a head on the codes (`encoders`), which is learnt with the encoder. Where η is
not given, it is such that the noise of all steps has a spread of NOISE in a weight, so that it never drowns what a
first matrix begins with, but at most FASTEST. (On MNIST's digits half or twice of NOISE, half or twice of C, and the
average of iterates were no better.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.optimization.objective import MARGIN
from service.learning.optimization.solvers import SLACK, UNIT, Inaccurate
from service.privacy.accounting.events import NoisyDisjointGradientSums
from service.privacy.currency import Currency
from service.privacy.noise import additive as noises
from service.streams.slots import ALL_SLOTS, TrainingSlots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from service.learning.encoders import Encoder
    from service.learning.optimization.losses import Floats, Loss
    from service.learning.records import Records

CHUNK = 64  # slots whose gradients are taken at once
COPIES = 3  # copies of a chunk's gradients in memory, at most, as measured
NOISE = 0.2
FASTEST = 8.0


def available() -> bool:
    """Return whether the library is installed that takes gradients."""
    return find_spec("jax") is not None


@dataclass(frozen=True, kw_only=True)
class EncoderPass:
    """The pass of the module docstring over n = `records` slots, in batches of at most `batch`."""

    encoder: Encoder
    loss: Loss
    classes: int
    records: int
    batch: int
    clip: float
    learning_rate: float | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows of the head."""
        return self.loss.rows(self.classes)

    @property
    def dimension(self) -> int:
        """Return the number of weights of the encoder and its head."""
        return self.encoder.dimension(self.rows)

    @property
    def steps(self) -> int:
        """Return T, the number of steps."""
        return -(-self.records // self.batch)

    @property
    def numbers(self) -> int:
        """Return how many numbers of 8 bytes a step holds at once beside the records, or some more.

        They are a chunk's gradients, and what layers multiply of its records. One record of the chunk takes them all.
        """
        multiplied = max(layer.positions * (layer.inputs + layer.units) for layer in self.encoder.layers)
        return CHUNK * (COPIES * self.dimension + 2 * multiplied)

    def batches(self, start: int) -> list[tuple[int, int]]:
        """Return the slots [start, end) of each step."""
        cuts = [start + self.records * step // self.steps for step in range(self.steps + 1)]
        return list(pairwise(cuts))

    def rate(self, perturbation: NoisyDisjointGradientSums, contributions: int | None = None) -> float:
        """Return η. contributions: the sum of all n_t, by default every slot's."""
        many = self.records if contributions is None else max(1, contributions)
        noise = perturbation.noise.scale * math.sqrt(self.steps) * self.steps / many
        return self.learning_rate or min(FASTEST, NOISE / noise)

    def describe(self) -> dict[str, Any]:
        """Return the settings of the pass as JSON, for a plan."""
        return {
            "features": self.encoder.features,
            "dimension": self.dimension,
            "steps": self.steps,
            "clip": self.clip,
            "sensitivity": "2·clip + rounding, of the sum of gradients of the one batch that a record is in",
        }

    def perturbation(self, currency: Currency, charge: float) -> NoisyDisjointGradientSums:
        """Return how the pass spends at most `charge`, a ρ, on every record. Public. May raise Inaccurate."""
        if currency is not Currency.ZCDP:
            raise ValueError("noisy gradients have no pure guarantee")
        error = max(SLACK, 2.0 * UNIT * self.batch * (self.batch + 16.0)) * self.clip
        if not error <= self.clip / 2.0:
            raise Inaccurate("double precision cannot add up the gradients of so many records: use smaller batches")
        sensitivity = MARGIN * 2.0 * (self.clip + error)
        noise = noises.calibrate(currency, sensitivity=sensitivity, charge=charge, dimension=self.dimension)
        return NoisyDisjointGradientSums(noise=noise, sensitivity=sensitivity)

    def release(
        self,
        records: Records,
        start: int,
        perturbation: NoisyDisjointGradientSums,
        training: TrainingSlots = ALL_SLOTS,
        units: Sequence[int] | None = None,
    ) -> Floats:
        """Return weights learnt from the records present among the slots from `start`, (1, dimension).

        training: which of the slots may be read; n_t counts these alone. units: n_t of every batch, where records have
        units and weights by batch. A batch of none is a step along its noise.
        """
        present = np.isfinite(records.x).all(axis=1) & self.loss.present(records.y, self.classes)
        slots = records.in_slots(start, start + self.records)[present]
        x, y = records.x if present.all() else records.x[present], records.y[present]
        shares = np.ones(len(y)) if records.weights is None else records.weights[present]
        weights = self.encoder.initial(self.rows)
        rate = self.rate(perturbation, None if units is None else sum(units))
        for step, (first, last) in enumerate(self.batches(start)):
            mine = slice(*np.searchsorted(slots, (first, last)))
            total = self.summed(weights, x[mine], y[mine], slots[mine] - first, last - first, shares[mine])
            count = max(1, training.count(first, last) if units is None else units[step])
            weights = weights - rate / count * noises.add(total, perturbation.noise)
        return weights[None, :]

    def summed(
        self,
        weights: Floats,
        x: NDArray[np.floating],
        y: NDArray[np.generic],
        slots: NDArray[np.int64],
        n: int,
        shares: Floats,
    ) -> Floats:
        """Return the sum of clipped gradients over n slots, (dimension,). NOT private without noise.

        x, y: records, all finite, in these slots of 0 … n - 1, which are rising. shares: what part of its unit's
        contribution each is.
        """
        total = np.zeros(self.dimension)
        for first in range(0, n, CHUNK):
            mine = slice(*np.searchsorted(slots, (first, first + CHUNK)))
            places = slots[mine] - first
            if not places.size:
                continue
            here, slopes = np.zeros((CHUNK, x.shape[1])), np.zeros((CHUNK, self.rows))
            here[places], _ = self.encoder.rows(x[mine])
            with np.errstate(all="ignore"):
                scores = self.encoder.scores(weights, here)[places]
                slopes[places] = self.loss.derivatives(scores, y[mine])[1]
            gradients = gradients_of(self.encoder)(weights, here, slopes)[places]
            lengths = np.sqrt(np.vecdot(gradients, gradients)) * MARGIN
            known = np.isfinite(lengths)
            total += (shares[mine] * self.clip / np.maximum(lengths, self.clip))[known] @ gradients[known]
        return total


@lru_cache(maxsize=8)
def gradients_of(encoder: Encoder) -> Callable[[Floats, Floats, Floats], Floats]:
    """Return what takes the gradient of ⟨slopes, scores⟩ by the weights, of each of CHUNK rows: (CHUNK, dimension)."""
    import jax
    import jax.numpy as jnp

    def product(weights: Any, row: Any, slopes: Any) -> Any:
        return jnp.vdot(encoder.scores(weights, row, jnp), slopes)

    per_record = jax.jit(jax.vmap(jax.grad(product), (None, 0, 0)))

    def gradients(weights: Floats, here: Floats, slopes: Floats) -> Floats:
        with np.errstate(all="ignore"):
            single = [values.astype(np.float32) for values in (weights, here, slopes)]
        return np.asarray(per_record(*single), dtype=np.float64)

    return gradients
