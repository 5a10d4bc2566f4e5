"""How much accuracy models lose to evaluation slots: the same streams with every 20th slot set aside, and with none.

    PERENNIAL_DATA_DIR=… python -m benchmarks.evaluation

Models promise (1, 1e-6) for each training slot. All records are predicted by the model that was the latest when they
came. Every learner has its defaults; both ways run equally often, and their noise is independent.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.drift import BLOCKS, DESCENT, OUTPUT, PRIVACY, elec2, noaa
from benchmarks.replay import Used, hits, publication
from service.explorer.comparison import releases
from service.learning.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.replay import Features, Labels
    from service.mechanisms.linear import LinearMechanism

EVERY = 20
STREAMS = {"noaa_weather": noaa, "elec2": elec2}


def lines(block: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return mechanism and learner of each line, for a stream that is learnt in blocks."""
    batches = {"kind": "independent_batches", "batch": 4 * block}
    return {
        "each batch by itself": (batches, OUTPUT),
        "each batch near the release before": (batches | {"warm_start": True}, OUTPUT),
        "online leader": ({"kind": "online_leader", "batch": block}, DESCENT),
        "window of private statistics": ({"kind": "window_statistics", "block": block, "blocks": BLOCKS}, OUTPUT),
        "sliding window": ({"kind": "sliding_window", "block": block, "blocks": BLOCKS}, OUTPUT),
    }


def used(scheduled: LinearMechanism, x: Features, y: Labels) -> Iterator[Used]:
    """Yield each model with the time until the next one. It reads training slots alone."""

    def read(start: int, stop: int) -> Records:
        slots = start + np.flatnonzero(scheduled.training.among(start, stop))
        return Records(x=x[slots], y=y[slots], slots=slots)

    for release, following in releases(scheduled, read, len(x)):
        yield Used(start=release.time, end=min(following, len(x)), parameters=release.parameters)


def accuracies(stream: dict[str, Any], line: Any, x: Features, y: Labels, runs: int) -> tuple[float, float]:
    """Return the mean accuracy of so many runs, and its standard error."""
    mechanism, learner = line
    configuration = {"mechanism": mechanism, "learner": learner, "privacy": PRIVACY}
    scheduled = publication(stream, configuration)
    right = [float(np.nanmean(hits(scheduled, used(scheduled, x, y), x, y))) for _ in range(runs)]
    return statistics.mean(right), statistics.stdev(right) / math.sqrt(runs)


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="The accuracy that evaluation slots cost.")
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    print(
        "| stream | mechanism | no slots set aside | every 20th slot | difference |\n|---|---|---|---|---|", flush=True
    )
    for name, load in STREAMS.items():
        x, y, block = load()
        task = {"kind": "classification", "classes": 2}
        stream = {"features": x.shape[1], "task": task, "norm_bound": float(np.sqrt(x.shape[1]).round(1))}
        for what, line in lines(block).items():
            whole, error = accuracies(stream, line, x, y, options.runs)
            rest, other = accuracies(stream | {"evaluation": {"every": EVERY}}, line, x, y, options.runs)
            apart = f"{100 * (rest - whole):+.2f} ± {100 * math.hypot(error, other):.2f} points"
            print(f"| {name} | {what} | {whole:.4f} | {rest:.4f} | {apart} |", flush=True)


if __name__ == "__main__":
    main()
