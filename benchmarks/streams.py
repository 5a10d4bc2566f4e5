"""Twelve streams of labelled records, some generated, whose drift is known. No setting was tuned to any of them."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from benchmarks.drift import elec2, noaa
from benchmarks.replay import Features, Labels, load, titles

WHERE = "benchmarks/README.md says how to make it"


class Data(NamedTuple):
    """A stream of classes: columns as they come, the same by public constants, labels, and records of a block."""

    raw: Features
    public: Features
    y: Labels
    block: int
    prepared: int = 5000
    """Records that private scales are of, and from which on accuracy is counted."""


@lru_cache(maxsize=2)
def data(name: str) -> Data:
    """Return a stream by its name."""
    return STREAMS[name]()


def _with_constants(name: str, scaled: Callable[[], tuple[Features, Labels, int]]) -> Data:
    public, y, block = scaled()
    return Data(load(name, WHERE)["X"].astype(np.float32), public, y, block)


def _covtype() -> Data:
    """Return the first 100,000 records of covtype."""
    x, public, y = covtype()
    return Data(x[:100_000], public[:100_000], y[:100_000], 1000, 10_000)


def covtype() -> tuple[Features, Features, Labels]:
    """Return 54 columns as they come, the same by public constants from their documentation's ranges, and labels."""
    arrays = load("covtype", WHERE)
    x, y = arrays["X"].astype(np.float32), arrays["y"].astype(np.int64)
    middle = np.array([2800, 180, 15, 250, 50, 2000, 210, 220, 140, 2000] + [0] * 44)
    spread = np.array([300, 100, 8, 200, 60, 1500, 30, 20, 40, 1300] + [1] * 44)
    return x, np.clip((x - middle) / spread, -3, 3).astype(np.float32), y - y.min()


def _titles() -> Data:
    x, y = titles("linux_changelog", WHERE, 256)
    return Data(x, x, y, 350)


def _digits() -> Data:
    """Return MNIST with a quarter of its pixels."""
    arrays = load("mnist", WHERE)
    x = arrays["X"][:30_000].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196).astype(np.float32)
    x = x / max(1.0, float(x.max()))
    x = x / np.maximum(1e-6, np.linalg.norm(x, axis=1, keepdims=True))
    return Data(x, x, arrays["y"][:30_000].astype(np.int64), 1000)


def _phones() -> Data:
    arrays = load("hapt_windows", WHERE)
    x = arrays["X"].astype(np.float32)
    scaled = np.clip(x, -3, 3).astype(np.float32)
    return Data(x, scaled, arrays["y"].astype(np.int64) - int(arrays["y"].min()), 200)


def _drifting(classes: int, features: int) -> Callable[[], Data]:
    """Return classes whose means turn through a quarter of a circle in 20,000 records."""

    def made() -> Data:
        rng = np.random.default_rng(classes)
        count = 20_000
        y = rng.integers(0, classes, count)
        first, second = rng.normal(size=(2, classes, features))
        angle = np.linspace(0, np.pi / 2, count)[:, None]
        means = np.cos(angle) * first[y] + np.sin(angle) * second[y]
        x = (1.2 * means + rng.normal(size=(count, features))).astype(np.float32)
        return Data(x, np.clip(x / 1.5, -3, 3).astype(np.float32), y.astype(np.int64), 500)

    return made


def _jumping() -> Data:
    """Return four classes whose means are drawn anew every 10,000 records."""
    rng = np.random.default_rng(4)
    count, every = 40_000, 10_000
    y = rng.integers(0, 4, count)
    means = rng.normal(size=(count // every, 4, 16))
    x = (means[np.arange(count) // every, y] + rng.normal(size=(count, 16))).astype(np.float32)
    return Data(x, np.clip(x / 1.4, -3, 3).astype(np.float32), y, 500)


def _intrusions() -> Data:
    """Return network connections in a random order: counts as logarithms, shares as they are, both within ±3."""
    arrays = load("kdd99_u2r_vs_normal", WHERE)
    order = np.random.default_rng(5).permutation(len(arrays["X"]))
    x = arrays["X"][order].astype(np.float32)
    public = np.clip(np.log1p(np.abs(x)) / 2, -3, 3).astype(np.float32)
    return Data(x, public, arrays["y"][order].astype(np.int64), 500)


def _entries() -> Data:
    x, y = titles("cpython_news", WHERE, 256)
    return Data(x, x, y, 350)


STREAMS: dict[str, Callable[[], Data]] = {
    "electricity": lambda: _with_constants("elec2", elec2),
    "weather": lambda: _with_constants("noaa_weather", noaa),
    "covtype": _covtype,
    "titles": _titles,
    "digits": _digits,
    "phones": _phones,
    "turning, 2 classes": _drifting(2, 10),
    "turning, 8 classes": _drifting(8, 20),
    "turning, 26 classes": _drifting(26, 30),
    "jumping, 4 classes": _jumping,
    "intrusions": _intrusions,
    "entries": _entries,
}
RAW = ("electricity", "weather", "covtype")
OF_LENGTH_1 = ("titles", "entries", "digits")
