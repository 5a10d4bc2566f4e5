"""Paper B's learners: regret against the best fixed point as a stream goes on, and what their steps take.

    PERENNIAL_DATA_DIR=… python -m benchmarks.paper_b --streams noaa_weather --results paper_b.jsonl
    python -m benchmarks.paper_b --results paper_b.jsonl --table --plots benchmarks/plots
    python -m benchmarks.paper_b --times --plots benchmarks/plots

Every run appends its line to the results, and is left out if the line is there. The losses are those that paper B is
about, each record's plus (μ/2)·‖w - c‖², the set an l1 ball around c; one step is one batch, and a batch loses by the
model that was released before it. Gradients are clipped at the loss's Lipschitz constant, that is not at all, but for
the learning rate by default, which has its default clip; the other learning rate was found in hindsight. The streams
are public, and regret is not private (`optimization.regret`). Not private either, and labelled so: the same
without noise.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import drift, results
from benchmarks.replay import Features, Labels, load, publication, replay
from service.learning.optimization.constraint_sets import ConstraintSet, Name
from service.learning.optimization.regret import Hindsight
from service.learning.records import Records
from service.mechanisms.online_leader.conditional_gradient import Pursuit
from service.mechanisms.online_leader.mechanism import OnlineLeader
from service.mechanisms.online_leader.online_gradient import OnlineGradient, State
from service.privacy.accounting.events import NoisyRunningSums

Floats = NDArray[np.float64]

EPSILON, DELTA = 1.0, 1e-6
HUGE = 1000.0  # ε of `without noise`, with 180 times less noise
CONVEXITY = 0.1  # μ
FIRST = 16  # steps after which regret is first looked at, then at every doubling
OCTAVES = 4  # the last ones, over which growth is fitted

WITHOUT_NOISE, ORIGIN = "without noise (NOT private)", "stays at the origin"
NOISES: dict[str, dict[str, Any]] = {
    "blt, γ = 1": {"noise": "blt", "decay": 1.0},
    "toeplitz, γ = 0.99": {"noise": "toeplitz", "decay": 0.99},
    "tree": {"noise": "tree"},
    **{f"window_tree, W = {window}": {"noise": "window_tree", "window": window} for window in (16, 256)},
    **{
        f"window_tree, W = {window}, expiry {expiry}": {
            "noise": "window_tree",
            "window": window,
            "expiry": expiry,
            "acknowledge_declassification": True,
        }
        for window, expiry in ((16, "block"), (256, "block"), (16, "leaf"))
    },
}
PURE = ("tree", "window_tree, W = 16", "window_tree, W = 16, expiry block")  # noises that are possible without a δ
LEADER = {"strong_convexity": CONVEXITY, "averaging": False}
PROJECTION, HEAD_START, CONDITIONAL = "projection", "projection, head start", "conditional gradient"
BY_DEFAULT = "learning rate by default"
STEPS: dict[str, dict[str, Any]] = {
    PROJECTION: LEADER,
    HEAD_START: LEADER,
    CONDITIONAL: {**LEADER, "step": "conditional_gradient"},
    BY_DEFAULT: {},
    "learning rate 0.01": {"learning_rate": 0.01},
}
RATES: dict[str, Callable[[float], float]] = {
    "ln T": math.log,
    "ln^2.5 T": lambda steps: math.log(steps) ** 2.5,
    "√T": math.sqrt,
    "T": float,
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Records in order, the bound of their norm, records of a step, and the radius of the l1 ball."""

    x: Features
    y: Labels
    norm_bound: float
    batch: int
    radius: float


def two_classes(name: str, batch: int) -> Stream:
    """Return a stream of `drift`, so and so many records a step."""
    x, y, _ = drift.STREAMS[name]()
    return Stream(x=x, y=y, norm_bound=float(np.sqrt(x.shape[1]).round(1)), batch=batch, radius=2.0)


def covtype() -> Stream:
    """Return the 7 kinds of trees in a forest: every fourth record; public constants put the columns in [-1, 1]."""
    data = load("covtype", drift.WHERE)
    middle = np.array([2860, 180, 33, 700, 0, 3560, 127, 127, 127, 3590])
    spread = np.array([1000, 180, 33, 700, 600, 3560, 127, 127, 127, 3590])
    x = data["X"][::4].astype(np.float32)
    x[:, :10] = (x[:, :10] - middle) / spread
    return Stream(x=x, y=data["y"][::4].astype(np.int64), norm_bound=2.5, batch=64, radius=5.0)


STREAMS: dict[str, Callable[[], Stream]] = {
    "noaa_weather": lambda: two_classes("noaa_weather", 8),
    "elec2": lambda: two_classes("elec2", 16),
    "covtype": covtype,
}


class HeadStart(OnlineGradient):
    """Follows the leader by projection as late as `Pursuit` has to: over t + C₀ steps instead of t."""

    def advance(
        self, state: State, records: Records, n: int, origin: Floats, perturbation: NoisyRunningSums, step: int
    ) -> State:
        """Return the state with w_(t+1) = Π(c - u/(μ(t + C₀)))."""
        assert self.strong_convexity is not None
        *memory, _, sums, _ = super().advance(state, records, n, origin, perturbation, step)
        late = Pursuit(constraint=self.constraint, origin=origin, convexity=self.strong_convexity).head_start
        weights = self.constraint.project(origin - sums / (self.strong_convexity * (step + 1 + late)), origin)
        return *memory, weights, sums, weights


def leader(stream: Stream, noise: str, step: str, delta: float) -> OnlineLeader:
    """Return the publication of a line; `without noise` has a huge ε, and the tree's learning rate."""
    classes = int(stream.y.max()) + 1
    schema = {
        "features": stream.x.shape[1],
        "task": {"kind": "classification", "classes": classes},
        "norm_bound": stream.norm_bound,
    }
    clip = {} if step == BY_DEFAULT else {"clip": math.sqrt(2.0 if classes > 2 else 1.0) * stream.norm_bound}
    constraint = {"batch": stream.batch, "constraint": "l1_ball", "radius": stream.radius, **clip, **STEPS[step]}
    if noise == WITHOUT_NOISE and step == BY_DEFAULT:
        private = leader(stream, "tree", step, delta)
        perturbation = private.learner.perturbation(private.currency, float(private.capacity), stream.batch)
        constraint["learning_rate"] = private.learner.rate(perturbation, stream.batch)
    mechanism = publication(
        schema,
        {
            "mechanism": {"kind": "online_leader", **constraint, **NOISES.get(noise, NOISES["tree"])},
            "learner": {
                "kind": "noisy_gradient_descent",
                "regularization": 0.0 if "strong_convexity" in STEPS[step] else CONVEXITY,
            },
            "privacy": {"epsilon": HUGE if noise == WITHOUT_NOISE else EPSILON, "delta": delta},
        },
    )
    assert isinstance(mechanism, OnlineLeader)
    return replace(mechanism, learner=HeadStart(**vars(mechanism.learner))) if step == HEAD_START else mechanism


def released(mechanism: OnlineLeader, stream: Stream) -> Iterator[tuple[int, Floats]]:
    """Return each model with the record from which on it is the latest; the origin is the first."""
    yield 0, mechanism.origin
    for used in replay(mechanism, stream.x, stream.y):
        if used.start < len(stream.y):
            yield used.start, used.parameters


def hindsight(mechanism: OnlineLeader, stream: Stream) -> Hindsight:
    """Return the losses and the set, which are the same for all lines of a stream."""
    learner = mechanism.learner
    x, y = learner.prepared(Records(x=stream.x, y=stream.y))
    assert len(y) == len(stream.y)
    return Hindsight(
        loss=learner.loss,
        x=x,
        y=y,
        constraint=learner.constraint,
        origin=mechanism.origin,
        strong_convexity=CONVEXITY,
    )


def marks(steps: int) -> list[int]:
    """Return the steps after which regret is computed: FIRST, every doubling, and the end."""
    return [*(FIRST << e for e in range(steps.bit_length()) if FIRST << e < steps), steps]


def cells() -> Iterator[tuple[str, str, float]]:
    """Yield (noise, step, δ) of all lines."""
    yield ORIGIN, "", DELTA
    for step in STEPS:
        yield WITHOUT_NOISE, step, DELTA
        for noise in NOISES:
            yield noise, step, DELTA
    for noise in PURE:
        for step in (PROJECTION, CONDITIONAL):
            yield noise, step, 0.0


def measure(options: argparse.Namespace) -> None:
    """Append what is missing to the results."""
    done = results.done(options.results)
    for repeat in range(options.runs):
        for name in options.streams:
            stream: Stream | None = None
            for noise, step, delta in cells():
                key = (name, repeat, noise, step, delta)
                if key in done or (noise in (WITHOUT_NOISE, ORIGIN) and repeat):
                    continue
                if stream is None:
                    stream = STREAMS[name]()
                    game = hindsight(leader(stream, "tree", PROJECTION, DELTA), stream)
                    steps = marks(len(stream.y) // stream.batch)
                mechanism = leader(stream, noise, step or PROJECTION, delta)
                models = [(0, mechanism.origin)] if noise == ORIGIN else released(mechanism, stream)
                regret = game.regret(models, [step * stream.batch for step in steps])
                curve = [(at, round(bound.value, 2)) for at, bound in zip(steps, regret, strict=True)]
                gap = round(max(bound.gap for bound in regret), 2)
                results.append(options.results, key, regret=curve, gap=gap)
                print(*key, curve[-1], flush=True)


Curve = dict[int, float]


def curves(path: Path) -> dict[tuple[str, str, str, float], tuple[int, Curve]]:
    """Return by (stream, step, noise, δ) how many runs there are, and the median regret after that many steps."""
    runs: dict[tuple[str, str, str, float], list[Curve]] = {}
    for run in results.lines(path):
        stream, _, noise, step, delta = run["cell"]
        runs.setdefault((stream, step, noise, delta), []).append(dict(run["regret"]))
    return {key: (len(of), {at: statistics.median(one[at] for one in of) for at in of[0]}) for key, of in runs.items()}


def exponent(curve: Curve) -> float | None:
    """Return p of the power T^p nearest to the curve's last octaves; None where it falls or is too short."""
    late = {at: value for at, value in curve.items() if at >= max(curve) / 2**OCTAVES}
    if min(late.values()) <= 0.0:
        return None
    power = float(np.polyfit(np.log(list(late)), np.log(list(late.values())), 1)[0])
    return power if power >= 0.0 else None


def table(path: Path) -> None:
    """Print, in Markdown, for every stream the ends and powers of its lines, then regret after all marks."""
    regrets = curves(path)
    for stream in dict.fromkeys(key[0] for key in regrets):
        mine = {key[1:]: value for key, value in regrets.items() if key[0] == stream}
        at = mine["", ORIGIN, DELTA][1]
        end = max(at)
        print(f"\n| {stream}, T = {end:,} | " + " | ".join(STEPS) + " |\n|---|" + "---|" * len(STEPS))
        for noise, delta in dict.fromkeys((noise, delta) for step, noise, delta in mine if step):
            ends = [shown(mine[step, noise, delta][1]) if (step, noise, delta) in mine else "" for step in STEPS]
            print(f"| {noise}{'' if delta else ', δ = 0'} | " + " | ".join(ends) + " |")
        powers = ", ".join(f"{rate} {exponent({mark: of(mark) for mark in at}):.2f}" for rate, of in RATES.items())
        regret = mine["", ORIGIN, DELTA][1][end]
        print(f"\nA learner that {ORIGIN} regrets {regret:,.0f}. By the same fit, here: {powers}.")
        print(f"\n| {stream} | noise | δ | runs |" + "".join(f" {mark:,} |" for mark in at))
        print("|" + "---|" * (4 + len(at)))
        for (step, noise, delta), (runs, curve) in mine.items():
            print(f"| {step} | {noise} | {delta:g} | {runs} |" + "".join(f" {curve[mark]:,.0f} |" for mark in at))


def shown(curve: Curve) -> str:
    """Return the end of a curve, and its power if it has one."""
    power = exponent(curve)
    return f"{curve[max(curve)]:,.0f}" + ("" if power is None else f", {power:.2f}")


def plots(path: Path, folder: Path) -> None:
    """Save an SVG per stream, with a panel for every step."""
    from matplotlib.figure import Figure

    regrets = curves(path)
    for stream in dict.fromkeys(key[0] for key in regrets):
        figure = Figure(figsize=(11, 7), layout="constrained")
        *panels, last = figure.subplots(2, 3, sharex=True, sharey=True).ravel()
        at = regrets[stream, "", ORIGIN, DELTA][1]
        for axes, step in zip(panels, STEPS, strict=True):
            for number, noise in enumerate([*NOISES, WITHOUT_NOISE, ORIGIN]):
                _, curve = regrets.get((stream, "" if noise == ORIGIN else step, noise, DELTA), (0, {}))
                style = {WITHOUT_NOISE: "k--", ORIGIN: "k:"}.get(noise, f"C{number}-")
                axes.plot(list(curve), list(curve.values()), style, lw=1.4, label=noise)
            _, through = regrets.get((stream, step, "tree", DELTA), (0, at))
            for end, (rate, of) in zip((-1, 0, -1, 0), RATES.items(), strict=True):
                grown = [through[256] * of(mark) / of(256) for mark in at]
                axes.plot(list(at), grown, color="0.8", lw=0.8, zorder=0)
                axes.annotate(rate, (list(at)[end], grown[end]), fontsize=7, color="0.5")
            axes.set(title=step, xscale="log")
            axes.set_yscale("symlog", linthresh=10, linscale=0.3)  # regret can be negative
            axes.grid(alpha=0.2)
        last.axis("off")
        last.legend(*panels[0].get_legend_handles_labels(), fontsize=9, loc="center")
        figure.supxlabel("T, steps")
        figure.supylabel("regret")
        figure.suptitle(
            f"{stream}, ε = {EPSILON:g}, δ = {DELTA:g}; grey: growth through the tree's regret at 256 steps"
        )
        results.save(figure, folder / f"paper_b-{stream}.svg", "paper_b")


def times(folder: Path | None) -> None:
    """Print and draw the microseconds of a projection and of a conditional-gradient step, measured in turns."""
    sizes, rng = [4**e for e in range(2, 10)], np.random.default_rng(0)
    taken: dict[Name, list[tuple[float, float]]] = {"simplex": [], "l1_ball": [], "box": []}
    print("| set | weights | projection | conditional gradient | ratio |\n|---|---|---|---|---|")
    for name, pairs_of_times in taken.items():
        for size in sizes:
            origin = np.full((1, size), 1.0 / size)
            ball = ConstraintSet(name=name, radius=1.0)
            pursuit = Pursuit(constraint=ball, origin=origin, convexity=CONVEXITY)
            sums, estimate = rng.normal(size=(2, 1, size))
            weights, apart = pursuit.step(origin, np.zeros(1), sums, estimate, 10)
            ways = (
                partial(ball.project, origin - (sums + estimate) / (CONVEXITY * 12), origin),
                partial(pursuit.step, weights, apart, sums, estimate, 11),
            )
            turns = [[_seconds(way) for way in ways] for _ in range(max(15, 2**18 // size // 16))]
            projection, conditional = (1e6 * statistics.median(seconds) for seconds in zip(*turns, strict=True))
            ratio = statistics.median(second / first for first, second in turns)
            pairs_of_times.append((projection, conditional))
            print(f"| {name} | {size:,} | {projection:,.0f} µs | {conditional:,.0f} µs | {ratio:.1f} |", flush=True)
    if folder is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, pairs_of_times) in enumerate(taken.items()):
        for style, what, values in zip(
            "-:", ("projection", "conditional gradient"), zip(*pairs_of_times, strict=True), strict=True
        ):
            axes.plot(sizes, values, f"C{number}{style}", label=f"{name}, {what}")
    axes.set(xscale="log", yscale="log", xlabel="weights", ylabel="µs a step")
    axes.grid(alpha=0.2)
    axes.legend(fontsize=8)
    results.save(figure, folder / "paper_b-steps.svg", "paper_b")


def _seconds(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def main() -> None:
    """Run what is missing, or show what is there."""
    parser = argparse.ArgumentParser(description="Paper B's learners: regret, and what a step takes.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--times", action="store_true")
    options = results.options(parser, "paper_b")
    if options.times:
        times(options.plots)
    else:
        results.run_or_show(options, measure, table, plots)


if __name__ == "__main__":
    main()
