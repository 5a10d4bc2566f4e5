"""Figures for people from a release of counts: how good the version of each evaluated publication was, at no cost.

Intervals are of 95 %, each by itself. `low` and `high` allow for noise and for which records came; `block` allows for
the noise alone: what the figure is on the records that were counted. Figures of a publication without a model yet are
null.

`outline` takes milliseconds; `told` adds figures whose intervals take up to a second.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from service.figures.figures import ClassFigures, ErrorFigures
from service.figures.intervals import CountLaw
from service.mechanisms.evaluation.tables import ClassCounts, described_counts
from service.privacy.accounting.events import NoisyCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from service.figures.intervals import Figure

MAX_CLASSES = 32
"""The interval of the lift is the least of one for each class: of more classes it is left out."""

MAX_COMPARED = 8
"""Publications are compared pair by pair where they are no more."""

Figures = ClassFigures | ErrorFigures


def outline(model: Mapping[str, Any], noise: Mapping[str, Any], counts: NDArray[np.float64]) -> dict[str, Any]:
    """Return the main figures of each evaluated publication by its name, as JSON.

    model, noise: as the release states them. counts: its parameters.
    """
    return _by_name(model, figures_of(model, noise, counts), _outlined)


def all_figures(model: Mapping[str, Any], noise: Mapping[str, Any], counts: NDArray[np.float64]) -> dict[str, Any]:
    """Return all figures of each evaluated publication by its name, as JSON. See `outline`."""
    copied: dict[str, Any] = json.loads(
        _all_figures(json.dumps(model), json.dumps(noise), counts.astype(np.float64).tobytes())
    )
    return copied


def figures_of(model: Mapping[str, Any], noise: Mapping[str, Any], counts: NDArray[np.float64]) -> Figures:
    """Return the `ClassFigures` or `ErrorFigures` of a release."""
    layout = described_counts(model)
    counted = CountLaw(noise=NoisyCounts.from_json(noise).noise, slots=slots_of(model))
    if isinstance(layout, ClassCounts):
        return ClassFigures(layout=layout, counts=counts.ravel(), counted=counted)
    return ErrorFigures(layout=layout, counts=counts.ravel(), counted=counted)


def slots_of(model: Mapping[str, Any]) -> int:
    """Return how many slots a release counts; 1 where there were none, since counts of noise alone are a share too."""
    return max(1, int(model["slots"]))


@lru_cache(maxsize=256)
def _all_figures(model: str, noise: str, counts: bytes) -> str:
    """Return the figures of `all_figures`, cached: many readers ask for the newest release."""
    described = json.loads(model)
    figures = figures_of(described, json.loads(noise), np.frombuffer(counts))
    compared = _compared(described, figures)
    whole = _by_name(described, figures, _whole)
    return json.dumps({name: figure | compared.get(name, {}) for name, figure in whole.items()})


def _by_name(
    model: Mapping[str, Any], figures: Figures, of_one: Callable[[Figures, int], dict[str, Any]]
) -> dict[str, Any]:
    by_name = {}
    for number, (name, version) in enumerate(zip(model["of"], model["versions"], strict=True)):
        known = of_one(figures, number)
        figure = known if version is not None else dict.fromkeys(known)
        by_name[name] = {"version": version, "slots": model["slots"], **figure}
    return by_name


def _compared(model: Mapping[str, Any], figures: Figures) -> dict[str, Any]:
    """Return, by name, by how much the accuracy of a publication exceeds that of each other one on the same slots."""
    if not isinstance(figures, ClassFigures) or not 1 < len(model["of"]) <= MAX_COMPARED:
        return {}
    counted = [number for number, version in enumerate(model["versions"]) if version is not None]
    return {
        model["of"][number]: {
            "better_than": {
                model["of"][other]: figure_described(figures.better(number, other))
                for other in counted
                if other != number
            }
        }
        for number in counted
    }


def _outlined(figures: Figures, number: int) -> dict[str, Any]:
    if isinstance(figures, ErrorFigures):
        error = figures.absolute_error(number)
        return {"absolute_error": error.estimate, **bounds(error)}
    table = figures.layout.table(figures.counts, number)
    commonest = float(table.sum(axis=1).max()) / figures.counted.slots
    accuracy = figures.accuracy(number)
    return {
        "accuracy": accuracy.estimate,
        **bounds(accuracy),
        "baseline": min(1.0, max(0.0, commonest)),
        "table": [[int(count) for count in row] for row in table.tolist()],
    }


def _whole(figures: Figures, number: int) -> dict[str, Any]:
    outlined = _outlined(figures, number)
    if figures.layout.shortened:
        outlined["shortened"] = figure_described(figures.shortened(number))
    if isinstance(figures, ErrorFigures):
        return outlined | {"squared_error": figure_described(figures.squared_error(number))}
    layout = figures.layout
    return outlined | {
        "lift": figure_described(figures.lift(number)) if layout.classes <= MAX_CLASSES else None,
        "balanced_accuracy": figure_described(figures.balanced_accuracy(number)),
        "recall": [figure_described(figures.recall(number, label)) for label in range(layout.classes)],
        "calibration_error": figure_described(figures.calibration_error(number)) if layout.bins else None,
    }


def bounds(figure: Figure) -> dict[str, Any]:
    """Return the intervals of a figure, as JSON."""
    return {
        "low": figure.population.low,
        "high": figure.population.high,
        "block": {"low": figure.block.low, "high": figure.block.high},
    }


def figure_described(figure: Figure) -> dict[str, Any]:
    """Return a figure and its intervals, as JSON."""
    return {"estimate": figure.estimate, **bounds(figure)}
