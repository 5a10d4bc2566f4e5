"""Public feature maps: what is done to one record before anything is fitted to it, the same for ever.

Statement. Private: every record of the stream. A map is fixed by constants of the stream's configuration, and row i of
what it returns is a function of row i alone. So streams that differ in one record differ in one mapped record: a
guarantee for the mapped records is the same guarantee for the records, and mapping costs nothing (paper-audit.md
D2). A mapped row that is not finite as float32 becomes NaN throughout, which every fit takes for no record:
one record never spoils another. Nothing that is learnt from records (means, principal components) is a feature map.

| kind | maps a record x to | source |
|---|---|---|
| random_fourier | √(2/p)·cos(Wx/width + b) | Rahimi and Recht 2007, Algorithm 1 |
| hashing | signed counts of its hashed tokens | Weinberger et al. 2009 |
| hog | histograms of oriented gradients | Dalal and Triggs 2005, with L2-Hys |
| standardize | (x - mean) / scale | |
| center | x less the mean of its own coordinates | |
| normalize | x / ‖x‖, and 0 to 0 | |

Why it is the same on every machine: random numbers come from SHAKE-128 and tokens from BLAKE2b, both standards, and
categories from integers alone; which bin a gradient falls into is decided by products and comparisons of doubles, never
by an arc tangent. What is left is computed in doubles, where libraries differ near the sixteenth digit, and rounded to
float32: two machines (or a batch and a single record) agree but where a double lies that close to the middle of two
floats. What a version of a kind computes never changes; a correction would be another version.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_VALUES = 2**25  # mapped numbers of one batch: 128 MiB as float32
MOST_CHARACTERS = 2**16  # of one text
MOST_RANDOM = 2**23  # random numbers of one map: 64 MiB

_AT_ONCE = 2**19  # doubles that a step works on: 4 MiB


class Step(Protocol):
    """One kind of map with its settings. Never raises for the contents of a record, whatever floats they are."""

    @property
    def features(self) -> int:
        """How many numbers a mapped record has."""

    def __call__(self, x: NDArray[Any], /) -> Floats:
        """Return x of shape (m, input features) mapped, (m, features), each row by itself."""


@dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """The feature map of a stream: steps, one after another. Without any it leaves records as they are."""

    description: Mapping[str, Any] | None
    """As JSON, all it takes to `build` it again; named in every release."""
    input_features: int
    steps: tuple[Step, ...]

    @property
    def features(self) -> int:
        """How many numbers a mapped record has."""
        return self.steps[-1].features if self.steps else self.input_features

    @property
    def most_records(self) -> int:
        """How many mapped records one batch may have, so that it fits into memory."""
        return max(1, MOST_VALUES // max(1, self.features))

    @property
    def reads_text(self) -> bool:
        """Whether a record is made of texts, not of numbers."""
        return bool(self.steps) and isinstance(self.steps[0], HashedText)

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


def build(description: Mapping[str, Any] | None, features: int) -> FeatureMap:
    """Return the map that a stream's configuration or a release describes, for records of so many features.

    Raises ValueError, in words for whoever configured it, where the sizes do not fit.
    """
    if description is None:  # as usual, and asked for with every batch
        return _nothing(features)
    described = description.get("maps", (description,))
    steps: list[Step] = []
    size = features
    for each in described:
        step = _step(each, size)
        if steps and isinstance(step, HashedText):
            raise ValueError("texts can only be hashed by the first map")
        steps.append(step)
        size = step.features
    return FeatureMap(description=description, input_features=features, steps=tuple(steps))


@lru_cache(maxsize=256)
def _nothing(features: int) -> FeatureMap:
    return FeatureMap(description=None, input_features=features, steps=())


def of_stream(schema: Mapping[str, Any]) -> FeatureMap:
    """Return the feature map of a stream from its schema as JSON. A categorical stream has no x, and no steps."""
    return build(schema.get("feature_map"), schema.get("features") or 0)


def _step(description: Mapping[str, Any], size: int) -> Step:
    kind, version = description["kind"], description["version"]
    if kind not in _STEPS or version != 1:
        raise ValueError(f"there is no version {version} of a feature map of kind {kind}")
    settings = {name: value for name, value in description.items() if name not in ("kind", "version")}
    return _STEPS[kind](input_features=size, **settings)


@dataclass(frozen=True, kw_only=True)
class RandomFourier:
    """Random Fourier features of the Gaussian kernel exp(-‖x-x'‖² / (2·width²)).

    ⟨z(x), z(x')⟩ is the kernel in expectation over W and b, with a standard deviation of at most 1/√p. No mapped record
    is longer than √2, and most are close to 1: E‖z‖² = 1.

    W (p × d) and b (p) are read from the bytes SHAKE-128("perennial random_fourier 1 SEED"), SEED in decimal, as 64-bit
    little-endian integers k, each the uniform number u = (⌊k/2^11⌋ + ½)/2^53 in (0, 1). Two of them, u and v, are two
    standard normals √(-2 ln u)·cos 2πv and √(-2 ln u)·sin 2πv (Box and Muller); W is filled with normals row by row,
    a left-over one is dropped, and b is 2π times the p uniforms that follow.
    """

    input_features: int
    features: int
    width: float
    seed: int

    def __post_init__(self) -> None:
        if self.features * self.input_features > MOST_RANDOM:
            raise ValueError(f"random_fourier: features in times features out must be at most {MOST_RANDOM}")

    def __call__(self, x: Floats) -> Floats:
        frequencies, offsets = public_normals(self.input_features, self.features, self.seed)
        phases = (x / self.width) @ frequencies.T + offsets
        return np.asarray(math.sqrt(2.0 / self.features) * np.cos(phases))


@lru_cache(maxsize=4)
def public_normals(columns: int, rows: int, seed: int) -> tuple[Floats, Floats]:
    """Return W (rows × columns) and b (rows) of `RandomFourier` with width 1: the same everywhere, for ever."""
    pairs = (rows * columns + 1) // 2
    drawn = hashlib.shake_128(f"perennial random_fourier 1 {seed}".encode()).digest(8 * (2 * pairs + rows))
    uniform = ((np.frombuffer(drawn, dtype="<u8") >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[: 2 * pairs : 2]))
    angle = 2.0 * np.pi * uniform[1 : 2 * pairs : 2]
    normal = np.column_stack((radius * np.cos(angle), radius * np.sin(angle))).ravel()
    return normal[: rows * columns].reshape(rows, columns), 2.0 * np.pi * uniform[2 * pairs :]


@dataclass(frozen=True, kw_only=True)
class HashedCategories:
    """Each column holds a category, as a number; each (column, category) is hashed to a coordinate and a sign.

    A category is its float32 (whole numbers are told apart up to 2^24); -0 is 0. With f its 32 bits and all arithmetic
    modulo 2^64, h = mix(column·2^32 + f + mix(seed)), mix being splitmix64's: z += 9e3779b97f4a7c15,
    z = (z ^ z>>30)·bf58476d1ce4e5b9, z = (z ^ z>>27)·94d049bb133111eb, z ^ z>>31 (hexadecimal). The coordinate is
    (h mod 2^63) mod features, the sign is - where h ≥ 2^63; a record is the sum of its columns' signed unit vectors.
    """

    input_features: int
    features: int
    seed: int

    def __call__(self, x: Floats) -> Floats:
        bits = (x.astype(np.float32) + np.float32(0.0)).view(np.uint32).astype(np.uint64)
        columns = np.arange(self.input_features, dtype=np.uint64) << np.uint64(32)
        hashed = _mix(columns + bits + _mix(np.array([self.seed], dtype=np.uint64)))
        return _signed_counts(hashed, self.features)


@dataclass(frozen=True, kw_only=True)
class HashedText:
    """Each column holds a text; each (column, token) is hashed to a coordinate and a sign, and counted.

    A text is folded to lower case (Unicode's full case folding) and cut into words: longest runs of ASCII letters,
    digits, underscores and characters from U+00C0 on but U+2000–206F and U+3000–303F, which is punctuation. For every n
    from ngrams[0] to ngrams[1], tokens are: of `words` n words in a row, joined by spaces; of `characters` n characters
    in a row of the words joined, begun and ended by spaces. Of `whole` the one token is the text as it is, not folded.

    h is the eight bytes, little-endian, of BLAKE2b with the key seed (eight bytes, little-endian) of the column
    (four bytes, little-endian) and the token in UTF-8 (a lone surrogate as the three bytes it would have). Coordinate
    and sign follow from h as for categories.
    """

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
                    each = start.copy()
                    each.update(token.encode(errors="surrogatepass"))
                    hashed.append(each.digest())
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


_WORD = re.compile(r"[0-9A-Za-z_\u00c0-\u1fff\u2070-\u2fff\u3040-\U0010ffff]+")


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return splitmix64's output for the state z before its step (Steele, Lea and Flood 2014; Vigna)."""
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


@dataclass(frozen=True, kw_only=True)
class Center:
    """Every record less the mean of its own coordinates."""

    input_features: int

    @property
    def features(self) -> int:
        return self.input_features

    def __call__(self, x: Floats) -> Floats:
        return np.asarray(x - x.mean(axis=1, keepdims=True))


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


def _hashing(*, input_features: int, features: int, tokens: str, ngrams: tuple[int, int], seed: int) -> Step:
    if tokens == "categories":
        return HashedCategories(input_features=input_features, features=features, seed=seed)
    return HashedText(input_features=input_features, features=features, tokens=tokens, ngrams=ngrams, seed=seed)


_STEPS: dict[str, Callable[..., Step]] = {
    "random_fourier": RandomFourier,
    "hashing": _hashing,
    "hog": OrientedGradients,
    "standardize": Standardize,
    "center": Center,
    "normalize": Normalize,
}
