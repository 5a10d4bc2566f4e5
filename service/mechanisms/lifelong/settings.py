"""The settings of lifelong learning, and of the encoder that it may learn first."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Count, Positive, Shape, Steps
from service.mechanisms.limits import MAX_BLOCKS

MAX_TASKS = 4096  # the most tasks in a list of lengths

_Units = Annotated[int, Field(strict=True, ge=1, le=4096)]
_Layers = Annotated[tuple[_Units, ...], Field(min_length=1, max_length=4)]


class EncoderSettings(Shape):
    """A network that computes features, learnt from the first records in one pass of noisy steps, then fixed.

    It needs delta > 0, and the extra `deep`.
    """

    records: Annotated[Count, Field(description="How many records it is learnt from, before the first task")]
    batch: Annotated[Count, Field(description="Most records of a step")] = 512
    clip: Annotated[Positive, Field(description="Norm to which a record's gradient is clipped")] = 1.0
    learning_rate: Annotated[
        Positive | None, Field(description="η, on the mean gradient; default: from what the noise allows")
    ] = None


class DenseEncoder(EncoderSettings):
    """Layers that each see all of the one before."""

    kind: Literal["dense"]
    layers: Annotated[_Layers, Field(description="How many numbers each layer makes; the last one's are the features")]


class ConvolutionalEncoder(EncoderSettings):
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
