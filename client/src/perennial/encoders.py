"""Encoders: networks of tanh layers whose weights are a release, as the service's `lifelong` publications have them.

The service's docs/mechanisms/lifelong.md describes them; a version never changes what it computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.errors import Unsupported

INTO = 0.3
STRIDE = 2
VALUES_AT_ONCE = 2**21


@dataclass(frozen=True, kw_only=True)
class Layer:
    """tanh(part · matrix + bias) for parts of the input: the whole of it, or, by `index`, squares of an image."""

    matrix: NDArray[np.float64]
    bias: NDArray[np.float64]
    index: NDArray[np.intp] | None
    """(positions, inputs): which numbers are multiplied at each position; None: all, once."""

    @property
    def multiplied(self) -> int:
        """Return the most numbers that the layer reads or writes for one record."""
        positions = 1 if self.index is None else len(self.index)
        return positions * max(int(size) for size in self.matrix.shape)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A function from rows of norm at most `norm_bound` to features."""

    scale: float
    """The factor of a record, of norm at most `norm_bound`, before the first layer."""
    norm_bound: float
    layers: tuple[Layer, ...]

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the features, (m, p), of rows (m, d) that are clipped to the norm bound already."""
        step = max(1, VALUES_AT_ONCE // max(layer.multiplied for layer in self.layers))
        return np.concatenate([self._piece(rows[start : start + step]) for start in range(0, len(rows) or 1, step)])

    def _piece(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        values = rows * self.scale
        for layer in self.layers:
            if layer.index is None:
                values = np.tanh(values @ layer.matrix + layer.bias)
            else:
                positions = np.tanh(values[:, layer.index] @ layer.matrix + layer.bias)
                values = positions.reshape(len(values), positions.shape[1] * positions.shape[2])
        length = np.sqrt(np.vecdot(values, values))
        return values / np.where(length > 0.0, length, 1.0)[:, None]


def build(description: Mapping[str, Any], features: int, weights: NDArray[np.float64]) -> Encoder:
    """Return the encoder that a release describes; weights: of the release that it is in, in any shape."""
    if description.get("version") != 1 or description.get("kind") not in ("dense", "convolutional"):
        raise Unsupported("This release has an encoder that this version of perennial-client does not know: update it.")
    weights = weights.ravel()
    layers: list[Layer] = []
    start = 0
    for inputs, units, index in _sizes(description, features):
        middle, end = start + inputs * units, start + (inputs + 1) * units
        layers.append(Layer(matrix=weights[start:middle].reshape(inputs, units), bias=weights[middle:end], index=index))
        start = end
    norm_bound = float(description["norm_bound"])
    return Encoder(scale=INTO * math.sqrt(features) / norm_bound, norm_bound=norm_bound, layers=tuple(layers))


def _sizes(description: Mapping[str, Any], features: int) -> Iterator[tuple[int, int, NDArray[np.intp] | None]]:
    """Yield each layer's inputs, units and index."""
    if description["kind"] == "dense":
        for units in description["layers"]:
            yield features, units, None
            features = units
        return
    width, height, channels, kernel = description["width"], description["height"], 1, description["kernel"]
    for units in description["channels"]:
        across, down = ((size - kernel) // STRIDE + 1 for size in (width, height))
        corner = (STRIDE * np.arange(down)[:, None] * width + STRIDE * np.arange(across)).reshape(-1, 1, 1)
        pixel = (np.arange(kernel)[:, None] * width + np.arange(kernel)).reshape(1, -1, 1)
        inputs = kernel**2 * channels
        yield inputs, units, ((corner + pixel) * channels + np.arange(channels)).reshape(across * down, inputs)
        width, height, channels = across, down, units
