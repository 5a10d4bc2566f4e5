"""Histograms of oriented gradients (Dalal and Triggs 2005, with L2-Hys)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field

from service.inputs.fields import Shape
from service.streams.feature_maps.settings import Version

if TYPE_CHECKING:
    from service.streams.feature_maps.step import Floats

_Pixels = Annotated[int, Field(strict=True, ge=1, le=4096)]
_Few = Annotated[int, Field(strict=True, ge=1, le=64)]


class HogMap(Shape):
    """Histograms of oriented gradients of grey images, pixels row by row."""

    kind: Literal["hog"]
    version: Version = 1
    width: _Pixels
    height: _Pixels
    orientations: _Few = 8
    cell: Annotated[_Few, Field(description="Pixels along the side of a cell")] = 4
    block: Annotated[_Few, Field(description="Cells along the side of a block")] = 3


@dataclass(frozen=True, kw_only=True)
class OrientedGradients:
    """Histograms of oriented gradients of a grey image whose pixels come row by row.

    Pixel (r, c) has the gradient (I[r, c+1] - I[r, c-1], I[r+1, c] - I[r-1, c]), a difference at the edge of the image
    being 0. Its direction, turned by 180° into [0°, 180°) where need be, falls into bin ⌊direction·orientations/180°⌋.
    A cell of cell × cell pixels has, for every bin, the sum of its gradients' lengths divided by cell²; pixels that
    fill no cell are left out. Each block × block cells, at every position, are a vector v (cells row by row, bins
    within) that becomes v/√(‖v‖²+ε²), is cut off at 0.2, and is normalised in the same way again; ε = 10⁻⁵. The blocks,
    row by row, are the features.
    """

    input_features: int
    width: int
    height: int
    orientations: int
    cell: int
    block: int

    def __post_init__(self) -> None:
        if self.width * self.height != self.input_features:
            raise ValueError(f"hog: width times height must be the number of features, {self.input_features}")
        if min(self._cells) < self.block:
            raise ValueError("hog: the image is smaller than one block of cells")

    @property
    def _cells(self) -> tuple[int, int]:
        return self.height // self.cell, self.width // self.cell

    @property
    def features(self) -> int:
        down, across = (count - self.block + 1 for count in self._cells)
        return down * across * self.block**2 * self.orientations

    def __call__(self, x: Floats) -> Floats:
        histograms = self._histograms(x.reshape(len(x), self.height, self.width))
        blocks = sliding_window_view(histograms, (self.block, self.block), axis=(1, 2))
        vectors = blocks.transpose(0, 1, 2, 4, 5, 3).reshape(-1, self.block**2 * self.orientations)
        clipped = np.minimum(_nearly_unit(vectors), 0.2)
        return _nearly_unit(clipped).reshape(len(x), self.features)

    def _histograms(self, images: Floats) -> Floats:
        """Return (images, cell rows, cell columns, orientations)."""
        rows, columns = self._cells
        across, down = np.zeros_like(images), np.zeros_like(images)
        across[:, :, 1:-1] = images[:, :, 2:] - images[:, :, :-2]
        down[:, 1:-1] = images[:, 2:] - images[:, :-2]
        inside = np.s_[:, : rows * self.cell, : columns * self.cell]
        across, down = across[inside], down[inside]
        length = np.sqrt(across * across + down * down)
        across = np.where((down < 0) | ((down == 0) & (across < 0)), -across, across)
        down = np.abs(down)
        cell = np.arange(rows * self.cell)[:, None] // self.cell * columns + np.arange(columns * self.cell) // self.cell
        index = (np.arange(len(images))[:, None, None] * (rows * columns) + cell) * self.orientations
        for k in range(1, self.orientations):
            # Rounded, so that 45° and 90° are met exactly: real images have many such gradients.
            angle = math.pi * k / self.orientations
            index += down * round(math.cos(angle), 12) >= across * round(math.sin(angle), 12)
        size = len(images) * rows * columns * self.orientations
        sums = np.bincount(index.ravel(), weights=length.ravel(), minlength=size)
        return (sums / self.cell**2).reshape(len(images), rows, columns, self.orientations)


def _nearly_unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.sqrt(np.vecdot(vectors, vectors) + 1e-10)[:, None])
