"""The settings of online learning with the noise of running sums."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Count, Positive, Shape
from service.learning.optimization.constraint_sets import Name as ConstraintName

LARGEST_TOEPLITZ_DECAY = 0.99
LARGEST_SPLIT = (
    2000  # records: a larger batch makes one step unless asked, which drift harms less (benchmarks.defaults)
)
LARGEST_LEAF_WINDOW = 1024  # batches: for each of them as many numbers are remembered as a model has
LARGEST_BLOCK_WINDOW = 2**20  # batches: exact sums over longer windows need too coarse a lattice


Averages = Literal["recent", "schedule_free", "adaptive", "tracking"]


def _averaging(value: object) -> object:
    if isinstance(value, bool) or value in get_args(Averages):
        return value
    raise PydanticCustomError("bool_type", "must be true, false, recent, schedule_free, adaptive or tracking")


Averaging = Annotated[
    bool | Averages,
    PlainValidator(_averaging),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": list(get_args(Averages))}]}),
]
"""Whether models are averages of iterates, and of which; see `online_gradient`.

New publications take `tracking`; those that began before there was one have another in their settings.
"""


_Steps = Literal[1, 2, 4, 8, 16]
Steps = Annotated[
    Literal["auto"] | _Steps,
    WithJsonSchema(
        {"anyOf": [{"type": "string", "enum": ["auto"]}, {"type": "integer", "enum": list(get_args(_Steps))}]}
    ),
]
"""How many steps a batch makes. Powers of two, so that a run of steps ends with a batch (`noise.running_sums`)."""


class OnlineLeaderMechanism(Shape):
    """Steps along each batch's gradients and a model after every batch, with the noise of running sums (paper B).

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
    averaging: Averaging = "tracking"
    constraint: ConstraintName = "ball"
    radius: Annotated[Positive | None, Field(description="of the set that iterates are kept in")] = None
    reach: Literal["logits"] | None = Field(
        None,
        exclude_if=lambda reach: reach is None,
        description="How far a ball without a radius reaches: 10,000 logits in a score, of which the bound of a "
        "regression has eight. Default `logits`; in publications that were made before there was a choice, 10,000 in a "
        "score whatever the bound",
    )
    step: Literal["projection", "conditional_gradient"] = "projection"
    steps: Steps | None = Field(
        None,
        exclude_if=lambda steps: steps is None,
        description="How many steps a batch makes, each along the gradients of a part of its own; with `auto` as many "
        "as noise allows. Default: `auto` with a learning rate, noise blt or toeplitz and a batch of at most "
        f"{LARGEST_SPLIT} records; otherwise, and in publications that were made before there was a choice, 1",
    )

    @property
    def takes_back(self) -> bool:
        """Return whether steps take back earlier noise for ever, however many there are."""
        return self.noise in ("blt", "toeplitz")

    def begun(self) -> Self:
        """Return it with what a publication gets that begins now and does not say otherwise."""
        splits = self.takes_back and self.strong_convexity is None and self.batch <= LARGEST_SPLIT
        begun: dict[str, str] = {"steps": "auto"} if splits and self.steps is None else {}
        if self._takes_reach:
            begun["reach"] = "logits"
        return self.model_copy(update=begun)

    @property
    def _takes_reach(self) -> bool:
        return self.constraint == "ball" and self.radius is None

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.decay is not None and not self.takes_back:
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
        if self.reach is not None and not self._takes_reach:
            raise PydanticCustomError("reach", "reach is of a ball without a radius: leave it out")
        if self.steps not in (None, 1) and not self.takes_back:
            raise PydanticCustomError("steps", "a batch makes one step with a tree: use noise blt or toeplitz for more")
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
