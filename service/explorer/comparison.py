"""Mechanisms side by side on one data set, with noise and without: how accurate each is as records come in.

Every fifth record is held out and only ever predicted; the others come in order. It runs what the service runs.
Beside each line stands the same loss fitted without noise, by the certified solver, to the records that its release
stands for: what privacy costs is the distance between the two. Nothing here is private.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, StringConstraints, ValidationError

from service.explorer.scores import score
from service.inputs.fields import Delta, Epsilon, Positive, Shape
from service.learning.optimization.solvers import Inaccurate
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.learning.registry import LearnerSettings
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.linear import LinearMechanism, predict
from service.mechanisms.registry import MechanismSettings
from service.privacy.noise.additive import Unaffordable
from service.streams.feature_maps import FeatureMapShape
from service.streams.schema import StreamSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from service.explorer.datasets import Dataset
    from service.mechanisms.mechanism import CarriedState, Release

HELD_OUT_EVERY = 5
CHECKPOINTS = 40
MAX_JUDGED = 20_000
WITHOUT_NOISE = 1e-3  # regularization times norm_bound² for fits without noise: enough for a unique minimiser


class Line(Shape):
    """A mechanism and a learner, for each ε of the comparison."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=80, strip_whitespace=True)]
    mechanism: MechanismSettings
    learner: LearnerSettings
    delta: Delta = Field(Decimal(0), json_schema_extra={"default": 0})


class Comparison(Shape):
    """The lines to compare, and on which data. The ε and δ of a line are what one record may lose to its whole run."""

    dataset: Annotated[
        Annotated[int, Field(ge=0, lt=2**63)] | str,
        Field(description="The id of one that was uploaded, or the name of a sample"),
    ]
    feature_map: FeatureMapShape | None = None
    norm_bound: Positive = 1.0
    lines: Annotated[tuple[Line, ...], Field(min_length=1, max_length=6)]
    epsilons: Annotated[tuple[Epsilon, ...], Field(min_length=1, max_length=8)]
    runs: Annotated[
        int, Field(strict=True, ge=1, le=10, description="How often each line runs at each ε, with fresh noise")
    ] = 1
    shuffle: Annotated[bool, Field(strict=True, description="Records in a random order instead of the data's own")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of one line. `epsilon` None: without noise."""

    line: int
    epsilon: float | None
    run: int


def cells(comparison: Comparison) -> list[Cell]:
    """Return all cells of a comparison, in an order in which early results are the most informative."""
    every_cell = [
        Cell(line=line, epsilon=float(epsilon), run=run)
        for run in range(comparison.runs)
        for epsilon in sorted(comparison.epsilons, reverse=True)
        for line in range(len(comparison.lines))
    ]
    return [Cell(line=line, epsilon=None, run=0) for line in range(len(comparison.lines))] + every_cell


def mechanism(comparison: Comparison, line: int, epsilon: float, shape: dict[str, int]) -> LinearMechanism:
    """Return what a publication of a line would run. Raises Refused; its path begins with lines.N.

    shape: of the data set.
    """
    compared = comparison.lines[line]
    try:
        stream = StreamSchema(
            features=shape["features"],
            task={"kind": "classification", "classes": shape["classes"]},
            norm_bound=comparison.norm_bound,
            feature_map=comparison.feature_map,
        )
    except ValidationError as problem:  # the data set and the map, each valid by itself, do not fit together
        raise Refused("feature_map", problem.errors()[0]["msg"]) from None
    configuration = PublicationConfiguration.model_validate(
        {
            "mechanism": compared.mechanism,
            "learner": compared.learner,
            "privacy": {"epsilon": epsilon, "delta": compared.delta},
        }
    ).begun()
    try:
        built = build(stream, configuration)
    except Refused as refused:
        raise Refused(f"lines.{line}.{refused.path}", refused.message) from None
    if not isinstance(built, LinearMechanism):
        raise Refused(f"lines.{line}.mechanism.kind", "only mechanisms that publish a model of classes are compared")
    if (setting := built.setting_of_features) is not None:
        raise Refused(f"lines.{line}.mechanism.{setting}", "all lines have the same features: choose a feature_map")
    return built


def releases(
    publication: LinearMechanism, read: Callable[[int, int], Records], records: int
) -> Iterator[tuple[Release, int]]:
    """Yield each release with role `model` of the first so many records, and the time of the next one."""
    time, version = 0, 0
    chain: Sequence[CarriedState] = ()
    newest: Release | None = None
    while (due := publication.next_time(time)) <= records:
        time = publication.taken_at(due, records)
        step = publication.step(time, chain, version + 1, read)
        chain, version = step.chain, version + len(step.releases)
        time = time if step.reached is None else step.reached
        for release in step.releases:
            if release.role == "model":
                if newest is not None and release.time > newest.time:
                    yield newest, release.time
                newest = release
        if step.halts is not None:
            raise Inaccurate(step.halts)
    if newest is not None:
        yield newest, due


def run(
    comparison: Comparison, cell: Cell, data: Dataset, progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any]:
    """Run one cell; return its `curve` [[records, accuracy], …] and the `scores` of the last model, as JSON.

    A line that can't go on, or whose first model needs more records, says so as `problem`. progress: is told how far
    it is, from 0 to 1.
    """
    order = np.arange(len(data.y))
    if comparison.shuffle:
        order = np.random.default_rng(cell.run).permutation(order)
    held_out = np.arange(len(order)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    sent, judged = order[~held_out], order[held_out][:MAX_JUDGED]
    publication = mechanism(comparison, cell.line, cell.epsilon or float(max(comparison.epsilons)), data.shape)
    x, y = publication.feature_map(data.x[sent]), data.y[sent]
    description = publication.model_description()
    ends = [round(len(sent) * number / CHECKPOINTS) for number in range(1, CHECKPOINTS + 1)]
    result: dict[str, Any] = {"curve": [], "scores": None}
    try:
        for release, following in releases(
            publication, lambda start, end: Records(x=x[start:end], y=y[start:end]), len(y)
        ):
            progress(release.time / len(y))
            next_end = bisect_left(ends, release.time)
            if next_end == len(ends) or ends[next_end] >= min(following, len(y) + 1):
                continue  # the next checkpoint has a newer model
            parameters = release.parameters
            if cell.epsilon is None:
                window = slice(*release.window)
                parameters = _without_noise(publication, Records(x=x[window], y=y[window]))
            labels, _ = predict(description, parameters, data.x[judged])
            result["scores"] = score(data.y[judged], labels, len(data.names))
            result["curve"].append([release.time, result["scores"]["accuracy"]])
    except (Inaccurate, Unaffordable) as problem:
        result["problem"] = str(problem)
    else:
        if not result["curve"]:
            result["problem"] = (
                f"nothing was released: its first model needs more than the {len(y)} records that come in (every fifth "
                "is held out); choose fewer records a release"
            )
    return result


def _without_noise(publication: LinearMechanism, records: Records) -> np.ndarray[Any, np.dtype[np.float64]]:
    learner = publication.learner
    fitted = OutputPerturbation(
        loss=learner.loss,
        regularization=WITHOUT_NOISE * learner.norm_bound**2,
        intercept=learner.intercept,
        norm_bound=learner.norm_bound,
        features=learner.features,
        classes=learner.classes,
    )
    return fitted.fit(records, len(records.y), np.zeros(learner.shape))
