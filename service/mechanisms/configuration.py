"""What a publication is asked to be: a mechanism, a learner and a budget, checked before anything is built from them.

What is refused is refused with the name of the field and what would do, never with a record's content (there is none
here).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import (
    Count,
    Delta,
    Epsilon,
    Exponent,
    Growth,
    Positive,
    PublishDelay,
    Shape,
    Share,
    Steps,
)
from service.learners.settings import Learner
from service.learning.constraint_sets import Name as ConstraintName

MAX_BLOCKS = 4096
MAX_REMEMBERED = 2**25  # numbers, of a window's statistics
MAX_TASKS = 4096  # whose lengths are listed
LARGEST_TOEPLITZ_DECAY = 0.99
LARGEST_LEAF_WINDOW = 1024  # a model's worth of numbers is remembered of each of its batches
LARGEST_BLOCK_WINDOW = 2**20  # what is summed up exactly needs a lattice the coarser, the longer the window


class Refused(Exception):
    """A configuration whose fields are fine one by one but not together. `path` names the field, as in learner.loss."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class MultiResolutionMechanism(Shape):
    """A model of every block of `base`·2^k records, the largest newest (paper A, Algorithm 2)."""

    kind: Literal["multi_resolution"]
    base: Count


class ContinualMechanism(Shape):
    """Bases at doubling counts and updates in between (paper A, Algorithm 4).

    `shares`: `equal`, the same noise at every level and the whole budget; `paper`, its constants made valid, noisier;
    `improving`, a base over more records has less noise, and the updates get what the bases leave.
    """

    kind: Literal["continual"]
    base: Count
    update_every: Count
    shares: Literal["equal", "paper", "improving"] = "equal"


class SlidingWindowMechanism(Shape):
    """A model of the last `blocks` blocks (paper A, Algorithm 5).

    `shares`: `equal`, the same noise in every bucket and the whole budget; `paper`, its constants. `warm_up`: what is
    released before the first window is full, nothing or a model of all blocks so far after each block.
    """

    kind: Literal["sliding_window"]
    block: Count
    blocks: Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
    shares: Literal["equal", "paper"] = "equal"
    warm_up: Literal["none", "continual"] = "none"


class IndependentBatchesMechanism(Shape):
    """Each batch fitted once, for the whole budget of its records; with `warm_start` near the release before it."""

    kind: Literal["independent_batches"]
    batch: Count
    warm_start: Annotated[bool, Field(strict=True)] = False


class ScheduledBlackBoxMechanism(Shape):
    """A fit of all records so far at `first` of them and whenever they have grown by `growth` (paper C, BBScheduler).

    Give either `growth`, or the `accuracy` that growth/(1 + growth) is.
    """

    kind: Literal["scheduled_black_box"]
    first: Count
    growth: Annotated[Growth | None, Field(description="γ, by how much the records grow from one fit to the next")] = (
        None
    )
    accuracy: Annotated[
        Share | None,
        Field(description="α: by how much a mean over all records may move before the next fit; then γ = α/(1 - α)"),
    ] = None
    warm_start: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.growth is None) == (self.accuracy is None):
            raise PydanticCustomError("growth", "give either growth or accuracy: each follows from the other")
        return self


class ImprovingBlackBoxMechanism(Shape):
    """A fit of all records so far at `first` of them and `every` so many more (paper C, BBImprover)."""

    kind: Literal["improving_black_box"]
    first: Count
    every: Count
    exponent: Exponent = Field(
        Decimal("0.25"),
        description="c: the ε of a fit of t records falls as t^-(1/2 + c), and pure as t^-(1 + c)",
        json_schema_extra={"default": 0.25},
    )
    warm_start: Annotated[bool, Field(strict=True)] = False


class WindowStatisticsMechanism(Shape):
    """A model of the last `blocks` blocks, solved from private sums in which each record is counted once.

    It takes the learner output_perturbation: its loss, intercept and origin.
    """

    kind: Literal["window_statistics"]
    block: Count
    blocks: Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
    ridge: Annotated[
        Positive | None, Field(description="α, the pull towards the origin; default: as strong as the noise asks for")
    ] = None


_Units = Annotated[int, Field(strict=True, ge=1, le=4096)]
_Layers = Annotated[tuple[_Units, ...], Field(min_length=1, max_length=4)]


class Encoder(Shape):
    """A network that makes features of records, learnt from the first ones in one pass of noisy steps, then kept.

    It needs delta > 0, and the extra `deep`.
    """

    records: Annotated[Count, Field(description="How many records it is learnt from, before the first task")]
    batch: Annotated[Count, Field(description="Most records of a step")] = 512
    clip: Annotated[Positive, Field(description="Norm to which a record's gradient is clipped")] = 1.0
    learning_rate: Annotated[
        Positive | None, Field(description="η, on the mean gradient; default: from what the noise allows")
    ] = None


class DenseEncoder(Encoder):
    """Layers that each see all of the one before."""

    kind: Literal["dense"]
    layers: Annotated[_Layers, Field(description="How many numbers each layer makes; the last one's are the features")]


class ConvolutionalEncoder(Encoder):
    """Layers that see a square of a grey image at every second place; its pixels come row by row."""

    kind: Literal["convolutional"]
    width: _Units
    height: _Units
    channels: Annotated[_Layers, Field(description="of each layer; all of the last one's are the features")]
    kernel: Annotated[int, Field(strict=True, ge=1, le=64, description="side of the square")] = 5


class LifelongMechanism(Shape):
    """A model of all tasks so far, from private statistics of each record's batch that are remembered (paper D).

    It takes the learner output_perturbation: its loss, intercept and origin.
    """

    kind: Literal["lifelong"]
    task_size: Annotated[
        Count | Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_TASKS)],
        Field(description="Records of a task; of a list each of the first ones has its own, and all others the last"),
    ]
    batch: Annotated[Count | None, Field(description="Most records of a batch; default: a task is one")] = None
    features: Annotated[
        Count | None,
        Field(description="p, of a random_fourier map of what the stream's own map returns; default: none"),
    ] = None
    width: Annotated[Positive | None, Field(description="features: that map's width; default 1")] = None
    encoder: Annotated[DenseEncoder | ConvolutionalEncoder, Field(discriminator="kind")] | None = None
    memory: Annotated[
        int | None,
        Field(
            strict=True, ge=1, le=MAX_BLOCKS, description="Most tasks remembered one by one; default: the sum of all"
        ),
    ] = None
    training: Literal["joint", "agem"] = "joint"
    heads: Literal["shared", "per_task"] = "shared"
    near: Annotated[
        Literal["shared", "origin"] | None,
        Field(description="per_task: towards what a task's model is pulled; default shared, the model of all tasks"),
    ] = None
    hidden: Annotated[
        Count | None, Field(description="r, the codes of the autoencoder; default 64 for agem, for joint all features")
    ] = None
    epochs: Annotated[
        Steps | Annotated[tuple[Steps, ...], Field(min_length=1, max_length=MAX_TASKS)] | None,
        Field(description="agem: steps after every batch, by task as in task_size; default 100"),
    ] = None
    ridge: Annotated[
        Positive | None, Field(description="α, the pull towards the origin; default: as strong as the noise asks for")
    ] = None

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.width is not None and self.features is None:
            raise PydanticCustomError("width", "width is a setting of the map that features asks for")
        if self.encoder is not None and self.features is not None:
            raise PydanticCustomError("encoder", "an encoder makes features itself: leave features out")
        if self.heads == "per_task" and (self.memory is None or self.training != "joint"):
            raise PydanticCustomError(
                "heads",
                "heads per_task are solved for one by one: they need training joint, and a memory, which is how many "
                "tasks have one beside the task under way",
            )
        if self.near is not None and self.heads != "per_task":
            raise PydanticCustomError("near", "near is a setting of heads per_task")
        if self.training != "agem" and self.epochs is not None:
            raise PydanticCustomError("epochs", "epochs is a setting of training agem")
        return self


class OnlineLeaderMechanism(Shape):
    """A step along each batch's gradients and a model after every batch, with the noise of running sums (paper B).

    It takes the learner noisy_gradient_descent: its loss, intercept, origin, regularization and momentum.
    """

    kind: Literal["online_leader"]
    batch: Count
    noise: Literal["blt", "toeplitz", "tree", "window_tree"] = "blt"
    decay: Annotated[
        float | None,
        Field(strict=True, allow_inf_nan=False, ge=0.01, le=1.0, description="blt, toeplitz: γ; default 0.97"),
    ] = None
    window: Annotated[Count | None, Field(description="window_tree: W, in batches")] = None
    expiry: Annotated[
        Literal["never", "block", "leaf"],
        Field(description="window_tree: whether batches that the window has left are declassified, and how"),
    ] = "never"
    acknowledge_declassification: Annotated[
        bool, Field(strict=True, description="expiry block, leaf: true, or it is refused")
    ] = False
    learning_rate: Annotated[Positive | None, Field(description="η, on the mean gradient")] = None
    strong_convexity: Annotated[
        Positive | None, Field(description="μ: follow the leader instead of taking steps of a learning rate")
    ] = None
    clip: Annotated[Positive | None, Field(description="norm to which a record's gradient is clipped")] = None
    averaging: Annotated[bool, Field(strict=True)] = True
    constraint: ConstraintName = "ball"
    radius: Annotated[Positive | None, Field(description="of the set that iterates are kept in")] = None
    step: Literal["projection", "conditional_gradient"] = "projection"

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.decay is not None and self.noise not in ("blt", "toeplitz"):
            raise PydanticCustomError("other_noise", "decay is a setting of noise blt and toeplitz")
        if self.noise == "toeplitz" and (self.decay or 0.0) > LARGEST_TOEPLITZ_DECAY:
            raise PydanticCustomError(
                "decay",
                "toeplitz remembers ln(100)/(1 - decay) models, so decay is at most {most} there: use noise blt",
                {"most": LARGEST_TOEPLITZ_DECAY},
            )
        if self.learning_rate is not None and self.strong_convexity is not None:
            raise PydanticCustomError("rate", "learning_rate is for steps, strong_convexity for following the leader")
        if self.step == "conditional_gradient" and (self.strong_convexity is None or self.constraint == "ball"):
            raise PydanticCustomError(
                "step",
                "conditional_gradient follows the leader in a set with corners: it needs strong_convexity, "
                "and a constraint other than ball",
            )
        if self.constraint != "ball" and self.radius is None:
            raise PydanticCustomError("radius", "constraint {name} needs a radius", {"name": self.constraint})
        if (self.window is None) != (self.noise != "window_tree"):
            raise PydanticCustomError("window", "noise window_tree needs a window, and no other noise has one")
        self._expiry_fits()
        return self

    def _expiry_fits(self) -> None:
        expires = self.expiry != "never"
        if expires and self.window is None:
            raise PydanticCustomError("expiry", "expiry is a setting of noise window_tree")
        if expires and not self.acknowledge_declassification:
            raise PydanticCustomError(
                "declassification",
                "expiry {expiry} declassifies: once a batch is past the window its records are no longer protected at "
                "all, by anything on this stream, since the exact sum of their gradients is in what is released from "
                "then on; what they lose is unbounded, and nothing takes it back. If that is meant, set "
                "acknowledge_declassification to true; if not, leave expiry at never",
                {"expiry": self.expiry},
            )
        if self.acknowledge_declassification and not expires:
            raise PydanticCustomError("declassification", "expiry never declassifies nothing: expiry is block or leaf")
        most = LARGEST_LEAF_WINDOW if self.expiry == "leaf" else LARGEST_BLOCK_WINDOW
        if expires and (self.window or 0) > most:
            raise PydanticCustomError(
                "window",
                "with expiry {expiry} a window has at most {most} batches",
                {"expiry": self.expiry, "most": most},
            )


class LinearQueriesMechanism(Shape):
    """Answers to linear queries of a categorical stream, and the public histogram they come from (paper C, PMWG).

    It takes no learner. Either `accuracy` is promised, or there are so many `hits`.
    """

    kind: Literal["linear_queries"]
    first: Annotated[
        Count, Field(description="n: how many records there are when queries are first compared with them")
    ]
    accuracy: Annotated[
        float | None,
        Field(
            strict=True,
            allow_inf_nan=False,
            ge=1e-4,
            le=1.0,
            description="α: how far off an answer may be; with hits, default what noise alone does not pass",
        ),
    ] = None
    failure_probability: Annotated[
        float,
        Field(strict=True, allow_inf_nan=False, ge=1e-9, le=0.5, description="β: that some answer is farther off"),
    ] = 0.05
    hits: Annotated[
        int | None,
        Field(strict=True, ge=1, le=10**9, description="H: so many hard queries, each for its share of the budget"),
    ] = None

    @model_validator(mode="after")
    def _accuracy_or_hits(self) -> Self:
        if self.accuracy is None and self.hits is None:
            raise PydanticCustomError("accuracy", "linear_queries needs an accuracy or a number of hits")
        return self


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


Mechanism = Annotated[
    MultiResolutionMechanism
    | ContinualMechanism
    | SlidingWindowMechanism
    | IndependentBatchesMechanism
    | ScheduledBlackBoxMechanism
    | ImprovingBlackBoxMechanism
    | WindowStatisticsMechanism
    | LifelongMechanism
    | OnlineLeaderMechanism
    | LinearQueriesMechanism
    | ActiveLearningMechanism,
    Field(discriminator="kind"),
]


class Privacy(Shape):
    """What one record may lose to one publication over its whole life: (epsilon, delta)."""

    epsilon: Epsilon
    delta: Delta = Field(Decimal(0), json_schema_extra={"default": 0})  # a number, where pydantic would show a text


DEFAULT_DELAY = Decimal(1)  # seconds


class PublicationConfiguration(Shape):
    """A mechanism, a learner, a budget, and when releases appear."""

    mechanism: Mechanism
    learner: Annotated[
        Learner | None, Field(validate_default=True, description="null for mechanisms that fit no model")
    ] = None
    privacy: Privacy
    publish_delay: PublishDelay | None = Field(
        None,
        description="T in seconds. Each release appears at a multiple of T (Unix time), at least T after the last "
        "record that it needed was numbered; 0: as soon as its fit is ready. Default: 1. `linear_queries` and "
        "`active_learning`, whose steps are due by queries and labels, have no ticks and take only 0",
    )

    @property
    def delay(self) -> Decimal:
        """T in seconds; 0: releases appear as soon as their fit is ready."""
        if self.publish_delay is not None:
            return self.publish_delay
        return DEFAULT_DELAY if self.has_ticks else Decimal(0)

    @property
    def has_ticks(self) -> bool:
        """Whether its steps are due by public numbers of records, so that there is a time to count from."""
        return not isinstance(self.mechanism, LinearQueriesMechanism | ActiveLearningMechanism)

    def stored(self) -> dict[str, Any]:
        """Return it as JSON to be stored, whose digest is promised: what was not set is not in it."""
        unset = {"publish_delay"} if self.publish_delay is None else set()
        return self.model_dump(mode="json", include=set(PublicationConfiguration.model_fields) - unset)

    @field_validator("learner")
    @classmethod
    def _where_there_is_something_to_learn(cls, value: Learner | None, info: ValidationInfo) -> Learner | None:
        mechanism = info.data.get("mechanism")
        if mechanism is None:  # it is not valid, which is said by itself
            return value
        if value is None and not isinstance(mechanism, LinearQueriesMechanism):
            raise PydanticCustomError("missing", "Field required")
        return value
