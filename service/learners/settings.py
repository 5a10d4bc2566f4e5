"""What a learner can be asked to be; `configuration` puts it together with a mechanism and a budget."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Count, Positive, Shape, Share, Steps, Weight


class LinearLearner(Shape):
    """What all learners of linear models share: fit near c, the release before in the chain, or near `origin`.

    `regularization` is the strong convexity α: the pull towards c, and for most learners what noise is divided by. At
    0.1 a few hundred records of unit norm still move a model by several times the noise of ε near 1; records by the ten
    thousand can afford less.
    """

    loss: Literal["logistic", "softmax", "huber_hinge", "squared"] | None = None
    huber_width: Annotated[Positive | None, Field(description="huber_hinge: half the rounded part; default 0.5")] = None
    regularization: Positive = 0.1
    intercept: Annotated[bool, Field(strict=True)] = True
    origin: tuple[tuple[Weight, ...], ...] | None = None

    @model_validator(mode="after")
    def _settings_of_the_loss(self) -> Self:
        if self.huber_width is not None and self.loss != "huber_hinge":
            raise PydanticCustomError("other_loss", "huber_width is a setting of loss huber_hinge")
        return self


class OutputPerturbationLearner(LinearLearner):
    """Minimise (1/n)·Σ loss + (regularization/2)·‖w - c‖² near c, then add noise."""

    kind: Literal["output_perturbation"]
    solver: Literal["exact", "psgd", "gradient_descent"] = "exact"
    passes: Annotated[Steps | None, Field(description="psgd: how often every record is read; default 10")] = None
    batch: Annotated[Count | None, Field(description="psgd: most records a step reads; default 32")] = None
    steps: Annotated[Steps | None, Field(description="gradient_descent: how many steps; default 100")] = None

    @model_validator(mode="after")
    def _settings_of_the_solver(self) -> Self:
        for name, solver in (("passes", "psgd"), ("batch", "psgd"), ("steps", "gradient_descent")):
            if getattr(self, name) is not None and self.solver != solver:
                raise PydanticCustomError(
                    "other_solver", "{name} is a setting of solver {solver}", {"name": name, "solver": solver}
                )
        return self


class ObjectivePerturbationLearner(LinearLearner):
    """Tilt that objective at random and release its minimiser. It needs a classification.

    `regularization` is raised in a fit whose charge is too small for it.
    """

    kind: Literal["objective_perturbation"]


class NoisyGradientDescentLearner(LinearLearner):
    """Steps from c along sums of clipped gradients with noise. It needs delta > 0.

    What is null is chosen from public quantities alone; so far a fit goes that its noise stays small, which is why it
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


class SmallDatabaseLearner(Shape):
    """Select a small synthetic database that answers linear queries as the records do. It needs categories."""

    kind: Literal["small_database"]
    queries: Annotated[
        Literal["points", "intervals", "all"],
        Field(description="What is to be answered: shares of categories, of neighbouring ones, or any weights"),
    ] = "all"
    accuracy: Annotated[
        Share, Field(description="α: half of it is how near the nearest database is; the smaller, the more candidates")
    ]


Learner = Annotated[
    OutputPerturbationLearner | ObjectivePerturbationLearner | NoisyGradientDescentLearner | SmallDatabaseLearner,
    Field(discriminator="kind"),
]
