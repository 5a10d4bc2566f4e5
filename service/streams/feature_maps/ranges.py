"""The feature-map step that scales columns from their public ranges to [-1, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from service.streams.feature_maps.hashing import HashingMap
from service.streams.feature_maps.kinds import MAX_STEPS, ComposedMap, SingleMap
from service.streams.feature_maps.scaling import StandardizeMap

if TYPE_CHECKING:
    from collections.abc import Sequence


def scaled_by_ranges(
    feature_map: SingleMap | ComposedMap | None, ranges: Sequence[Sequence[float] | None]
) -> SingleMap | ComposedMap | None:
    """Return the map with (x - middle) / half the range before its other steps; a column without a range stays.

    A map that begins with that very step stays as it is, so that a stream's own JSON makes the same stream. Raises
    PydanticCustomError where the map scales by other numbers, or hashes.
    """
    if not any(ranges):
        return feature_map
    middles = tuple(0.0 if bounds is None else (bounds[0] + bounds[1]) / 2 for bounds in ranges)
    halves = tuple(1.0 if bounds is None else (bounds[1] - bounds[0]) / 2 for bounds in ranges)
    scales = StandardizeMap(kind="standardize", mean=middles, scale=halves)
    if feature_map is None:
        return scales
    steps = feature_map.maps if isinstance(feature_map, ComposedMap) else (feature_map,)
    if steps[0] == scales:
        return feature_map
    if isinstance(steps[0], StandardizeMap):
        raise PydanticCustomError(
            "ranges", "the ranges of columns scale them already: leave out standardize, or the ranges"
        )
    if isinstance(steps[0], HashingMap):
        raise PydanticCustomError("ranges", "hashing takes columns as they are: leave out the ranges of columns")
    if len(steps) == MAX_STEPS:
        raise PydanticCustomError(
            "ranges",
            "with the step of the ranges of columns there would be more than {most} maps",
            {"most": MAX_STEPS},
        )
    return ComposedMap(kind="compose", maps=(scales, *steps))
