"""The service's public feature maps, computed here: docs/feature-maps.md has the formula of each.

A version of a kind never changes what it computes. Tests compare these with the service's own over HTTP.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from perennial.errors import Unsupported

Floats: TypeAlias = NDArray[np.float64]
VALUES_AT_ONCE = 2**19  # doubles that a step works on at a time: 4 MiB
_WORD = re.compile(r"[0-9A-Za-z_\u00c0-\u1fff\u2070-\u2fff\u3040-\U0010ffff]+")


class Step(Protocol):
    """One kind of map with its settings."""

    @property
    def features(self) -> int:
        """Return how many numbers a mapped record has."""

    def __call__(self, x: NDArray[Any], /) -> Floats:
        """Return x of shape (m, input features) mapped, (m, features)."""


@dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """Steps, one after another. Without any it leaves records as they are."""

    input_features: int
    steps: tuple[Step, ...]

    @property
    def features(self) -> int:
        """Return how many numbers a mapped record has."""
        return self.steps[-1].features if self.steps else self.input_features

    @property
    def reads_text(self) -> bool:
        """Return whether a record is made of texts, not of numbers."""
        return bool(self.steps) and isinstance(self.steps[0], HashedText)

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return the records mapped, float32 of shape (m, features). Rows that are not finite are NaN throughout."""
        if not self.reads_text:
            with np.errstate(over="ignore", invalid="ignore"):
                x = np.ascontiguousarray(x, dtype=np.float32)
        if not self.steps:
            return x
        mapped = np.empty((len(x), self.features), dtype=np.float32)
        rows = max(1, VALUES_AT_ONCE // max(self.input_features, *(step.features for step in self.steps)))
        with np.errstate(all="ignore"):
            for start in range(0, len(x), rows):
                piece = x[start : start + rows]
                if not self.reads_text:
                    piece = piece.astype(np.float64)
                for step in self.steps:
                    piece = step(piece)
                mapped[start : start + rows] = piece
        mapped[~np.isfinite(mapped).all(axis=1)] = np.nan
        return mapped


def build(description: Mapping[str, Any] | None, features: int) -> FeatureMap:
    """Return the map that a release describes, for records of that many features."""
    steps: list[Step] = []
    for described in _descriptions(description):
        if described.get("kind") not in _STEPS or described.get("version") != 1:
            raise Unsupported(
                "This release has a feature map that this version of perennial-client does not know: update it."
            )
        settings = {name: value for name, value in described.items() if name not in ("kind", "version")}
        steps.append(_STEPS[described["kind"]](steps[-1].features if steps else features, **settings))
    return FeatureMap(input_features=features, steps=tuple(steps))


def _descriptions(description: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if description is None:
        return
    for described in description.get("maps", (description,)):
        if described.get("kind") == "compose":
            yield from _descriptions(described)
        else:
            yield described


@dataclass(frozen=True, kw_only=True)
class RandomFourier:
    """√(2/p)·cos(Wx/width + b), with W and b from public bytes."""

    input_features: int
    features: int
    width: float
    seed: int

    def __call__(self, x: Floats) -> Floats:
        frequencies, offsets = public_normals(self.input_features, self.features, self.seed)
        phases = (x / self.width) @ frequencies.T + offsets
        return np.asarray(math.sqrt(2.0 / self.features) * np.cos(phases))


@lru_cache(maxsize=4)
def public_normals(columns: int, rows: int, seed: int) -> tuple[Floats, Floats]:
    """Return W (rows × columns) and b (rows) of `RandomFourier` with width 1."""
    pairs = (rows * columns + 1) // 2
    drawn = hashlib.shake_128(f"perennial random_fourier 1 {seed}".encode()).digest(8 * (2 * pairs + rows))
    uniform = ((np.frombuffer(drawn, dtype="<u8") >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[: 2 * pairs : 2]))
    angle = 2.0 * np.pi * uniform[1 : 2 * pairs : 2]
    normal = np.column_stack((radius * np.cos(angle), radius * np.sin(angle))).ravel()
    return normal[: rows * columns].reshape(rows, columns), 2.0 * np.pi * uniform[2 * pairs :]


@dataclass(frozen=True, kw_only=True)
class HashedCategories:
    """Signed counts of hashed (column, category) pairs; a category is a number."""

    input_features: int
    features: int
    seed: int

    def __call__(self, x: Floats) -> Floats:
        bits = (x.astype(np.float32) + np.float32(0.0)).view(np.uint32).astype(np.uint64)
        columns = np.arange(self.input_features, dtype=np.uint64) << np.uint64(32)
        return _signed_counts(_mix(columns + bits + _mix(np.array([self.seed], dtype=np.uint64))), self.features)


@dataclass(frozen=True, kw_only=True)
class HashedText:
    """Signed counts of hashed (column, token) pairs."""

    input_features: int
    features: int
    tokens: str
    ngrams: tuple[int, int]
    seed: int

    def __call__(self, x: NDArray[Any]) -> Floats:
        key = self.seed.to_bytes(8, "little")
        starts = [
            hashlib.blake2b(column.to_bytes(4, "little"), digest_size=8, key=key)
            for column in range(self.input_features)
        ]
        counts = np.empty((len(x), self.features))
        for row, texts in enumerate(x):
            hashed: list[bytes] = []
            for start, text in zip(starts, texts, strict=True):
                for token in self._tokens(text):
                    digest = start.copy()
                    digest.update(token.encode(errors="surrogatepass"))
                    hashed.append(digest.digest())
            counts[row] = _signed_counts(np.frombuffer(b"".join(hashed), dtype="<u8")[None, :], self.features)
        return counts

    def _tokens(self, text: str) -> Iterator[str]:
        if self.tokens == "whole":
            yield text
            return
        words = _WORD.findall(text.casefold())
        line = f" {' '.join(words)} "
        for n in range(self.ngrams[0], self.ngrams[1] + 1):
            if self.tokens == "words":
                yield from (" ".join(words[start : start + n]) for start in range(len(words) - n + 1))
            else:
                yield from (line[start : start + n] for start in range(len(line) - n + 1))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's output for the state z before its step."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _signed_counts(hashed: NDArray[np.uint64], features: int) -> Floats:
    """Return (records, features) for hashes (records, any): of each row the sum of ±1 at its hashes' coordinates."""
    coordinate = ((hashed & np.uint64(2**63 - 1)) % np.uint64(features)).astype(np.intp)
    sign = 1.0 - 2.0 * (hashed >> np.uint64(63)).astype(np.float64)
    index = np.arange(len(hashed))[:, None] * features + coordinate
    counts = np.bincount(index.ravel(), weights=sign.ravel(), minlength=len(hashed) * features)
    return np.asarray(counts, dtype=np.float64).reshape(len(hashed), features)


@dataclass(frozen=True, kw_only=True)
class OrientedGradients:
    """Histograms of oriented gradients of grey images, pixels row by row, with L2-Hys."""

    width: int
    height: int
    orientations: int
    cell: int
    block: int

    @property
    def cells(self) -> tuple[int, int]:
        """Return rows and columns of whole cells."""
        return self.height // self.cell, self.width // self.cell

    @property
    def features(self) -> int:
        down, across = (count - self.block + 1 for count in self.cells)
        return down * across * self.block**2 * self.orientations

    def directions(self) -> list[tuple[float, float]]:
        """Return (cos, sin) of the angles between bins, rounded so that 45° and 90° are met exactly."""
        angles = [math.pi * k / self.orientations for k in range(1, self.orientations)]
        return [(round(math.cos(angle), 12), round(math.sin(angle), 12)) for angle in angles]

    def __call__(self, x: Floats) -> Floats:
        histograms = self._histograms(x.reshape(len(x), self.height, self.width))
        blocks = sliding_window_view(histograms, (self.block, self.block), axis=(1, 2))
        vectors = blocks.transpose(0, 1, 2, 4, 5, 3).reshape(-1, self.block**2 * self.orientations)
        return _nearly_unit(np.minimum(_nearly_unit(vectors), 0.2)).reshape(len(x), self.features)

    def _histograms(self, images: Floats) -> Floats:
        """Return (images, cell rows, cell columns, orientations)."""
        rows, columns = self.cells
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
        for cosine, sine in self.directions():
            index += down * cosine >= across * sine
        size = len(images) * rows * columns * self.orientations
        sums = np.bincount(index.ravel(), weights=length.ravel(), minlength=size)
        return (sums / self.cell**2).reshape(len(images), rows, columns, self.orientations)


def _nearly_unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.sqrt(np.vecdot(vectors, vectors) + 1e-10)[:, None])


@dataclass(frozen=True, kw_only=True)
class Standardize:
    """(x - mean) / scale by constants."""

    features: int
    mean: float | tuple[float, ...]
    scale: float | tuple[float, ...]

    def __call__(self, x: Floats) -> Floats:
        return np.asarray((x - np.asarray(self.mean)) / np.asarray(self.scale))


@dataclass(frozen=True, kw_only=True)
class ClippedScale:
    """(x - center)·factor, clipped to ±limit."""

    features: int
    center: float | tuple[float, ...]
    factor: float | tuple[float, ...]
    limit: float

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(np.clip((x - np.asarray(self.center)) * np.asarray(self.factor), -self.limit, self.limit))


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Wx."""

    matrix: tuple[tuple[float, ...], ...]

    @property
    def features(self) -> int:
        return len(self.matrix)

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(x @ np.asarray(self.matrix).T)


@dataclass(frozen=True, kw_only=True)
class Center:
    """Every record less the mean of its own numbers."""

    features: int

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(x - x.mean(axis=1, keepdims=True))


@dataclass(frozen=True, kw_only=True)
class Normalize:
    """Every record at length 1; a record of zeros stays one."""

    features: int

    def __call__(self, x: Floats) -> Floats:
        length = np.sqrt(np.vecdot(x, x))
        return np.asarray(x / np.where(length > 0, length, 1.0)[:, None])


def _hashing(size: int, *, features: int, tokens: str, ngrams: tuple[int, int], seed: int) -> Step:
    if tokens == "categories":
        return HashedCategories(input_features=size, features=features, seed=seed)
    return HashedText(input_features=size, features=features, tokens=tokens, ngrams=ngrams, seed=seed)


_STEPS: dict[str, Callable[..., Step]] = {
    "random_fourier": lambda size, **settings: RandomFourier(input_features=size, **settings),
    "hashing": _hashing,
    "hog": lambda _, **settings: OrientedGradients(**settings),
    "standardize": lambda size, **settings: Standardize(features=size, **settings),
    "clipped_scale": lambda size, **settings: ClippedScale(features=size, **settings),
    "linear": lambda _, **settings: Linear(**settings),
    "center": lambda size: Center(features=size),
    "normalize": lambda size: Normalize(features=size),
}
