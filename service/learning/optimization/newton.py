"""Finding a minimiser: quasi-Newton steps, then Newton's with conjugate gradients where those do not gain enough.

Nothing here is relied on. It may use whatever arithmetic it likes, single precision as long as that tells anything,
for whoever calls decides whether what was found is good enough (`solvers`), and has another way if it is not.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from service.learning.optimization.objective import norm
from service.learning.records import PreparedRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.learning.optimization.losses import AnyFloats, Floats
    from service.learning.optimization.objective import MinimizationProblem

_SAMPLE = 256  # the most records of a preconditioner with many features
_SAMPLED_VALUES = 2**18  # the most numbers of a preconditioner's records
_SMALL = 32  # rows up to which LAPACK inverts a matrix
MAX_PRODUCTS = 250  # products in one step; a preconditioner that needs them all is worse than none
_STEPS = 1000
_NEARLY = 8.0  # times the required gradient norm: about the resolution of single precision
_ROUGHLY = 2.0**-20  # relative change of J that single precision resolves
_PROBES = 16
_REMEMBERED = 10  # steps
_WORTH_IT = 10.0  # times smaller that the gradient must get by so many steps, to go on without second derivatives
_MANY_PRODUCTS = 3  # products in a step from which on the preconditioner is replaced


def minimize(
    problem: MinimizationProblem, tolerance: float, certified: Callable[[Floats, Floats], bool]
) -> Floats | None:
    """Return weights w for which `certified(w - c, ∇J(w))` holds, with the gradient computed in doubles.

    tolerance: about how short the gradient must be for that. None if they are not found.
    """
    at = _Point.of(problem, problem.center.copy(), roughly=True)
    inverse, products = Preconditioner(problem), _MANY_PRODUCTS + 1  # so that the first Newton step replaces it
    memory: _Memory | None = _Memory()
    sizes, enough = [norm(at.gradient)], 0.4 * tolerance
    for _ in range(_STEPS):
        size = sizes[-1]
        if at.roughly and size <= enough:
            at = _Point.of(problem, at.weights, roughly=False)
            size = sizes[-1] = norm(at.gradient)
        if not at.roughly:
            if certified(at.weights - problem.center, at.gradient):
                return at.weights
            memory = None  # it was built in single precision, and gradients in doubles are expensive
        if memory is not None:
            direction = memory.direction(at.gradient, inverse)
            expected = size * min(1.0, size / sizes[-2]) if len(sizes) > 1 else size
            roughly = at.roughly and expected > enough and size > _NEARLY * enough
        else:
            target, roughly = min(0.1, size / max(sizes)) * size, at.roughly
            if target < _NEARLY * enough:
                target, roughly = enough if at.roughly else 2.0 * enough, False  # 0.8·tolerance of an exact gradient
            inverse = inverse.after(problem, products)
            direction, products = _conjugate_gradients(problem, inverse, at.gradient, target)
        step = _line_search(problem, at, direction, roughly=roughly)
        if memory is not None:
            if step is None or (len(sizes) > _REMEMBERED and norm(step.gradient) * _WORTH_IT > sizes[-_REMEMBERED]):
                memory = None
            else:
                memory.add(at, step)
        elif step is None and not at.roughly:
            return None
        at = step or _Point.of(problem, at.weights, roughly=False)  # single precision resolves no more progress
        sizes.append(norm(at.gradient))
    return None


class Preconditioner:
    """About (∇²J)⁻¹, from every so many-th record with its mean curvature v_i, the same for every row of weights.

    It is (αI + XᵀX)⁻¹ for sampled rows √(v_i·weight)·x_i. Where they have more coordinates than there are rows, by
    Woodbury: (I - Xᵀ(αI + XXᵀ)⁻¹X)/α.
    """

    def __init__(self, problem: MinimizationProblem) -> None:
        self._alpha = problem.regularization
        self._inverse: AnyFloats | None = None
        self._rows: PreparedRows | None = None
        columns = problem.center.shape[1]
        narrow = columns <= _SAMPLE
        sample = problem.sampled(_SAMPLED_VALUES // columns if narrow else _SAMPLE, at_least_every=1 if narrow else 4)
        if sample is None:
            return
        curvature = sample.curvature
        probes = np.eye(curvature.shape[1], dtype=np.float32)[:_PROBES]
        of_probes = (problem.loss.curve(curvature, probe[None]) @ probe for probe in probes)
        mean = sum(of_probes, start=np.zeros(len(curvature)))
        rows = curvature.shape[1]  # mean: the trace over the rank, for a softmax bends nothing along (1, …, 1)
        mean *= rows / (problem.loss.curvature(rows)[0] * len(probes))
        x = sample.rows * np.sqrt(np.maximum(0.0, mean) * sample.stands_for)[:, None]
        with suppress(np.linalg.LinAlgError):  # single precision may lose α beside many records alike
            if narrow:
                self._inverse = _inverse(x.T @ x + self._alpha * np.eye(columns))
                return
            x = x.astype(np.float32)
            gram = x @ x.T
            gram[np.diag_indices(len(x))] += np.float32(self._alpha)
            self._rows, self._inverse = PreparedRows.as_they_are(x), _inverse(gram)

    def after(self, problem: MinimizationProblem, products: int) -> Preconditioner:
        """Return the preconditioner to use after a step of that many products: this, a new one, or None."""
        if products == MAX_PRODUCTS:
            self._inverse = None
        elif products > _MANY_PRODUCTS and self._inverse is not None:
            return Preconditioner(problem)
        return self

    def applied(self, residual: Floats) -> tuple[Floats, float]:
        """Return P·r and <r, P·r>, P this preconditioner: where that is not positive, P is dropped."""
        ready = self(residual)
        if (square := float(np.vdot(residual, ready))) > 0.0:
            return ready, square
        self._inverse = None  # single precision made it indefinite
        return residual, float(np.vdot(residual, residual))

    def __call__(self, residual: Floats) -> Floats:
        if self._inverse is None:
            return residual
        if self._rows is None:
            return np.asarray(residual @ self._inverse)
        known = self._rows.gathered(self._inverse @ self._rows.scores(residual))
        return (residual - known) / self._alpha


def _inverse(matrix: AnyFloats) -> AnyFloats:
    """Return the inverse of a positive definite matrix, by halves: several times as fast as LAPACK."""
    if len(matrix) <= _SMALL:
        return np.linalg.inv(matrix)
    half = len(matrix) // 2
    first, across = _inverse(matrix[:half, :half]), matrix[:half, half:]
    carried = first @ across
    second = _inverse(matrix[half:, half:] - across.T @ carried)
    both = carried @ second
    return np.block([[first + both @ carried.T, -both], [-both.T, second]])


@dataclass(frozen=True, eq=False)
class _Point:
    """A point of Newton's method, with J and its gradient there, in single or in double precision."""

    weights: Floats
    value: float
    gradient: Floats
    roughly: bool

    @classmethod
    def of(cls, problem: MinimizationProblem, weights: Floats, *, roughly: bool) -> _Point:
        return cls(weights, *problem.evaluate(weights, roughly=roughly), roughly)


class _Memory:
    """The changes of the gradient along the latest steps: (∇²J)⁻¹ is about `inverse`, mended by that (L-BFGS)."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Floats, Floats, float]] = deque(maxlen=_REMEMBERED)

    def add(self, before: _Point, after: _Point) -> None:
        moved, turned = after.weights - before.weights, after.gradient - before.gradient
        if (along := float(np.vdot(moved, turned))) > 0.0:
            self._steps.append((moved, turned, along))

    def direction(self, gradient: Floats, inverse: Preconditioner) -> Floats:
        """Return about -(∇²J)⁻¹·∇J."""
        rest, shares = -gradient, []
        for moved, turned, along in reversed(self._steps):
            shares.append(float(np.vdot(moved, rest)) / along)
            rest = rest - shares[-1] * turned
        rest = inverse(rest)
        for (moved, turned, along), share in zip(self._steps, reversed(shares), strict=True):
            rest = rest + (share - float(np.vdot(turned, rest)) / along) * moved
        return rest


def _line_search(problem: MinimizationProblem, at: _Point, direction: Floats, *, roughly: bool) -> _Point | None:
    """Return a point that is enough of an improvement; None if there is none."""
    slope, size = float(np.vdot(at.gradient, direction)), norm(at.gradient)
    resolved = (_ROUGHLY if at.roughly else 2.0**-40) * abs(at.value)
    near = at.roughly and size <= resolved  # J no longer resolves such a step, and a shorter one would be no better
    enough = 0.9 if roughly or not near else 2.0  # `size` may be rounding error; a gradient in doubles is a gain
    step = 1.0
    while step >= 2.0**-20:
        trial = _Point.of(problem, at.weights + step * direction, roughly=roughly)
        # Near the minimiser J no longer resolves progress; the gradient does.
        closer = trial.value <= at.value + resolved and norm(trial.gradient) <= enough * size
        if closer or (not near and trial.value <= at.value + 1e-4 * step * slope):
            return trial
        step = 0.0 if near else 0.5 * step
    return None


def _conjugate_gradients(
    problem: MinimizationProblem, inverse: Preconditioner, gradient: Floats, target: float
) -> tuple[Floats, int]:
    """Return a descent direction p with ‖∇²J·p + ∇J‖ ≤ about target, and how many products that took."""
    solution = np.zeros_like(gradient)
    residual = -gradient
    direction, square = inverse.applied(residual)
    for products in range(1, MAX_PRODUCTS + 1):  # noqa: B007
        curved = problem.curve(direction)
        curvature = float(np.vdot(direction, curved))
        if not curvature > 0.0:
            break
        length = square / curvature
        solution += length * direction
        residual -= length * curved
        if norm(residual) <= target:
            break
        previous = square
        ready, square = inverse.applied(residual)
        direction = ready + (square / previous) * direction
    return solution if solution.any() else -gradient, products
