"""Streams that nobody tuned anything for: private scales beside public ones, and defaults beside the best settings.

    PERENNIAL_DATA_DIR=… python -m benchmarks.defaults --part scales
    PERENNIAL_DATA_DIR=… python -m benchmarks.defaults --part rates
    PERENNIAL_DATA_DIR=… python -m benchmarks.defaults --part pulls --epsilons 1 --runs 2

Each run is a line of --results, and a run whose line is there is not made again. Accuracy is prequential: every record
is predicted by the model that was the latest when it came.

`scales`: raw columns at (1, 1e-6) in all. A fifth of ρ pays for the scales of the first 5,000 records (of covtype
10,000), or for these and for whitening; the rest pays for the model. Beside them public constants, for the whole of ρ,
and the raw columns as they are. Counted from the record after.

`rates`: defaults of `online_leader` beside the best of twelve other settings, which make as many steps of a batch as
the default, or with `--steps 1` one. With more than three runs the best is chosen on the first three and compared on
the others. `--streams`, `--batches` and `--epsilons` choose a part; streams that two batches would fill are left out.

`steps`: `online_leader` with one step of a batch, and with as many as noise allows. The mean of runs.

`pulls`: `output_perturbation` with several `score_noise`, and with the default before there was one; 20,000 records.

`regression`: R² for the demand for electricity from five other columns, all with defaults.
"""

import argparse
import statistics
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.replay import Features, Labels, hits, load, replay
from benchmarks.streams import OF_LENGTH_1, RAW, STREAMS, WHERE, data
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.features import ReleasedMap
from service.mechanisms.linear import LinearMechanism, predict
from service.privacy.currency import capacity, zcdp_epsilon
from service.streams.schema import StreamSchema

DELTA = Decimal("1e-6")
SHARE = Fraction(1, 5)
CHOSEN_ON = 3  # runs
LEADER, DESCENT = {"kind": "online_leader"}, {"kind": "noisy_gradient_descent"}
WINDOW, OUTPUT = {"kind": "window_statistics", "blocks": 7}, {"kind": "output_perturbation"}


def _configuration(mechanism: dict[str, Any], learner: dict[str, Any] | None, epsilon: float, **more: Any) -> Any:
    privacy = {"epsilon": round(epsilon, 9), "delta": DELTA}
    return PublicationConfiguration.model_validate(
        {"mechanism": mechanism, "learner": learner, "privacy": privacy} | more
    ).begun()


def _schema(x: Features, y: Labels, norm_bound: float) -> StreamSchema:
    task = {"kind": "classification", "classes": int(y.max()) + 1}
    return StreamSchema.model_validate({"features": x.shape[1], "task": task, "norm_bound": norm_bound})


def accuracy(built: Any, stored: Features, x: Features, y: Labels, start: int) -> float:
    """Return the prequential accuracy from a record on: fits read `stored`, predictions are of x."""
    assert isinstance(built, LinearMechanism)
    return float(np.nanmean(hits(built, replay(built, stored, y), x, y)[start:]))


def prepared_privately(
    name: str, maps: tuple[str, ...], mechanism: dict[str, Any], learner: dict[str, Any], epsilon: float
) -> float:
    """Return the accuracy with maps that are learnt privately, one after another; all cost (epsilon, DELTA) together.

    maps: `scale`, or that and `whiten`; they share SHARE of ρ.
    """
    x, _, y, _, prepared = data(name)
    schema = _schema(x, y, 1.0)
    rho = capacity(Decimal(str(epsilon)), DELTA)[1]
    of_map, of_model = (zcdp_epsilon(float(part * rho), float(DELTA)) - 1e-8 for part in (SHARE / len(maps), 1 - SHARE))

    def read(start: int, end: int) -> Records:
        return Records(x=x[start:end], y=y[start:end])

    released: ReleasedMap | None = None
    reading: Callable[[int, int], Records] = read
    for of in maps:
        named = {"features": {"from": "before"}} if released else {}
        preparation = _configuration({"kind": "preparation", "records": prepared, "of": of}, None, of_map, **named)
        (release,) = build(schema, preparation, released).step(prepared, (), 1, reading).releases
        assert release.model is not None
        released = ReleasedMap.of(release.model)
        reading = released.reading(schema, read)
    built = build(schema, _configuration(mechanism, learner, of_model, features={"from": "before"}), released)
    return accuracy(built, reading(0, len(x)).x.astype(np.float32), x, y, prepared)


def scaled_publicly(x: Features, y: Labels, norm_bound: float, configuration: Any, start: int) -> float:
    """Return the accuracy with records scaled by public constants."""
    return accuracy(build(_schema(x, y, norm_bound), configuration), x, x, y, start)


def _lines(block: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    return {
        "online_leader": (LEADER | {"batch": block}, DESCENT),
        "online_leader, all averaged": (LEADER | {"batch": block, "averaging": True}, DESCENT),
        "online_leader, not averaged": (LEADER | {"batch": block, "averaging": False}, DESCENT),
        "window_statistics": (WINDOW | {"block": block}, OUTPUT),
    }


def scales(path: Path, names: list[str], runs: int) -> None:
    """Measure the accuracy lost by private scales."""
    for name, run in product(names, range(runs)):
        x, public, y, block, prepared = data(name)
        for line, (mechanism, learner) in _lines(block).items():
            configuration, norm = _configuration(mechanism, learner, 1.0), float(np.sqrt(x.shape[1]))
            ways: dict[str, Callable[[], float]] = {
                "private": partial(prepared_privately, name, ("scale",), mechanism, learner, 1.0),
                "whitened": partial(prepared_privately, name, ("scale", "whiten"), mechanism, learner, 1.0),
                "public": partial(scaled_publicly, public, y, norm, configuration, prepared),
                "raw": partial(scaled_publicly, x, y, norm, configuration, prepared),
            }
            for way, measure in ways.items():
                _once(path, ("scales", name, line, way, run), measure)
    _table(path, "scales", names)


def settings(mechanism: dict[str, Any], schema: StreamSchema, epsilon: float) -> Iterator[tuple[str, Any]]:
    """Yield the default and twelve other settings of an online leader, by name."""
    yield "default", _configuration(LEADER | {"batch": mechanism["batch"]}, DESCENT, epsilon)
    for averaging in (True, False):
        planned = build(schema, _configuration(mechanism | {"averaging": averaging}, DESCENT, epsilon)).plan()
        rate, clip = planned["fits"][0]["learning_rate"], planned["model"]["clip"]
        for times in (0.1, 0.3, 1.0, 3.0):
            more = {"learning_rate": rate * times, "averaging": averaging}
            yield f"rate {times}, averaging {averaging}", _configuration(mechanism | more, DESCENT, epsilon)
        for times in (0.5, 2.0):
            more = {"clip": clip * times, "averaging": averaging}
            yield f"clip {times}, averaging {averaging}", _configuration(mechanism | more, DESCENT, epsilon)


def _cells(
    names: list[str], batches: list[int], epsilons: list[float]
) -> Iterator[tuple[str, int, float, Features, Labels, float]]:
    """Yield a stream's name, a batch, an ε, the first 50,000 records and their norm_bound, if two batches are there."""
    for name, batch, epsilon in product(names, batches, epsilons):
        _, x, y, _, _ = data(name)
        x, y = x[:50_000], y[:50_000]
        if len(y) >= 2 * batch:
            yield name, batch, epsilon, x, y, 1.0 if name in OF_LENGTH_1 else float(np.sqrt(x.shape[1]))


def rates(path: Path, names: list[str], runs: int, batches: list[int], epsilons: list[float], made: int | str) -> None:
    """Measure defaults beside the best of other settings. made: the steps that these settings make of a batch."""
    for name, batch, epsilon, x, y, norm in _cells(names, batches, epsilons):
        schema = _schema(x, y, norm)
        mechanism = LEADER | {"batch": batch, "steps": made}
        for (line, configuration), run in product(settings(mechanism, schema, epsilon), range(runs)):
            cell = ("rates", name, batch, epsilon, line, run)
            _once(path, cell, partial(scaled_publicly, x, y, norm, configuration, 0))
    _regrets(path)


def steps(path: Path, names: list[str], runs: int, batches: list[int], epsilons: list[float]) -> None:
    """Measure what several steps of a batch bring."""
    print("| stream | batch | ε | one step | auto | steps |\n|---|---|---|---|---|---|")
    for name, batch, epsilon, x, y, norm in _cells(names, batches, epsilons):
        shown, made = [], 1
        for chosen in (1, "auto"):
            configuration = _configuration(LEADER | {"batch": batch, "steps": chosen}, DESCENT, epsilon)
            (fit,) = build(_schema(x, y, norm), configuration).plan()["fits"]
            made, cell = fit.get("steps", 1), ("steps", name, batch, epsilon, chosen)
            for run in range(runs):
                _once(path, (*cell, run), partial(scaled_publicly, x, y, norm, configuration, 0))
            accuracies = [run["accuracy"] for run in results.lines(path) if tuple(run["cell"][:-1]) == cell]
            shown.append(f"{statistics.mean(accuracies):.3f}")
        print(f"| {name} | {batch:,} | {epsilon:g} | {' | '.join(shown)} | {made} |", flush=True)


def regression(path: Path, runs: int) -> None:
    """Measure the demand for electricity, of all but itself, by models with all their defaults at (1, 1e-6)."""
    arrays = load("elec2", WHERE)
    demand = list(arrays["features"]).index("nswdemand")
    x, y = (2 * np.delete(arrays["X"], demand, axis=1) - 1).astype(np.float32), 2 * arrays["X"][:, demand] - 1
    task = {"kind": "regression", "bound": 1}
    schema = StreamSchema.model_validate({"features": 5, "task": task, "norm_bound": float(np.sqrt(5))})
    print("| records a release | online_leader | averaging recent | window_statistics |\n|---|---|---|---|")
    for block in (100, 336, 1000):
        kinds = (LEADER | {"batch": block}, LEADER | {"batch": block, "averaging": "recent"}, WINDOW | {"block": block})
        shown = []
        for mechanism in kinds:
            cell = ("regression", block, mechanism["kind"], mechanism.get("averaging"))
            for run in range(runs):
                learner = OUTPUT if mechanism["kind"] == "window_statistics" else DESCENT
                built = build(schema, _configuration(mechanism, learner, 1.0))
                _once(path, (*cell, run), partial(_explained, built, x, y))
            explained = [run["accuracy"] for run in results.lines(path) if tuple(run["cell"][:-1]) == cell]
            shown.append(f"{statistics.median(explained):.3f}")
        print(f"| {block} | {' | '.join(shown)} |", flush=True)


def _explained(built: Any, x: Features, y: np.ndarray) -> float:
    """Return R² of predictions by the latest model."""
    predicted = np.full(len(y), np.nan)
    for used in replay(built, x, y):
        values, _ = predict(built.model_description(), used.parameters, x[used.start : used.end])
        predicted[used.start : used.end] = np.ravel(values)
    counted = ~np.isnan(predicted)
    return float(1 - np.sum((predicted - y)[counted] ** 2) / np.sum((y[counted] - y[counted].mean()) ** 2))


def pulls(path: Path, names: list[str], runs: int, epsilons: list[float]) -> None:
    """Measure how strongly fits should be pulled."""
    settings = [{"regularization": 0.1}, *({"score_noise": noise} for noise in (0.05, 0.1, 0.2, 0.3, 0.7))]
    titles = [f"{name} {value:g}" for choice in settings for name, value in choice.items()]
    print(f"| stream | ε | mechanism | {' | '.join(titles)} |\n|---|---|---|{'---|' * len(settings)}")
    for name, epsilon in product(names, epsilons):
        _, x, y, block, _ = data(name)
        x, y = x[:20_000], y[:20_000]
        norm = 1.0 if name in OF_LENGTH_1 else float(np.sqrt(x.shape[1]))
        kinds: dict[str, dict[str, Any]] = {
            "sliding_window": {"block": block, "blocks": 7},
            "independent_batches": {"batch": block, "warm_start": True},
            "continual": {"base": 7 * block, "update_every": block},
        }
        for kind, sizes in kinds.items():
            for title, more in zip(titles, settings, strict=True):
                configuration = _configuration({"kind": kind} | sizes, OUTPUT | more, epsilon)
                for run in range(runs):
                    cell = ("pulls", name, epsilon, kind, title, run)
                    _once(path, cell, partial(scaled_publicly, x, y, norm, configuration, 0))
            by_title: dict[str, list[float]] = {}
            for outcome in results.lines(path):
                if tuple(outcome["cell"][:4]) == ("pulls", name, epsilon, kind):
                    by_title.setdefault(outcome["cell"][4], []).append(outcome["accuracy"])
            means = [f"{statistics.mean(by_title[title]):.3f}" for title in titles]
            print(f"| {name} | {epsilon:g} | {kind} | {' | '.join(means)} |", flush=True)


def _regrets(path: Path) -> None:
    """Print, for every cell that is measured, the default beside the best of the other settings."""
    by_cell: dict[tuple[str, int, float], dict[str, dict[int, float]]] = {}
    for outcome in results.lines(path):
        if outcome["cell"][0] == "rates":
            _, name, batch, epsilon, line, run = outcome["cell"]
            by_cell.setdefault((name, batch, epsilon), {}).setdefault(line, {})[run] = outcome["accuracy"]
    print("| stream | batch | ε | default | best | settings of the best | loss |\n|---|---|---|---|---|---|---|")
    for (name, batch, epsilon), lines in by_cell.items():
        others = {line: runs for line, runs in lines.items() if line != "default"}
        chosen = max(others, key=lambda line: _mean(others[line], range(CHOSEN_ON)))
        compared = set(lines["default"]) & set(others[chosen])
        compared = {run for run in compared if run >= CHOSEN_ON} or compared
        default, best = _mean(lines["default"], compared), _mean(others[chosen], compared)
        print(f"| {name} | {batch:,} | {epsilon:g} | {default:.3f} | {best:.3f} | {chosen} | {best - default:.3f} |")


def _mean(runs: dict[int, float], which: Collection[int]) -> float:
    return statistics.mean(accuracy for run, accuracy in runs.items() if run in which)


def _once(path: Path, cell: results.Cell, measure: Callable[[], float]) -> None:
    if cell not in _done(path):
        results.append(path, cell, accuracy=round(measure(), 5))
        _done(path).add(cell)


@lru_cache(maxsize=1)
def _done(path: Path) -> set[results.Cell]:
    """Return the cells that are measured, read from the file once: the whole grid has 10,000."""
    return results.done(path)


def _table(path: Path, part: str, names: list[str]) -> None:
    by_line: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in results.lines(path):
        if run["cell"][0] == part and run["cell"][1] in names:
            _, name, line, way, _ = run["cell"]
            by_line.setdefault((name, line), {}).setdefault(way, []).append(run["accuracy"])
    print("| stream | model | private scales | and whitened | public scales | raw |\n|---|---|---|---|---|---|")
    for (name, line), ways in by_line.items():
        shares = (
            f"{statistics.mean(ways[way]):.3f}" if way in ways else ""
            for way in ("private", "whitened", "public", "raw")
        )
        print(f"| {name} | {line} | {' | '.join(shares)} |", flush=True)


def main() -> None:
    """Print the tables, in Markdown."""
    parser = argparse.ArgumentParser(description="Private scales, and defaults.")
    parser.add_argument("--part", choices=("scales", "rates", "steps", "pulls", "regression"), required=True)
    parser.add_argument("--results", type=Path, default=Path("defaults.jsonl"))
    parser.add_argument("--streams", nargs="+", choices=STREAMS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=lambda given: given if given == "auto" else int(given), default="auto")
    parser.add_argument("--batches", nargs="+", type=int, default=[100, 1000, 10_000])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 0.5, 1.0, 10.0])
    options = parser.parse_args()
    if options.part == "regression":
        regression(options.results, options.runs)
    elif options.part == "steps":
        steps(options.results, options.streams or list(STREAMS), options.runs, options.batches, options.epsilons)
    elif options.part == "pulls":
        pulls(options.results, options.streams or list(STREAMS), options.runs, options.epsilons)
    elif options.part == "scales":
        scales(options.results, options.streams or list(RAW), options.runs)
    else:
        rates(
            options.results,
            options.streams or list(STREAMS),
            options.runs,
            options.batches,
            options.epsilons,
            options.steps,
        )


if __name__ == "__main__":
    main()
