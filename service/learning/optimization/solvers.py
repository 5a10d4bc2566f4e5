"""A certified minimiser: a w that is provably within a public distance of the exact minimiser, whatever the records.

(The two solvers without a certificate, of which every single step is counted instead, are in `descent`.)

Statement (paper-audit.md S1, S2). J(w) = (1/n)·Σ a_i·loss(w; x_i, y_i) + (α/2)·‖w - c‖² + ⟨t, w - c⟩ over the records
present; n is public and at least Σ a_i. Without units all a_i are 1 and n is the number of slots; with units those of
one unit add up to at most 1, and n is the number of units, by the public pattern. `exact` returns a w with
‖∇J(w)‖ ≤ τ, hence ‖w - w*‖ ≤ τ/α, for a public τ from `accuracy`. Only w is returned: iterations, branches and losses
stay inside. The tilt t is 0 but in `objective_perturbation`, where it is random; what counts is a bound on ‖t‖.

Public: n, the shape, R, α, the bound on ‖t‖ and ‖c‖ (c is a release or an operator's public origin). Not the
records, not m.

Rounding. ∇J is computed in doubles, so a computed norm proves nothing until the error of computing it is bounded. With
u = 2^-53, rows of norm ≤ R, Frobenius norms, ‖w - c‖ ≤ ρ (checked) and W = ‖c‖ + ρ:
 - scores are dot products of length D, then times a factor per row: error ≤ (D + 2)·u·W·R per record in any order of
   summation, which moves the gradient in the scores by at most h·(D + 2)·u·W·R, h the largest second derivative there;
 - evaluating that gradient from rounded scores (exp and tanh to 16 ulp; softmax weights the error |s - max|·u of an
   exponent by exp(s - max), and a·exp(-a) ≤ 1/e): ≤ (4K + 64)·u·R; a loss says so itself (`slope_error`), and what
   is relative to the gradient is within the next lines' margin;
 - times a_i and the factor, one outer product per record; PIECE rows are summed, then up to MAX_PIECES such sums in a
   chunk: a record meets at most PIECE - 1 + MAX_PIECES additions and 3 products. With ROWS = PIECE + MAX_PIECES that
   is ≤ (ROWS + 4)·u·L for the mean over n; all that is said of a record shrinks with a_i;
 - chunks are added with compensation, so their number does not matter (below 2^26): ≤ 4u·L; division by n: u·L;
 - the regulariser's gradient α(w - c) and the last additions: ≤ 4u·(L + ‖t‖ + αρ).
E is twice the sum of these (the factor covers products of errors) plus the rounding of a step of gradient descent.
Underflow adds less than 2^-900 and is covered by the same factor.

The error of one step of gradient descent counts as an error of the gradient too: a step of 1/β rounds by u·W, which
is what an error of β·u·W in the gradient would do.

Which ball. A w with J(w) ≤ J(c) satisfies (α/2)‖w - c‖² ≤ ‖t‖·‖w - c‖ + mean loss at c - mean loss at w, and that
difference is at most L·‖w - c‖ and at most loss(c) ≤ loss(0) + L·‖c‖. So ρ = min(2(L + ‖t‖)/α, `Setting.reach`) holds
all of them, and the minimiser.

τ = max(SLACK·L/n, 5E). Normally the first, which adds SLACK to the sensitivity. On very long ranges the second: the
noise then grows a little, a public and deliberate cost, instead of an endless publication that must stop.

Why it always ends. Gradient descent from c with step 1/β, β = smoothness + α, and error ≤ E in each gradient lowers J
by at least (‖∇J‖² - E²)/(2β). While ‖∇J‖ > 2E that is ≥ (3α/4β)·(J - J*), so J stays below J(c) (inside the ball) and
J - J* shrinks by 1 - 3α/(4β) per step; as ‖∇J‖² ≤ 2β(J - J*) and J(c) - J* ≤ G²/(2α), some iterate among the first
T = ln(βG²/(4αE²))/(3α/(4β)), G = L + ‖t‖, has ‖∇J‖ ≤ 2E, and its certificate, computed norm + E ≤ 4E, holds. (S2
gives T in exact arithmetic; this is the same argument with errors. The same with τ/5 ≥ E in the place of E.) Before
that comes whatever is quicker (`newton`), for only the certificate decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from service.learning.optimization.newton import minimize
from service.learning.optimization.objective import MARGIN, ROWS, Objective, norm
from service.learning.optimization.sums import SummedObjective
from service.privacy.sensitivity import regularized_minimizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats, Loss
    from service.learning.optimization.objective import MinimizationProblem
    from service.learning.optimization.sums import Blocks, Enter
    from service.learning.records import PreparedRows, UnitShares


SLACK = 2.0**-16  # κ: what inexact minimisers add to the sensitivity, as a public fraction of it

UNIT = 2.0**-53
_TOO_STEEP = 2.0**300  # the steepest slope of an unbounded loss for which nothing overflows
_MAX_DESCENT_STEPS = 1e7  # steps: a fit that provably ends after more would take years


class Inaccurate(ArithmeticError):
    """Double precision cannot certify a fit of this size. Depends on public quantities only."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The public facts of a fit, but for the number of records; `center_norm` ≥ ‖c‖, `shape` is (rows, D)."""

    loss: Loss
    norm_bound: float
    regularization: float
    shape: tuple[int, int]
    center_norm: float
    tilt: float = 0.0
    """An upper bound on ‖t‖."""

    @cached_property
    def reach(self) -> float:
        """Return (‖t‖ + √(‖t‖² + 2α·loss(c)))/α, rounded up: any w with J(w) ≤ J(c) is within this of c."""
        worst = self.loss.at_most(self.norm_bound * self.center_norm, self.shape[0])
        root = math.sqrt(self.tilt**2 + 2.0 * worst * self.regularization)
        return MARGIN * (self.tilt + root) / self.regularization

    @cached_property
    def bounded(self) -> bool:
        """Return whether the loss is Lipschitz on a ball only: the one of radius `reach` around c."""
        return math.isinf(self.loss.lipschitz(self.norm_bound, self.shape[0]))

    @cached_property
    def lipschitz(self) -> float:
        """Return L of the unregularised loss of one record, on the ball of radius `reach` if it is `bounded`. May raise
        Inaccurate.
        """
        lipschitz = self.loss.lipschitz(self.norm_bound, self.shape[0], self.center_norm + self.reach)
        if not lipschitz < _TOO_STEEP:
            raise Inaccurate("the model that this fit starts from is too noisy to go on from")
        return lipschitz

    def error(self, radius: float) -> float:
        """Return E: a computed gradient is within this of the exact one, everywhere in a ball of that radius."""
        rows, features = self.shape
        weights = MARGIN * (self.center_norm + radius)
        smoothness = self.loss.smoothness(self.norm_bound) + self.regularization
        return (
            2.0
            * UNIT
            * (
                self.norm_bound * self.loss.score_smoothness * (features + 2) * weights * self.norm_bound
                + self.norm_bound * self.loss.slope_error(rows)
                + (ROWS + 8) * self.lipschitz
                + 8.0 * (self.lipschitz + self.tilt + self.regularization * radius)
                + 8.0 * smoothness * weights
            )
        )


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The promises of `exact` and their assumptions; all of it public."""

    tolerance: float
    """τ: the norm of the exact gradient at what is returned is at most this."""
    error: float
    """E: the computed gradient is within this of the exact one, everywhere in the ball."""
    radius: float
    """ρ: the ball around the centre inside which E holds; the minimiser lies in it."""
    steepest: float
    """An upper bound on ‖∇J(c)‖: L there, and ‖t‖."""

    def certifies(self, offset: Floats, gradient: Floats) -> bool:
        """Return whether ‖∇J(w)‖ ≤ τ for w = c + offset, for certain, where `gradient` was computed in doubles."""
        return norm(gradient) + self.error <= self.tolerance and norm(offset) <= self.radius


def accuracy(
    loss: Loss,
    *,
    norm_bound: float,
    regularization: float,
    shape: tuple[int, int],
    records: int,
    center_norm: float,
    tilt: float = 0.0,
) -> Accuracy:
    """Return the public accuracy of a fit: see the module docstring.

    norm_bound R, regularization α, shape (rows of weights, D), records n ≥ 1 (slots), center_norm ≥ ‖c‖, tilt ≥ ‖t‖.
    Raises Inaccurate if even τ = L/2 could not be certified (a fit would then learn nothing).
    """
    return _accuracy(
        Setting(
            loss=loss,
            norm_bound=norm_bound,
            regularization=regularization,
            shape=shape,
            center_norm=center_norm,
            tilt=tilt,
        ),
        records,
    )


@lru_cache(maxsize=1024)
def _accuracy(setting: Setting, records: int) -> Accuracy:
    lipschitz = setting.lipschitz
    steepest = lipschitz + setting.tilt
    radius = min(2.0 * MARGIN * steepest / setting.regularization, setting.reach)
    error = setting.error(radius)
    tolerance = max(SLACK * lipschitz / records, 5.0 * error)
    require_accuracy(tolerance, lipschitz)
    smoothness = setting.loss.smoothness(setting.norm_bound) + setting.regularization
    if _descent_steps(steepest, setting.regularization, smoothness, tolerance) > _MAX_DESCENT_STEPS:
        raise Inaccurate(
            "a fit could take too long, and whether it does could depend on a record: "
            "raise the regularization or lower the norm bound"
        )
    return Accuracy(tolerance=tolerance, error=error, radius=radius, steepest=steepest)


def require_accuracy(tolerance: float, lipschitz: float) -> None:
    """Raise Inaccurate unless gradients are known to within half of what a single record can do."""
    if not tolerance <= lipschitz / 2.0:
        raise Inaccurate(
            "double precision cannot certify this fit: raise the regularization, or the privacy budget so that the "
            "model it starts from is less noisy"
        )


@lru_cache(maxsize=1024)
def _sensitivity(setting: Setting, records: int) -> float:
    return regularized_minimizer(
        lipschitz=setting.lipschitz,
        strong_convexity=setting.regularization,
        records=records,
        tolerance=_accuracy(setting, records).tolerance,
    )


@dataclass(frozen=True)
class Exact:
    """The certified minimiser as a learner's solver."""

    name: ClassVar[str] = "exact"

    def describe(self) -> dict[str, Any]:
        """Return the solver and its sensitivity as a formula, for a plan."""
        return {
            "solver": self.name,
            "solver_slack": SLACK,
            "sensitivity": "(1 + solver_slack)·2·lipschitz/(strong_convexity·records)",
        }

    def sensitivity(self, setting: Setting, records: int) -> float:
        """Return 2L/(αn) + 2τ/α, rounded up: normally (1 + SLACK)·2L/(αn). May raise Inaccurate."""
        return _sensitivity(setting, records)

    def solve(
        self,
        setting: Setting,
        x: PreparedRows,
        y: NDArray[np.generic],
        records: int,
        center: Floats,
        units: UnitShares | None = None,
    ) -> Floats:
        """Return `exact` for rows of `setting`."""
        return exact(
            setting.loss,
            x=x,
            y=y,
            records=records,
            regularization=setting.regularization,
            center=center,
            norm_bound=setting.norm_bound,
            promise=_accuracy(setting, records),
            shares=None if units is None else units.parts,
        )


def exact(
    loss: Loss,
    *,
    x: PreparedRows,
    y: NDArray[np.generic],
    records: int,
    regularization: float,
    center: Floats,
    norm_bound: float,
    promise: Accuracy,
    tilt: Floats | None = None,
    shares: Floats | None = None,
) -> Floats:
    """Return w, shape (rows, D), with ‖∇J(w)‖ ≤ promise.tolerance in exact arithmetic, for any records.

    x: float64 (m, D), rows of norm ≤ norm_bound; y: (m,) labels; shares: a_i, (m,), None: all 1; records: n ≥ Σ a_i,
    public; center: (rows, D), released or
    public, of the norm that `promise` was made for; tilt t: (rows, D), independent of the records and at most as long
    as `promise` was told, 0 if None. No records: c - t/α, which is the exact minimiser but for one rounding.
    """
    if (len(y) if shares is None else math.fsum(shares)) > records:
        raise ValueError("more records than slots")
    if len(y) == 0:
        return center.copy() if tilt is None else center - tilt / regularization
    problem = Objective(loss, x, y, records, regularization, center, tilt, shares)
    return _certified(problem, norm_bound, promise)


def exact_of_blocks(setting: Setting, blocks: Blocks, enter: Enter, records: int, center: Floats) -> Floats:
    """Return w as `exact` does, for records that are read block by block (`sums`): same promise, same certificate.

    enter: returns the rows of `setting` and the labels of a block's records; records: n ≥ their number, public.
    """
    problem = SummedObjective(blocks, enter, setting.loss, setting.lipschitz, records, setting.regularization, center)
    problem.evaluate(center, roughly=True)
    if problem.present > records:
        raise ValueError("more records than slots")
    if not problem.present:
        return center.copy()
    return _certified(problem, setting.norm_bound, _accuracy(setting, records))


def _certified(problem: MinimizationProblem, norm_bound: float, promise: Accuracy) -> Floats:
    """Return a w that the promise certifies."""
    minimiser = minimize(problem, promise.tolerance, promise.certifies)
    if minimiser is None:
        minimiser = _descend(problem, promise, problem.loss.smoothness(norm_bound) + problem.regularization)
    return minimiser


def _descent_steps(steepest: float, regularization: float, smoothness: float, tolerance: float) -> int:
    """Return T of the module docstring: within so many steps the certificate holds. Public."""
    within = tolerance / 5.0
    needed = math.log(max(2.0, smoothness * steepest**2 / (4.0 * regularization * within**2)))
    return 2 + math.ceil(needed * 4.0 * smoothness / (3.0 * regularization))


def _descend(problem: MinimizationProblem, promise: Accuracy, smoothness: float) -> Floats:
    """Return the result of gradient descent from the centre, in the public number of steps that provably suffices."""
    weights = problem.center.copy()
    for _ in range(_descent_steps(promise.steepest, problem.regularization, smoothness, promise.tolerance)):
        _, gradient = problem.evaluate(weights)
        if promise.certifies(weights - problem.center, gradient):
            return weights
        weights = weights - gradient / smoothness
    raise Inaccurate("this machine's arithmetic is not the one that the error bound assumes")
