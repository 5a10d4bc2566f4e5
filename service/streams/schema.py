"""The shape of a stream's records, as a user writes it: features, task, norm bound, feature map, names."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import MAX_COUNT, Positive, Shape
from service.privacy.accounting.groups import MAX_RECORDS, UnitBound
from service.streams import feature_maps
from service.streams.feature_maps import MAX_MAPPED, ComposedMap, FeatureMap, FeatureMapShape, StandardizeMap
from service.streams.feature_maps.ranges import scaled_by_ranges
from service.streams.layout import RecordLayout
from service.streams.names import ABSENT, ClassNames, Columns, Names, check_unique
from service.streams.slots import EvaluationSlots

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DIMENSION = 2**24
LABELLED_CLASSES = 2  # the classes that people choose between on an unlabelled stream


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


class Evaluation(Shape):
    """Every `every`-th slot, or unit, is set aside: no fit reads it, publications of the kind `evaluation` alone do."""

    every: Annotated[int, Field(strict=True, ge=2, le=2**31)]


class Units(Shape):
    """The bound on a unit's records: how many count, and how far apart. Public, and fixed with the stream."""

    max_records: Annotated[int, Field(strict=True, ge=1, le=MAX_RECORDS, description="m")]
    min_separation: Annotated[
        int, Field(strict=True, ge=1, le=MAX_COUNT, description="s, in records of the stream")
    ] = 1

    @property
    def bound(self) -> UnitBound:
        return UnitBound(max_records=self.max_records, min_separation=self.min_separation)


class StreamSchema(Shape):
    """The shape of a stream's records. Public, and fixed when the stream is made."""

    features: Annotated[int, Field(strict=True, ge=1, le=MAX_DIMENSION)] | None = None
    task: Task
    norm_bound: Positive = 1.0
    columns: Columns | None = Field(**ABSENT, description="Names of the features, in their order, or objects")
    class_names: ClassNames | None = Field(**ABSENT, description="Names of classes, or categories, 0, 1, …")
    feature_map: FeatureMapShape | None = None
    unit: Units | None = Field(
        **ABSENT, description="Records of one person or device are protected together; absent: each by itself"
    )
    evaluation: Evaluation | None = Field(
        **ABSENT, description="Sets slots aside for evaluations; of classification and regression alone"
    )

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

    @model_validator(mode="after")
    def _evaluated_by_labels(self) -> Self:
        if self.evaluation is not None and not isinstance(self.task, Classification | Regression):
            raise PydanticCustomError(
                "evaluation", "evaluation compares predictions with labels: classification and regression have them"
            )
        return self

    @property
    def evaluation_slots(self) -> EvaluationSlots | None:
        """Return the slots that are set aside; None: none are, or units are set aside instead."""
        if self.evaluation is None or self.unit is not None:
            return None
        return EvaluationSlots(period=self.evaluation.every)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        names = self.names()
        if names.columns:
            check_unique("columns", names.columns, self.features or 0, "features")
        if not names.classes:
            return self
        match self.task:
            case Classification():
                check_unique("class_names", names.classes, self.task.classes, "task.classes")
            case Categorical():
                check_unique("class_names", names.classes, self.task.cardinality, "task.cardinality")
            case Unlabelled():
                check_unique("class_names", names.classes, LABELLED_CLASSES, "the number of labels that people give")
            case Regression():
                raise PydanticCustomError("class_names", "a regression has no classes: leave class_names out")
        return self

    def names(self) -> Names:
        """Return the names of columns and classes."""
        return Names(columns=tuple(column.name for column in self.columns or ()), classes=self.class_names or ())

    def to_store(self) -> dict[str, Any]:
        """Return what records look like as JSON, as it is stored and hashed."""
        return self.model_dump(mode="json", include=set(StreamSchema.model_fields))

    def mapping(self) -> FeatureMap:
        """Return the feature map, without steps if the schema has none."""
        described = None if self.feature_map is None else self.feature_map.model_dump(mode="json")
        return feature_maps.build(described, self.features or 0)

    @property
    def _classes(self) -> int | None:
        match self.task:
            case Classification():
                return self.task.classes
            case Categorical():
                return self.task.cardinality
        return None

    def layout(self) -> RecordLayout:
        """Return how records are laid out."""
        return RecordLayout(
            features=self.features or 0,
            labelled=not isinstance(self.task, Unlabelled),
            classes=self._classes,
            feature_map=self.mapping(),
            units=self.unit is not None,
            names=self.names(),
        )


class NewStreamSchema(StreamSchema):
    """The schema of a new stream. Some feature maps are checked more strictly than in schemas stored earlier.

    Ranges of columns become the first step of the feature map, so that whoever reads a schema needs the map alone.
    """

    feature_map: FeatureMapShape | None = Field(None, validate_default=True)

    @field_validator("feature_map")
    @classmethod
    def _scales_follow_ranges(cls, value: Any, info: ValidationInfo) -> Any:
        columns = info.data.get("columns")
        return value if columns is None else scaled_by_ranges(value, [column.range for column in columns])

    @field_validator("feature_map")
    @classmethod
    def _standardize_has_numbers(cls, value: Shape | None) -> Shape | None:
        steps = value.maps if isinstance(value, ComposedMap) else [value]
        if any(isinstance(step, StandardizeMap) and not step.model_fields_set & {"mean", "scale"} for step in steps):
            raise PydanticCustomError(
                "standardize",
                "standardize without numbers changes nothing: give it a public mean and scale, one number for all "
                "columns or one for each, such as {example}",
                {"example": '{"kind": "standardize", "mean": [54, 1017], "scale": [20, 8.4]}'},
            )
        return value


def stored_schema(stored: Mapping[str, Any]) -> StreamSchema:
    """Return the schema of a stream from its stored JSON, which is parsed once however often it is read."""
    return _parsed(json.dumps(stored))


@lru_cache(maxsize=128)
def _parsed(stored: str) -> StreamSchema:
    return StreamSchema.model_validate(json.loads(stored))
