"""Signed counts of hashed categories or tokens (Weinberger et al. 2009)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.inputs.fields import Shape
from service.streams.feature_maps.settings import Mapped, Seed, Version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from service.streams.feature_maps.step import Floats, MapStep


MAX_CHARACTERS = 2**16  # characters of one text
_COUNTED_AT_ONCE = 2**13  # tokens, and those of one text: as objects they take 100 times as much as the text

_Length = Annotated[int, Field(strict=True, ge=1, le=8)]


class HashingMap(Shape):
    """Signed counts of hashed tokens. With `categories` a record is numbers, else texts."""

    kind: Literal["hashing"]
    version: Version = 1
    features: Mapped
    tokens: Annotated[
        Literal["categories", "words", "characters", "whole"],
        Field(
            description="Parts of a column that are hashed: a number or the `whole` text as it is, or a text's n-grams"
        ),
    ]
    ngrams: Annotated[
        tuple[_Length, _Length], Field(description="The least and the most words or characters of one token")
    ] = (1, 1)
    seed: Seed = 0

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.ngrams[0] > self.ngrams[1]:
            raise PydanticCustomError("ngrams", "ngrams are the least and the most words or characters of a token")
        if self.tokens in ("categories", "whole") and self.ngrams != (1, 1):
            raise PydanticCustomError("ngrams", "ngrams are for words and characters")
        return self


def hashing_step(*, input_features: int, features: int, tokens: str, ngrams: tuple[int, int], seed: int) -> MapStep:
    """Return the step that hashes these tokens."""
    if tokens == "categories":
        return HashedCategories(input_features=input_features, features=features, seed=seed)
    return HashedText(input_features=input_features, features=features, tokens=tokens, ngrams=ngrams, seed=seed)


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
    in a row of the words joined, begun and ended by spaces. With `whole` the token is the text as it is, not folded.

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
        counts = np.zeros((len(x), self.features))
        for row, texts in enumerate(x):
            hashed: list[bytes] = []
            for start, text in zip(starts, texts, strict=True):
                for token in self._tokens(text):
                    digest = start.copy()
                    digest.update(token.encode(errors="surrogatepass"))
                    hashed.append(digest.digest())
                if len(hashed) >= _COUNTED_AT_ONCE:
                    counts[row] += self._counted(hashed)
                    hashed = []
            counts[row] += self._counted(hashed)
        return counts

    def _counted(self, hashed: list[bytes]) -> Floats:
        return _signed_counts(np.frombuffer(b"".join(hashed), dtype="<u8")[None, :], self.features).ravel()

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
