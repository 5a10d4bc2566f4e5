"""Objective perturbation: tilt the objective at random, then release its minimiser.

(Chaudhuri, Monteleoni, Sarwate 2011; Kifer, Smith, Thakurta 2012; paper E, Algorithm 1.)

Statement (paper-audit.md 5.2). Private: the records a fit reads. Neighbours: R⊥. The loss of one record is
convex, has gradients of norm ≤ L in w and second derivatives S ⊗ xxᵀ with S ⪰ 0 of rank ≤ r and trace ≤ T, ‖x‖ ≤ R; n
is the public number of slots and c public or released before. Draw b with density ∝ exp(-‖b‖/s) on R^D and let
    w* = argmin J_b,  J_b(w) = (1/n)·Σ loss(w; z_i) + (Λ/2)·‖w - c‖² + ⟨b/n, w - c⟩.
Then w* is (2L/s + r·ln(1 + TR²/(rnΛ)))-differentially private.

Why. For every data set, w = w*(b) exactly if b = b(w) := -Σ ∇loss(w; z_i) - nΛ(w - c). So w* has the density
f(w) = p(b(w))·det(-∂b/∂w) almost everywhere: b(·) is a Lipschitz map with a Lipschitz inverse, differentiable but where
a Huber hinge bends. Let the neighbours differ in one record.
 - p: ‖b(w) - b'(w)‖ ≤ 2L, so the quotient of the densities of the tilts is at most e^(2L/s).
 - det: -∂b/∂w = A + S ⊗ xxᵀ with A ⪰ nΛ·I from the other records and the regulariser, which A + S' ⊗ x'x'ᵀ shares;
   `events.objective` bounds the quotient (Kronecker: rank S ⊗ xxᵀ ≤ r, tr S ⊗ xxᵀ = tr S·‖x‖² ≤ TR²). An erased
   record is S' = 0. The centre c cancels everywhere. (Two replaced records each cost one logarithm in CMS's proof; one
   is enough for replacement, since det(A + H') ≥ det A.)

| loss | L | r | T |
|---|---|---|---|
| logistic | R | 1 | 1/4 |
| softmax, K classes | √2·R | K - 1 | 1 - 1/K: S = diag(p) - ppᵀ |
| huber_hinge, K rows | √K·R | K | K/(2h): one bend per row |

Units. A unit enters by the record of its first slot in the range, by the public pattern, or not at all where that slot
is empty; n counts units. So a unit has one record's loss, and all of the above, with A ⪰ nΛ·I from the other
units, holds for replacing all of its records. Their mean, which other learners take, will not do with this r: the
second derivative of k records' mean has a rank of up to k·r. At one trace more rank costs more (two orthogonal records
of a unit: 2r·ln(1 + TR²/(2rnΛ))), and k·r would have to be in each release's cost by the pattern of its range.

The squared loss is not Lipschitz: no noise would do, and on the ball that makes it so its minimiser may be at the edge,
where the proof above ends. It is refused.

Nobody can return w*. Three things are off, and together they move the minimiser by at most τ*/Λ, τ* public:
 - The solver returns w with ‖∇J_b(w)‖ ≤ τ (`solvers`, tilt b/n), for every data set.
 - The tilt is drawn on a lattice of step g (`noise`): gz with P(z) ∝ exp(-g‖z‖/s), z whole. Let U be uniform on
   [-½, ½]^D and b = g(z + U). b has a density, and shifting it by 2L changes that by a factor of at most
   e^((2L + g√D)/s), which is what the noise charges for a sensitivity of 2L. So the theorem is about b, and gz instead
   of b is an error of g√D/(2n) in the gradient. U need not be drawn: only that it could be matters.
 - b/n is rounded to doubles: at most 2u·‖b‖/n.
So what is released is w + v, v spherical Laplace noise for a sensitivity of 2τ*/Λ, another ε₃. The sum of all three is
the cost: given w*, the solver's w is within τ*/Λ of it for both neighbours, and what was said about w* says the rest.

How long b may be. ‖b‖ follows Gamma(D, s), and P(‖b‖ > s·(4D + 200)) < 2^-280, beyond which a fit would stop: less than
the slack of the noise, 2^-100. So τ, which has to be public, is one for tilts of that length.

A charge ε is spent so: ε/1024 on v, the curvature's share on the curvature and the rest on b. If the curvature would
take more than half, Λ is raised until it takes half (a public rule; `TiltedObjective.regularization`). A charge ρ is
ε = √(2ρ), as pure ε is (ε²/2)-zCDP. All of it depends on public quantities only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from service.learning.family import LinearFamily
from service.learning.linear import Linear, LinearLearner
from service.learning.optimization.objective import MARGIN, norm
from service.learning.optimization.solvers import UNIT, Accuracy, accuracy, exact
from service.privacy.accounting.events import TiltedObjective
from service.privacy.accounting.events.objective import curvature
from service.privacy.currency import Currency, round_down
from service.privacy.noise import additive as noises

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.privacy.accounting.events import AddedNoise
    from service.privacy.noise.additive import Noise

_OUTPUT = 2.0**-10  # the share of a charge for output noise, since the minimiser is not exact


class ObjectivePerturbationLearner(LinearLearner):
    """Tilt that objective at random and release its minimiser. It needs a classification.

    `regularization` is raised in a fit whose charge is too small for it.
    """

    kind: Literal["objective_perturbation"]


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Linear):
    """The minimiser of a tilted objective, and a little noise: see the module docstring."""

    kind: ClassVar[str] = "objective_perturbation"
    same_everywhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.setting().bounded:
            raise ValueError(f"objective_perturbation needs a loss of bounded slope, and {self.loss.name} has none")

    def describe(self, origin: Floats) -> dict[str, Any]:
        """Return the constants of the guarantee and its formula."""
        rank, trace = self.loss.curvature(self.shape[0])
        return {
            "lipschitz": self.setting(origin).lipschitz,
            "least_regularization": self.regularization,
            "cost": "sensitivity/scale + rank·ln(1 + steepness/(rank·records·regularization)) + the output noise's",
            "rank": rank,
            "steepness": self._steepness(trace),
        }

    def perturbation(
        self, currency: Currency, charge: float, records: int, center: Floats | None = None
    ) -> TiltedObjective:
        """Return the tilt, the regularization and the output noise that the charge buys. May raise Inaccurate."""
        whole = charge if currency is Currency.PURE else _epsilon(charge)
        rank, trace = self.loss.curvature(self.shape[0])
        steepness = self._steepness(trace)
        rest = Fraction(whole) - Fraction(whole * _OUTPUT)
        regularization = self.regularization

        def curved() -> Fraction:
            return Fraction(curvature(rank=rank, steepness=steepness, records=records, regularization=regularization))

        if 2 * curved() > rest:
            half = float(rest) / 2.0
            regularization = MARGIN * steepness / (rank * records * math.expm1(half / rank))
        sensitivity = 2.0 * self.setting().lipschitz
        tilt = noises.calibrate(
            Currency.PURE, sensitivity=sensitivity, charge=round_down(rest - curved()), dimension=self.dimension
        )
        promise, longest = self._promise(tilt, records, regularization, 0.0 if center is None else norm(center))
        tolerance = promise.tolerance + longest * 2.0 * UNIT + tilt.grid * math.sqrt(self.dimension) / (2.0 * records)
        moved = MARGIN * 2.0 * tolerance / regularization
        output = noises.calibrate(Currency.PURE, sensitivity=moved, charge=whole * _OUTPUT, dimension=self.dimension)
        return TiltedObjective(
            noise=tilt,
            sensitivity=sensitivity,
            regularization=regularization,
            rank=rank,
            steepness=steepness,
            output=output,
            output_sensitivity=moved,
        )

    def release(self, records: Records, n: int, center: Floats, perturbation: AddedNoise) -> Floats:
        """Return the minimiser for a fresh tilt, with the output noise."""
        if not isinstance(perturbation, TiltedObjective):
            raise TypeError("this learner needs a perturbation of its own")
        tilt = noises.add(np.zeros(self.shape), perturbation.noise) / n
        return noises.add(self.fit(records, n, center, perturbation, tilt), perturbation.output)

    def fit(self, records: Records, n: int, center: Floats, perturbation: TiltedObjective, tilt: Floats) -> Floats:
        """Return about the minimiser for b/n = `tilt`, float64 of `shape`. NOT private before noise is added."""
        if center.shape != self.shape:
            raise ValueError("the centre has another shape than the model")
        regularization = perturbation.regularization
        promise, longest = self._promise(perturbation.noise, n, regularization, norm(center))
        if norm(tilt) > longest:
            raise OverflowError("a tilt of a length that has a probability below 2^-280")
        rows, y = self.prepared(records.one_of_each_unit())
        return exact(
            self.loss,
            x=rows,
            y=y,
            records=n,
            regularization=regularization,
            center=center,
            norm_bound=self.norm_bound,
            promise=promise,
            tilt=tilt,
        )

    def _promise(self, tilt: Noise, records: int, regularization: float, center_norm: float) -> tuple[Accuracy, float]:
        """Return how accurate fits are, and a bound on ‖b/n‖."""
        longest = MARGIN * MARGIN * tilt.scale * (4.0 * self.dimension + 200.0) / records
        promise = accuracy(
            self.loss,
            norm_bound=self.norm_bound,
            regularization=regularization,
            shape=self.shape,
            records=records,
            center_norm=center_norm,
            tilt=longest,
        )
        return promise, longest

    def _steepness(self, trace: float) -> float:
        return MARGIN * trace * self.norm_bound**2


def _epsilon(rho: float) -> float:
    """Return the ε with ε²/2 ≤ ρ, rounded down."""
    epsilon = math.sqrt(2.0 * rho)
    while Fraction(epsilon) ** 2 > 2 * Fraction(rho):
        epsilon = math.nextafter(epsilon, 0.0)
    return epsilon


def _build(linear: Linear, settings: ObjectivePerturbationLearner, currency: Currency) -> ObjectivePerturbation:  # noqa: ARG001
    return ObjectivePerturbation(**vars(linear))


FAMILY = LinearFamily(
    settings=ObjectivePerturbationLearner,
    source="paper E, Algorithm 1",
    summary="on the objective, and a little on the weights",
    examples={"objective_perturbation": {"kind": "objective_perturbation"}},
    build=_build,
    accuracy_setting="learner.regularization",
    exact_with_delta=False,
    regressions=False,
)
