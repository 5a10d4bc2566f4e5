"""Learners of linear models: how a data set and a model to stay near become a new, private model.

A learner gets a charge and decides, from public quantities alone, how it will spend it (`perturbation`); then it reads
the records and returns a model that may be released (`release`). Whatever the schedule, a learner only needs records,
an origin or an earlier release to stay near, and a charge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Positive, Shape, Weight
from service.learning.optimization.objective import norm
from service.learning.optimization.solvers import Setting
from service.learning.records import PreparedRows, Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats, Loss
    from service.privacy.accounting.events import AddedNoise
    from service.privacy.currency import Currency


INTERCEPT_SCALE = 0.3  # default sin θ, chosen on noaa_weather and elec2
InterceptScale = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.001, le=0.999)]


class ReleasedModel(Shape):
    """A release of a publication, of this stream or of another one, whose weights are where this one starts."""

    publication: str
    version: Annotated[int, Field(strict=True, ge=1, lt=2**31)]


class LinearLearner(Shape):
    """Settings that all learners of linear models share: fit near c, the release before in the chain, or near `origin`.

    `regularization` is the strong convexity α: the pull towards c, and for most learners what noise is divided by. At
    0.1 a few hundred records of unit norm still move a model by several times the noise of ε near 1; records by the ten
    thousand can afford less.
    """

    loss: Literal["logistic", "softmax", "huber_hinge", "squared"] | None = None
    huber_width: Annotated[Positive | None, Field(description="huber_hinge: half the rounded part; default 0.5")] = None
    regularization: Positive = 0.1
    intercept: Annotated[bool, Field(strict=True)] = True
    intercept_scale: InterceptScale | None = Field(
        None,
        exclude_if=lambda scale: scale is None,
        description="sin θ: with an intercept a row is (x·cos θ, R·sin θ). Default 0.3; with an origin, and of "
        "publications that were made before there was another, 1/√2",
    )
    origin: tuple[tuple[Weight, ...], ...] | ReleasedModel | None = None

    @model_validator(mode="after")
    def _settings_of_the_loss(self) -> Self:
        if self.huber_width is not None and self.loss != "huber_hinge":
            raise PydanticCustomError("other_loss", "huber_width is a setting of loss huber_hinge")
        return self

    @model_validator(mode="after")
    def _settings_of_the_intercept(self) -> Self:
        if self.intercept_scale is not None and not self.intercept:
            raise PydanticCustomError("no_intercept", "intercept_scale is a setting of an intercept: keep it")
        return self

    def begun(self, *, of_fits: bool) -> Self:  # noqa: ARG002 - some learners' settings are of fits alone
        """Return the settings with today's defaults filled in, for a publication that begins now.

        of_fits: whether each model is a fit of records, for a charge of its own.
        """
        if not self.intercept or self.intercept_scale is not None or self.origin is not None:
            return self
        return self.model_copy(update={"intercept_scale": INTERCEPT_SCALE})


class PlannedLinearLearner(Protocol):
    """The public side of a learner of linear models: weights of `shape`, fitted to records after the record map."""

    kind: ClassVar[str]

    @property
    def loss(self) -> Loss: ...
    @property
    def intercept(self) -> bool: ...
    @property
    def intercept_scale(self) -> float | None: ...
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
        """Return whether a fit is perturbed alike near every centre, so that a plan can state it for all fits."""

    def describe(self, origin: Floats) -> dict[str, Any]:
        """Return the learner's description as JSON, for a plan."""

    def perturbation(self, currency: Currency, charge: float, records: int, center: Floats | None = None) -> AddedNoise:
        """Return how a fit of n = `records` slots near `center` (0 if None) spends at most `charge`.

        A function of public quantities only. May raise Inaccurate.
        """


class LinearModelLearner(PlannedLinearLearner, Protocol):
    """Makes a linear model of a data set, whatever was made before."""

    def release(self, records: Records, n: int, center: Floats, perturbation: AddedNoise) -> Floats:
        """Return a model near `center`, float64 of `shape`, perturbed so: it may be released for its charge.

        records: those present among the n slots. A record with a value that is not finite or a label outside the
        schema counts as empty (it should have been refused before it got a slot).
        """


@dataclass(frozen=True, kw_only=True)
class Linear:
    """The parts that all learners of linear models share: the loss, the record map and the shape of the weights."""

    loss: Loss
    regularization: float
    intercept: bool
    norm_bound: float
    features: int
    classes: int
    """0 for a regression."""
    intercept_scale: float | None = None
    """sin θ of `records.row_scales`"""

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows of weights, columns): a column for each feature, then for the intercept if there is one."""
        return self.loss.rows(self.classes), self.features + self.intercept

    @property
    def dimension(self) -> int:
        """Return the number of released coordinates."""
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

    def rows(self, x: NDArray[np.floating], *, own: bool = False) -> tuple[PreparedRows, NDArray[np.bool_]]:
        """Return the rows of x and which of them are finite. own: x may be changed."""
        return PreparedRows.of(
            x, norm_bound=self.norm_bound, intercept=self.intercept, intercept_scale=self.intercept_scale, own=own
        )

    def prepared(self, records: Records) -> tuple[PreparedRows, NDArray[np.generic]]:
        """Return the rows and labels that enter the loss; records that do not fit the schema are left out.

        ValueError where records have units: a learner that counts them one by one would cost a unit too much.
        """
        rows, y, weights = self.weighed(records)
        if weights is not None:
            raise ValueError("the records have units, and this learner takes each record by itself")
        return rows, y

    def weighed(self, records: Records) -> tuple[PreparedRows, NDArray[np.generic], NDArray[np.float64] | None]:
        """Return what `prepared` returns, and each row's share of its unit's contribution, (m,); None without units."""
        rows, entering = self.entering(records)
        return rows, entering.y, entering.weights

    def entering(self, records: Records) -> tuple[PreparedRows, Records]:
        """Return the rows that enter the loss, and their records, all of which fit the schema.

        Features are copied once at most, whatever the records are, as plans reckon (`timing`). Very long
        rows are shortened in that copy.
        """
        if records.x.shape[1] != self.features:
            raise ValueError("the records have another number of features than the schema")
        present = np.isfinite(records.x).all(axis=1) & self.loss.present(records.y, self.classes)
        entering = records if present.all() else records[present]
        return self.rows(entering.x, own=entering is not records)[0], entering

    def predict(
        self, parameters: Floats, x: NDArray[np.float32] | NDArray[np.float64], tasks: int | None = None
    ) -> tuple[NDArray[np.generic], Floats]:
        """Return labels and scores (see `Loss.predict`) for x of shape (m, features), through the record map.

        tasks: parameters are models of so many tasks, one below the other, then a row of scores of each; the model of
        the task with the largest score predicts.
        """
        scores = self.rows(x)[0].rows() @ parameters.T
        if tasks is not None:
            chosen = scores[:, -tasks:].argmax(axis=1)
            scores = scores[:, :-tasks].reshape(len(x), tasks, -1)[np.arange(len(x)), chosen]
        return self.loss.predict(scores)
