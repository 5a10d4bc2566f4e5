"""Learners: how a data set and a model to stay near become a new model, and how far one record can move it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from service.learning.records import Prepared, Records, prepare
from service.learning.solvers import Exact, Setting, norm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.losses import Floats, Loss


class Solver(Protocol):
    """Turns prepared records into a model that one record can move by a public distance only."""

    @property
    def name(self) -> str: ...
    def describe(self) -> dict[str, Any]:
        """Return what it is and its sensitivity as a formula, for a plan."""

    def sensitivity(self, setting: Setting, records: int) -> float:
        """Return the L2 sensitivity of `solve` under R⊥, rounded up. Depends on public quantities only."""

    def solve(self, setting: Setting, x: Prepared, y: NDArray[np.generic], records: int, center: Floats) -> Floats:
        """Return a model of the setting's shape for m ≤ records rows of norm ≤ norm_bound, near `center`."""


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation:
    """Fit near a released model, then let the caller add noise (paper A, Algorithms 1 and 3; mechanisms.md 1.1).

    Private: the records a fit reads. Neighbours: R⊥. What `fit` returns moves by at most `sensitivity` in L2 norm when
    one record is replaced or erased, whatever the other records are. Adding noise of a scale calibrated to that
    sensitivity is what makes it private; what `fit` returns must never leave the process.

    The solver is `exact`, `psgd` or `gradient_descent`; each knows its own sensitivity. (A permutation that a solver
    draws is not a function of the records: for psgd the sensitivity is about two fits with the same one, `descent`.)

    Where it differs from Algorithm 3: the mean is over the n slots the fit reads, not over b_0 (line 2 as printed
    would let a record's loss grow without end); the regulariser is (α/2)‖w - c‖², so that α is the strong convexity;
    it covers every coordinate, the intercept too.

    | here | paper A, Algorithms 1 and 3 |
    |---|---|
    | center | w_g; 0 or a public origin for a first fit |
    | regularization α | 2λ |
    | setting().lipschitz | L |
    | n | b_0 where it divides |
    | sensitivity | Δ_ε · ε |
    """

    loss: Loss
    regularization: float
    intercept: bool
    norm_bound: float
    features: int
    classes: int
    """0 for a regression."""
    solver: Solver = field(default_factory=Exact)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of weights and coordinates per row: the features, then the intercept if there is one."""
        return self.loss.rows(self.classes), self.features + self.intercept

    @property
    def dimension(self) -> int:
        """Number of released coordinates."""
        rows, columns = self.shape
        return rows * columns

    def setting(self, center: Floats | None = None) -> Setting:
        """Return the public side of a fit near `center` (near 0 if None)."""
        return Setting(
            loss=self.loss,
            norm_bound=self.norm_bound,
            regularization=self.regularization,
            shape=self.shape,
            center_norm=0.0 if center is None else norm(center),
        )

    def sensitivity(self, records: int, center: Floats | None = None) -> float:
        """Return how far one record moves a fit of n slots near `center`, rounded up; public. May raise Inaccurate.

        For most losses it depends on the centre only where double precision does (see `solvers`): a farther centre
        costs accuracy. For `squared` it grows with the centre's norm.
        """
        return self.solver.sensitivity(self.setting(center), records)

    def fit(self, records: Records, n: int, center: Floats) -> Floats:
        """Return the solver's model near `center`, float64 of `shape`. NOT private before noise is added.

        records: those present among the n slots. A record with a value that is not finite or a label outside the
        schema counts as empty (it should have been refused before it got a slot).
        """
        if records.x.shape[1] != self.features:
            raise ValueError("the records have another number of features than the schema")
        if center.shape != self.shape:
            raise ValueError("the centre has another shape than the model")
        rows, finite = Prepared.of(records.x, norm_bound=self.norm_bound, intercept=self.intercept)
        y, present = records.y, finite & self.loss.present(records.y, self.classes)
        if not present.all():
            rows, y = rows[present], y[present]
        return self.solver.solve(self.setting(center), rows, y, n, center)

    def predict(
        self, parameters: Floats, x: NDArray[np.float32] | NDArray[np.float64]
    ) -> tuple[NDArray[np.generic], Floats]:
        """Return labels and scores (see `Loss.predict`) for x of shape (m, features), through the record map."""
        rows = prepare(x, norm_bound=self.norm_bound, intercept=self.intercept)
        return self.loss.predict(rows @ parameters.T)
