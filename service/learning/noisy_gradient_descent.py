"""Noisy gradient descent: full-batch steps along sums of clipped gradients, each with Gaussian noise of its own.

Statement. Private: the records a fit reads. Neighbours: R⊥. Iterate w_0 = c, for t = 1 … T:
    G_t = Σ_i clip_C(∇loss(w_{t-1}; z_i)) + N(0, σ²I),   clip_C(g) = g·min(1, C/‖g‖), ‖·‖ that of Frobenius,
and w_t a function of c, G_1 … G_t and public numbers. One record moves the sum by at most 2C, whatever w_{t-1} is and
however steep the loss. So a step is ((2C)²/(2σ²))-zCDP given the steps before, all T are T times that (adaptive
composition), and w_T is post-processing of them (Bassily, Smith, Thakurta 2014; Abadi et al. 2016, without sampling).
Momentum, the regulariser's gradient α(w - c) and the projection touch no record. There is no kind PURE of this: pure
noise for T vectors would be √(DT) and more times as large.

A record's gradient is slope ⊗ x, of norm ‖slope‖·‖x‖: it is clipped by clipping its slope.

Where records have units, n counts the units, and G_t adds up the mean of each unit's clipped gradients, which is no
longer than C either: all of the above holds for replacing all records of one unit.

Rounding. The computed sum is within E of the true one, so the sensitivity is 2C + 2E. With u = 2^-53, rows of
norm ≤ R and ‖w‖ ≤ W, per record (see `solvers`, whose lines these are; projecting slopes onto a ball brings no two
further apart): scores and the slopes from them h·(D + 2)·u·W·R² + slope_error·u·R; the norm of a row, the clipping, the
outer product and the sum (ROWS + rows + D + 16)·u·C. E is twice n times that. W is public because iterates are
projected onto a public ball around c. E is at least SLACK·C, so that it normally depends on nothing else.

How it spends a charge ρ; all of it public.
 - A step is w_t = w_{t-1} - η·v_t with v_t = m·v_{t-1} + (1 - m)·(G_t/n + α(w_{t-1} - c)). Let a_t = 1 - m^(T - t + 1).
   The noise in w_T has a standard deviation of (η·σ/n)·√(Σ a_t²) per coordinate, R times that in a score, and gradients
   have moved w_T by up to η·C·Σ a_t. For a given ρ the one is proportional to the other, hardly depending on T.
 - So it is the noise that says how far to go: η is such that a score's noise is FIRST logits in a fit that starts from
   zeros, and NEAR in one that starts from a model. A first fit has nothing to lose: noise of a logit costs little where
   the scores of classes are several apart, and a longer way is worth more. A later one, often on fewer records, must
   not spoil what it starts from: with few records or a small charge the way it goes shrinks in proportion, and the
   noise it adds never exceeds NEAR. On MNIST, without its test records, accuracy hardly changes between half and twice
   FIRST, nor below 1.5·NEAR; updates with noise of FIRST cost a model 1 to 3 points.
 - η is at most (1 + m)/((1 - m)(β + α)), half of where the heavy ball stays stable on the worst data.
 - T is what it takes to go as far as FIRST allows with such steps, between FEWEST and MOST: a step more costs no
   privacy, only time. C is a quarter of the steepest gradient at zero: records that are far from learnt still push, all
   alike, and noise is four times smaller.

Averages of iterates were tried and are no better than the last one with momentum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from service.inputs.fields import Positive, Steps
from service.learning.family import LinearFamily
from service.learning.linear import Linear, LinearLearner
from service.learning.optimization.objective import MARGIN, ROWS, norm, summed
from service.learning.optimization.solvers import SLACK, UNIT, Inaccurate
from service.privacy.accounting.events import NoisyGradientSums
from service.privacy.currency import Currency, round_down
from service.privacy.noise import additive as noises

if TYPE_CHECKING:
    from service.learning.optimization.losses import Floats
    from service.learning.records import PreparedRows, Records
    from service.privacy.accounting.events import AddedNoise

FIRST = 0.7
NEAR = 0.2
FEWEST = 24
MOST = 100


class NoisyGradientDescentLearner(LinearLearner):
    """Steps from c along sums of clipped gradients with noise. It needs delta > 0.

    A setting that is null is chosen from public quantities alone; so far a fit goes that its noise stays small, so it
    needs no pull towards c (`regularization` 0).
    """

    kind: Literal["noisy_gradient_descent"]
    regularization: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=1e6)] = 0.0
    steps: Annotated[Steps | None, Field(description="how many; default 24 to 100, the more the less noise")] = None
    step: Annotated[Positive | None, Field(description="size of a step along the mean gradient")] = None
    clip: Annotated[
        Positive | None,
        Field(description="norm to which a record's gradient is clipped; default a quarter of the steepest at zero"),
    ] = None
    momentum: Annotated[
        float | None,
        Field(strict=True, allow_inf_nan=False, ge=0.0, le=0.99, description="default 0.9; with online_leader 0"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class NoisySteps(NoisyGradientSums):
    """The noise of each step, and how far the steps go."""

    step: float
    """η, on the mean gradient"""
    radius: float
    """of the ball around the centre in which iterates are kept"""


@dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(Linear):
    """The learner of the module docstring. A setting that is None is chosen by its rule; regularization may be 0."""

    kind: ClassVar[str] = "noisy_gradient_descent"
    same_everywhere: ClassVar[bool] = True
    clip: float | None = None
    steps: int | None = None
    step: float | None = None
    momentum: float = 0.9

    def describe(self, origin: Floats) -> dict[str, Any]:  # noqa: ARG002
        """Return what a step does."""
        return {
            "clip": self.longest,
            "momentum": self.momentum,
            "strong_convexity": self.regularization,
            "sensitivity": "2·clip + rounding, of each step's sum of gradients",
            "cost": "steps·sensitivity²/(2·scale²)",
        }

    @property
    def longest(self) -> float:
        """Return C, the norm to which gradients are clipped."""
        return self.clip or clipped_at(self)

    def perturbation(self, currency: Currency, charge: float, records: int, center: Floats | None = None) -> NoisySteps:
        """Return how many steps of what length, and the noise of each. Currency ZCDP only. May raise Inaccurate."""
        if currency is not Currency.ZCDP:
            raise ValueError("noisy gradient descent has no pure guarantee")
        clip = self.longest
        fastest = self._fastest()
        ways = records * math.sqrt(2.0 * charge) / (2.0 * clip * self.norm_bound)  # η·T for noise of 1 in a score
        steps = self.steps or min(MOST, max(FEWEST, math.ceil(FIRST * logit(self) * ways / fastest)))
        remaining = 1.0 - self.momentum ** np.arange(steps, 0, -1.0)
        noisiest = (
            1.5 * 2.0 * clip * math.sqrt(steps / (2.0 * charge))
        )  # for the largest rounding error that is accepted
        center_norm = 0.0 if center is None else norm(center)
        wanted = logit(self) * (FIRST if center_norm == 0.0 else NEAR)
        spread = float(np.linalg.norm(remaining)) / math.sqrt(steps)
        step = self.step or min(fastest, wanted * ways / (steps * spread))
        drift = step * clip * float(remaining.sum())
        noisy = step * noisiest / records * float(np.linalg.norm(remaining)) * (math.sqrt(self.dimension) + 8.0)
        radius = 2.0 * (drift + noisy)
        sensitivity = clipped_sum(self, clip=clip, records=records, weights=center_norm + radius)
        noise = noises.calibrate(
            currency, sensitivity=sensitivity, charge=round_down(Fraction(charge) / steps), dimension=self.dimension
        )
        return NoisySteps(noise=noise, sensitivity=sensitivity, steps=steps, step=step, radius=radius)

    def release(self, records: Records, n: int, center: Floats, perturbation: AddedNoise) -> Floats:
        """Return the last iterate."""
        if not isinstance(perturbation, NoisySteps):
            raise TypeError("this learner needs a perturbation of its own")
        if center.shape != self.shape:
            raise ValueError("the centre has another shape than the model")
        rows, y, shares = self.weighed(records)
        if shares is None and len(y) > n:
            raise ValueError("more records than slots")
        steepest = steepness(rows, self.longest)
        weights, velocity = center, np.zeros(self.shape)
        for _ in range(perturbation.steps):
            _, total = summed(self.loss, rows, y, weights, steepest=steepest, shares=shares)
            gradient = noises.add(total, perturbation.noise) / n + self.regularization * (weights - center)
            velocity = self.momentum * velocity + (1.0 - self.momentum) * gradient
            offset = weights - perturbation.step * velocity - center
            weights = center + offset * (perturbation.radius / max(norm(offset), perturbation.radius))
        return weights

    def _fastest(self) -> float:
        """Return the largest step size: half of where the heavy ball stays stable whatever the records."""
        smoothness = self.loss.smoothness(self.norm_bound) + self.regularization
        return (1.0 + self.momentum) / ((1.0 - self.momentum) * smoothness)


def clipped_at(linear: Linear) -> float:
    """Return the default of C: a quarter of the steepest gradient at zero."""
    return linear.loss.lipschitz(linear.norm_bound, linear.shape[0], 0.0) / 4.0


def logit(linear: Linear) -> float:
    """Return the unit of a score, in which rates are stated: 1, and for a regression an eighth of the labels' bound."""
    return 1.0 if linear.classes else linear.loss.lipschitz(1.0, 1, 0.0) / 8.0


def steepness(rows: PreparedRows, clip: float) -> Floats:
    """Return to which norm each row's slope is clipped, (m,), so that no gradient is longer than `clip`."""
    return clip / np.maximum(rows.norms(), 2.0**-200)


def clipped_sum(linear: Linear, *, clip: float, records: int, weights: float) -> float:
    """Return how far one of n records moves the computed sum of clipped gradients at any ‖w‖ ≤ weights: 2C + 2E.

    May raise Inaccurate.
    """
    rows, columns = linear.shape
    per_record = (
        linear.norm_bound**2 * linear.loss.score_smoothness * (columns + 2) * MARGIN * weights
        + linear.norm_bound * linear.loss.slope_error(rows)
        + (ROWS + rows + columns + 16) * clip
    )
    error = max(SLACK * clip, 2.0 * UNIT * records * per_record)
    if not error <= clip / 2.0:
        raise Inaccurate("double precision cannot add up the gradients of so many records: lower the step")
    return MARGIN * 2.0 * (clip + error)


def _build(linear: Linear, settings: NoisyGradientDescentLearner, currency: Currency) -> NoisyGradientDescent:  # noqa: ARG001
    return NoisyGradientDescent(
        **vars(linear),
        clip=settings.clip,
        steps=settings.steps,
        step=settings.step,
        momentum=0.9 if settings.momentum is None else settings.momentum,
    )


FAMILY = LinearFamily(
    settings=NoisyGradientDescentLearner,
    source="Bassily, Smith, Thakurta 2014",
    summary="on every sum of gradients",
    examples={"noisy_gradient_descent": {"kind": "noisy_gradient_descent"}},
    build=_build,
    accuracy_setting="learner.step",
    needs_delta="adds Gaussian noise in every step",
)
