"""What the records of a stream look like, as a user writes it: features, task, norm bound and public feature map."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Positive, Shape, Weight
from service.streams import feature_maps
from service.streams.feature_maps import FeatureMap

MAX_DIMENSION = 2**24
MAX_MAPPED = 2**16  # numbers that a feature map of a size of its own choice may make of a record


class Classification(Shape):
    """Labels 0 … classes - 1; with two classes 1 is the positive one."""

    kind: Literal["classification"]
    classes: Annotated[int, Field(strict=True, ge=2, le=65536)]


class Regression(Shape):
    """Real labels, clipped to ±bound."""

    kind: Literal["regression"]
    bound: Positive


class Unlabelled(Shape):
    """No labels when records arrive."""

    kind: Literal["unlabelled"]


class Categorical(Shape):
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


class RandomFourierMap(Shape):
    """Random Fourier features of the Gaussian kernel exp(-‖x-x'‖² / (2·width²))."""

    kind: Literal["random_fourier"]
    version: _Version = 1
    features: _Mapped
    width: Positive = 1.0
    seed: _Seed = 0


class HashingMap(Shape):
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


class HogMap(Shape):
    """Histograms of oriented gradients of grey images, pixels row by row."""

    kind: Literal["hog"]
    version: _Version = 1
    width: _Pixels
    height: _Pixels
    orientations: _Few = 8
    cell: Annotated[_Few, Field(description="Pixels along the side of a cell")] = 4
    block: Annotated[_Few, Field(description="Cells along the side of a block")] = 3


class StandardizeMap(Shape):
    """(x - mean) / scale by public constants, one for all columns or one for each. The operator vouches for them."""

    kind: Literal["standardize"]
    version: _Version = 1
    mean: Weight | tuple[Weight, ...] = 0.0
    scale: Positive | tuple[Positive, ...] = 1.0


class CenterMap(Shape):
    """Every record less the mean of its own numbers."""

    kind: Literal["center"]
    version: _Version = 1


class NormalizeMap(Shape):
    """Every record at length 1."""

    kind: Literal["normalize"]
    version: _Version = 1


_SingleMap = RandomFourierMap | HashingMap | HogMap | StandardizeMap | CenterMap | NormalizeMap


class ComposedMap(Shape):
    """One map after another, the first one first."""

    kind: Literal["compose"]
    maps: Annotated[tuple[Annotated[_SingleMap, Field(discriminator="kind")], ...], Field(min_length=1, max_length=8)]


FeatureMapShape = Annotated[_SingleMap | ComposedMap, Field(discriminator="kind")]


class StreamSchema(Shape):
    """What the records of a stream look like. Public, and fixed when the stream is made."""

    features: Annotated[int, Field(strict=True, ge=1, le=MAX_DIMENSION)] | None = None
    task: Task
    norm_bound: Positive = 1.0
    feature_map: FeatureMapShape | None = None

    @field_validator("feature_map")
    @classmethod
    def _sizes_fit(cls, value: Shape | None, info: ValidationInfo) -> Shape | None:
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


class NewStreamSchema(StreamSchema):
    """The schema of a stream that is to be made: some of its feature maps ask for more than those of older streams."""

    @field_validator("feature_map")
    @classmethod
    def _standardize_has_numbers(cls, value: Shape | None) -> Shape | None:
        steps = value.maps if isinstance(value, ComposedMap) else [value]
        if any(isinstance(each, StandardizeMap) and not each.model_fields_set & {"mean", "scale"} for each in steps):
            raise PydanticCustomError(
                "standardize",
                "standardize without numbers changes nothing: give it a public mean and scale, one number for all "
                "columns or one for each, such as {example}",
                {"example": '{"kind": "standardize", "mean": [54, 1017], "scale": [20, 8.4]}'},
            )
        return value
