"""Paper D's tasks, one after another: accuracy and forgetting of `lifelong`, and of what the paper compares with.

    PERENNIAL_DATA_DIR=… python -m benchmarks.paper_d --streams split_mnist --results paper_d.jsonl
    python -m benchmarks.paper_d --results paper_d.jsonl --table --plots benchmarks/plots

Every run appends its line to the results, and is left out if the line is there. The whole run of a line of Perennial's
promises its (ε, δ) to every record, however many tasks there are. Not private, and labelled so: A-GEM, and ours with
hardly any noise. Settings were chosen with `--held-out`, on a part of the training records.
"""

import argparse
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.episodic import Episodic, NaiveGaussian, Network
from benchmarks.forgetting import average_accuracy, average_forgetting, p_value
from benchmarks.replay import Features, Labels, load, publication
from service.explorer.comparison import releases
from service.learning.records import Records
from service.mechanisms.lifelong.mechanism import Lifelong
from service.mechanisms.lifelong.task_statistics import TaskStatistics
from service.mechanisms.linear import predict
from service.mechanisms.mechanism import CarriedState
from service.streams import feature_maps

Floats = NDArray[np.float64]

WHERE = "benchmarks/README.md says how to make it"
DELTA = 1e-6
HUGE = 1000.0  # ε of `without noise`
EPSILONS = (0.2, 0.5, 1.0, 2.0)
JOINT, STEPS = "lifelong", "lifelong, training agem"
HEADS, APART = "lifelong, heads per_task", "lifelong, heads per_task, near origin"
LEARNT, BEGUN = "lifelong, encoder", "lifelong, encoder as it begins"
WITHOUT_NOISE, AGEM, NAIVE = "lifelong without noise (NOT private)", "A-GEM (NOT private)", "NaiveGaussian"
OURS: dict[str, dict[str, Any]] = {
    JOINT: {},
    STEPS: {"training": "agem"},
    HEADS: {"heads": "per_task", "memory": 20},
    APART: {"heads": "per_task", "memory": 20, "near": "origin"},
    WITHOUT_NOISE: {},
}
MINE = (*OURS, LEARNT, BEGUN)
THEIRS, THEIR_NAIVE, THEIR_AGEM = "printed: L2DP-ML (NOT private)", "printed: NaiveGaussian", "printed: A-GEM"
PRINTED: dict[str, dict[tuple[str, float], tuple[str, str]]] = {  # (line, ε): its accuracy and forgetting at the end
    "permuted_mnist": {
        (THEIRS, 0.5): ("0.477", "0.305"),
        (THEIRS, 1.0): ("–", "0.278"),
        (THEIRS, 2.0): ("–", "0.237"),
        (THEIR_NAIVE, 0.5): ("0.104", "0.012"),
        (THEIR_NAIVE, 1.0): ("–", "0.015"),
        (THEIR_NAIVE, 2.0): ("–", "0.017"),
        (THEIR_AGEM, 0.0): ("0.710", "0.162"),  # 0.233 more than L2DP-ML with 0.5
    },
    "split_mnist": {
        (THEIRS, 0.5): ("0.735", "0.056"),
        (THEIRS, 1.0): ("0.818", "0.019"),
        (THEIR_AGEM, 0.0): ("0.797", "0.195"),
    },
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Records to learn from, in order, and records to test with; x is made when it is asked for."""

    x: Callable[[], Features]
    y: Labels
    test_x: Callable[[], Features]
    test_y: Labels


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Tasks, the map of their records for a linear model, and the rates at which the networks learn."""

    classes: int
    maps: Sequence[dict[str, Any]]
    tasks: Sequence[Task]
    hidden: int
    rate: float
    naive_rate: float
    naive_steps: int
    heads: bool = False
    encoder: dict[str, Any] | None = None


NORMALIZE: dict[str, Any] = {"kind": "normalize"}
CENTER: dict[str, Any] = {"kind": "center"}
BEFORE_AN_ENCODER = (NORMALIZE, CENTER, NORMALIZE)


def fourier(features: int, width: float) -> dict[str, Any]:
    return {"kind": "random_fourier", "features": features, "width": width, "seed": 1}


@cache
def digits(held_out: bool) -> tuple[Features, Labels, Features, Labels]:
    """Return MNIST for training and test; held_out: the last 10,000 training digits are the test."""
    data = load("mnist", WHERE)
    x, y = data["X"].astype(np.float32) / np.float32(255), data["y"].astype(np.int64)
    train, test = (slice(50_000), slice(50_000, 60_000)) if held_out else (slice(60_000), slice(60_000, None))
    return x[train], y[train], x[test], y[test]


def permuted_mnist(held_out: bool) -> Stream:
    """Return 20 tasks of all digits, pixels permuted by a public order per task; every fourth test digit."""
    x, y, test_x, test_y = digits(held_out)

    def permuted(task: int) -> Task:
        order = np.random.default_rng((0, task)).permutation(784)
        return Task(
            x=partial(np.take, x, order, axis=1),
            y=y,
            test_x=partial(np.take, test_x[::4], order, axis=1),
            test_y=test_y[::4],
        )

    return Stream(
        classes=10,
        maps=(NORMALIZE, CENTER, NORMALIZE, fourier(1024, 1.0), NORMALIZE),
        tasks=[permuted(task) for task in range(20)],
        hidden=128,
        rate=0.3,
        naive_rate=0.1,
        naive_steps=10,
        heads=True,
        encoder={"kind": "dense", "layers": [256], "records": 10_000},
    )


def split_mnist(held_out: bool) -> Stream:
    """Return 5 tasks of two digits each, 0 and 1 first; predictions choose among all ten."""

    x, y, test_x, test_y = digits(held_out)

    def two(task: int) -> Task:
        train, test = y // 2 == task, test_y // 2 == task
        return _some(x[train], y[train], test_x[test], test_y[test])

    hog = {"kind": "hog", "width": 28, "height": 28, "orientations": 6, "cell": 4, "block": 1}
    return Stream(
        classes=10,
        maps=(hog, NORMALIZE, CENTER, NORMALIZE),
        tasks=[two(task) for task in range(5)],
        hidden=256,
        rate=0.003,
        naive_rate=0.01,
        naive_steps=50,
        encoder={"kind": "convolutional", "width": 28, "height": 28, "channels": [8, 16], "records": 6_000},
    )


def activity(held_out: bool) -> Stream:
    """Return 5 tasks of 12 kinds of movement by six people each, one of whom is the test."""
    data = load("hapt_windows", WHERE)
    x, y, person = data["X"].astype(np.float32), data["y"].astype(np.int64), data["subject"]

    def people(group: NDArray[np.int8]) -> Task:
        *learnt, last, tested = group
        train = np.isin(person, learnt if held_out else [*learnt, last])
        test = person == (last if held_out else tested)
        return _some(x[train], y[train], x[test], y[test])

    return Stream(
        classes=12,
        maps=(NORMALIZE, fourier(256, 0.5), NORMALIZE),
        tasks=[people(group) for group in np.array_split(np.unique(person), 5)],
        hidden=64,
        rate=0.1,
        naive_rate=0.1,
        naive_steps=10,
    )


def _some(x: Features, y: Labels, test_x: Features, test_y: Labels) -> Task:
    return Task(x=lambda: x, y=y, test_x=lambda: test_x, test_y=test_y)


STREAMS: dict[str, Callable[[bool], Stream]] = {
    "permuted_mnist": permuted_mnist,
    "split_mnist": split_mnist,
    "activity": activity,
}


@dataclass(eq=False)
class Once:
    """Everything that all lines of a stream read: statistics of tasks without noise, and mapped test records."""

    stream: Stream
    folder: Path | None = None
    """where statistics are kept for another process"""
    tests: dict[int, tuple[Features, Labels]] = field(default_factory=dict)
    totals: dict[tuple[int, bool], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        maps = [{"version": 1, **settings} for settings in self.stream.maps]
        width = self.stream.tasks[0].test_x().shape[1]
        self.mapped = feature_maps.build({"kind": "compose", "maps": maps}, width)
        self.sizes = [len(task.y) for task in self.stream.tasks]

    def statistics(self, learner: TaskStatistics, task: int) -> Floats:
        """Return the statistics of a task, without noise."""
        key = task, learner.intercept
        file = self.folder and self.folder / f"{task}-{learner.intercept}.npy"
        if key not in self.totals and file and file.exists():
            self.totals[key] = np.load(file)
        if key not in self.totals:
            own = self.stream.tasks[task]
            self.totals[key] = learner.statistics(Records(x=self.mapped(own.x()), y=own.y), len(own.y))
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                np.save(file, self.totals[key])
        return self.totals[key]

    def test(self, task: int) -> tuple[Features, Labels]:
        """Return the mapped test records and their labels."""
        if task not in self.tests:
            own = self.stream.tasks[task]
            self.tests[task] = self.mapped(own.test_x()), own.test_y
        return self.tests[task]


@dataclass(frozen=True, kw_only=True)
class Counted(TaskStatistics):
    """Takes the statistics of a task, whose number is all that is in its records, from `once`."""

    once: Once = field(compare=False)
    plain: TaskStatistics = field(compare=False)

    def statistics(self, records: Records, n: int) -> Floats:  # noqa: ARG002
        return self.once.statistics(self.plain, int(records.x[0, 0]))


def lifelong(once: Once, line: str, epsilon: float) -> Floats:
    """Return the accuracies a[l, t] of a line of ours."""
    features, classes = once.mapped.features, once.stream.classes
    mechanism = publication(
        {"features": features, "task": {"kind": "classification", "classes": classes}},
        {
            "mechanism": {"kind": "lifelong", "task_size": once.sizes, **OURS[line]},
            "learner": {"kind": "output_perturbation", "intercept": line in (HEADS, APART)},
            "privacy": {"epsilon": HUGE if line == WITHOUT_NOISE else epsilon, "delta": DELTA},
        },
    )
    assert isinstance(mechanism, Lifelong)
    counted = Counted(**vars(mechanism.learner), once=once, plain=mechanism.learner)
    mechanism, description = replace(mechanism, learner=counted), mechanism.model_description()
    starts = [sum(once.sizes[:task]) for task in range(len(once.sizes))]

    def number(start: int, _end: int) -> Records:
        return Records(x=np.full((1, features), starts.index(start), np.float32), y=np.zeros(1, np.int64))

    models = [release.parameters for release, _ in releases(mechanism, number, sum(once.sizes))]
    tests = [once.test(task) for task in range(len(once.sizes))]
    return np.array([[np.mean(predict(description, model, x)[0] == y) for x, y in tests] for model in models])


def with_encoder(stream: Stream, line: str, epsilon: float) -> Floats:
    """Return the accuracies a[l, t] with an encoder learnt from the first task's first records, or from hardly any.

    They are in no statistics.
    """
    encoder_settings = (stream.encoder or {}) | ({"records": 1, "learning_rate": 1e-6} if line == BEGUN else {})
    sizes = [len(task.y) for task in stream.tasks]
    before, sizes[0] = encoder_settings["records"], sizes[0] - encoder_settings["records"]
    mechanism = publication(
        {
            "features": stream.tasks[0].test_x().shape[1],
            "task": {"kind": "classification", "classes": stream.classes},
            "feature_map": {"kind": "compose", "maps": BEFORE_AN_ENCODER},
        },
        {
            "mechanism": {"kind": "lifelong", "task_size": sizes, "encoder": encoder_settings},
            "learner": {"kind": "output_perturbation", "intercept": False},
            "privacy": {"epsilon": epsilon, "delta": DELTA},
        },
    )
    times = list(accumulate(sizes, initial=before))

    def read(start: int, end: int) -> Records:
        task = max(0, bisect_right(times, start) - 1)
        own, first = stream.tasks[task], times[task] if task else 0
        piece = slice(start - first, end - first)
        return Records(x=mechanism.feature_map(own.x()[piece]), y=own.y[piece])

    chain, learnt = tuple[CarriedState, ...](), list[Floats]()
    for version, due in enumerate(times, 1):
        step = mechanism.step(due, chain, version, read)
        chain = step.chain
        learnt += [release.parameters for release in step.releases]
    encoder, *models = learnt
    assert isinstance(mechanism, Lifelong)
    assert mechanism.encoder is not None
    encode = partial(mechanism.encoder.encoder, encoder)
    tests = [(encode(mechanism.feature_map(task.test_x())), task.test_y) for task in stream.tasks]
    return np.array([[np.mean(mechanism.learner.predict(model, x)[0] == y) for x, y in tests] for model in models])


def network(stream: Stream, line: str, epsilon: float) -> Floats:
    """Return the accuracies a[l, t] of the paper's baselines."""
    random, width = np.random.default_rng(), stream.tasks[0].test_x().shape[1]
    fresh = Network.fresh(width, stream.hidden, stream.classes, random)
    learner = (
        Episodic(rate=stream.rate)
        if line == AGEM
        else NaiveGaussian(
            epsilon=epsilon,
            delta=DELTA,
            tasks=len(stream.tasks),
            steps=stream.naive_steps,
            rate=stream.naive_rate,
        )
    )
    tests = [(task.test_x(), task.test_y) for task in stream.tasks]
    learnt = learner.learn(fresh, ((task.x(), task.y) for task in stream.tasks), random)
    return np.array([[np.mean(model.predict(x) == y) for x, y in tests] for model in learnt])


def cells(stream: Stream, options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """Yield (line, ε) of all requested lines."""
    for line in options.lines:
        if (line in (HEADS, APART) and not stream.heads) or (line in (LEARNT, BEGUN) and not stream.encoder):
            continue
        yield from ((line, epsilon) for epsilon in ((0.0,) if line in (AGEM, WITHOUT_NOISE) else options.epsilons))


def measure(options: argparse.Namespace) -> None:
    """Append what is missing to the results."""
    done = results.done(options.results)
    for name in options.streams:
        stream, once = STREAMS[name](options.held_out), None
        for run in range(options.runs):
            for line, epsilon in cells(stream, options):
                key = (name, run, line, epsilon)
                if key in done or (line == WITHOUT_NOISE and run):
                    continue
                if line in (LEARNT, BEGUN):
                    accuracies = with_encoder(stream, line, epsilon)
                elif line in OURS:
                    once = once or Once(stream, options.cache and options.cache / name)
                    accuracies = lifelong(once, line, epsilon)
                else:
                    accuracies = network(stream, line, epsilon)
                results.append(options.results, key, accuracy=accuracies.round(4).tolist())
                print(
                    *key,
                    average_accuracy(accuracies)[-1].round(4),
                    average_forgetting(accuracies)[-1].round(4),
                    flush=True,
                )


Runs = dict[tuple[str, str, float], list[Floats]]


def by_line(path: Path) -> Runs:
    """Return the accuracies a of all runs of each line: (stream, line, ε)."""
    runs: Runs = {}
    for run in results.lines(path):
        stream, _, line, epsilon = run["cell"]
        runs.setdefault((stream, line, epsilon), []).append(np.array(run["accuracy"]))
    return runs


def table(path: Path) -> None:
    """Print both measures after all tasks beside the paper's, then accuracy after every task, in Markdown."""
    runs = by_line(path)
    for stream in dict.fromkeys(key[0] for key in runs):
        mine = {key[1:]: value for key, value in runs.items() if key[0] == stream}
        print(f"\n| {stream} | ε | runs | accuracy | quartiles | forgetting | quartiles | p, beside NaiveGaussian |")
        print("|---|---|---|---|---|---|---|---|")
        rows = {**dict.fromkeys(PRINTED.get(stream, ())), **mine}
        for line, epsilon in sorted(rows, key=lambda key: (key[1] or np.inf, key[0] not in MINE, key[0])):
            shown = f"| {line} | {epsilon or '–'} | "
            if (line, epsilon) not in mine:
                print(shown + "– | {} | – | {} | – | – |".format(*PRINTED[stream][line, epsilon]))
                continue
            each = mine[line, epsilon]
            ends = [[of(a)[-1] for a in each] for of in (average_accuracy, average_forgetting)]
            beside = mine.get((NAIVE, epsilon), ()) if line in MINE else ()
            p = f"{p_value(middle(each), middle(beside)):.0e}" if beside else "–"
            print(f"{shown}{len(each)} | {_quartiles(ends[0])} | {_quartiles(ends[1])} | {p} |")
        tasks = len(next(iter(mine.values()))[0])
        print(f"\n| {stream}: accuracy | ε |" + "".join(f" {task + 1} |" for task in range(tasks)))
        print("|" + "---|" * (2 + tasks))
        for (line, epsilon), tables in mine.items():
            print(f"| {line} | {epsilon or '–'} |" + "".join(f" {value:.3f} |" for value in middle(tables)))
        print(f"\n| {stream}: forgetting | ε |" + "".join(f" {task + 1} |" for task in range(1, tasks)))
        print("|" + "---|" * (1 + tasks))
        for (line, epsilon), curves in mine.items():
            curve = np.median([average_forgetting(a) for a in curves], axis=0)
            print(f"| {line} | {epsilon or '–'} |" + "".join(f" {value:.3f} |" for value in curve))


def middle(runs: Sequence[Floats]) -> Floats:
    """Return the median curve of accuracy."""
    return np.asarray(np.median([average_accuracy(a) for a in runs], axis=0))


def _quartiles(values: Sequence[float]) -> str:
    low, half, high = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{half:.3f} | {low:.3f}–{high:.3f}"


SHOWN = {JOINT: "C0-", STEPS: "C1-", HEADS: "C2-", APART: "C4-", NAIVE: "C3-", AGEM: "k--", WITHOUT_NOISE: "k:"}
MEASURES = {"average accuracy": average_accuracy, "average forgetting": average_forgetting}


def plots(path: Path, folder: Path) -> None:
    """Save an SVG per stream: accuracy and forgetting after every task, a panel for every ε; quartiles shaded."""
    from matplotlib.figure import Figure

    runs = by_line(path)
    for stream in dict.fromkeys(key[0] for key in runs):
        tasks = max(len(tables[0]) for key, tables in runs.items() if key[0] == stream)
        figure = Figure(figsize=(13, 6), layout="constrained")
        panels = figure.subplots(len(MEASURES), len(EPSILONS), sharex=True, sharey="row", squeeze=False)
        for row, (measure, of) in zip(panels, MEASURES.items(), strict=True):
            row[0].set_ylabel(measure)
            for axes, epsilon in zip(row, EPSILONS, strict=True):
                for line, style in SHOWN.items():
                    each = runs.get((stream, line, 0.0 if line in (AGEM, WITHOUT_NOISE) else epsilon))
                    if each is not None:
                        _curve(axes, [of(a) for a in each], len(each[0]), style, line)
                printed = PRINTED.get(stream, {}).get((THEIRS, epsilon), ("–", "–"))[list(MEASURES).index(measure)]
                if printed != "–":
                    axes.plot([tasks], [float(printed)], "rx", label=THEIRS)
                axes.grid(alpha=0.2)
        for axes, epsilon in zip(panels[0], EPSILONS, strict=True):
            axes.set_title(f"ε = {epsilon:g}")
        for axes in panels[-1]:
            axes.set_xlabel("tasks")
        handles: dict[str, Any] = {}
        for axes in panels.ravel():
            handles.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=8)
        figure.suptitle(f"{stream}, δ = {DELTA:g}")
        results.save(figure, folder / f"paper_d-{stream}.svg", "paper_d")


def _curve(axes: Any, runs: Sequence[Floats], tasks: int, style: str, label: str) -> None:
    """Draw the runs' quartiles. A curve of forgetting starts with the second task."""
    low, half, high = np.quantile(runs, (0.25, 0.5, 0.75), axis=0)
    at = np.arange(tasks - len(half), tasks) + 1
    axes.plot(at, half, style, lw=1.4, label=label)
    axes.fill_between(at, low, high, color=style.rstrip("-:"), alpha=0.15, lw=0)


def main() -> None:
    """Run what is missing, or show what is there."""
    lines = [*MINE, AGEM, NAIVE]
    parser = argparse.ArgumentParser(description="Paper D's tasks, one after another.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--lines", nargs="+", choices=lines, default=lines)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--held-out", action="store_true", help="test on training records, which then are left out")
    parser.add_argument("--cache", type=Path, help="a folder for statistics without noise, to go on from")
    results.run_or_show(results.options(parser, "paper_d"), measure, table, plots)


if __name__ == "__main__":
    main()
