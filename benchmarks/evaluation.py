"""How much accuracy models lose to evaluation slots: the same streams with every 20th slot set aside, and with none.

    PERENNIAL_DATA_DIR=… python -m benchmarks.evaluation

Models promise (1, 1e-6) for each training slot. All records are predicted by the model that was the latest when they
came. Every learner has its defaults.

The two ways are compared in pairs. Both runs of a pair have the same records, release at the same times, and predict
the same records. Both draw their noise from the same random bits, so that it points the same way and differs in size
alone: the law of each run stays what it is, and a tenth of the runs tell the difference as well. Pair r leaves out the
first r mod 20 records of the data, so that each record is set aside in one pair of twenty.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from scipy.stats import t as student

from benchmarks.drift import BLOCKS, DESCENT, OUTPUT, PRIVACY, elec2, noaa
from benchmarks.replay import Used, hits, publication
from service.explorer.comparison import releases
from service.learning.records import Records
from service.privacy.noise import samplers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.replay import Features, Labels
    from service.mechanisms.linear import LinearMechanism

EVERY = 20
STREAMS = {"noaa_weather": noaa, "elec2": elec2}
SET_ASIDE = {"evaluation": {"every": EVERY}}
ERROR = 0.05


def lines(block: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return mechanism and learner of each line, for a stream that is learnt in blocks."""
    batches = {"kind": "independent_batches", "batch": 4 * block}
    window = {"kind": "sliding_window", "block": block, "blocks": BLOCKS}
    return {
        "each batch by itself": (batches, OUTPUT),
        "each batch near the release before": (batches | {"warm_start": True}, OUTPUT),
        "online leader": ({"kind": "online_leader", "batch": block}, DESCENT),
        "window of private statistics": ({"kind": "window_statistics", "block": block, "blocks": BLOCKS}, OUTPUT),
        "sliding window": (window, OUTPUT),
        "sliding window, noisy gradient descent": (window, DESCENT),
    }


@contextmanager
def random_bits(seed: int) -> Iterator[Callable[[int, int], None]]:
    """Draw all noise from a seeded generator; yield the function that reseeds it for the fit of a range of slots."""
    source = SimpleNamespace(urandom=np.random.default_rng(seed).bytes)

    def begin(start: int, stop: int) -> None:
        source.urandom = np.random.default_rng([seed, start, stop]).bytes

    with patch.object(samplers, "os", source):
        yield begin


def used(scheduled: LinearMechanism, x: Features, y: Labels, seed: int) -> Iterator[Used]:
    """Yield each model with the time until the next one. It reads training slots alone."""
    with random_bits(seed) as begin:

        def read(start: int, stop: int) -> Records:
            begin(start, stop)
            slots = start + np.flatnonzero(scheduled.training.among(start, stop))
            return Records(x=x[slots], y=y[slots], slots=slots)

        for release, following in releases(scheduled, read, len(x)):
            yield Used(start=release.time, end=min(following, len(x)), parameters=release.parameters)


def accuracies(
    stream: dict[str, Any], configuration: dict[str, Any], x: Features, y: Labels, runs: int
) -> tuple[list[float], list[float]]:
    """Return the accuracies of that many pairs of runs: with no slots set aside, and with every 20th."""
    both = [publication(stream | more, configuration, begun=True) for more in ({}, SET_ASIDE)]
    shares: tuple[list[float], list[float]] = [], []
    for run in range(runs):
        records = slice(run % EVERY, None)
        for scheduled, share in zip(both, shares, strict=True):
            models = used(scheduled, x[records], y[records], run)
            share.append(float(np.nanmean(hits(scheduled, models, x[records], y[records]))))
    return shares


def mean_and_half(values: list[float]) -> tuple[float, float]:
    """Return a mean, and half the length of its interval of 95 %."""
    quantile = float(student.ppf(1 - ERROR / 2, len(values) - 1))
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="The accuracy that evaluation slots cost.")
    parser.add_argument("--runs", type=int, default=40, help="pairs of runs, at least 2")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--lines", nargs="+", choices=lines(1), default=list(lines(1)))
    options = parser.parse_args()
    print(
        "| stream | mechanism | no slots set aside | every 20th slot | difference |\n|---|---|---|---|---|", flush=True
    )
    for name in options.streams:
        x, y, block = STREAMS[name]()
        task = {"kind": "classification", "classes": 2}
        stream = {"features": x.shape[1], "task": task, "norm_bound": float(np.sqrt(x.shape[1]).round(1))}
        for what in options.lines:
            mechanism, learner = lines(block)[what]
            configuration = {"mechanism": mechanism, "learner": learner, "privacy": PRIVACY}
            whole, rest = accuracies(stream, configuration, x, y, options.runs)
            mean, half = mean_and_half([100 * (b - a) for a, b in zip(whole, rest, strict=True)])
            columns = f"{statistics.mean(whole):.4f} | {statistics.mean(rest):.4f} | {mean:+.2f} ± {half:.2f} points"
            print(f"| {name} | {what} | {columns} |", flush=True)


if __name__ == "__main__":
    main()
