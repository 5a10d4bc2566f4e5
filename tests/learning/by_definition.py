"""Feature maps as a reader of their description would write them: one record at a time, in plain Python."""

import hashlib
import math
import re
import struct
from typing import Any

import numpy as np


def mapped(description: dict[str, Any], record: list[Any]) -> list[float]:
    """Return what a stream's or a release's `feature_map` makes of one record."""
    if description["kind"] == "compose":
        for each in description["maps"]:
            record = mapped(each, record)
        return record
    return _KINDS[description["kind"]](description, record)


def normals(columns, rows, seed):
    """The random numbers of `random_fourier`: rows of normals, one after the other, and a uniform one for each row."""
    pairs = (rows * columns + 1) // 2
    stream = hashlib.shake_128(f"perennial random_fourier 1 {seed}".encode()).digest(8 * (2 * pairs + rows))
    u = [((k >> 11) + 0.5) / 2**53 for (k,) in struct.iter_unpack("<Q", stream)]
    normal = []
    for i in range(0, 2 * pairs, 2):
        radius = math.sqrt(-2 * math.log(u[i]))
        normal += [radius * math.cos(2 * math.pi * u[i + 1]), radius * math.sin(2 * math.pi * u[i + 1])]
    return normal[: rows * columns], u[2 * pairs :]


def random_fourier(description, x):
    p = description["features"]
    normal, uniform = normals(len(x), p, description["seed"])
    phases = [
        sum(normal[row * len(x) + column] * float(value) / description["width"] for column, value in enumerate(x))
        + 2 * math.pi * uniform[row]
        for row in range(p)
    ]
    return [math.sqrt(2 / p) * math.cos(phase) for phase in phases]


def hashing(description, x):
    return (_categories if description["tokens"] == "categories" else _text)(description, x)


def _categories(description, x):
    def mix(z):
        z = (z + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    def hashed(column, value):
        (bits,) = struct.unpack("<I", struct.pack("<f", value + 0.0))
        return mix((column * 2**32 + bits + mix(description["seed"])) % 2**64)

    return _counts([hashed(column, value) for column, value in enumerate(x)], description["features"])


def _text(description, x):
    return _counts(
        [
            hash_of_token(token.encode(errors="surrogatepass"), column=column, seed=description["seed"])
            for column, each in enumerate(x)
            for token in _tokens(each, description["tokens"], *description["ngrams"])
        ],
        description["features"],
    )


def hash_of_token(token, *, column=0, seed=0):
    prefix, key = column.to_bytes(4, "little"), seed.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(prefix + token, digest_size=8, key=key).digest(), "little")


def _tokens(text, tokens, shortest, longest):
    if tokens == "whole":
        return [text]
    words = re.findall("[0-9A-Za-z_À-\u1fff\u2070-\u2fff\u3040-\U0010ffff]+", text.casefold())
    units, joint = (words, " ") if tokens == "words" else (" " + " ".join(words) + " ", "")
    return [joint.join(units[i : i + n]) for n in range(shortest, longest + 1) for i in range(len(units) - n + 1)]


def _counts(hashes, features):
    counts = [0.0] * features
    for h in hashes:
        counts[h % 2**63 % features] += -1.0 if h >= 2**63 else 1.0
    return counts


def hog(description, x):
    """With an arc tangent, which the service avoids: not for gradients on the edge of two bins."""
    width, height, cell, block = (description[name] for name in ("width", "height", "cell", "block"))
    image = np.array(x, dtype=np.float64).reshape(height, width)
    histograms = np.zeros((height // cell, width // cell, description["orientations"]))
    for r in range(height // cell * cell):
        for c in range(width // cell * cell):
            across = image[r, c + 1] - image[r, c - 1] if 0 < c < width - 1 else 0.0
            down = image[r + 1, c] - image[r - 1, c] if 0 < r < height - 1 else 0.0
            degrees = math.degrees(math.atan2(down, across)) % 180
            which = int(degrees // (180 / description["orientations"]))
            histograms[r // cell, c // cell, which] += math.hypot(across, down) / cell**2
    features = []
    for r in range(height // cell - block + 1):
        for c in range(width // cell - block + 1):
            v = histograms[r : r + block, c : c + block].ravel()
            v = np.minimum(v / math.sqrt(v @ v + 1e-5**2), 0.2)
            features += (v / math.sqrt(v @ v + 1e-5**2)).tolist()
    return features


def standardize(description, x):
    mean, scale = (np.broadcast_to(description[name], len(x)) for name in ("mean", "scale"))
    return [(float(value) - m) / s for value, m, s in zip(x, mean, scale, strict=True)]


def clipped_scale(description, x):
    center, factor = (np.broadcast_to(description[name], len(x)) for name in ("center", "factor"))
    limit = description["limit"]
    return [min(max((float(value) - c) * f, -limit), limit) for value, c, f in zip(x, center, factor, strict=True)]


def linear(description, x):
    return [sum(w * float(value) for w, value in zip(row, x, strict=True)) for row in description["matrix"]]


def center(_, x):
    return [value - sum(x) / len(x) for value in x]


def normalize(_, x):
    length = math.sqrt(sum(float(value) ** 2 for value in x))
    return [value / length if length else 0.0 for value in x]


_KINDS = {
    each.__name__: each
    for each in (random_fourier, hashing, hog, standardize, clipped_scale, linear, center, normalize)
}
