"""Small networks that make features of a record: dense or convolutional layers, tanh after each.

Statement. Row i of what an encoder returns is a function of row i and of its weights alone. With weights that are
public (released, see `encoder_pass`, or given) it is a public map of records as `feature_maps` are: a guarantee for the
encoded records is the same guarantee for the records.

A record x, ‖x‖ ≤ R (clipped to that, paper-audit.md D2), enters as INTO·√d/R·x, numbers of about INTO at most. A layer
multiplies parts of what it is given by one matrix, adds a bias and takes the tanh: a dense one all of it at once, a
convolution the k × k pixels at every second place across and down, with all their channels. The output of the last
one, in [-1, 1]^p, is a record's code; its features are the code at length 1.

Weights are one vector: each layer's matrix (inputs × units, row by row) and bias, the first layer first; then the head
(rows × p), a linear model of codes that the encoder is learnt with and its features do not depend on. Before anything
is learnt, matrices are normals of variance 1/inputs from public bytes (those of `random_fourier`, with the layer's
number as the seed), biases and head zero.

It is written for arrays of any library with numpy's names: it is computed in doubles with numpy, and where gradients
are taken with jax (`encoder_pass`). A reader of a release needs numpy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from service.learning.records import PreparedRows
from service.streams.feature_maps import public_normals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from service.learning.optimization.losses import Floats

VERSION = 1  # of the computation, which never changes within a version
INTO = 0.3  # size of the first layer's inputs: tanh bends for the brightest parts of an image, but is no step
STRIDE = 2
MAX_WEIGHTS = 2**19  # of an encoder and its head; every record has a gradient of that length
MAX_MULTIPLIED = 2**20  # numbers that a layer multiplies of one record
_AT_ONCE = 2**21  # numbers that a layer works on


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense layer: from all inputs to `units` outputs."""

    inputs: int
    units: int
    positions: int = 1


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """An image, pixels row by row, each with its `channels`, to a smaller one of `units` channels."""

    width: int
    height: int
    channels: int
    units: int
    kernel: int

    def __post_init__(self) -> None:
        if min(self.width, self.height) < self.kernel:
            raise ValueError(
                "an image is smaller than the kernel of a convolution: use fewer layers, or a smaller kernel"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Return the smaller image's width and height."""
        across, down = ((side - self.kernel) // STRIDE + 1 for side in (self.width, self.height))
        return across, down

    @property
    def positions(self) -> int:
        return math.prod(self.size)

    @property
    def inputs(self) -> int:
        return self.kernel**2 * self.channels

    @property
    def index(self) -> NDArray[np.intp]:
        """Return which numbers are multiplied at each position, (positions, inputs)."""
        across, down = self.size
        corner = (STRIDE * np.arange(down)[:, None] * self.width + STRIDE * np.arange(across)).reshape(-1, 1, 1)
        pixel = (np.arange(self.kernel)[:, None] * self.width + np.arange(self.kernel)).reshape(1, -1, 1)
        return ((corner + pixel) * self.channels + np.arange(self.channels)).reshape(self.positions, self.inputs)


@dataclass(frozen=True)
class Encoder:
    """An encoder of records of that many features, no longer than `norm_bound`."""

    input_features: int
    norm_bound: float
    layers: tuple[Dense | Convolution, ...]

    @property
    def features(self) -> int:
        """Return p, the number of features."""
        return self.layers[-1].positions * self.layers[-1].units

    def described(self) -> dict[str, Any]:
        """Return the encoder as JSON, from which `build` makes it for records of as many features."""
        units = [layer.units for layer in self.layers]
        first = self.layers[0]
        shape: dict[str, Any] = (
            {"kind": "dense", "layers": units}
            if isinstance(first, Dense)
            else {
                "kind": "convolutional",
                "width": first.width,
                "height": first.height,
                "channels": units,
                "kernel": first.kernel,
            }
        )
        return shape | {"version": VERSION, "norm_bound": self.norm_bound}

    def dimension(self, rows: int) -> int:
        """Return the number of weights, including a head of that many rows."""
        return sum((layer.inputs + 1) * layer.units for layer in self.layers) + rows * self.features

    def initial(self, rows: int) -> Floats:
        """Return the public weights before anything is learnt, (dimension,)."""
        parts: list[Floats] = []
        for number, layer in enumerate(self.layers):
            normals, _ = public_normals(layer.inputs, layer.units, number)
            parts += [normals.T.ravel() / math.sqrt(layer.inputs), np.zeros(layer.units)]
        return np.concatenate((*parts, np.zeros(rows * self.features)))

    def rows(self, x: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the inputs of the first layer for records (m, features), and which records are finite."""
        prepared, finite = PreparedRows.of(np.array(x), norm_bound=self.norm_bound, intercept=False, own=True)
        return prepared.rows() * (INTO * math.sqrt(self.input_features) / self.norm_bound), finite

    def codes(self, weights: Any, rows: Any, xp: Any = np) -> Any:
        """Return codes (…, p) of rows (…, features); xp: the library that the arrays are of."""
        start = 0
        for layer, index in zip(self.layers, self._indices, strict=True):
            stop = start + layer.inputs * layer.units
            matrix, bias = weights[start:stop].reshape(layer.inputs, layer.units), weights[stop : stop + layer.units]
            if index is None:
                rows = xp.tanh(rows @ matrix + bias)
            else:
                rows = xp.tanh(rows[..., index] @ matrix + bias)
                rows = rows.reshape(*rows.shape[:-2], -1)
            start = stop + layer.units
        return rows

    def scores(self, weights: Any, rows: Any, xp: Any = np) -> Any:
        """Return the head's scores (…, rows of the head), of rows as for `codes`."""
        codes = self.codes(weights, rows, xp)
        head = weights[self.dimension(0) :].reshape(-1, self.features)
        return codes @ head.T

    def __call__(self, weights: Floats, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the features of records (m, features), float32 (m, p). Those of a record that is not finite are NaN.

        weights: as they were released, (dimension,) in any shape.
        """
        encoded = np.empty((len(x), self.features), dtype=np.float32)
        widest = max(self.input_features, *(layer.positions * max(layer.inputs, layer.units) for layer in self.layers))
        step = max(1, _AT_ONCE // widest)
        weights = weights.ravel()
        for start in range(0, len(x), step):
            piece = slice(start, start + step)
            rows, finite = self.rows(x[piece])
            with np.errstate(all="ignore"):
                codes = self.codes(weights, rows)
                length = np.sqrt(np.vecdot(codes, codes))
                encoded[piece] = codes / np.where(length > 0.0, length, 1.0)[:, None]
            encoded[piece][~finite] = np.nan
        return encoded

    @cached_property
    def _indices(self) -> tuple[NDArray[np.intp] | None, ...]:
        return tuple(layer.index if isinstance(layer, Convolution) else None for layer in self.layers)


def build(description: Mapping[str, Any], features: int, rows: int = 0) -> Encoder:
    """Return the encoder that is `described`, for records of that many features; rows: of its head.

    Raises ValueError, in words for whoever configured it, where the sizes do not fit.
    """
    if description["version"] != VERSION:
        raise ValueError(f"there is no version {description['version']} of an encoder")
    norm_bound = description["norm_bound"]
    if description["kind"] == "dense":
        layers: Iterator[Dense | Convolution] = _dense(features, description["layers"])
    else:
        width, height = description["width"], description["height"]
        if width * height != features:
            raise ValueError(f"a convolutional encoder's width times height must be the number of features, {features}")
        layers = _convolutions(width, height, description["channels"], description["kernel"])
    encoder = Encoder(features, norm_bound, tuple(layers))
    if encoder.dimension(rows) > MAX_WEIGHTS:
        raise ValueError(f"an encoder and its head have at most {MAX_WEIGHTS} weights, not {encoder.dimension(rows)}")
    if max(layer.positions * layer.inputs for layer in encoder.layers) > MAX_MULTIPLIED:
        raise ValueError(f"a layer multiplies at most {MAX_MULTIPLIED} numbers: use smaller images, kernels or layers")
    return encoder


def _dense(inputs: int, units: Sequence[int]) -> Iterator[Dense]:
    for size in units:
        yield Dense(inputs=inputs, units=size)
        inputs = size


def _convolutions(width: int, height: int, channels: Sequence[int], kernel: int) -> Iterator[Convolution]:
    before = 1
    for count in channels:
        layer = Convolution(width=width, height=height, channels=before, units=count, kernel=kernel)
        yield layer
        (width, height), before = layer.size, count
