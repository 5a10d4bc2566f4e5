"""A certified minimiser: a w that is provably within a public distance of the exact minimiser, whatever the records.

(The two solvers without a certificate, of which every single step is counted instead, are in `descent`.)

Statement (mechanisms.md S1, S2). J(w) = (1/n)·Σ loss(w; x_i, y_i) + (α/2)·‖w - c‖² + ⟨t, w - c⟩ over the records
present; n, the number of slots, is public and at least the number of records present. `exact` returns a w with
‖∇J(w)‖ ≤ τ, hence ‖w - w*‖ ≤ τ/α, for a public τ from `accuracy`. Only w is returned: iterations, branches and losses
stay inside. The tilt t is 0 but in `objective_perturbation`, where it is random; what counts is a bound on ‖t‖.

What is public: n, the shape, R, α, the bound on ‖t‖ and ‖c‖ (c is a release or an operator's public origin). Not the
records, not m.

Rounding. ∇J is computed in doubles, so a computed norm proves nothing until the error of computing it is bounded. With
u = 2^-53, rows of norm ≤ R, Frobenius norms, ‖w - c‖ ≤ ρ (checked) and W = ‖c‖ + ρ:
 - scores are dot products of length D, then times a factor per row: error ≤ (D + 2)·u·W·R per record in any order of
   summation, which moves the gradient in the scores by at most h·(D + 2)·u·W·R, h the largest second derivative there;
 - evaluating that gradient from rounded scores (exp and tanh to 16 ulp; softmax weights the error |s - max|·u of an
   exponent by exp(s - max), and a·exp(-a) ≤ 1/e): ≤ (4K + 64)·u·R; a loss says so itself (`slope_error`), and what
   is relative to the gradient is within the next lines' margin;
 - times the factor, one outer product per record, summed in chunks of ROWS rows: ≤ (ROWS + 3)·u·L for the mean over n;
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
that come quasi-Newton steps, and Newton's with conjugate gradients where those do not gain enough. They are far
quicker, and may use whatever arithmetic they like, for only the certificate decides.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from service.learning.records import Prepared
from service.privacy.sensitivity import regularized_minimizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.losses import Floats, Loss


SLACK = 2.0**-16  # κ: what inexact minimisers add to the sensitivity, as a public fraction of it
SAMPLE = 256  # records that a preconditioner is made of
ROWS = 128  # rows per chunk of a gradient: public, it enters the error bound

UNIT = 2.0**-53
MARGIN = 1.0 + 2.0**-20  # covers the rounding of norms
_TOO_STEEP = 2.0**300  # of a loss that is steeper the farther out: nothing computed from it may overflow
_NEWTON_STEPS = 1000
_NEARLY = 8.0  # times as long as needed: about what single precision can tell from nothing
_PROBES = 16
_ROUGH_ROWS = 512
_REMEMBERED = 10  # steps
_WORTH_IT = 10.0  # times smaller that the gradient must get by so many steps, to go on without second derivatives
_MANY_PRODUCTS = 3  # that a preconditioner may need before another one is made
_MOST_PRODUCTS = 250  # of one step; a preconditioner that needs them all is worse than none
_MOST_DESCENT_STEPS = 1e7  # a proof that a fit ends is worth nothing if it ends after years


class Inaccurate(ArithmeticError):
    """Double precision cannot certify a fit of this size. Depends on public quantities only."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is public about a fit, but for the number of records; `center_norm` ≥ ‖c‖, `shape` is (rows, D)."""

    loss: Loss
    norm_bound: float
    regularization: float
    shape: tuple[int, int]
    center_norm: float
    tilt: float = 0.0
    """An upper bound on ‖t‖."""

    @cached_property
    def reach(self) -> float:
        """(‖t‖ + √(‖t‖² + 2α·loss(c)))/α, rounded up: where J(w) ≤ J(c), w is within this of c; the minimiser too."""
        worst = self.loss.at_most(self.norm_bound * self.center_norm, self.shape[0])
        root = math.sqrt(self.tilt**2 + 2.0 * worst * self.regularization)
        return MARGIN * (self.tilt + root) / self.regularization

    @cached_property
    def bounded(self) -> bool:
        """Whether the loss is Lipschitz on a ball only: the one of radius `reach` around c."""
        return math.isinf(self.loss.lipschitz(self.norm_bound, self.shape[0]))

    @cached_property
    def lipschitz(self) -> float:
        """L of the unregularised loss of one record, on the ball of radius `reach` if it is `bounded`. May raise
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
    """What `exact` promises and relies on; all of it public."""

    tolerance: float
    """τ: the norm of the exact gradient at what is returned is at most this."""
    error: float
    """E: the computed gradient is within this of the exact one, everywhere in the ball."""
    radius: float
    """ρ: the ball around the centre inside which E holds; the minimiser lies in it."""
    steepest: float
    """An upper bound on ‖∇J(c)‖: L there, and ‖t‖."""


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


def _accuracy(setting: Setting, records: int) -> Accuracy:
    lipschitz = setting.lipschitz
    steepest = lipschitz + setting.tilt
    radius = min(2.0 * MARGIN * steepest / setting.regularization, setting.reach)
    error = setting.error(radius)
    tolerance = max(SLACK * lipschitz / records, 5.0 * error)
    require_accuracy(tolerance, lipschitz)
    smoothness = setting.loss.smoothness(setting.norm_bound) + setting.regularization
    if _descent_steps(steepest, setting.regularization, smoothness, tolerance) > _MOST_DESCENT_STEPS:
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


def norm(values: Floats) -> float:
    """Return an upper bound on the Frobenius norm, at most 2^-19 above it relatively."""
    return float(np.linalg.norm(values)) * MARGIN


@dataclass(frozen=True)
class Exact:
    """The certified minimiser as a learner's solver."""

    name: ClassVar[str] = "exact"

    def describe(self) -> dict[str, Any]:
        """Return what it is and its sensitivity as a formula, for a plan."""
        return {
            "solver": self.name,
            "solver_slack": SLACK,
            "sensitivity": "(1 + solver_slack)·2·lipschitz/(strong_convexity·records)",
        }

    def sensitivity(self, setting: Setting, records: int) -> float:
        """Return 2L/(αn) + 2τ/α, rounded up: normally (1 + SLACK)·2L/(αn). May raise Inaccurate."""
        return regularized_minimizer(
            lipschitz=setting.lipschitz,
            strong_convexity=setting.regularization,
            records=records,
            tolerance=_accuracy(setting, records).tolerance,
        )

    def solve(self, setting: Setting, x: Prepared, y: NDArray[np.generic], records: int, center: Floats) -> Floats:
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
        )


def exact(
    loss: Loss,
    *,
    x: Prepared,
    y: NDArray[np.generic],
    records: int,
    regularization: float,
    center: Floats,
    norm_bound: float,
    promise: Accuracy,
    tilt: Floats | None = None,
) -> Floats:
    """Return w, shape (rows, D), with ‖∇J(w)‖ ≤ promise.tolerance in exact arithmetic, for any records.

    x: float64 (m, D), rows of norm ≤ norm_bound; y: (m,) labels; records: n ≥ m, public; center: (rows, D), released or
    public, of the norm that `promise` was made for; tilt t: (rows, D), independent of the records and at most as long
    as `promise` was told, 0 if None. No records: c - t/α, which is the exact minimiser but for one rounding.
    """
    if len(y) > records:
        raise ValueError("more records than slots")
    if len(y) == 0:
        return center.copy() if tilt is None else center - tilt / regularization
    problem = _Problem(loss, x, y, records, regularization, center, tilt)
    found = _newton(problem, promise)
    if found is None:
        found = _descend(problem, promise, loss.smoothness(norm_bound) + regularization)
    return found


def evaluate(
    loss: Loss,
    x: Prepared,
    y: NDArray[np.generic],
    records: int,
    regularization: float,
    center: Floats,
    weights: Floats,
    curvature: NDArray[np.float32] | None = None,
    *,
    roughly: bool = False,
    tilt: Floats | None = None,
) -> tuple[float, Floats]:
    """Return J and ∇J at `weights`, and put what `Loss.curve` needs into `curvature` if given.

    The error bound of the module docstring is about these very lines, but for `roughly`: in single precision.
    """
    total_value, total = summed(loss, x, y, weights, curvature, roughly=roughly)
    offset = weights - center
    gradient = total / records + regularization * offset
    value = total_value / records + 0.5 * regularization * float(np.vdot(offset, offset))
    if tilt is not None:
        gradient += tilt
        value += float(np.vdot(tilt, offset))
    return value, gradient


def summed(
    loss: Loss,
    x: Prepared,
    y: NDArray[np.generic],
    weights: Floats,
    curvature: NDArray[np.float32] | None = None,
    *,
    roughly: bool = False,
    steepest: Floats | None = None,
) -> tuple[float, Floats]:
    """Return Σ loss and the sum of its gradients at `weights`; see `evaluate`.

    steepest: (m,), positive, the norm to which each record's derivative in its scores is clipped; None: not at all.
    """
    chunk, dtype = (_ROUGH_ROWS, np.float32) if roughly else (ROWS, np.float64)
    room = x.room(chunk, dtype)
    total, correction = np.zeros(weights.shape), np.zeros(weights.shape)
    added, virtual = np.empty(weights.shape), np.empty(weights.shape)
    weights = weights.astype(dtype, copy=False)
    values = []
    for start in range(0, len(y), chunk):
        rows, labels = x[start : start + chunk].astype(dtype, room), y[start : start + chunk]
        value, slopes, curved = loss.derivatives(rows.scores(weights), labels)
        if curvature is not None:
            curvature[start : start + chunk] = curved
        if steepest is not None:
            limit = steepest[start : start + chunk, None]
            slopes = slopes * (limit / np.maximum(limit, MARGIN * np.linalg.norm(slopes, axis=1, keepdims=True)))
        values.append(value)
        part = rows.gathered(slopes)
        if roughly:
            total += part
            continue
        np.add(total, part, out=added)  # two-sum: `correction` gathers what the additions lose
        np.subtract(added, total, out=virtual)
        part -= virtual
        total -= np.subtract(added, virtual, out=virtual)
        correction += total
        correction += part
        total, added = added, total
    return math.fsum(values), total + correction


class _Problem:
    """J and its derivatives at one point after the other."""

    def __init__(
        self,
        loss: Loss,
        x: Prepared,
        y: NDArray[np.generic],
        records: int,
        regularization: float,
        center: Floats,
        tilt: Floats | None = None,
    ) -> None:
        self.loss, self.x, self.y = loss, x, y
        self.records, self.regularization, self.center, self.tilt = records, regularization, center, tilt
        self.rough = x.astype(np.float32)  # for whatever the certificate does not rest on
        self.curvature = np.empty((center.shape[0], len(y)), dtype=np.float32).T

    def evaluate(self, weights: Floats, *, roughly: bool = False) -> tuple[float, Floats]:
        """Return J and ∇J, and remember the curvature there."""
        return evaluate(
            self.loss,
            self.rough if roughly else self.x,
            self.y,
            self.records,
            self.regularization,
            self.center,
            weights,
            self.curvature,
            roughly=roughly,
            tilt=self.tilt,
        )

    def curve(self, direction: Floats) -> Floats:
        """Return about ∇²J · direction at the point last evaluated, in single precision."""
        total = np.zeros(direction.shape)
        for start in range(0, len(self.y), _ROUGH_ROWS):
            rows = self.rough[start : start + _ROUGH_ROWS]
            curved = self.loss.curve(self.curvature[start : start + _ROUGH_ROWS], rows.scores(direction))
            total += rows.gathered(curved)
        return total / self.records + self.regularization * direction

    def certified(self, weights: Floats, gradient: Floats, promise: Accuracy) -> bool:
        return norm(gradient) + promise.error <= promise.tolerance and norm(weights - self.center) <= promise.radius


class _Preconditioner:
    """About (∇²J)⁻¹, from every so many-th record with its mean curvature v_i, by Woodbury.

    (αI + XᵀX)⁻¹ = (I - Xᵀ(αI + XXᵀ)⁻¹X)/α for sampled rows √(v_i·weight)·x_i, the same for every row of weights.
    """

    def __init__(self, problem: _Problem) -> None:
        self._alpha = problem.regularization
        self._inverse: Floats | None = None
        every = len(problem.y) // SAMPLE
        if every < 4:  # few records: products with all of them cost no more
            return
        sample = slice(0, every * SAMPLE, every)
        curvature = problem.curvature[sample]
        probes = np.eye(curvature.shape[1], dtype=np.float32)[:_PROBES]
        mean = sum((problem.loss.curve(curvature, probe[None]) @ probe for probe in probes), start=np.zeros(SAMPLE))
        weight = np.maximum(0.0, mean) / len(probes) * (len(problem.y) / (SAMPLE * problem.records))
        x = (problem.rough[sample].rows() * np.sqrt(weight)[:, None]).astype(np.float32)
        gram = x @ x.T
        gram[np.diag_indices(SAMPLE)] += np.float32(self._alpha)
        self._rows, self._inverse = Prepared.as_they_are(x), np.linalg.inv(gram)

    def after(self, problem: _Problem, products: int) -> _Preconditioner:
        """Return the one to use after a step that took so many products: another where this one is poor, or none."""
        if products == _MOST_PRODUCTS:
            self._inverse = None
        elif products > _MANY_PRODUCTS and self._inverse is not None:
            return _Preconditioner(problem)
        return self

    def __call__(self, residual: Floats) -> Floats:
        if self._inverse is None:
            return residual
        known = self._rows.gathered(self._inverse @ self._rows.scores(residual))
        return (residual - known) / self._alpha


@dataclass(frozen=True, eq=False)
class _Point:
    """Where Newton's method is: J and its gradient there, in single or in double precision."""

    weights: Floats
    value: float
    gradient: Floats
    roughly: bool

    @classmethod
    def of(cls, problem: _Problem, weights: Floats, *, roughly: bool) -> _Point:
        return cls(weights, *problem.evaluate(weights, roughly=roughly), roughly)


class _Memory:
    """What the gradient did along the latest steps: (∇²J)⁻¹ is about `inverse`, mended by that (L-BFGS)."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Floats, Floats, float]] = deque(maxlen=_REMEMBERED)

    def add(self, before: _Point, after: _Point) -> None:
        moved, turned = after.weights - before.weights, after.gradient - before.gradient
        if (along := float(np.vdot(moved, turned))) > 0.0:
            self._steps.append((moved, turned, along))

    def direction(self, gradient: Floats, inverse: _Preconditioner) -> Floats:
        """Return about -(∇²J)⁻¹·∇J."""
        rest, shares = -gradient, []
        for moved, turned, along in reversed(self._steps):
            shares.append(float(np.vdot(moved, rest)) / along)
            rest = rest - shares[-1] * turned
        rest = inverse(rest)
        for (moved, turned, along), share in zip(self._steps, reversed(shares), strict=True):
            rest = rest + (share - float(np.vdot(turned, rest)) / along) * moved
        return rest


def _newton(problem: _Problem, promise: Accuracy) -> Floats | None:
    """Quasi-Newton, then inexact Newton, in single precision until a step should arrive; None if it never does."""
    at = _Point.of(problem, problem.center.copy(), roughly=True)
    inverse, products = _Preconditioner(problem), 0
    memory: _Memory | None = _Memory()
    sizes, enough = [norm(at.gradient)], 0.4 * promise.tolerance
    for _ in range(_NEWTON_STEPS):
        size = sizes[-1]
        if at.roughly and size <= enough:
            at = _Point.of(problem, at.weights, roughly=False)
            size = sizes[-1] = norm(at.gradient)
        if not at.roughly:
            if problem.certified(at.weights, at.gradient, promise):
                return at.weights
            memory = None  # what it knows, it knows roughly; now every look at the gradient is dear
        if memory is not None:
            direction = memory.direction(at.gradient, inverse)
            expected = size * min(1.0, size / sizes[-2]) if len(sizes) > 1 else size
            roughly = at.roughly and expected > enough and size > _NEARLY * enough
        else:
            target, roughly = min(0.1, size / max(sizes)) * size, at.roughly
            if target < _NEARLY * enough:
                target, roughly = enough, False
            inverse = inverse.after(problem, products)
            direction, products = _conjugate_gradients(problem, inverse, at.gradient, target)
        found = _line_search(problem, at, direction, roughly=roughly)
        if memory is not None:
            if found is None or len(sizes) > _REMEMBERED and norm(found.gradient) * _WORTH_IT > sizes[-_REMEMBERED]:
                memory = None
            else:
                memory.add(at, found)
        elif found is None and not at.roughly:
            return None
        at = found or _Point.of(problem, at.weights, roughly=False)  # single precision sees no progress any more
        sizes.append(norm(at.gradient))
    return None


def _line_search(problem: _Problem, at: _Point, direction: Floats, *, roughly: bool) -> _Point | None:
    """Return a point that is enough of an improvement; None if there is none."""
    slope, size = float(np.vdot(at.gradient, direction)), norm(at.gradient)
    resolved = (2.0**-20 if at.roughly else 2.0**-40) * abs(at.value)
    step = 1.0
    while step >= 2.0**-20:
        trial = _Point.of(problem, at.weights + step * direction, roughly=roughly)
        # Near the minimiser J no longer resolves progress; the gradient does.
        closer = trial.value <= at.value + resolved and norm(trial.gradient) <= 0.9 * size
        if closer or trial.value <= at.value + 1e-4 * step * slope:
            return trial
        step *= 0.5
    return None


def _conjugate_gradients(
    problem: _Problem, inverse: _Preconditioner, gradient: Floats, target: float
) -> tuple[Floats, int]:
    """Return a descent direction p with ‖∇²J·p + ∇J‖ ≤ about target, and how many products that took."""
    solution = np.zeros_like(gradient)
    residual = -gradient
    direction = inverse(residual)
    square = float(np.vdot(residual, direction))
    for products in range(1, _MOST_PRODUCTS + 1):  # noqa: B007
        curved = problem.curve(direction)
        curvature = float(np.vdot(direction, curved))
        if not curvature > 0.0:
            break
        length = square / curvature
        solution += length * direction
        residual -= length * curved
        if norm(residual) <= target:
            break
        ready = inverse(residual)
        previous, square = square, float(np.vdot(residual, ready))
        direction = ready + (square / previous) * direction
    return solution if solution.any() else -gradient, products


def _descent_steps(steepest: float, regularization: float, smoothness: float, tolerance: float) -> int:
    """Return T of the module docstring: within so many steps the certificate holds. Public."""
    within = tolerance / 5.0
    needed = math.log(max(2.0, smoothness * steepest**2 / (4.0 * regularization * within**2)))
    return 2 + math.ceil(needed * 4.0 * smoothness / (3.0 * regularization))


def _descend(problem: _Problem, promise: Accuracy, smoothness: float) -> Floats:
    """Gradient descent from the centre, for the public number of steps within which it is proved to arrive."""
    weights = problem.center.copy()
    for _ in range(_descent_steps(promise.steepest, problem.regularization, smoothness, promise.tolerance)):
        _, gradient = problem.evaluate(weights)
        if problem.certified(weights, gradient, promise):
            return weights
        weights = weights - gradient / smoothness
    raise Inaccurate("this machine's arithmetic is not the one the error bound is about")
