"""Features that another publication of the stream releases, as a map from records: which, and what follows from it.

Statement. A publication that names such a map keeps its own guarantee, whatever the map is: the map was released and
confirmed before the publication's first step, it never changes, and row i of its result is a function of row i alone.
So streams that differ in one record differ in one mapped record (`streams.feature_maps`).

Order of what is done to a record: the stream's map, when it is numbered; the released map; then shortening to the
map's norm √d, which takes the place of the stream's `norm_bound`. The norm is known before the map is: a plan needs no
release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from service.inputs.fields import Shape
from service.inputs.refused import Refused
from service.streams import feature_maps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from service.learning.records import Records
    from service.streams.schema import StreamSchema


class FeaturesFrom(Shape):
    """A publication of the same stream that releases a feature map, and the version of it to use, for ever."""

    model_config = ConfigDict(serialize_by_alias=True)

    publication: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = Field(alias="from")
    version: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class ReleasedMap:
    """The map of a release. `description`: all of it, from a record as it is sent; `norm`: of what it returns."""

    description: Mapping[str, Any]
    norm: float

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> ReleasedMap:
        """Return the map of what a release says of its model."""
        return cls(description=model["feature_map"], norm=model["norm_bound"])

    def reading(self, stream: StreamSchema, read: Callable[[int, int], Records]) -> Callable[[int, int], Records]:
        """Return a reader of mapped records. `read` returns them as the stream's segments hold them.

        A record whose mapped value is not finite is NaN throughout, like any that the stream's map makes so.
        """
        stored = stream.mapping()
        steps = feature_maps.steps_of(self.description)[len(stored.steps) :]
        released = feature_maps.build({"kind": "compose", "maps": steps}, stored.features)

        def mapped(start: int, end: int) -> Records:
            records = read(start, end)
            return replace(records, x=released(records.x))

        return mapped


def schema_of_features(stream: StreamSchema, released: ReleasedMap | None) -> StreamSchema:
    """Return the schema of the records that a publication reads which names a map; None: it is not released yet.

    Raises Refused where the stream has no features.
    """
    if stream.features is None:
        raise Refused("features", "a categorical stream has no features to map: leave features out")
    if released is None:
        return stream.model_copy(update={"norm_bound": math.sqrt(stream.mapping().features)})
    described = feature_maps.parsed(released.description)
    return stream.model_copy(update={"norm_bound": released.norm, "feature_map": described})
