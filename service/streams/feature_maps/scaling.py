"""Shifts, scales and turns: by public constants, or by the record's own mean and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from service.inputs.fields import ColumnCenter, ColumnScale, Positive, Shape, Weight
from service.streams.feature_maps.settings import Version

if TYPE_CHECKING:
    from service.streams.feature_maps.step import Floats


MAX_ROWS = 1024
Factor = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0.0, le=1e9)]


class StandardizeMap(Shape):
    """(x - mean) / scale by public constants, one for all columns or one for each. The operator vouches for them."""

    kind: Literal["standardize"]
    version: Version = 1
    mean: ColumnCenter | tuple[ColumnCenter, ...] = 0.0
    scale: ColumnScale | tuple[ColumnScale, ...] = 1.0


@dataclass(frozen=True, kw_only=True)
class Standardize:
    """(x - mean) / scale by constants, one for all coordinates or one for each."""

    input_features: int
    mean: float | tuple[float, ...]
    scale: float | tuple[float, ...]

    def __post_init__(self) -> None:
        for name, value in (("mean", self.mean), ("scale", self.scale)):
            if np.size(value) not in (1, self.input_features):
                raise ValueError(f"standardize: {name} must be a number, or a list of {self.input_features}")

    @property
    def features(self) -> int:
        return self.input_features

    def __call__(self, x: Floats) -> Floats:
        return np.asarray((x - np.asarray(self.mean)) / np.asarray(self.scale))


class ClippedScaleMap(Shape):
    """(x - center)·factor, then clipped to ±limit: center and factor are one number for all columns or one for each."""

    kind: Literal["clipped_scale"]
    version: Version = 1
    center: Weight | tuple[Weight, ...] = 0.0
    factor: Factor | tuple[Factor, ...] = 1.0
    limit: Positive = 3.0


@dataclass(frozen=True, kw_only=True)
class ClippedScale:
    """(x - center)·factor, clipped to ±limit. A factor of 0 makes its coordinate 0."""

    input_features: int
    center: float | tuple[float, ...]
    factor: float | tuple[float, ...]
    limit: float

    def __post_init__(self) -> None:
        for name, value in (("center", self.center), ("factor", self.factor)):
            if np.size(value) not in (1, self.input_features):
                raise ValueError(f"clipped_scale: {name} must be a number, or a list of {self.input_features}")

    @property
    def features(self) -> int:
        return self.input_features

    def __call__(self, x: Floats) -> Floats:
        scaled = (x - np.asarray(self.center)) * np.asarray(self.factor)
        return np.asarray(np.clip(scaled, -self.limit, self.limit))


class LinearMap(Shape):
    """Wx, with a public matrix W: a row of it for each number of the mapped record."""

    kind: Literal["linear"]
    version: Version = 1
    matrix: Annotated[tuple[tuple[Weight, ...], ...], Field(min_length=1, max_length=MAX_ROWS)]


@dataclass(frozen=True, kw_only=True)
class LinearStep:
    """Wx."""

    input_features: int
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if {len(row) for row in self.matrix} != {self.input_features}:
            raise ValueError(f"linear: each row of matrix must have {self.input_features} numbers")

    @property
    def features(self) -> int:
        return len(self.matrix)

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(x @ np.asarray(self.matrix).T)


class CenterMap(Shape):
    """Every record less the mean of its own numbers."""

    kind: Literal["center"]
    version: Version = 1


@dataclass(frozen=True, kw_only=True)
class Center:
    """Every record less the mean of its own coordinates."""

    input_features: int

    @property
    def features(self) -> int:
        return self.input_features

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(x - x.mean(axis=1, keepdims=True))


class NormalizeMap(Shape):
    """Every record at length 1."""

    kind: Literal["normalize"]
    version: Version = 1


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Every record at length 1; a record of zeros stays one."""

    input_features: int

    @property
    def features(self) -> int:
        return self.input_features

    def __call__(self, x: Floats) -> Floats:
        length = np.sqrt(np.vecdot(x, x))
        return np.asarray(x / np.where(length > 0, length, 1.0)[:, None])
