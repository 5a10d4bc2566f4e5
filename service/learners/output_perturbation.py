"""Learners: how a data set and a model to stay near become a new, private model, and what that costs a record.

A learner gets a charge and decides, from public quantities alone, how it will spend it (`perturbation`); then it reads
the records and returns a model that may be released (`release`). Whatever the schedule, a learner only needs records,
an origin or an earlier release to stay near, and a charge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from service.learning.objective import norm
from service.learning.records import Prepared, Records, prepare
from service.learning.solvers import Exact, Setting
from service.privacy.accounting.events import NoisyWeights
from service.privacy.noise import additive as noises

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.losses import Floats, Loss
    from service.privacy.accounting.events import AddedNoise
    from service.privacy.loss import Kind


class Perturbed(Protocol):
    """What is public of how linear models are made: weights of `shape`, from records through the record map."""

    kind: ClassVar[str]

    @property
    def loss(self) -> Loss: ...
    @property
    def intercept(self) -> bool: ...
    @property
    def norm_bound(self) -> float: ...
    @property
    def features(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dimension(self) -> int: ...
    @property
    def same_everywhere(self) -> bool:
        """Whether a fit is perturbed alike near every centre, so that a plan can state it for all fits."""

    def describe(self, origin: Floats) -> dict[str, Any]:
        """Return what it does, for a plan."""

    def perturbation(self, kind: Kind, charge: float, records: int, center: Floats | None = None) -> AddedNoise:
        """Return how a fit of n = `records` slots near `center` (0 if None) spends at most `charge`.

        A function of public quantities only. May raise Inaccurate.
        """


class Learner(Perturbed, Protocol):
    """Makes a linear model of a data set, whatever was made before."""

    def release(self, records: Records, n: int, center: Floats, perturbation: AddedNoise) -> Floats:
        """Return a model near `center`, float64 of `shape`, perturbed so: it may be released for its charge.

        records: those present among the n slots. A record with a value that is not finite or a label outside the
        schema counts as empty (it should have been refused before it got a slot).
        """


@dataclass(frozen=True, kw_only=True)
class Linear:
    """What all learners of linear models share: the loss, the record map and the shape of the weights."""

    loss: Loss
    regularization: float
    intercept: bool
    norm_bound: float
    features: int
    classes: int
    """0 for a regression."""

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

    def prepared(self, records: Records) -> tuple[Prepared, NDArray[np.generic]]:
        """Return the rows and labels that enter the loss; what does not fit the schema is left out."""
        if records.x.shape[1] != self.features:
            raise ValueError("the records have another number of features than the schema")
        rows, finite = Prepared.of(records.x, norm_bound=self.norm_bound, intercept=self.intercept)
        present = finite & self.loss.present(records.y, self.classes)
        return (rows, records.y) if present.all() else (rows[present], records.y[present])

    def predict(
        self, parameters: Floats, x: NDArray[np.float32] | NDArray[np.float64], tasks: int | None = None
    ) -> tuple[NDArray[np.generic], Floats]:
        """Return labels and scores (see `Loss.predict`) for x of shape (m, features), through the record map.

        tasks: parameters are models of so many tasks, one below the other, then a row of scores of each; the model of
        the task with the largest score predicts.
        """
        scores = prepare(x, norm_bound=self.norm_bound, intercept=self.intercept) @ parameters.T
        if tasks is not None:
            chosen = scores[:, -tasks:].argmax(axis=1)
            scores = scores[:, :-tasks].reshape(len(x), tasks, -1)[np.arange(len(x)), chosen]
        return self.loss.predict(scores)


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
class OutputPerturbation(Linear):
    """Fit near a released model, then add noise (paper A, Algorithms 1 and 3; paper-audit.md 1.1).

    Private: the records a fit reads. Neighbours: R⊥. What `fit` returns moves by at most `sensitivity` in L2 norm when
    one record is replaced by another or by none, whatever the other records are. The noise of `release` is calibrated
    to that sensitivity; what `fit` returns must never leave the process.

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

    kind: ClassVar[str] = "output_perturbation"
    solver: Solver = field(default_factory=Exact)

    @property
    def same_everywhere(self) -> bool:
        """Not where the loss is as steep as the weights are long."""
        return not self.setting().bounded

    def describe(self, origin: Floats) -> dict[str, Any]:
        """Return the loss's constants and the solver's formula."""
        return {
            "lipschitz": self.setting(origin).lipschitz,
            "strong_convexity": self.regularization,
            **self.solver.describe(),
        }

    def perturbation(self, kind: Kind, charge: float, records: int, center: Floats | None = None) -> NoisyWeights:
        """Return noise for the fitted weights."""
        sensitivity = self.sensitivity(records, center)
        noise = noises.calibrate(kind, sensitivity=sensitivity, charge=charge, dimension=self.dimension)
        return NoisyWeights(noise=noise, sensitivity=sensitivity)

    def release(self, records: Records, n: int, center: Floats, perturbation: AddedNoise) -> Floats:
        """Return `fit` and noise."""
        return noises.add(self.fit(records, n, center), perturbation.noise)

    def sensitivity(self, records: int, center: Floats | None = None) -> float:
        """Return how far one record moves a fit of n slots near `center`, rounded up; public. May raise Inaccurate.

        For most losses it depends on the centre only where double precision does (see `solvers`): a farther centre
        costs accuracy. For `squared` it grows with the centre's norm.
        """
        return self.solver.sensitivity(self.setting(center), records)

    def fit(self, records: Records, n: int, center: Floats) -> Floats:
        """Return the solver's model near `center`, float64 of `shape`. NOT private before noise is added."""
        if center.shape != self.shape:
            raise ValueError("the centre has another shape than the model")
        rows, y = self.prepared(records)
        return self.solver.solve(self.setting(center), rows, y, n, center)
