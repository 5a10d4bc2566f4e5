"""Paper A's schedules with every learner: test accuracy of the latest release, as records come in.

    PERENNIAL_DATA_DIR=… python -m benchmarks.paper_a --streams mnist_small --epsilons 1 --results paper_a.jsonl
    python -m benchmarks.paper_a --results paper_a.jsonl --table --plots benchmarks/plots

Every run appends its line to the results, and is left out if the line is there. The whole run of a line, however long,
promises its ε (and δ) per record. Not private, and labelled so: the model without noise, and the paper's own printed
calibration, which computes its noise from the records and for an average (paper-audit.md D3) and adds it per
coordinate.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import digits, results
from benchmarks.replay import Features, Labels, load, publication, replay, titles
from service.learning.optimization.sums import Blocks
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.linear import LinearMechanism, predict
from service.privacy.accounting.events import AddedNoise
from service.streams import feature_maps

WHERE = "benchmarks/README.md says how to make it"
DELTA = 1e-6
ONLINE = "online_leader"  # not the paper's
TUNED, FROM_DIGITS = f"{ONLINE}, tuned", f"{ONLINE}, tuned, from public digits"  # tuned on the last 10,000 of 60,000
WITHOUT_NOISE, PRINTED = "without noise (NOT private)", "as printed in paper A (NOT private)"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Records to learn from, in order, records to test with, and B and b_0."""

    x: Features
    y: Labels
    test_x: Features
    test_y: Labels
    base: int
    update: int
    classes: int
    origin: Callable[[], NDArray[np.float64]] | None = None
    """From other digits, for the line that starts from there; it takes a while."""


def mnist(seed: int, hog: dict[str, int]) -> Stream:
    """Return MNIST in a seeded order, as histograms of oriented gradients of length 1."""
    data = load("mnist", WHERE)
    maps: list[dict[str, Any]] = [
        {"kind": "hog", "width": 28, "height": 28, **hog},
        {"kind": "normalize"},
        {"kind": "center"},
    ]
    mapped = feature_maps.build(
        {"maps": [{**settings, "version": 1} for settings in [*maps, {"kind": "normalize"}]]}, 784
    )
    x, y = mapped(data["X"].astype(np.float32) / 255), data["y"].astype(np.int64)
    order = np.random.default_rng(seed).permutation(60_000)
    return Stream(
        x=x[order],
        y=y[order],
        test_x=x[60_000:],
        test_y=y[60_000:],
        base=8192,
        update=1024,
        classes=10,
        origin=partial(digits.origin, mapped),
    )


def titled(name: str, features: int) -> Stream:
    """Return titles in their order; every fifth is for the test."""
    x, y = titles(name, WHERE, features)
    test = np.arange(len(y)) % 5 == 4
    return Stream(
        x=x[~test], y=y[~test], test_x=x[test], test_y=y[test], base=1024, update=256, classes=int(y.max()) + 1
    )


STREAMS: dict[str, Callable[[int], Stream]] = {
    "mnist": lambda seed: mnist(seed, {"orientations": 8, "cell": 4, "block": 3}),
    "mnist_online": lambda seed: mnist(seed, {"orientations": 7, "cell": 4, "block": 3}),
    "mnist_small": lambda seed: mnist(seed, {"orientations": 6, "cell": 7, "block": 2}),
    "linux_changelog": lambda _: titled("linux_changelog", 256),
    "cpython_news": lambda _: titled("cpython_news", 2048),
}
LEARNERS: dict[str, dict[str, Any]] = {
    "output_perturbation": {"regularization": 0.1},
    "objective_perturbation": {"regularization": 0.1},
    "noisy_gradient_descent": {},
}


def schedules(base: int, update: int) -> dict[str, dict[str, Any]]:
    """Return the schedules by name, with a release every b_0 = `update` records, except for Algorithm 2."""
    continual = {"kind": "continual", "base": base, "update_every": update}
    online = {"kind": ONLINE, "batch": update // 2, "averaging": True}
    tuned = online | {"decay": 0.99, "clip": 0.3, "learning_rate": 90.0}
    return {
        "multi_resolution": {"kind": "multi_resolution", "base": base},
        **{f"continual, {shares}": {**continual, "shares": shares} for shares in ("paper", "equal", "improving")},
        "sliding_window": {"kind": "sliding_window", "block": update, "blocks": 7},
        "each batch by itself": {"kind": "independent_batches", "batch": update},
        "each batch near the last": {"kind": "independent_batches", "batch": update, "warm_start": True},
        ONLINE: online,
        TUNED: tuned,
        FROM_DIGITS: tuned,
    }


@dataclass(frozen=True, kw_only=True)
class Printed(OutputPerturbation):
    """Paper A's experiments: Laplace noise per coordinate for (K-1)/(2mK)·‖X‖_F, of records. NOT private."""

    base: int
    update: int
    epsilon: float

    def release(self, records: Records | Blocks, n: int, center: NDArray[np.float64], perturbation: AddedNoise) -> Any:  # noqa: ARG002
        """Return the minimiser and the noise that the paper prints."""
        assert isinstance(records, Records)
        size = self.update if center.any() else self.base
        steepness = (self.classes - 1) / (2 * n * self.classes) * float(np.linalg.norm(records.x))
        scale = 4 * steepness / (self.regularization * size * self.epsilon)
        return self.fit(records, n, center) + np.random.default_rng().laplace(0, scale, self.shape)


def without_noise(scheduled: LinearMechanism, stream: Stream) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Return models of all records so far, without noise, at every half doubling."""
    learner = scheduled.learner
    assert isinstance(learner, OutputPerturbation)
    time = float(stream.base)
    while time <= len(stream.y):
        n = int(time)
        records = Records(x=stream.x[:n], y=stream.y[:n])
        yield n, learner.fit(records, n, np.zeros(learner.shape))
        time *= math.sqrt(2)


def run(stream: Stream, schedule: str, learner: str, epsilon: float, delta: float) -> list[tuple[int, float]]:
    """Return the test accuracy of every release, with its time."""
    schema = {"features": stream.x.shape[1], "task": {"kind": "classification", "classes": stream.classes}}
    own = "output_perturbation" if schedule in (WITHOUT_NOISE, PRINTED) else learner
    settings: dict[str, Any] = {"kind": own, "intercept": False, **LEARNERS[own]}
    settings["regularization"] = {WITHOUT_NOISE: 1e-4, PRINTED: 0.02}.get(schedule, settings.get("regularization", 0.0))
    if schedule == FROM_DIGITS:
        assert stream.origin is not None
        settings["origin"] = stream.origin().tolist()
    known = schedules(stream.base, stream.update)
    mechanism = known.get(schedule, known["continual, equal"])
    scheduled = publication(
        schema, {"mechanism": mechanism, "learner": settings, "privacy": {"epsilon": epsilon, "delta": delta}}
    )
    models: Iterator[tuple[int, NDArray[np.float64]]]
    if schedule == WITHOUT_NOISE:
        models = without_noise(scheduled, stream)
    else:
        if schedule == PRINTED:
            fields = vars(scheduled.learner)
            printed = Printed(**fields, base=stream.base, update=stream.update, epsilon=epsilon)
            scheduled = replace(scheduled, learner=printed)
        seen = replay(scheduled, stream.x, stream.y)
        models = ((used.start, used.parameters) for used in seen if used.start % stream.update == 0)
    description = scheduled.model_description()
    accuracies = []
    for time, parameters in models:
        labels, _ = predict(description, parameters, stream.test_x)
        accuracies.append((time, round(float(np.mean(labels == stream.test_y)), 4)))
    return accuracies


def cells(options: argparse.Namespace, stream: str) -> Iterator[tuple[str, str, float, float]]:
    """Yield (schedule, learner, ε, δ) of all requested lines; settings tuned on one stream only for that stream."""
    offered = [
        schedule for schedule in options.schedules if schedule not in (TUNED, FROM_DIGITS) or stream == "mnist_online"
    ]
    for epsilon in options.epsilons:
        for delta in options.deltas:
            for schedule in offered:
                for learner in options.learners:
                    descends = learner == "noisy_gradient_descent"
                    if (descends and delta) or not (descends or schedule.startswith(ONLINE)):
                        yield schedule, learner, epsilon, delta
        yield PRINTED, "", epsilon, 0.0
    yield WITHOUT_NOISE, "", 1.0, DELTA


def measure(options: argparse.Namespace) -> None:
    """Append what is missing to the results."""
    done = results.done(options.results)
    for seed in range(options.runs):
        for name in options.streams:
            stream = None
            for cell in cells(options, name):
                key = (name, seed, *cell)
                if key in done or (cell[0] == WITHOUT_NOISE and seed):
                    continue
                stream = stream or STREAMS[name](seed)
                accuracy = run(stream, *cell)
                results.append(options.results, key, accuracy=accuracy)
                print(*key, accuracy[-1], flush=True)


Curves = dict[tuple[str, str, str, float, float], list[list[tuple[int, float]]]]


def curves(path: Path) -> Curves:
    """Return all runs of each line: (stream, schedule, learner, ε, δ)."""
    by_cell: Curves = {}
    for run in results.lines(path):
        stream, _, *cell = run["cell"]
        by_cell.setdefault((stream, *cell), []).append([(int(time), value) for time, value in run["accuracy"]])
    return by_cell


def quartiles(runs: list[list[tuple[int, float]]], time: int) -> tuple[float, float, float] | None:
    """Return the quartiles of the latest releases at that time; None if there is none yet."""
    latest = [[value for at, value in curve if at <= time] for curve in runs]
    if not all(latest):
        return None
    low, middle, high = np.quantile([values[-1] for values in latest], [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def table(path: Path) -> None:
    """Print medians, with quartiles at the end, in Markdown."""
    all_runs = curves(path)
    for stream in sorted({key[0] for key in all_runs}):
        mine = {key: runs for key, runs in all_runs.items() if key[0] == stream}
        end = max(at for runs in mine.values() for curve in runs for at, _ in curve)
        start = min(at for runs in mine.values() for curve in runs for at, _ in curve)
        times = [8192, 20_000, end] if stream.startswith("mnist") else [start * 2, start * 4, end]
        if stream == "mnist_online":
            times = [1024, 2048, 4096, 8192, 16_384, 20_000, end]
        print(
            f"\n| {stream}: ε, δ | schedule | learner | runs |"
            + "".join(f" {time:,} |" for time in times)
            + " quartiles |"
        )
        print("|" + "---|" * (5 + len(times)))
        for (_, schedule, learner, epsilon, delta), runs in sorted(
            mine.items(), key=lambda item: item[0][3:] + item[0][1:3]
        ):
            cells = [quartiles(runs, time) for time in times]
            shown = "".join(f" {cell[1]:.3f} |" if cell else " – |" for cell in cells)
            last = f" {cells[-1][0]:.3f}–{cells[-1][2]:.3f} |" if cells[-1] else " – |"
            print(f"| {epsilon:g}, {delta:g} | {schedule} | {learner} | {len(runs)} |{shown}{last}")


def plots(path: Path, folder: Path) -> None:
    """Save an SVG per stream, ε and δ: medians as lines, quartiles shaded."""
    from matplotlib.figure import Figure

    all_runs = curves(path)
    colours = {name: f"C{number}" for number, name in enumerate([*schedules(2, 1), PRINTED, WITHOUT_NOISE])}
    styles = {"noisy_gradient_descent": "-", "output_perturbation": "--", "objective_perturbation": ":", "": "-."}
    for stream, epsilon, delta in sorted({(key[0], *key[3:]) for key in all_runs if key[2]}):
        figure = Figure(figsize=(11, 5.5), layout="constrained")
        axes = figure.subplots()
        for key, runs in sorted(all_runs.items(), key=lambda item: (item[0][2], item[0])):
            _, schedule, learner, *privacy = key
            always = schedule == WITHOUT_NOISE or (schedule == PRINTED and privacy[0] == epsilon)
            if key[0] != stream or not (always or privacy == [epsilon, delta]):
                continue
            times = sorted({at for curve in runs for at, _ in curve})
            points = [(time, found_at) for time in times if (found_at := quartiles(runs, time))]
            at, (low, middle, high) = (
                [time for time, _ in points],
                zip(*(quantiles for _, quantiles in points), strict=True),
            )
            label = f"{schedule}; {learner}" if learner else schedule
            axes.plot(at, middle, styles[learner], color=colours[schedule], label=label, lw=1.4)
            axes.fill_between(at, low, high, color=colours[schedule], alpha=0.15, lw=0)
        axes.set(xlabel="records", ylabel="test accuracy of the latest release")
        axes.set_title(f"{stream}, ε = {epsilon:g}, δ = {delta:g}: median and quartiles")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        figure.legend(fontsize=8, loc="outside right center")
        name = f"{stream}-{epsilon:g}-{'gaussian' if delta else 'pure'}.svg"
        results.save(figure, folder / name, "paper_a")


def main() -> None:
    """Run what is missing, or show what is there."""
    names = list(schedules(2, 1))
    parser = argparse.ArgumentParser(description="Paper A's schedules with every learner.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--schedules", nargs="+", choices=names, default=names)
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 0.5, 1.0])
    parser.add_argument("--deltas", nargs="+", type=float, default=[0.0, DELTA])
    parser.add_argument("--runs", type=int, default=4)
    results.run_or_show(results.options(parser, "paper_a"), measure, table, plots)


if __name__ == "__main__":
    main()
