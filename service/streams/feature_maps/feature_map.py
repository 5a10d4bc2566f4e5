"""The feature map of a stream: steps, one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.streams.feature_maps.hashing import HashedText
from service.streams.feature_maps.scaling import Center, ClippedScale, Normalize, Standardize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from service.streams.feature_maps.step import MapStep

MAX_VALUES = 2**25  # mapped numbers of one batch: 128 MiB as float32

_AT_ONCE = 2**19  # doubles that a step works on: 4 MiB


@dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """The feature map of a stream: steps, one after another. Without any it leaves records as they are."""

    description: Mapping[str, Any] | None
    """The JSON from which `build` makes the map; stated in every release."""
    input_features: int
    steps: tuple[MapStep, ...]

    @property
    def features(self) -> int:
        """Return the number of numbers in a mapped record."""
        return self.steps[-1].features if self.steps else self.input_features

    @property
    def most_records(self) -> int:
        """Return the most mapped records of one batch, so that it fits into memory."""
        return max(1, MAX_VALUES // max(1, self.features))

    @property
    def reads_text(self) -> bool:
        """Return whether records consist of texts instead of numbers."""
        return bool(self.steps) and isinstance(self.steps[0], HashedText)

    @property
    def keeps_columns(self) -> bool:
        """Return whether number i of a mapped record depends on column i alone, for every i."""
        return all(isinstance(step, Standardize | ClippedScale | Center | Normalize) for step in self.steps)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the records mapped, float32 of shape (m, features). Those that are not finite are NaN throughout.

        x: shape (m, input_features), floats or, if `reads_text`, str objects. Without steps x itself.
        """
        if not self.steps:
            return x
        mapped = np.empty((len(x), self.features), dtype=np.float32)
        rows = max(1, _AT_ONCE // max(self.input_features, *(step.features for step in self.steps)))
        with np.errstate(all="ignore"):
            for start in range(0, len(x), rows):
                piece: NDArray[Any] = x[start : start + rows]
                if not self.reads_text:
                    piece = piece.astype(np.float64)
                for step in self.steps:
                    piece = step(piece)
                mapped[start : start + rows] = piece
        mapped[~np.isfinite(mapped).all(axis=1)] = np.nan
        return mapped
