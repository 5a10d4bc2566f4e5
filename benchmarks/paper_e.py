"""Paper E: error against records and labels, of private active and passive learning, and of both without noise.

    PERENNIAL_DATA_DIR=… python -m benchmarks.paper_e --results paper_e.jsonl
    python -m benchmarks.paper_e --results paper_e.jsonl --table --plots benchmarks/plots

Every run appends its line to the results, and is left out if the line is there. An order is another permutation of a
stream's records: a fifth is held out and judged by, the first RECORDS of the others come one after another. Only
orders have seeds, noise has none. Every private line promises the same ε to each record, ε_s + ε_g where it selects;
`passive` learns from every record, in batches of the same size, and has all of ε for its updates. With batches of one
record `fixed_window` and `fixed_batch` are the same, so there is one line of both.

Algorithm 1 fits once, at the end: all records with all of ε, or what one of the lines above selected, for ε_g. Lines
that say NOT private have an ε of a thousand for their updates; they select by the same coins, or by the slab alone.

Settings are the service's defaults but for the paper's λ, and nothing was tuned. Everything runs in two balls: of
radius 1, as the paper has it, and of 1/√λ. The second was added when, in the first, the first of these orders and three
others had shown that nothing is learnt of the weather, with noise or without. Figure 7's ε_g and its four ε_s are ours:
the paper does not tell its own.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.paper_e_lines import (
    BALLS,
    EPSILON,
    INFORMATIVE,
    INFORMATIVE_EPSILONS,
    INFORMATIVE_SIZE,
    LEAST,
    NOT_PRIVATE,
    PASSIVE,
    SIZES,
    STREAMS,
    Found,
    lines,
    ordered,
)

Floats = NDArray[np.float64]

AT = (0.1, 0.2, 0.5, 1.0)  # of the records
SUMMARY_SIZE = 20
LABELS = 200  # labels after which the paper's figure 3 compares batches
CURVES_SIZE, SLABS_SIZE = 5, 20  # figure 2's; figure 4 states none
FLSW, FLMB = "fixed_window, bernoulli", "fixed_batch, bernoulli"
SELECTING = tuple(
    f"{batching}, {law}{slab}"
    for batching, law, slab in product(
        ("fixed_window", "fixed_batch"), ("bernoulli", "exponential"), ("", ", shrinking")
    )
)


def measure(options: argparse.Namespace) -> None:
    """Append what is missing to the results."""
    done = results.done(options.results)
    for number, name in product(range(options.orders), options.streams):
        order = None
        for radius in options.radii:
            for line in lines(radius):
                cell = (name, number, radius, line.name, line.size)
                if cell in done or line.size not in options.sizes:
                    continue
                order = order or ordered(name, number)
                outcome = line.run(order)
                results.append(options.results, cell, **vars(outcome))
                print(*cell, outcome.labels[-1], outcome.error[-1], flush=True)


Orders = dict[int, Found]
Runs = dict[tuple[str, float, str, int], Orders]
"""The outcome of each order, by (stream, radius, line, size)."""


def runs(path: Path) -> Runs:
    """Return all outcomes in the results, by (stream, radius, line, size) and order."""
    by_line: Runs = {}
    for run in results.lines(path):
        stream, order, radius, line, size = run["cell"]
        fields = {name: run[name] for name in ("records", "labels", "error")}
        by_line.setdefault((stream, radius, line, size), {})[order] = Found(**fields)
    return by_line


def after_labels(outcome: Found, labels: float) -> float:
    """Return the error after that many labels, interpolated between two marks as in the paper; NaN: never reached."""
    return float(np.interp(labels, outcome.labels, outcome.error, right=np.nan))


def table(path: Path) -> None:
    """Print, in Markdown, a summary, private selection beside passive learning, and all lines."""
    by_line = runs(path)
    for radius in BALLS:
        _head(f"ball of radius {radius:g}, batches of {SUMMARY_SIZE}", STREAMS)
        for line, size in dict.fromkeys((line, size) for _, ball, line, size in by_line if ball == radius):
            if size in (0, SUMMARY_SIZE):
                row = [_end([*by_line.get((stream, radius, line, size), {}).values()]) for stream in STREAMS]
                print(f"| {line} | {' | '.join(row)} |")
    for radius, (than, error) in product(BALLS, {"at the end": _last, "after as many labels": after_labels}.items()):
        _beside_passive(by_line, radius, than, error)
    for stream, radius in product(STREAMS, BALLS):
        shares = (f"{share:.0%} of the records" for share in AT)
        _head(f"{stream}, ball of radius {radius:g}", ["size", "orders", "labels", f"after {LABELS} labels", *shares])
        for (of, ball, line, size), orders in sorted(by_line.items(), key=lambda item: item[0][3] or np.inf):
            if (of, ball) == (stream, radius):
                shown = " | ".join(_cells([*orders.values()]))
                print(f"| {line} | {size or '–'} | {len(orders)} | {shown} |")


def _head(what: str, columns: Iterable[str]) -> None:
    names = [what, *columns]
    print(f"\n| {' | '.join(names)} |\n|{'---|' * len(names)}")


def _beside_passive(by_line: Runs, radius: float, than: str, error: Callable[[Found, float], float]) -> None:
    """Print the differences from passive learning: of private lines, and of one pair without noise."""
    free = f"{FLMB}, {NOT_PRIVATE}"
    _head(f"radius {radius:g}: error less that of `{PASSIVE}`, {than}", ["size", *SELECTING, free])
    clearly = []
    for stream, size in product(STREAMS, SIZES):
        row = []
        for line in (*SELECTING, free):
            passive = f"{PASSIVE}, {NOT_PRIVATE}" if line == free else PASSIVE
            orders, beside = (by_line.get((stream, radius, name, size), {}) for name in (line, passive))
            apart = worse(orders, beside, error)
            row.append("{:+.3f} ± {:.3f}".format(*apart) if apart else "")
            if apart and line != free:
                clearly.append(np.sign(apart[0]) * (abs(apart[0]) > 2 * apart[1]))
        print(f"| {stream} | {size} | {' | '.join(row)} |")
    print(
        f"\n{clearly.count(1)} of {len(clearly)} private lines are more than two standard errors worse than passive "
        f"learning, {clearly.count(-1)} better."
    )


def worse(orders: Orders, beside: Orders, then: Callable[[Found, float], float]) -> tuple[float, float] | None:
    """Return the mean difference of the errors at the end, order by order, and the standard error of that mean.

    then: of what is beside, its error to compare with, given the labels that were asked for.
    """
    both = orders.keys() & beside.keys()
    if len(both) < 2:
        return None
    apart = [orders[kind].error[-1] - then(beside[kind], orders[kind].labels[-1]) for kind in both]
    return float(np.mean(apart)), float(np.std(apart, ddof=1) / np.sqrt(len(both)))


def _last(outcome: Found, _: float) -> float:
    return outcome.error[-1]


def _end(outcomes: Sequence[Found]) -> str:
    if not outcomes:
        return ""
    labels = np.mean([outcome.labels[-1] for outcome in outcomes])
    return f"{_spread([outcome.error[-1] for outcome in outcomes])} ({labels:,.0f})"


def _cells(outcomes: Sequence[Found]) -> Iterator[str]:
    yield f"{np.mean([outcome.labels[-1] for outcome in outcomes]):,.0f}"
    if len(outcomes[0].error) == 1:  # there is one fit, at the end
        yield from [""] * len(AT)
        yield _spread([outcome.error[-1] for outcome in outcomes])
        return
    yield _spread([after_labels(outcome, LABELS) for outcome in outcomes])
    for share in AT:
        yield _spread([outcome.error[outcome.at.index(round(share * outcome.records))] for outcome in outcomes])


def _spread(values: Sequence[float]) -> str:
    """Return mean and deviation as text, if all orders have a value."""
    return "–" if np.isnan(values).any() else f"{np.mean(values):.3f} ± {np.std(values):.3f}"


Panel = Callable[[Any, str], None]
"""Draws a stream's."""
CURVES = {
    FLSW: "C0-",
    "fixed_window, exponential": "C0--",
    FLMB: "C1-",
    "fixed_batch, exponential": "C1--",
    PASSIVE: "C2-",
    f"{PASSIVE}, {NOT_PRIVATE}": "k-",
    f"{FLMB}, {NOT_PRIVATE}": "k--",
    f"fixed_batch, slab alone, {NOT_PRIVATE}": "k:",
}
SLABS = {FLSW: "C0-", f"{FLSW}, shrinking": "C0--", FLMB: "C1-", f"{FLMB}, shrinking": "C1--"}


def plots(path: Path, folder: Path) -> None:
    """Figures 2, 4 and 7 for each ball, and 3 for both; a column for every stream."""
    by_line = runs(path)
    for radius in BALLS:
        curves = partial(_curves, by_line, radius, CURVES, CURVES_SIZE)
        slabs = partial(_curves, by_line, radius, SLABS, SLABS_SIZE)
        by_records, by_labels = ("records", "error"), ("labels", "error")
        rows = {by_records: partial(curves, _over_records), by_labels: partial(curves, _over_labels)}
        _picture(folder / f"paper_e-curves-{radius:g}.svg", rows)
        rows = {("records", "labels"): partial(slabs, _labels_requested), by_labels: partial(slabs, _over_labels)}
        _picture(folder / f"paper_e-slabs-{radius:g}.svg", rows)
        rows = {
            ("records", f"error, ε_s = {epsilon:g}"): partial(
                _curves, by_line, radius, informative(epsilon), INFORMATIVE_SIZE, _checkpoints
            )
            for epsilon in INFORMATIVE_EPSILONS
        }
        _picture(folder / f"paper_e-informative-{radius:g}.svg", rows)
    rows = {
        ("records of a batch", f"error after {LABELS} labels, radius {radius:g}"): partial(_sizes, by_line, radius)
        for radius in BALLS
    }
    _picture(folder / "paper_e-sizes.svg", rows)


def informative(epsilon: float) -> dict[str, str]:
    """Return the lines of figure 7's panel of that ε_s."""
    selecting = {f"{name}, ε_s = {epsilon:g}": f"C{number}-" for number, name in enumerate(INFORMATIVE)}
    return {
        **selecting,
        f"{PASSIVE}, ε = {epsilon + EPSILON:g}": "C2-",
        f"fixed_batch, slab alone, {NOT_PRIVATE}": "k:",
        f"{PASSIVE}, {NOT_PRIVATE}": "k-",
    }


Curve = tuple[Sequence[float], Sequence[Sequence[float]]]
"""x, and y of each order."""


def _over_records(orders: Sequence[Found]) -> Curve:
    return orders[0].at, [order.error for order in orders]


def _checkpoints(orders: Sequence[Found]) -> Curve:
    """Return errors at the ten last marks, as in figure 7."""
    return orders[0].at[-10:], [order.error[-10:] for order in orders]


def _labels_requested(orders: Sequence[Found]) -> Curve:
    return orders[0].at, [order.labels for order in orders]


def _over_labels(orders: Sequence[Found]) -> Curve:
    """Return the errors by number of labels, as far as all orders got."""
    most = min(order.labels[-1] for order in orders)
    at = np.geomspace(min(10, most), most, 30) if most else np.zeros(0)
    return at.tolist(), [[after_labels(order, labels) for labels in at] for order in orders]


def _curves(
    by_line: Runs,
    radius: float,
    styles: Mapping[str, str],
    size: int,
    curve: Callable[[Sequence[Found]], Curve],
    axes: Any,
    stream: str,
) -> None:
    """Draw the means over orders; for private lines that are drawn solid, shade the deviation."""
    for line, style in styles.items():
        orders = [*by_line.get((stream, radius, line, size), {}).values()]
        if orders:
            x, y = curve(orders)
            mean, spread = np.mean(y, axis=0), np.std(y, axis=0)
            axes.plot(x, mean, style, lw=1.4, label=line.split(", ε")[0])
            if style.startswith("C") and not style.endswith("--"):
                axes.fill_between(x, mean - spread, mean + spread, color=style[:2], alpha=0.12, lw=0)
    if curve is not _labels_requested:
        least = [order.error[-1] for order in by_line.get((stream, radius, LEAST, 0), {}).values()]
        if least:
            axes.axhline(float(np.mean(least)), color="0.7", lw=1.0, label=LEAST)
        axes.set_ylim(bottom=0)
    if curve in (_over_records, _over_labels):
        axes.set_xscale("log")


def _sizes(by_line: Runs, radius: float, axes: Any, stream: str) -> None:
    """Draw means and deviations by batch size."""
    for number, (line, style) in enumerate(CURVES.items()):
        points = []
        for size in SIZES:
            orders = by_line.get((stream, radius, line, size), {})
            errors = [after_labels(order, LABELS) for order in orders.values()]
            if errors and not np.isnan(errors).any():
                points.append((size * 1.06 ** (number - len(CURVES) / 2), np.mean(errors), np.std(errors)))
        if points:
            x, mean, spread = zip(*points, strict=True)
            axes.errorbar(x, mean, spread, fmt="." + style, lw=1.0, elinewidth=0.6, capsize=2, label=line)
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.set_ylim(bottom=0)


def _picture(file: Path, rows: Mapping[tuple[str, str], Panel]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 1 + 3 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(STREAMS), squeeze=False)
    handles: dict[str, Any] = {}
    for row, ((across, up), panel) in zip(grid, rows.items(), strict=True):
        row[0].set_ylabel(up)
        for axes, stream in zip(row, STREAMS, strict=True):
            panel(axes, stream)
            axes.set_xlabel(across)
            axes.grid(alpha=0.2)
            axes.minorticks_off()
            handles.update(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    for axes, stream in zip(grid[0], STREAMS, strict=True):
        axes.set_title(stream)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, fontsize=9)
    results.save(figure, file, "paper_e")


def main() -> None:
    """Run what is missing, or show what is there."""
    parser = argparse.ArgumentParser(description="Paper E: error of private active learning.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, *SIZES], help="0: what has no batches")
    parser.add_argument("--radii", type=float, nargs="+", choices=BALLS, default=BALLS)
    results.run_or_show(results.options(parser, "paper_e"), measure, table, plots)


if __name__ == "__main__":
    main()
