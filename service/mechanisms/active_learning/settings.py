"""The settings of a model that selects what it learns from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.inputs.fields import Epsilon, Positive, Shape
from service.mechanisms.limits import MAX_REMEMBERED


class FallingSetting(Shape):
    """A public number that falls with the updates m = 1, 2, …: initial/m^decay, but not below `least`."""

    initial: Positive
    decay: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=4.0)] = 1.0
    least: Annotated[float | None, Field(strict=True, allow_inf_nan=False, ge=1e-6, le=1e6)] = None


class ActiveLearningMechanism(Shape):
    """Learns from records that it selects, on an unlabelled stream by asking people for their labels (paper E).

    `fixed_window` updates the model after every `size` records, `fixed_batch` after every `size` selected ones. It
    takes the learner noisy_gradient_descent: its loss (of two classes), intercept, origin and regularization.
    """

    kind: Literal["active_learning"]
    batching: Literal["fixed_window", "fixed_batch"]
    size: Annotated[int, Field(strict=True, ge=1, le=MAX_REMEMBERED)]
    selection: Literal["bernoulli", "exponential"] = "bernoulli"
    threshold: Annotated[
        Positive | FallingSetting | None,
        Field(
            description="b, half the width of the slab around the hyperplane in which records are the likeliest to be "
            "selected; default a fifth of the norm bound, or with exponential the least that works"
        ),
    ] = None
    epsilon_selection: Annotated[
        Epsilon | None, Field(description="ε of selection; default half the budget, or what epsilon_update leaves")
    ] = None
    epsilon_update: Annotated[
        Epsilon | None, Field(description="ε of updates, delta 0 only; default what epsilon_selection leaves")
    ] = None
    learning_rate: Annotated[
        Positive | FallingSetting | None,
        Field(description="η, on the mean gradient; default falling as 1/√m, from what the noise allows"),
    ] = None
    clip: Annotated[
        Positive | None, Field(description="norm to which a record's gradient is clipped; default none is longer")
    ] = None
    radius: Annotated[
        Positive | None, Field(description="of the ball that iterates are kept in; default 1/norm_bound")
    ] = None
    label_seconds: Annotated[
        int | None,
        Field(strict=True, ge=1, le=10**7, description="unlabelled streams: how long a label is waited for; 3600"),
    ] = None
    lease_seconds: Annotated[
        int | None,
        Field(strict=True, ge=1, le=10**7, description="unlabelled streams: before another is asked for it; 60"),
    ] = None
