"""Paper C: adaptive linear queries on a growing stream, and a static learner run again and again.

    PERENNIAL_DATA_DIR=… python -m benchmarks.paper_c --results paper_c.jsonl
    python -m benchmarks.paper_c --results paper_c.jsonl --table --plots benchmarks/plots

Every run appends its line to the results, and is left out if the line is there. A line's promise, (1, 10⁻⁶) or ε = 1,
is for each record's whole life, whatever comes after the last size that is shown.

Queries: `paper_c_queries`. Learners: `improving_black_box` and `scheduled_black_box` beside `continual`, at the same
total.
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import drift, paper_a, results
from benchmarks.paper_c_queries import (
    BLIND,
    CATEGORIES,
    DELTA,
    EPSILON,
    FEW,
    LINEAR,
    SINGLE,
    SIZES,
    SMALL,
    STATIC,
    answering,
    theory,
    worst,
)
from benchmarks.replay import hits, publication, replay
from service.mechanisms.linear import predict

# Learners


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """A stream of `paper_a`'s kind: a first model over `first` records and others every `every`."""

    first: int
    every: int
    marks: tuple[int, ...]


LEARNT = {
    "noaa_weather": Learnt(first=1089, every=1089, marks=(1089, 4356, 17424)),
    "mnist_small": Learnt(first=8192, every=8192, marks=(8192, 16384, 32768)),
}
LEARNERS = {"output_perturbation": {"regularization": 0.1}, "noisy_gradient_descent": {}}


def schedules(stream: Learnt) -> dict[str, dict[str, Any]]:
    """Return the schedules by name; all have a release at `first`, and later ones."""
    improving = {"kind": "improving_black_box", "first": stream.first, "every": stream.every}
    continual = {"kind": "continual", "base": stream.first, "update_every": stream.every}
    return {
        "continual, equal": continual,
        "continual, improving": continual | {"shares": "improving"},
        **{f"improving_black_box, c = {c}": improving | {"exponent": c} for c in (0.1, 0.25)},
        "improving_black_box, c = 0.25, near the last": improving | {"exponent": 0.25, "warm_start": True},
        "scheduled_black_box, γ = 1": {"kind": "scheduled_black_box", "first": stream.first, "growth": 1},
    }


def learnt(name: str, seed: int, schedule: str, learner: str) -> list[tuple[int, float]]:
    """Return the accuracy by records: of the latest release on test digits, or prequential for the weather."""
    sizes = LEARNT[name]
    settings = {"kind": learner, "intercept": False, **LEARNERS[learner]}
    configuration = {
        "mechanism": schedules(sizes)[schedule],
        "learner": settings,
        "privacy": {"epsilon": EPSILON, "delta": DELTA},
    }
    if name == "noaa_weather":
        x, y, _ = drift.noaa()
        schema = {
            "features": x.shape[1],
            "task": {"kind": "classification", "classes": 2},
            "norm_bound": float(np.sqrt(x.shape[1]).round(1)),
        }
        configuration["learner"] = settings | {"intercept": True}
        scheduled = publication(schema, configuration)
        right = hits(scheduled, replay(scheduled, x, y), x, y)
        return [(mark, round(float(np.nanmean(right[mark : 2 * mark])), 4)) for mark in sizes.marks[:-1]] + [
            (sizes.marks[-1], round(float(np.nanmean(right)), 4))
        ]
    stream = paper_a.STREAMS[name](seed)
    schema = {"features": stream.x.shape[1], "task": {"kind": "classification", "classes": stream.classes}}
    scheduled = publication(schema, configuration)
    end = sizes.marks[-1]
    models = {used.start: used.parameters for used in replay(scheduled, stream.x[:end], stream.y[:end])}
    accuracies = []
    for mark in sizes.marks:
        parameters = models[max(time for time in models if time <= mark)]
        labels, _ = predict(scheduled.model_description(), parameters, stream.test_x)
        accuracies.append((mark, round(float(np.mean(labels == stream.test_y)), 4)))
    return accuracies


# All lines


def cells(part: str) -> Iterator[tuple[str, str, str, float]]:
    """Yield (part, stream, line, δ) of all lines."""
    if part == "queries":
        for stream, (cardinality, _) in CATEGORIES.items():
            for delta in (DELTA, 0.0):
                for name in (LINEAR, STATIC, SINGLE, SMALL, BLIND):
                    if name != SMALL or cardinality <= FEW:
                        yield part, stream, name, delta
    else:
        for stream, sizes in LEARNT.items():
            for learner in LEARNERS:
                for schedule in schedules(sizes):
                    yield part, stream, f"{schedule} | {learner}", DELTA


def measure(options: argparse.Namespace) -> None:
    """Append what is missing to the results."""
    done = results.done(options.results)
    for repeat in range(options.runs):
        for part in options.parts:
            for cell in cells(part):
                key = (*cell, repeat)
                if key in done:
                    continue
                _, stream, name, delta = cell
                if part == "queries":
                    cardinality, make = CATEGORIES[stream]
                    y = make(repeat)
                    curve = worst(answering(name, y, cardinality, delta), y, cardinality, repeat)
                else:
                    schedule, _, learner = name.partition(" | ")
                    curve = learnt(stream, repeat, schedule, learner)
                results.append(options.results, key, found=curve)
                print(*key, curve[-1], flush=True)


def medians(path: Path) -> dict[tuple[str, str, str, float], tuple[int, dict[int, float]]]:
    """Return by (part, stream, line, δ) how many runs there are, and the median at each size."""
    runs: dict[tuple[str, str, str, float], list[dict[int, float]]] = {}
    for run in results.lines(path):
        part, stream, name, delta, _ = run["cell"]
        runs.setdefault((part, stream, name, delta), []).append(dict(run["found"]))
    return {key: (len(of), {at: statistics.median(one[at] for one in of) for at in of[0]}) for key, of in runs.items()}


def table(path: Path) -> None:
    """Print the medians, in Markdown."""
    all_medians = medians(path)
    for stream, (cardinality, _) in CATEGORIES.items():
        print(f"\n| {stream} | δ | runs |" + "".join(f" {size:,} |" for size in SIZES))
        print("|---|---|---|" + "---|" * len(SIZES))
        for (part, of, name, delta), (runs, curve) in all_medians.items():
            if (part, of) == ("queries", stream):
                print(f"| {name} | {delta:g} | {runs} |" + "".join(f" {curve[size]:.3f} |" for size in SIZES))
                if proved := dict(theory(name, cardinality, delta)):
                    print(f"| … proved | {delta:g} | |" + "".join(f" {proved[size]:.3f} |" for size in SIZES))
    for stream, sizes in LEARNT.items():
        print(f"\n| {stream} | runs |" + "".join(f" {mark:,} |" for mark in sizes.marks))
        print("|---|---|" + "---|" * len(sizes.marks))
        for (part, of, name, _), (runs, curve) in all_medians.items():
            if (part, of) == ("learners", stream):
                print(
                    f"| {name.replace(' | ', ', ')} | {runs} |" + "".join(f" {curve[at]:.3f} |" for at in sizes.marks)
                )


def plots(path: Path, folder: Path) -> None:
    """Save an SVG: a panel per stream of categories, (1, 10⁻⁶) above, ε = 1 below; proven bounds are dotted."""
    from matplotlib.figure import Figure

    all_medians = medians(path)
    figure = Figure(figsize=(13, 7), layout="constrained")
    panels = figure.subplots(2, len(CATEGORIES), sharex=True, sharey=True)
    for above, delta in zip(panels, (DELTA, 0.0), strict=True):
        for axes, (stream, (cardinality, _)) in zip(above, CATEGORIES.items(), strict=True):
            for number, name in enumerate((LINEAR, STATIC, SINGLE, SMALL, BLIND)):
                _, curve = all_medians.get(("queries", stream, name, delta), (0, {}))
                axes.plot(list(curve), list(curve.values()), f"C{number}-", lw=1.4, label=name)
                if proved := theory(name, cardinality, delta):
                    axes.plot(*zip(*proved, strict=True), f"C{number}:", lw=1.0)
            axes.set(title=f"{stream}, δ = {delta:g}", xscale="log", yscale="log")
            axes.grid(alpha=0.2)
    for axes in panels[-1]:
        axes.set_xlabel("records")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9)
    figure.supylabel("worst error of an epoch's questions; dotted: proved")
    results.save(figure, folder / "paper_c-queries.svg", "paper_c")


def main() -> None:
    """Run what is missing, or show what is there."""
    parser = argparse.ArgumentParser(description="Paper C: adaptive queries, and static learners run again and again.")
    parser.add_argument("--parts", nargs="+", choices=("queries", "learners"), default=["queries", "learners"])
    parser.add_argument("--runs", type=int, default=3)
    results.run_or_show(results.options(parser, "paper_c"), measure, table, plots)


if __name__ == "__main__":
    main()
