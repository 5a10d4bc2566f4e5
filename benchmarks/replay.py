"""Real streams, replayed in memory through the very mechanisms that the service runs: for comparisons of accuracy."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.explorer.comparison import releases
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.linear import LinearMechanism, predict
from service.streams.schema import StreamSchema

Features = NDArray[np.float32]
Labels = NDArray[np.int64]


def load(name: str, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a data set in PERENNIAL_DATA_DIR; `where` says what to do if it is missing."""
    path = Path(os.environ.get("PERENNIAL_DATA_DIR", "."), f"{name}.npz")
    if not path.is_file():
        sys.exit(f"{path} is not there: {where}")
    with np.load(path) as data:
        return {key: data[key] for key in data.files}


def titles(name: str, where: str, features: int) -> tuple[Features, Labels]:
    """Return titles as hashed words, rows of length 1, and labels. features: a power of two up to 2,048."""
    data = load(name, where)
    x = data["X"].astype(np.float32)
    x = x.reshape(len(x), -1, features).sum(axis=1)  # a word's hash modulo 2,048, modulo that
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), data["y"].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Used:
    """A model, with the range [start, end) of records that arrive while it is the latest."""

    start: int
    end: int
    parameters: NDArray[np.float64]


def publication(stream: dict[str, Any], configuration: dict[str, Any], *, begun: bool = False) -> LinearMechanism:
    """Return the publication that the service would build; begun: with today's defaults."""
    settings = PublicationConfiguration.model_validate(configuration)
    built = build(StreamSchema.model_validate(stream), settings.begun() if begun else settings)
    assert isinstance(built, LinearMechanism)
    return built


def replay(scheduled: LinearMechanism, x: Features, y: Labels) -> Iterator[Used]:
    """Yield each release with role `model`, with the time of the next one."""
    for release, upcoming in releases(scheduled, lambda start, end: Records(x=x[start:end], y=y[start:end]), len(x)):
        yield Used(start=release.time, end=min(upcoming, len(x)), parameters=release.parameters)


def hits(scheduled: LinearMechanism, models: Iterator[Used], x: Features, y: Labels) -> NDArray[np.float64]:
    """Return whether each record was predicted by the model that was the latest when it came; NaN before the first."""
    right = np.full(len(x), np.nan)
    description = scheduled.model_description()
    for used in models:
        labels, _ = predict(description, used.parameters, x[used.start : used.end])
        right[used.start : used.end] = labels == y[used.start : used.end]
    return right
