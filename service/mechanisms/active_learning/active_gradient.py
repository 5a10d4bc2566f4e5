"""Steps along the gradients of selected records only, each step's batch with noise of its own (paper E).

Statement. Private: the records. Neighbours: R⊥, a record being x and its label, which may also be missing: then it is
selected as any other, but adds nothing. Released before slot t: w, the iterate, hence its hyperplane.
 - Slot t is selected, or not, by a coin that is a function of its own record and w (`noise.selection`): d(x, w) =
   |⟨w, x⟩|/‖w‖, 0 where ‖w‖ = 0 or the slot is empty. It costs slot t `Selection.loss`.
 - A batch B holds at most n selected slots; |B| counts them, empty or without a label as they may be. If there is one,
       w' = Π(w - η_m·(α(w - c) + (1/|B|)·(Σ_(B) clip_C(∇loss(w; z_i)) + z))),
   Π the projection onto a ball around the origin c. One record moves the sum by at most Δ = 2C + 2E
   (`noisy_gradient_descent`: E is rounding, on the public ball), and z has noise for Δ: ε_g or ρ_g per slot of B.
So a slot costs ε_s + ε_g (pure) or ε_s²/2 + ρ_g (zCDP) for the whole run, if it is in one batch only.

Why that holds though |B|, who is in B and when it is full are private too (paper-audit.md 5.1; the proofs in paper E's
appendix condition on less). Let all coins be seen. For each pattern s of coins the law of all that is released is a
product over slots and batches; of two streams that differ in slot j its factors are the same but for the coin of j,
at most e^(ε_s) apart, and, only if s_j = 1, for the step of the batch that holds j, at most e^(ε_g) apart at equal s
and so at equal |B|. All later factors depend on j's record through released iterates alone. Sums over s keep the ratio.

On a stream with units, U⊥, a slot is selected by its own coin alone, and the sum of a batch has of each unit the mean
of clip_C(∇loss) over its k selected slots in B, k by the public pattern and coins; |B| counts units. So all of a unit's
records move it by at most Δ, too. The coins of m slots cost m·ε_s (m·ε_s²/2), and their batches m·ε_g (m·ρ_g): all
have noise of their own, and at equal coins, as above, their costs add up.

It is for whoever calls this to put a slot into one batch, to close batches by public numbers and coins alone, and to
take no step for an empty batch.

C is the norm bound M unless a smaller one is asked for; for the losses with one row of weights no gradient is longer
than M, so nothing is clipped then. Paper E's SVM is Huber's hinge with a width near zero; it has η_m = η/m and λ = α.

| here | paper E |
|---|---|
| norm_bound M | M |
| selection.threshold b | b; ln(1/τ) |
| m, the number of the update | t in η_t, m in τ = e^(-1/m) |
| noise | z/… (3.4), ε_g = its charge |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from service.learning.linear import Linear
from service.learning.noisy_gradient_descent import FAMILY as DESCENT
from service.learning.noisy_gradient_descent import clipped_sum, steepness
from service.learning.optimization.objective import summed
from service.privacy.accounting.events import NoisySelectedGradients
from service.privacy.currency import Currency, round_down
from service.privacy.noise import additive as noises
from service.privacy.noise.selection import Bernoulli, Exponential

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.constraint_sets import ConstraintSet
    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.noise.selection import Selection

HALFWAY = 0.5  # times the ball's radius: how far noise alone moves the first iterate


@dataclass(frozen=True, kw_only=True)
class Falling:
    """A public number that falls with the updates m = 1, 2, …: initial/m^decay, but not below `least`."""

    initial: float
    decay: float = 0.0
    least: float = 0.0

    def at(self, update: int) -> float:
        """Return the number before update m, counted from 1."""
        return max(self.least, self.initial / math.pow(update, self.decay))


@dataclass(frozen=True, kw_only=True)
class ActiveGradient(Linear):
    """Noisy steps along the gradients of selected records: see the module docstring."""

    kind: ClassVar[str] = DESCENT.kind
    same_everywhere: ClassVar[bool] = True
    law: Literal["bernoulli", "exponential"]
    epsilon_selection: float
    threshold: Falling
    batch: int
    """n, the most that a batch can hold"""
    learning_rate: Falling | None = None
    clip: float | None = None
    constraint: ConstraintSet

    def __post_init__(self) -> None:
        if self.shape[0] != 1:
            raise ValueError("there is one hyperplane: the loss needs one row of weights")

    @property
    def longest(self) -> float:
        """Return C, the norm to which gradients are clipped."""
        return self.clip or self.loss.lipschitz(self.norm_bound, 1)

    def describe(self, origin: Floats) -> dict[str, Any]:  # noqa: ARG002
        """Return what an update does."""
        return {
            "clip": self.longest,
            "strong_convexity": self.regularization,
            "constraint": {"kind": self.constraint.name, "radius": self.constraint.radius},
            "sensitivity": "2·clip + rounding, of the sum of the selected records' gradients",
        }

    def selection(self, update: int = 1) -> Selection:
        """Return the law by which slots are selected before update number m, counted from 1."""
        law = {"epsilon": self.epsilon_selection, "threshold": self.threshold.at(update)}
        return Bernoulli(**law) if self.law == "bernoulli" else Exponential(**law, norm_bound=self.norm_bound)

    def least_probability(self) -> float:
        """Return about the least probability with which a slot is ever selected."""
        return min(self.selection(update).least() for update in (1, 2**62))

    def perturbation(
        self,
        currency: Currency,
        charge: float,
        records: int,
        center: Floats | None = None,
        update: int = 1,
    ) -> NoisySelectedGradients:
        """Return how slots before update m, of at most n = `records` in a batch, spend at most `charge` each.

        center: the origin. A function of public quantities only. Raises Unaffordable where selection leaves nothing for
        updates; may raise Inaccurate.
        """
        selection = self.selection(update)
        left = Fraction(charge) - currency.worth(selection.loss())
        if left <= 0:
            raise noises.Unaffordable("selection leaves nothing of the budget for updates")
        farthest = self.constraint.farthest(np.zeros(self.shape) if center is None else center)
        sensitivity = clipped_sum(self, clip=self.longest, records=records, weights=farthest)
        noise = noises.calibrate(currency, sensitivity=sensitivity, charge=round_down(left), dimension=self.dimension)
        return NoisySelectedGradients(noise=noise, sensitivity=sensitivity, selection=selection)

    def rate(self, perturbation: NoisySelectedGradients, update: int) -> float:
        """Return η_m. Its default falls as 1/√m from the rate at which noise alone moves w HALFWAY, or, with so
        little noise, from where the steepest gradient takes it as far as the ball reaches.
        """
        if self.learning_rate is not None:
            return self.learning_rate.at(update)
        moved = perturbation.noise.expected_norm() / self.batch
        first = self.constraint.radius * min(HALFWAY / moved, 1.0 / self.longest)
        return Falling(initial=first, decay=0.5).at(update)

    def select(
        self,
        records: Records,
        start: int,
        end: int,
        weights: Floats,
        update: int,
        most: int | None = None,
        open_slots: NDArray[np.bool_] | None = None,
    ) -> tuple[list[int], int]:
        """Toss fresh coins for slots [start, end); return which are selected, and where it stopped: before `end` if
        `most` are.

        records: those present. open_slots: (end - start,), the slots that a coin is tossed for; None: all.
        """
        selection = self.selection(update)
        selected: list[int] = []
        for slot, distance in enumerate(self.distances(records, start, end, weights).tolist(), start):
            if (open_slots is None or open_slots[slot - start]) and selection.select(distance):
                selected.append(slot)
                if len(selected) == most:
                    return selected, slot + 1
        return selected, end

    def distances(self, records: Records, start: int, end: int, weights: Floats) -> Floats:
        """Return d(x, w) of each slot of [start, end), float64 ≥ 0; 0 of an empty one.

        Empty slots are rows of zeros, so that a record's distance is computed alike whatever the others are.
        """
        slots = records.in_slots(start, end)
        length = float(np.linalg.norm(weights))
        if length == 0.0:
            return np.zeros(end - start)
        x = np.zeros((end - start, self.features), dtype=records.x.dtype)
        x[slots - start] = records.x
        rows, usable = self.rows(x, own=True)
        present = np.zeros(end - start, dtype=np.bool_)
        present[slots - start] = True
        far = np.abs(rows.scores(weights)[:, 0].astype(np.float64)) / length
        return np.where(present & usable, far, 0.0)

    def update(
        self,
        records: Records,
        count: int,
        weights: Floats,
        origin: Floats,
        perturbation: NoisySelectedGradients,
        update: int,
    ) -> Floats:
        """Return w', to be released for the charge of the slots of a batch of `count` ≥ 1 selected ones.

        records: those of the batch that are still present; a label that the loss does not know is a missing one. With
        units, `count` is how many of them have selected slots in it, and weights are by these slots.
        """
        rows, y, shares = self.weighed(records)
        if count < 1 or count > self.batch or (shares is None and len(y) > count):
            raise ValueError("a batch holds at least one selected slot, and at most as many as its noise is for")
        _, total = summed(self.loss, rows, y, weights, steepest=steepness(rows, self.longest), shares=shares)
        mean = noises.add(total, perturbation.noise) / count
        gradient = mean + self.regularization * (weights - origin)
        return self.constraint.project(weights - self.rate(perturbation, update) * gradient, origin)
