"""The shapes of streams and publications that a user writes, checked before anything is built from them.

Numbers are exact: ε and δ are decimals as written. What is refused is refused with the name of the field and what would
do, never with a record's content (there is none here).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.learning import feature_maps
from service.learning.constraint_sets import Name as ConstraintName
from service.learning.feature_maps import FeatureMap

MAX_DIGITS = 15  # significant digits of a decimal: as many as every double keeps
MAX_BLOCKS = 4096
MAX_COUNT = 2**40
MAX_DIMENSION = 2**24
MAX_REMEMBERED = 2**25  # numbers, of a window's statistics
LARGEST_TOEPLITZ_DECAY = 0.99
LARGEST_LEAF_WINDOW = 1024  # a model's worth of numbers is remembered of each of its batches
LARGEST_BLOCK_WINDOW = 2**20  # what is summed up exactly needs a lattice the coarser, the longer the window
MAX_MAPPED = 2**16  # numbers that a feature map of a size of its own choice may make of a record


class Refused(Exception):
    """A configuration whose fields are fine one by one but not together. `path` names the field, as in learner.loss."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _decimal(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise PydanticCustomError("decimal_number", "Input should be a number")
    exact = value if isinstance(value, Decimal) else Decimal(str(value))
    if not exact.is_finite():
        raise PydanticCustomError("decimal_number", "Input should be a finite number")
    exact = exact.normalize()
    if len(exact.as_tuple().digits) > MAX_DIGITS:
        raise PydanticCustomError("decimal_digits", "Input should have at most 15 significant digits")
    return exact


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _at_least(delta: Decimal) -> Decimal:
    if 0 < delta < Decimal("1e-100"):
        raise PydanticCustomError("delta_too_small", "Input should be 0 or at least 1e-100")
    return delta


_Exact = Annotated[
    Decimal,
    BeforeValidator(_decimal),
    PlainSerializer(_number, return_type=int | float, when_used="json"),
    WithJsonSchema({"type": "number"}),
]
Epsilon = Annotated[_Exact, Field(ge=Decimal("1e-9"), le=Decimal(1000))]
Delta = Annotated[_Exact, Field(ge=Decimal(0), lt=Decimal(1)), AfterValidator(_at_least)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
_Steps = Annotated[int, Field(strict=True, ge=1, le=100_000)]
_Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-6, le=1e6)]
_Weight = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-1e9, le=1e9)]


def _available(*names: str, planned: tuple[str, ...] = ()) -> BeforeValidator:
    """Return a check of an object's `kind` that says what there is."""

    def check(value: object) -> object:
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind in planned:
            raise PydanticCustomError(
                "not_available",
                "'{kind}' is not available in this version; available: {names}",
                {"kind": kind, "names": ", ".join(names)},
            )
        return value

    return BeforeValidator(check)


class Classification(_Shape):
    """Labels 0 … classes - 1; with two classes 1 is the positive one."""

    kind: Literal["classification"]
    classes: Annotated[int, Field(strict=True, ge=2, le=65536)]


class Regression(_Shape):
    """Real labels, clipped to ±bound."""

    kind: Literal["regression"]
    bound: _Positive


class Unlabelled(_Shape):
    """No labels when records arrive."""

    kind: Literal["unlabelled"]


class Categorical(_Shape):
    """One category per record and no features."""

    kind: Literal["categorical"]
    cardinality: Annotated[int, Field(strict=True, ge=1, le=2**31)]


Task = Annotated[Classification | Regression | Unlabelled | Categorical, Field(discriminator="kind")]


_Mapped = Annotated[int, Field(strict=True, ge=1, le=MAX_MAPPED, description="Numbers in a mapped record")]
_Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63, description="Public; another seed is another map")]
_Version = Annotated[Literal[1], Field(description="What a version computes never changes")]
_Pixels = Annotated[int, Field(strict=True, ge=1, le=4096)]
_Few = Annotated[int, Field(strict=True, ge=1, le=64)]
_Length = Annotated[int, Field(strict=True, ge=1, le=8)]


class RandomFourierMap(_Shape):
    """Random Fourier features of the Gaussian kernel exp(-‖x-x'‖² / (2·width²))."""

    kind: Literal["random_fourier"]
    version: _Version = 1
    features: _Mapped
    width: _Positive = 1.0
    seed: _Seed = 0


class HashingMap(_Shape):
    """Signed counts of hashed tokens. Of `categories` a record is numbers, of all else texts."""

    kind: Literal["hashing"]
    version: _Version = 1
    features: _Mapped
    tokens: Annotated[
        Literal["categories", "words", "characters", "whole"],
        Field(
            description="What is hashed, by column: a number or the `whole` text as it is, or each of a text's n-grams"
        ),
    ]
    ngrams: Annotated[
        tuple[_Length, _Length], Field(description="The least and the most words or characters of one token")
    ] = (1, 1)
    seed: _Seed = 0

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.ngrams[0] > self.ngrams[1]:
            raise PydanticCustomError("ngrams", "ngrams are the least and the most words or characters of a token")
        if self.tokens in ("categories", "whole") and self.ngrams != (1, 1):
            raise PydanticCustomError("ngrams", "ngrams are for words and characters")
        return self


class HogMap(_Shape):
    """Histograms of oriented gradients of grey images, pixels row by row."""

    kind: Literal["hog"]
    version: _Version = 1
    width: _Pixels
    height: _Pixels
    orientations: _Few = 8
    cell: Annotated[_Few, Field(description="Pixels along the side of a cell")] = 4
    block: Annotated[_Few, Field(description="Cells along the side of a block")] = 3


class StandardizeMap(_Shape):
    """(x - mean) / scale by public constants, one for all columns or one for each. The operator vouches for them."""

    kind: Literal["standardize"]
    version: _Version = 1
    mean: _Weight | tuple[_Weight, ...] = 0.0
    scale: _Positive | tuple[_Positive, ...] = 1.0


class CenterMap(_Shape):
    """Every record less the mean of its own numbers."""

    kind: Literal["center"]
    version: _Version = 1


class NormalizeMap(_Shape):
    """Every record at length 1."""

    kind: Literal["normalize"]
    version: _Version = 1


_SingleMap = RandomFourierMap | HashingMap | HogMap | StandardizeMap | CenterMap | NormalizeMap


class ComposedMap(_Shape):
    """One map after another, the first one first."""

    kind: Literal["compose"]
    maps: Annotated[tuple[Annotated[_SingleMap, Field(discriminator="kind")], ...], Field(min_length=1, max_length=8)]


FeatureMapShape = Annotated[_SingleMap | ComposedMap, Field(discriminator="kind")]


class StreamSchema(_Shape):
    """What the records of a stream look like. Public, and fixed when the stream is made."""

    features: Annotated[int, Field(strict=True, ge=1, le=MAX_DIMENSION)] | None = None
    task: Task
    norm_bound: _Positive = 1.0
    feature_map: FeatureMapShape | None = None

    @field_validator("feature_map")
    @classmethod
    def _sizes_fit(cls, value: _Shape | None, info: ValidationInfo) -> _Shape | None:
        features = info.data.get("features")
        if value is not None and features is not None:
            try:
                mapped = feature_maps.build(value.model_dump(mode="json"), features)
            except ValueError as problem:
                raise PydanticCustomError("feature_map", "{problem}", {"problem": str(problem)}) from None
            most = max(features, MAX_MAPPED)
            if mapped.features > most:
                raise PydanticCustomError(
                    "feature_map", "a mapped record would have more than {most} numbers", {"most": most}
                )
        return value

    @model_validator(mode="after")
    def _features_or_categories(self) -> Self:
        if isinstance(self.task, Categorical) != (self.features is None):
            raise PydanticCustomError(
                "features", "a categorical stream has no features; every other stream needs their number"
            )
        if self.features is None and self.feature_map is not None:
            raise PydanticCustomError("features", "a categorical stream has no features to map")
        return self

    def mapping(self) -> FeatureMap:
        """Return the feature map; of no steps if there is none."""
        return feature_maps.of_stream(self.model_dump(mode="json"))


class MultiResolutionMechanism(_Shape):
    """A model of every block of `base`·2^k records, the largest newest (paper A, Algorithm 2)."""

    kind: Literal["multi_resolution"]
    base: Count


class ContinualMechanism(_Shape):
    """Bases at doubling counts and updates in between (paper A, Algorithm 4).

    `shares`: `equal`, the same noise at every level and the whole budget; `paper`, its constants made valid, noisier;
    `improving`, a base over more records has less noise, and the updates get what the bases leave.
    """

    kind: Literal["continual"]
    base: Count
    update_every: Count
    shares: Literal["equal", "paper", "improving"] = "equal"


class SlidingWindowMechanism(_Shape):
    """A model of the last `blocks` blocks (paper A, Algorithm 5).

    `shares`: `equal`, the same noise in every bucket and the whole budget; `paper`, its constants. `warm_up`: what is
    released before the first window is full, nothing or a model of all blocks so far after each block.
    """

    kind: Literal["sliding_window"]
    block: Count
    blocks: Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
    shares: Literal["equal", "paper"] = "equal"
    warm_up: Literal["none", "continual"] = "none"


class IndependentBatchesMechanism(_Shape):
    """Each batch fitted once, for the whole budget of its records; with `warm_start` near the release before it."""

    kind: Literal["independent_batches"]
    batch: Count
    warm_start: Annotated[bool, Field(strict=True)] = False


class WindowStatisticsMechanism(_Shape):
    """A model of the last `blocks` blocks, solved from private sums in which each record is counted once.

    It takes the learner output_perturbation: its loss, intercept and origin.
    """

    kind: Literal["window_statistics"]
    block: Count
    blocks: Annotated[int, Field(strict=True, ge=1, le=MAX_BLOCKS)]
    ridge: Annotated[
        _Positive | None, Field(description="α, the pull towards the origin; default: as strong as the noise asks for")
    ] = None


class OnlineLeaderMechanism(_Shape):
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
    learning_rate: Annotated[_Positive | None, Field(description="η, on the mean gradient")] = None
    strong_convexity: Annotated[
        _Positive | None, Field(description="μ: follow the leader instead of taking steps of a learning rate")
    ] = None
    clip: Annotated[_Positive | None, Field(description="norm to which a record's gradient is clipped")] = None
    averaging: Annotated[bool, Field(strict=True)] = True
    constraint: ConstraintName = "ball"
    radius: Annotated[_Positive | None, Field(description="of the set that iterates are kept in")] = None
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


Mechanism = Annotated[
    Annotated[
        MultiResolutionMechanism
        | ContinualMechanism
        | SlidingWindowMechanism
        | IndependentBatchesMechanism
        | WindowStatisticsMechanism
        | OnlineLeaderMechanism,
        Field(discriminator="kind"),
    ],
    _available(
        "multi_resolution",
        "continual",
        "sliding_window",
        "independent_batches",
        "window_statistics",
        "online_leader",
        planned=(
            "scheduled_black_box",
            "improving_black_box",
            "linear_queries",
            "active_learning",
            "lifelong",
        ),
    ),
]


class LinearLearner(_Shape):
    """What all learners of linear models share: fit near c, the release before in the chain, or near `origin`.

    `regularization` is the strong convexity α: the pull towards c, and for most learners what noise is divided by. At
    0.1 a few hundred records of unit norm still move a model by several times the noise of ε near 1; records by the ten
    thousand can afford less.
    """

    loss: Literal["logistic", "softmax", "huber_hinge", "squared"] | None = None
    huber_width: Annotated[_Positive | None, Field(description="huber_hinge: half the rounded part; default 0.5")] = (
        None
    )
    regularization: _Positive = 0.1
    intercept: Annotated[bool, Field(strict=True)] = True
    origin: tuple[tuple[_Weight, ...], ...] | None = None

    @model_validator(mode="after")
    def _settings_of_the_loss(self) -> Self:
        if self.huber_width is not None and self.loss != "huber_hinge":
            raise PydanticCustomError("other_loss", "huber_width is a setting of loss huber_hinge")
        return self


class OutputPerturbationLearner(LinearLearner):
    """Minimise (1/n)·Σ loss + (regularization/2)·‖w - c‖² near c, then add noise."""

    kind: Literal["output_perturbation"]
    solver: Literal["exact", "psgd", "gradient_descent"] = "exact"
    passes: Annotated[_Steps | None, Field(description="psgd: how often every record is read; default 10")] = None
    batch: Annotated[Count | None, Field(description="psgd: most records a step reads; default 32")] = None
    steps: Annotated[_Steps | None, Field(description="gradient_descent: how many steps; default 100")] = None

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
    steps: Annotated[_Steps | None, Field(description="how many; default 24 to 100, the more the less noise")] = None
    step: Annotated[_Positive | None, Field(description="size of a step along the mean gradient")] = None
    clip: Annotated[
        _Positive | None,
        Field(description="norm to which a record's gradient is clipped; default a quarter of the steepest at zero"),
    ] = None
    momentum: Annotated[
        float | None,
        Field(strict=True, allow_inf_nan=False, ge=0.0, le=0.99, description="default 0.9; with online_leader 0"),
    ] = None


Learner = Annotated[
    Annotated[
        OutputPerturbationLearner | ObjectivePerturbationLearner | NoisyGradientDescentLearner,
        Field(discriminator="kind"),
    ],
    _available("output_perturbation", "objective_perturbation", "noisy_gradient_descent", planned=("small_database",)),
]


class Privacy(_Shape):
    """What one record may lose to one publication over its whole life: (epsilon, delta)."""

    epsilon: Epsilon
    delta: Delta = Field(Decimal(0), json_schema_extra={"default": 0})  # a number, where pydantic would show a text


class PublicationConfiguration(_Shape):
    """A mechanism, a learner and a budget."""

    mechanism: Mechanism
    learner: Learner
    privacy: Privacy
