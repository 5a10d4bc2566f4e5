"""Two solvers without a certificate: every step is a contraction, and what one record adds to each step is counted.

Statement. J(w) = (1/N)·Σ loss(w; x_i, y_i) + (α/2)·‖w - c‖², losses convex, β-smooth and L-Lipschitz, β_tot = β + α.
The solvers take a public number of steps from c, whatever the records, and the last iterates of two neighbours (R⊥)
are at most `sensitivity` apart. No convergence is needed for that; without it a model is merely less good.

Why (paper-audit.md S3, S4; paper A's Algorithm 1 is S4). A step w - η·∇ with η ≤ 2/(β_tot + α) brings two points
together by a factor 1 - ηα. Take the same step for two neighbours. If the one record that differs is in it, with weight
1/b, the results are apart by 2ηL/b more; the pull towards c cancels, so L is the unregularised loss's.

| | `GradientDescent` (S3) | `PermutationSGD` (S4) |
|---|---|---|
| slots N | n | M·b ≥ n: n padded with empty slots |
| one step reads | everything, b = n | b slots, M steps a pass, each slot once |
| step size | η = 2/(β_tot + α) | η_t = min(1/β_tot, 1/(αt)), t = 1, 2, … over ALL passes |
| sensitivity | (2L/(αn))·(1 - (1 - ηα)^T) | 2L/(αN) |

S3: the geometric series. S4: let T be the number of steps and κ = β_tot/α. A record met at step t > κ moves the last
iterate by (2L/(αbt))·Π_{s=t+1..T} (1 - 1/s) = 2L/(αbT). One met at t ≤ κ < T moves it by at most
(2L/(bβ_tot))·⌊κ⌋/T, and if T ≤ κ by at most 2L/(bβ_tot): again at most 2L/(αbT). Each of T/M passes meets it once:
2L/(αbM) in total. (Algorithm 1 as printed has step sizes 1/(γk) that stay the same within a pass k; counting t anew in
every pass would cost up to 1.58 times as much.)

Where a record is. The guarantee is about a permutation of the N public slots, drawn without looking at any record: a
slot that is empty, erased or not of the schema takes its place in it and contributes zero, and b is divided by, however
many records a step finds. Only the m records present are at hand here, so they get the first m places of a uniform
permutation of N. It is the same law: let P ⊆ {1 … N} be the slots with records. A uniform permutation of N restricted
to P is a uniform injection of P into the places, and so are the first m places of another one; the iterates depend on
nothing else. So what is returned is distributed as by the algorithm that permutes slots. For each fixed permutation
neighbours are at most the sensitivity apart, so noise on top is private for each, hence for their mixture, which has
the same weights for both neighbours. The permutation itself is never told.

Units. J is (1/N)·Σ a_i·loss(w; x_i, y_i) + …, a_i as in `solvers`: a unit's records together have an L-Lipschitz,
β-smooth loss as one record has. N counts units, places are drawn for units, and all records of a unit enter the step
that has its place. So a unit meets as many steps as one record, and both bounds hold for replacing all of its records.

Where the steps go. Steps from c stay within L/α of c in exact arithmetic. A loss that is Lipschitz on a ball only
(`Setting.bounded`) is projected onto that public ball at each step, which brings no two points further apart.

Rounding. The computed gradient is within E of the exact one (see `solvers`; the same lines compute it), and a step
itself rounds by at most s = 2uW, W ≥ ‖w‖, or with a projection s = u·(2W + (4·dimension + 16)·ρ). An error in one step
shrinks in all later ones: errors of η_t·E add up to at most E/α, since Σ η_t·α·Π_{s>t} (1 - η_s·α) ≤ 1, and s is an
error of η_t·(s·max 1/η_t). With τ = E + s·max 1/η_t a computed iterate is within τ/α of the exact one, so 2τ/α is added
to the sensitivity. τ is public, and at least SLACK·L/N (ηα of that for `GradientDescent`), more than it normally has to
be, so that the sensitivity depends on n alone and a plan can state it. τ ≤ L/2 is required, so that everything stays
within ρ = 2L/α. A step size is a double too: η and 1/β_tot are rounded down, 1/(αt) is off by 2^-52 relatively, and
that changes Π (1 - η_s·α) by less than 2^-52·(2 + ln T), which `permutation_sgd` covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from service.learning.optimization.objective import MARGIN, evaluate
from service.learning.optimization.solvers import SLACK, UNIT, Setting, require_accuracy
from service.privacy import sensitivity
from service.privacy.currency import round_down
from service.privacy.randomness import random_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats
    from service.learning.records import PreparedRows, UnitShares

    Places = Callable[[int, int], NDArray[np.intp]]


def random_places(rows: int, slots: int) -> NDArray[np.intp]:
    """Return the first `rows` places of a uniform permutation of `slots`, from the operating system's generator."""
    while True:
        keys = np.frombuffer(random_bytes(8 * slots), dtype=np.uint64)
        order = np.argsort(keys)
        if (np.diff(keys[order]) != 0).all():  # distinct random keys give a uniform order
            return order[:rows]


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """`steps` steps of full gradient descent from the centre, each of 2/(β_tot + α)."""

    steps: int
    name: ClassVar[str] = "gradient_descent"

    def describe(self) -> dict[str, Any]:
        """Return the solver and its sensitivity as a formula, for a plan."""
        return {
            "solver": self.name,
            "steps": self.steps,
            "sensitivity": "2·lipschitz/(strong_convexity·records)·(1 - (1 - step·strong_convexity)^steps) + rounding",
        }

    def sensitivity(self, setting: Setting, records: int) -> float:
        """Return the sensitivity of n = records slots, rounded up. May raise Inaccurate."""
        return sensitivity.gradient_descent(
            lipschitz=setting.lipschitz,
            strong_convexity=setting.regularization,
            records=records,
            step=_step(setting),
            steps=self.steps,
            tolerance=_tolerance(
                setting, 1.0 / _step(setting), SLACK * _step(setting) * setting.regularization / records
            ),
        )

    def solve(
        self,
        setting: Setting,
        x: PreparedRows,
        y: NDArray[np.generic],
        records: int,
        center: Floats,
        units: UnitShares | None = None,
    ) -> Floats:
        """Return the last iterate, float64 of the setting's shape. NOT private before noise is added."""
        step, weights, alpha = _step(setting), center, setting.regularization
        shares = None if units is None else units.parts
        for _ in range(self.steps):
            _, gradient = evaluate(setting.loss, x, y, records, alpha, center, weights, shares=shares)
            weights = _projected(setting, center, weights - step * gradient)
        return weights


@dataclass(frozen=True, kw_only=True)
class PermutationSGD:
    """Paper A's Algorithm 1: `passes` over the slots in random order, at most `batch` slots a step."""

    passes: int
    batch: int
    places: Places = random_places
    name: ClassVar[str] = "psgd"

    def describe(self) -> dict[str, Any]:
        """Return the solver and its sensitivity as a formula, for a plan."""
        return {
            "solver": self.name,
            "passes": self.passes,
            "batch": self.batch,
            "sensitivity": "2·lipschitz/(strong_convexity·slots), slots: records padded to whole batches; + rounding",
        }

    def batches(self, records: int) -> tuple[int, int]:
        """Return (M, b): steps a pass and slots a step. M is the fewest for `batch`, b the least for M; M·b ≥ n."""
        steps = -(-records // self.batch)
        return steps, -(-records // steps)

    def sensitivity(self, setting: Setting, records: int) -> float:
        """Return the sensitivity of n = records slots, rounded up. May raise Inaccurate."""
        steps, size = self.batches(records)
        fastest = max(1.0 / _cap(setting), setting.regularization * (self.passes * steps))
        return sensitivity.permutation_sgd(
            lipschitz=setting.lipschitz,
            strong_convexity=setting.regularization,
            slots=steps * size,
            tolerance=_tolerance(setting, fastest, SLACK / (steps * size)),
        )

    def solve(
        self,
        setting: Setting,
        x: PreparedRows,
        y: NDArray[np.generic],
        records: int,
        center: Floats,
        units: UnitShares | None = None,
    ) -> Floats:
        """Return the last iterate, float64 of the setting's shape. NOT private before noise is added."""
        owners = np.arange(len(y)) if units is None else np.unique(units.owners, return_inverse=True)[1]
        if owners.max(initial=-1) >= records:
            raise ValueError("more records than slots")
        _, size = self.batches(records)
        cap, alpha = _cap(setting), setting.regularization
        weights = center
        for count, batch in enumerate(self._order(owners, records), start=1):
            shares = None if units is None else units.parts[batch]
            _, gradient = evaluate(setting.loss, x[batch], y[batch], size, alpha, center, weights, shares=shares)
            weights = _projected(setting, center, weights - min(cap, 1.0 / (alpha * count)) * gradient)
        return weights

    def _order(self, owners: NDArray[np.intp], records: int) -> Iterator[NDArray[np.intp]]:
        """Yield the rows that each step reads, a new permutation for every pass.

        owners: of every row the number of its record or unit, of which each has a place.
        """
        steps, size = self.batches(records)
        for _ in range(self.passes):
            places = self.places(int(owners.max(initial=-1)) + 1, steps * size)[owners]
            order = np.argsort(places)
            ends = np.searchsorted(places[order], size * np.arange(steps + 1))
            for step in range(steps):
                yield order[ends[step] : ends[step + 1]]


def _step(setting: Setting) -> float:
    """Return 2/(β_tot + α), rounded down."""
    return round_down(
        2 / (Fraction(setting.loss.smoothness(setting.norm_bound)) + 2 * Fraction(setting.regularization))
    )


def _cap(setting: Setting) -> float:
    """Return 1/β_tot, rounded down."""
    return round_down(1 / (Fraction(setting.loss.smoothness(setting.norm_bound)) + Fraction(setting.regularization)))


def _projected(setting: Setting, center: Floats, weights: Floats) -> Floats:
    """Return the nearest point of the ball in which the loss is Lipschitz; the point itself if that is everywhere."""
    if not setting.bounded:
        return weights
    offset = weights - center
    length = float(np.linalg.norm(offset))
    return center + offset * (setting.reach / length) if length > setting.reach else weights


def _tolerance(setting: Setting, rate: float, least: float) -> float:
    """Return τ = E + s·rate, rate ≥ 1/η for every step size η, and at least least·L. Raises Inaccurate."""
    rows, columns = setting.shape
    radius = MARGIN * (setting.reach if setting.bounded else 2.0 * setting.lipschitz / setting.regularization)
    rounding = UNIT * 2.0 * (setting.center_norm + radius)
    if setting.bounded:
        rounding += UNIT * (4 * rows * columns + 16) * radius
    tolerance = max(least * setting.lipschitz, MARGIN * (setting.error(radius) + rounding * rate))
    require_accuracy(tolerance, setting.lipschitz)
    return tolerance
