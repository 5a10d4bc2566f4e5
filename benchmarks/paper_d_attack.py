"""Reads records from what L2DP-ML releases, and fails to from what Perennial makes of the same promise.

    PERENNIAL_DATA_DIR=… python -m benchmarks.paper_d_attack --plots benchmarks/plots

The attacker knows all records but one, the parameters before a step and after it, and no noise.
 - Inputs with one noise for all: x̄_r - x̄_s = x_r - x_s, so `told_by_inputs`.
 - One step, whatever network is behind the autoencoder: with f = θ₁ᵀc + e, c and e the noises of inputs and hidden
   layer, m = θ₁ᵀx, h̄ = m + f (nothing clipped), v = Σ (½ - x) and u = Σ m of n records,
       ∇θ₁ = Σ (½ - x - c)⊗(m + f) = Σ (½ - x)⊗m - v⊗u/n + (v - n·c)⊗(f + u/n):
   but for a matrix of rank one it follows from the records, for every noise. `told_by_rank`.
 - One step, with its output layer: `read` returns the record and its label. Rows k of ∇W are linear in a few unknown
   vectors, ∇W_k + Σ_(y=k, known) m = const - n_k·f - [y = k]·h̄ + ¼·H·W_k, which has a solution only for its label y.
   With f and h̄ found, ∇θ₁ is linear in c and ½ - x - c.

The audit (Jagielski et al. 2020): which of two neighbouring data sets was it? `bound` is what the loss ε is at least,
from how often that is told rightly and wrongly (Clopper–Pearson).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import results
from benchmarks.l2dp_ml import Batch, Floats, Parameters, Printed
from benchmarks.replay import load, publication
from service.learning.records import Records
from service.mechanisms.lifelong.task_statistics import TaskStatistics
from service.privacy.accounting.events import NoisyStatistics

WHERE = "benchmarks/README.md says how to make it"
DELTA = 1e-6
ALARM = 1e-6  # the probability with which a bound may be wrong
CLASSES = 10
HIDDEN = 6  # hidden units of the printed network: the attack needs K > |h₁| + 3
START = 1e-4  # size of its initial parameters, small enough that nothing is clipped
RATE = 1e-6
PAIRS = 200  # pairs, of which the one farthest apart is audited
PILOTS = 0.3  # share of the runs that choose the threshold


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two neighbouring data sets: `known` records and either of two others."""

    known: Batch
    either: tuple[Batch, Batch]

    def data(self, which: int) -> Batch:
        other = self.either[which]
        return Batch(x=np.vstack((self.known.x, other.x)), y=np.append(self.known.y, other.y))


def pairs(x: Floats, y: NDArray[np.int64], records: int, random: np.random.Generator) -> Iterator[Pair]:
    """Yield pairs of neighbouring data sets of that many records, without end."""
    while True:
        *known, first, second = random.permutation(len(y))[: records + 1]
        yield Pair(known=_batch(x, y, known), either=(_batch(x, y, [first]), _batch(x, y, [second])))


def _batch(x: Floats, y: NDArray[np.int64], which: Any) -> Batch:
    return Batch(x=x[which], y=y[which])


def printed(features: int, records: int, epsilon: float, random: np.random.Generator) -> Printed:
    """Return the paper's algorithm, which claims that ε."""
    start = Parameters(
        encoder=random.normal(0, START, (features, HIDDEN)), weights=random.normal(0, START, (CLASSES, HIDDEN))
    )
    return Printed(start=start, size=records, epsilon=epsilon, rate=RATE)


def step(algorithm: Printed, batch: Batch, random: np.random.Generator) -> Parameters:
    """Return the gradient of the first task, as what is released after it tells it."""
    (released,) = algorithm.learn([[batch]], algorithm.draw(random), random)
    difference = algorithm.start.plus(-1, released)
    return Parameters(encoder=difference.encoder / algorithm.rate, weights=difference.weights / algorithm.rate)


def told_by_inputs(noisy: Floats, pair: Pair) -> int:
    """Return which data set the noisy inputs x̄ are of: by the one whose records are all as far from theirs."""
    return int(np.argmin([np.ptp(noisy - pair.data(which).x, axis=0).max() for which in (0, 1)]))


def told_by_rank(gradient: Floats, encoder: Floats, pair: Pair) -> tuple[int, tuple[float, float]]:
    """Return which data set ∇θ₁ is of, and for both the second singular value of a matrix that should have rank one."""
    left: list[float] = []
    for which in (0, 1):
        x = pair.data(which).x
        hidden, rest = x @ encoder, 0.5 - x
        known = rest.T @ hidden - np.outer(rest.sum(axis=0), hidden.sum(axis=0)) / len(x)
        left.append(float(np.linalg.svd(gradient - known, compute_uv=False)[1]))
    return int(np.argmin(left)), (left[0], left[1])


def read(gradient: Parameters, at: Parameters, known: Batch) -> tuple[Floats, int]:
    """Return the record that isn't known, (d,), and its label, from one step at these parameters."""
    hidden, own = known.x @ at.encoder, known.y[:, None] == np.arange(CLASSES)
    rows = gradient.weights + own.T @ hidden
    others = [np.ones(CLASSES), -own.sum(axis=0), at.weights]
    fits = [_fit(np.column_stack([-np.eye(CLASSES)[label], *others]), rows) for label in range(CLASSES)]
    label = int(np.argmin([left for _, left in fits]))
    its, _, shift = fits[label][0][:3]
    rest = 0.5 - known.x
    outer = gradient.encoder - rest.T @ hidden - np.outer(rest.sum(axis=0), shift)
    minus_noise, value = _fit(np.column_stack([hidden.sum(axis=0) + len(known.y) * shift, its]), outer.T)[0]
    return 0.5 + minus_noise - value, label


def _fit(design: Floats, values: Floats) -> tuple[Floats, float]:
    solution = np.asarray(np.linalg.lstsq(design, values, rcond=None)[0], dtype=np.float64)
    return solution, float(np.linalg.norm(values - design @ solution))


@dataclass(frozen=True, kw_only=True, eq=False)
class Ours:
    """The noisy statistics that `lifelong` stores of a task of so many records, from which all its models follow."""

    learner: TaskStatistics
    perturbation: NoisyStatistics
    records: int

    @classmethod
    def promising(cls, features: int, records: int, epsilon: float) -> Ours:
        """Return the publication with that promise, of rows of length 1 at most."""
        built = publication(
            {"features": features, "task": {"kind": "classification", "classes": CLASSES}},
            {
                "mechanism": {"kind": "lifelong", "task_size": records, "memory": 1},
                "learner": {"kind": "output_perturbation", "intercept": False},
                "privacy": {"epsilon": epsilon, "delta": DELTA},
            },
        )
        assert isinstance(built.learner, TaskStatistics)
        perturbation = built.learner.perturbation(built.currency, float(built.capacity), records)
        return cls(learner=built.learner, perturbation=perturbation, records=records)

    def exact(self, batch: Batch) -> Floats:
        """Return the statistics without noise. NOT private."""
        return self.learner.statistics(Records(x=batch.x.astype(np.float32), y=batch.y), self.records)

    def noisy(self, exact: Floats) -> Floats:
        """Return the noisy statistics that are stored."""
        return self.perturbation.sums.release(exact, (), 0)[0]

    def labels_part(self, statistics: Floats) -> Floats:
        """Return Σ v⊗x of the statistics, (K, d)."""
        shape = self.learner.shape
        return statistics[-math.prod(shape) :].reshape(shape)


def bound(rightly: NDArray[np.bool_], wrongly: NDArray[np.bool_], delta: float, alarm: float = ALARM) -> float:
    """Return the least ε, at confidence 1 - alarm, of which (ε, δ) allows to tell so often, and wrongly so often."""
    least = stats.beta.ppf(alarm / 2, rightly.sum(), (~rightly).sum() + 1) if rightly.any() else 0.0
    most = stats.beta.ppf(1 - alarm / 2, wrongly.sum() + 1, (~wrongly).sum()) if not wrongly.all() else 1.0
    ratios = ((least - delta) / most, (1 - most - delta) / (1 - least))
    return math.log(max(1.0, *ratios))


def audit_printed(x: Floats, y: NDArray[np.int64], epsilon: float, records: int, runs: int) -> float:
    """Return a lower bound on the ε of L2DP-ML."""
    random = np.random.default_rng()
    first_chosen: list[list[bool]] = [[], []]
    for pair in islice(pairs(x, y, records, random), runs):
        for which in (0, 1):
            algorithm = printed(x.shape[1], records, epsilon, random)
            gradient = step(algorithm, pair.data(which), random)
            first_chosen[which].append(told_by_rank(gradient.encoder, algorithm.start.encoder, pair)[0] == 0)
    return bound(np.array(first_chosen[0]), np.array(first_chosen[1]), 0.0)


def audit_ours(x: Floats, y: NDArray[np.int64], epsilon: float, records: int, runs: int) -> float:
    """Return a lower bound on Perennial's ε, from a likelihood test whose threshold is chosen in separate runs."""
    ours = Ours.promising(x.shape[1], records, epsilon)
    tried = islice(pairs(x, y, records, np.random.default_rng()), PAIRS)
    pair = max(tried, key=lambda pair: math.dist(*(ours.exact(record) for record in pair.either)))
    exact = [ours.exact(pair.data(which)) for which in (0, 1)]
    towards = exact[0] - exact[1]
    seen = [np.array([(ours.noisy(value) - exact[1]) @ towards for _ in range(runs)]) for value in exact]
    pilots = int(PILOTS * runs)
    first, second = (values[:pilots] for values in seen)
    lines = np.quantile(np.concatenate((first, second)), np.linspace(0.1, 0.9, 17))
    line = max(lines, key=lambda at: bound(first > at, second > at, DELTA, 0.05))
    return bound(seen[0][pilots:] > line, seen[1][pilots:] > line, DELTA)


def pooled(x: Floats) -> Floats:
    """Return the means of 4×4 pixels, (m, 49), rows of length 1."""
    small = (x.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(-1, 49) + 1) / 2
    return np.asarray(small / np.linalg.norm(small, axis=1, keepdims=True))


def tell_apart(x: Floats, y: NDArray[np.int64], options: argparse.Namespace) -> None:
    """Print how many pairs of neighbours the printed algorithm's output distinguishes."""
    random = np.random.default_rng()
    successes = np.zeros(3, dtype=int)
    margins, errors = list[float](), list[float]()
    for pair in islice(pairs(x, y, options.records, random), options.pairs):
        which = int(random.integers(2))
        data, algorithm = pair.data(which), printed(x.shape[1], options.records, options.epsilon, random)
        gradient = step(algorithm, data, random)
        by_rank, left = told_by_rank(gradient.encoder, algorithm.start.encoder, pair)
        record, label = read(gradient, algorithm.start, pair.known)
        errors.append(np.abs(record - pair.either[which].x).max())
        nearer = int(np.argmin([np.abs(record - candidate.x).max() for candidate in pair.either]))
        margins.append(left[1 - which] / left[which])
        successes += [
            told_by_inputs(data.x + algorithm.draw(random).inputs, pair) == which,
            by_rank == which,
            nearer == which and label == pair.either[which].y[0],
        ]
    print(f"| L2DP-ML, ε = {options.epsilon:g}, {options.records:,} records | pairs told apart |\n|---|---|")
    for what, count in zip(
        ("by noisy inputs", "by ∇θ₁ of one step", "by the record that is read"), successes, strict=True
    ):
        print(f"| {what} | {count} of {options.pairs} |")
    print(
        f"\nWrong hypotheses leave at least {min(margins):,.0f} times as much as the right one; "
        f"pixels in [-1, 1] are read to {max(errors):.0e}."
    )


def audit(x: Floats, y: NDArray[np.int64], options: argparse.Namespace) -> list[tuple[float, float, float]]:
    """Yield (claimed ε, lower bound on L2DP-ML's ε, lower bound on Perennial's ε)."""
    small = pooled(x)
    sizes = (options.audited, options.runs)
    losses = [
        (epsilon, audit_printed(2 * small - 1, y, epsilon, *sizes), audit_ours(small, y, epsilon, *sizes))
        for epsilon in options.epsilons
    ]
    print(f"\n| claim ε | L2DP-ML loses at least | Perennial, δ = {DELTA:g} |\n|---|---|---|")
    for claim, theirs, ours in losses:
        print(f"| {claim:g} | {theirs:.2f} | {ours:.2f} |")
    return losses


def picture(
    x: Floats, y: NDArray[np.int64], bounds: list[tuple[float, float, float]], options: argparse.Namespace
) -> None:
    """Draw records beside their reconstructions, and the audit."""
    from matplotlib.figure import Figure

    random = np.random.default_rng()
    ours = Ours.promising(x.shape[1], options.records, options.epsilon)
    lengths = np.linalg.norm((x + 1) / 2, axis=1, keepdims=True)
    rows: list[list[Floats]] = [[], [], []]
    for pair in islice(pairs(x, y, options.records, random), options.shown):
        algorithm = printed(x.shape[1], options.records, options.epsilon, random)
        record, _ = read(step(algorithm, pair.data(0), random), algorithm.start, pair.known)
        unit = [_unit(data, lengths.max()) for data in (pair.data(0), pair.known)]
        left = ours.labels_part(ours.noisy(ours.exact(unit[0])) - ours.exact(unit[1]))
        for row, value in zip(rows, (pair.either[0].x[0], record, left[pair.either[0].y[0]]), strict=True):
            row.append(value.reshape(28, 28))
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    images, chart = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.6, 1))[0]
    names = (
        "record",
        f"read from\nL2DP-ML\n“ε = {options.epsilon:g}”",
        f"read from\nPerennial\nε = {options.epsilon:g}",
    )
    for axes, row, name in zip(images.subplots(3, options.shown), rows, names, strict=True):
        for axis, value in zip(axes, row, strict=True):
            axis.imshow(value, cmap="gray_r", interpolation="none")
            axis.set(xticks=[], yticks=[])
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center")
    axes = chart.subplots()
    claims, theirs, mine = zip(*bounds, strict=True)
    axes.fill_between(claims, claims, max(claims), color="C3", alpha=0.1, lw=0)
    axes.plot(claims, claims, "k:", label="the claim")
    axes.plot(claims, theirs, "C3o-", label="L2DP-ML loses at least")
    axes.plot(claims, mine, "C0o-", label="Perennial loses at least")
    axes.set(xscale="log", xlabel="ε that is claimed", ylabel="ε at least, with confidence 1 - 1e-6")
    axes.set_ylim(-0.2, max(claims))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.2)
    results.save(figure, options.plots / "paper_d-attack.svg", "paper_d")


def _unit(batch: Batch, longest: float) -> Batch:
    return Batch(x=(batch.x + 1) / 2 / longest, y=batch.y)


def main() -> None:
    """Tell pairs apart, audit both, and draw."""
    parser = argparse.ArgumentParser(description="Reads records from what paper D's algorithm releases.")
    parser.add_argument("--epsilon", type=float, default=0.5, help="what is claimed for what is read")
    parser.add_argument("--records", type=int, default=2000, help="of the first task")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--shown", type=int, default=8)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[0.1, 0.5, 1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--audited", type=int, default=200, help="records of a data set that is audited")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--plots", type=Path)
    options = parser.parse_args()
    data = load("mnist", WHERE)
    x, y = data["X"][:60_000] / 127.5 - 1, data["y"][:60_000].astype(np.int64)
    tell_apart(x, y, options)
    bounds = audit(x, y, options)
    if options.plots:
        picture(x, y, bounds, options)


if __name__ == "__main__":
    main()
