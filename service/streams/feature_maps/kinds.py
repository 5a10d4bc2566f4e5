"""Every kind of feature map: its settings and its step.

To add a map, write its settings and its step into a file of their own, and name both here. The client has its own copy
of every map (`perennial.feature_maps`), and docs/feature-maps.md its formula.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from service.inputs.fields import Shape
from service.streams.feature_maps.feature_map import FeatureMap
from service.streams.feature_maps.hashing import HashedText, HashingMap, hashing_step
from service.streams.feature_maps.hog import HogMap, OrientedGradients
from service.streams.feature_maps.random_fourier import RandomFourier, RandomFourierMap
from service.streams.feature_maps.scaling import (
    Center,
    CenterMap,
    ClippedScale,
    ClippedScaleMap,
    LinearMap,
    LinearStep,
    Normalize,
    NormalizeMap,
    Standardize,
    StandardizeMap,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from service.streams.feature_maps.step import MapStep

MAX_STEPS = 8
SingleMap = (
    RandomFourierMap | HashingMap | HogMap | StandardizeMap | ClippedScaleMap | LinearMap | CenterMap | NormalizeMap
)

STEPS: dict[str, Callable[..., MapStep]] = {
    "random_fourier": RandomFourier,
    "hashing": hashing_step,
    "hog": OrientedGradients,
    "standardize": Standardize,
    "clipped_scale": ClippedScale,
    "linear": LinearStep,
    "center": Center,
    "normalize": Normalize,
}


class ComposedMap(Shape):
    """One map after another, the first one first."""

    kind: Literal["compose"]
    maps: Annotated[
        tuple[Annotated[SingleMap, Field(discriminator="kind")], ...], Field(min_length=1, max_length=MAX_STEPS)
    ]


def parsed(description: Mapping[str, Any]) -> ComposedMap:
    """Return the map that a release describes. It may have more steps than a stream may ask for."""
    return ComposedMap.model_construct(kind="compose", maps=_STEPS.validate_python(steps_of(description)))


_STEPS: TypeAdapter[tuple[Any, ...]] = TypeAdapter(tuple[Annotated[SingleMap, Field(discriminator="kind")], ...])
FeatureMapShape = Annotated[SingleMap | ComposedMap, Field(discriminator="kind")]


def build(description: Mapping[str, Any] | None, features: int) -> FeatureMap:
    """Return the map that a stream's configuration or a release describes, for records of that many features.

    Raises ValueError, with a message for the operator, where the sizes do not fit.

    >>> import numpy as np
    >>> standardize = {"kind": "standardize", "version": 1, "mean": [10, 0], "scale": [5, 2]}
    >>> build({"kind": "compose", "maps": [standardize]}, features=2)(np.array([[15.0, 4.0]])).tolist()
    [[1.0, 2.0]]
    """
    if description is None:  # the common case, reached once a batch
        return _without_steps(features)
    steps: list[MapStep] = []
    size = features
    for settings in steps_of(description):
        step = _step(settings, size)
        if steps and isinstance(step, HashedText):
            raise ValueError("texts can only be hashed by the first map")
        steps.append(step)
        size = step.features
    return FeatureMap(description=description, input_features=features, steps=tuple(steps))


def steps_of(description: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the descriptions of a map's steps, in order."""
    return () if description is None else tuple(description.get("maps", (description,)))


def followed_by(description: Mapping[str, Any] | None, step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of a map with one more step at its end."""
    steps = steps_of(description)
    return {"kind": "compose", "maps": [*steps, step]} if steps else step


@lru_cache(maxsize=256)
def _without_steps(features: int) -> FeatureMap:
    return FeatureMap(description=None, input_features=features, steps=())


def _step(description: Mapping[str, Any], size: int) -> MapStep:
    kind, version = description["kind"], description["version"]
    if kind not in STEPS or version != 1:
        raise ValueError(f"there is no version {version} of a feature map of kind {kind}")
    settings = {name: value for name, value in description.items() if name not in ("kind", "version")}
    return STEPS[kind](input_features=size, **settings)
