"""One step along each batch's gradients, with the noise of running sums: DP-FTRL (Kairouz et al. 2021).

Statement. Private: the records, each of which is in one batch. Neighbours: R⊥. At step t, for the n public slots of
batch t and a point y_t, a function of what was released before,
    v_t = Σ_i clip_C(∇loss(y_t; z_i)),
of which an estimate ĝ_t is released (`noise.running_sums`); one record moves its batch's v_t by at most Δ = 2C + 2E
(`noisy_gradient_descent`: clipping, and rounding errors E on a public set that holds y_t), whatever came before, and
‖v_t‖ ≤ nC + Δ. So a run costs a record what `running_sums` charges for Δ, once, however many releases follow. All else
looks at no record again: w_(t+1) and the released model are functions of ĝ_0 … ĝ_t and public numbers.

    u_(t+1) = m·u_t + (1 - m)·(ĝ_t/n + α(y_t - c)),   w_(t+1) = Π(w_t - η·u_(t+1)),
or with a `strong_convexity` μ, following the leader of all losses so far and (μ/2)·‖w - c‖² for each record,
    u_(t+1) = u_t + ĝ_t/n,                             w_(t+1) = Π(c - u_(t+1)/(μ(t + 1))),
    released: a_(t+1) = a_t + k_t·(w_(t+1) - a_t),   k_t = max(4/(t + 5), k),

Π the projection onto a convex set that holds the origin c (`constraint_sets`). The average forgets what the first,
worst iterates did; without `averaging` w itself is released. k is 0 where all iterates are averaged for ever. With
`averaging` `recent` it is RECENT, and smaller where the noise of a step's mean gradient is longer than twice a clipped
gradient: the noisier a step is, the more of them are averaged (`recency`).

y_t is w_t, but with `averaging` `schedule_free`, `adaptive` and `tracking` y_t = Π(w_t + b·(a_t - w_t)), b of BETWEEN
(Defazio et al. 2024, equation 1).
So a step corrects what the released average still gets wrong, and may be longer, the more so the more classes share
its length; and the average may be shorter.

With `adaptive`, which is `schedule_free` otherwise, classes that jump are followed at once: r_t is how many times
longer the mean gradient ĝ_t/n is than lately (`_surprise`), η becomes min(LONGER, max(1, r_t/SURPRISING))·η and k
becomes min(1, k·r_t) in that step. Both are functions of what was released, so they cost nothing.

With `tracking`, which is `schedule_free` otherwise, steps are as long as the stream needs, for classes: `agreement`.

Following the leader is paper B's WDP-COCOP, whose equation 10 lacks the 1/t; only the losses' gradients enter the
sums, those of the regulariser are public (paper-audit.md 2). With `conditional_gradient` w goes towards the leader
instead of to it, and nothing is projected: WDP-COCOL, see `conditional_gradient`.

Where η is not given it is such that the noise of one step has a spread of FIRST in a score, in units of a logit, but so
that no step moves a score by more than LONGEST (with gradients near the average: √(K/2) times that for K classes, two
thirds of it for a regression). Without clipping, which bounds what overshooting can do, that would be
far from stable; with it, and the average, smaller steps and momentum learnt more slowly and came no nearer on MNIST,
elec2 and noaa_weather.

A record is charged with its batch's step, for all steps to come (paper-audit.md 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from service.learning.linear import Linear
from service.learning.noisy_gradient_descent import FAMILY as DESCENT
from service.learning.noisy_gradient_descent import clipped_at, clipped_sum, logit, steepness
from service.learning.optimization.objective import MARGIN, summed
from service.mechanisms.online_leader import agreement
from service.mechanisms.online_leader.conditional_gradient import Pursuit
from service.privacy.accounting.events import NoisyRunningSums
from service.privacy.noise import running_sums

if TYPE_CHECKING:
    from service.learning.optimization.constraint_sets import ConstraintSet
    from service.learning.optimization.losses import Floats
    from service.learning.records import Records
    from service.mechanisms.online_leader.settings import Averages
    from service.privacy.currency import Currency
    from service.privacy.noise.running_sums import Runs

FIRST = 0.5
LONGEST = 24.0
RECENT = {"recent": (0.1, 2.0), "schedule_free": (0.3, 4.0), "adaptive": (0.3, 4.0), "tracking": (0.3, 2.0)}
"""The least part of an iterate in the average, up to which length of the noise, in clipped gradients; see `recency`."""
BETWEEN = {"schedule_free": 0.7, "adaptive": 0.7, "tracking": 0.6}
SURPRISING, LONGER = 2.0, 3.0
RISE, FALL = 0.05, 0.3
"""How fast the length that gradients had lately follows a longer one and a shorter one."""
State = tuple["Floats", ...]
"""The memory of `running_sums`, then one number (1,), w, u and a; float64, of the shape of w.

The number is how far w can be from its leader, with `adaptive` how long mean gradients were lately, and with
`tracking` the logarithm of m_t. All are as secret as the records."""


@dataclass(frozen=True, kw_only=True)
class OnlineGradient(Linear):
    """The learner of the module docstring. A setting that is None is chosen by its rule."""

    kind: ClassVar[str] = DESCENT.kind
    same_everywhere: ClassVar[bool] = True
    runs: Runs
    clip: float | None = None
    learning_rate: float | None = None
    momentum: float = 0.0
    strong_convexity: float | None = None
    averaging: bool | Averages = True
    constraint: ConstraintSet
    projected: bool = True

    def describe(self, origin: Floats) -> dict[str, Any]:  # noqa: ARG002
        """Return what a step does."""
        return {
            "clip": self.longest,
            "momentum": self.momentum,
            "averaging": self.averaging,
            "step": "projection" if self.projected else "conditional_gradient",
            "constraint": {"kind": self.constraint.name, "radius": self.constraint.radius},
            "strong_convexity": self.strong_convexity or self.regularization,
            "sensitivity": "2·clip + rounding, of the sum of gradients of the one batch that a record is in",
        }

    @property
    def longest(self) -> float:
        """Return C, the norm to which gradients are clipped."""
        return self.clip or clipped_at(self)

    def perturbation(
        self, currency: Currency, charge: float, records: int, center: Floats | None = None, step: int = 0
    ) -> NoisyRunningSums:
        """Return how step number `step`, over n = `records` slots, spends at most `charge`; center: the origin.

        A function of public quantities only. May raise Inaccurate.
        """
        farthest = self.constraint.farthest(np.zeros(self.shape) if center is None else center)
        sensitivity = clipped_sum(self, clip=self.longest, records=records, weights=farthest)
        largest = MARGIN * records * self.longest + sensitivity
        factor, _ = self.runs.at(step)
        sums = running_sums.calibrate(
            currency, factor=factor, sensitivity=sensitivity, largest=largest, charge=charge, dimension=self.dimension
        )
        return NoisyRunningSums(noise=sums.noise, sensitivity=sensitivity, factor=factor, largest=largest)

    def rate(self, perturbation: NoisyRunningSums, records: int) -> float:
        """Return η, on the mean gradient."""
        if self.learning_rate is not None:
            return self.learning_rate
        spread = perturbation.noise.expected_norm() / math.sqrt(self.dimension) / records
        return logit(self) / self.norm_bound * min(FIRST / spread, self._most() / self.longest)

    def _most(self) -> float:
        """Return by how much a step may move a score, in logits."""
        if not self._between:
            return LONGEST
        return LONGEST * (math.sqrt(self.classes / 2.0) if self.classes else 2.0 / 3.0)

    def recency(self, perturbation: NoisyRunningSums, records: int) -> float:
        """Return k, the least part that an iterate has in the average when it comes; from public quantities alone.

        On streams that drift, an average of all iterates so far lags behind by 1 to 3 points of accuracy; where noise
        is long beside gradients, a short one is worse by as much (`benchmarks.defaults`).
        """
        if isinstance(self.averaging, bool):
            return 0.0
        least, quiet = RECENT[self.averaging]
        noise = perturbation.noise.expected_norm() / records / self.longest
        return least * min(1.0, quiet / noise)

    def _part(self, step: int, answer: float, least: float) -> float:
        """Return k_t; answer: the factor of k; least: k."""
        first = 4.0 / (step + 5.0)
        if self.averaging == "tracking":
            least = max(first, least)
        return max(first, min(1.0, answer * least))

    @property
    def _between(self) -> float:
        """Return b: gradients are computed at w + b·(a - w); 0: at the iterate."""
        if isinstance(self.averaging, bool) or self.strong_convexity is not None:
            return 0.0
        return BETWEEN.get(self.averaging, 0.0)

    def _response(
        self, mean: Floats, state: State, n: int, perturbation: NoisyRunningSums
    ) -> tuple[float, float, Floats]:
        """Return the factor of the step's length, the factor of k, and the number in the next state.

        state: the number and u of before. In a regression nothing answers the stream: there a step that goes too far
        makes the next gradient longer, and so on.
        """
        number, velocity = state
        if not self.classes:
            return 1.0, 1.0, number
        if self.averaging == "adaptive":
            surprise, lately = self._surprise(mean, float(number[0]), n)
            return min(LONGER, max(1.0, surprise / SURPRISING)), surprise, np.array([lately])
        if self.averaging == "tracking":
            part = (1.0 - self.momentum) * agreement.taken_back(perturbation.factor)
            noise = part * (perturbation.noise.expected_norm() / n) ** 2
            followed = agreement.followed(float(number[0]), mean, velocity, noise)
            return math.exp(followed / 2.0), math.exp(followed), np.array([followed])
        return 1.0, 1.0, number

    def _surprise(self, mean: Floats, lately: float, n: int) -> tuple[float, float]:
        """Return r_t ≥ 1, and the recent length of mean gradients, this one included.

        The draw of a batch moves a mean of n clipped gradients by C/√n at most, which surprises nobody.
        """
        length = float(np.linalg.norm(mean))
        if not lately:
            return 1.0, length
        ratio = length / math.sqrt(lately**2 + 2.0 * self.longest**2 / n)
        return max(1.0, ratio), lately + (RISE if length > lately else FALL) * (length - lately)

    def remembers(self, step: int) -> int:
        """Return the number of arrays in the state before that step; 0: the state is that of `start`."""
        factor, place = self.runs.at(step)
        return 4 + factor.remembers(place) if step else 0

    def start(self, origin: Floats) -> State:
        """Return the state before the first step."""
        if origin.shape != self.shape:
            raise ValueError("the origin has another shape than the model")
        return np.zeros(1), origin, np.zeros(self.shape), origin

    def advance(
        self, state: State, records: Records, n: int, origin: Floats, perturbation: NoisyRunningSums, step: int
    ) -> State:
        """Return the state after step number `step`; its last member may be released for the records' charge.

        records: those present among the n slots of this batch. State and release are kept together or lost together.
        """
        *memory, apart, weights, velocity, average = state
        rows, y, shares = self.weighed(records)
        if len(y) > n:
            raise ValueError("more records than slots")
        point = weights
        if self._between:
            point = self.constraint.project(weights + self._between * (average - weights), origin)
        _, total = summed(self.loss, rows, y, point, steepest=steepness(rows, self.longest), shares=shares)
        _, place = self.runs.at(step)
        estimate, remembered = perturbation.sums.release(total, tuple(memory), place)
        if (
            records.units is not None
        ):  # n counts units, by the public pattern; without units in the batch the step is noise alone
            n = max(1, records.units)
        mean, answer = estimate / n, 1.0
        if self.strong_convexity is None:
            longer, answer, apart = self._response(mean, (apart, velocity), n, perturbation)
            gradient = mean + self.regularization * (point - origin)
            velocity = self.momentum * velocity + (1.0 - self.momentum) * gradient
            weights = self.constraint.project(weights - longer * self.rate(perturbation, n) * velocity, origin)
        elif self.projected:
            velocity = velocity + mean
            weights = self.constraint.project(origin - velocity / (self.strong_convexity * (step + 1)), origin)
        else:
            pursuit = Pursuit(constraint=self.constraint, origin=origin, convexity=self.strong_convexity)
            weights, apart = pursuit.step(weights, apart, velocity, mean, step)
            velocity = velocity + mean
        if self.averaging:
            average = average + self._part(step, answer, self.recency(perturbation, n)) * (weights - average)
        else:
            average = weights
        return *remembered, apart, weights, velocity, average
