"""The accuracy of a window chosen afterwards among candidates of the same private sums, and by evaluations.

    PERENNIAL_DATA_DIR=… python -m benchmarks.candidates

Prequential accuracy of each candidate of one `window_statistics` publication at (1, 1e-6), and of models chosen as
releases of an evaluation would have it: every 20th record is an evaluation slot, the tables of all candidates are
released after every 100 of them for (1, 1e-6), and the window of 7 blocks is left for another candidate where that was
right more often so far, by more than so many standard deviations of the noise. Slots that evaluations take from models
cost them .1 to .2 points more (`benchmarks.evaluation`), which is not counted here.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.drift import OUTPUT, PRIVACY
from benchmarks.replay import publication
from benchmarks.streams import data
from service.explorer.comparison import releases
from service.learning.records import Records
from service.mechanisms.evaluation.tables import ClassCounts
from service.mechanisms.linear import predict
from service.privacy.currency import round_down
from service.privacy.noise.counts import calibrate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.streams import Data
    from service.mechanisms.linear import LinearMechanism

EVERY, SLOTS = 20, 100
WINDOWS, FIRST = (3, 7, 15, 31), 7  # blocks
DEVIATIONS = (0.0, 1.0, 2.0)
STREAMS = ("weather", "electricity", "covtype")


def window(stream: Data) -> LinearMechanism:
    """Return a publication with all candidates, on columns scaled by public constants."""
    features = stream.public.shape[1]
    task = {"kind": "classification", "classes": int(stream.y.max()) + 1}
    schema = {"features": features, "task": task, "norm_bound": float(np.sqrt(features).round(1))}
    candidates = [{"blocks": blocks} for blocks in WINDOWS]
    mechanism = {"kind": "window_statistics", "block": stream.block, "blocks": max(WINDOWS), "candidates": candidates}
    return publication(schema, {"mechanism": mechanism, "learner": OUTPUT, "privacy": PRIVACY})


def rights(mechanism: LinearMechanism, stream: Data) -> NDArray[np.bool_]:
    """Return which records each candidate predicts right, (candidates, records), from the first full window on."""
    x, y = stream.public, stream.y
    right = np.zeros((len(WINDOWS), len(y)), dtype=np.bool_)
    for release, following in releases(mechanism, lambda start, end: Records(x=x[start:end], y=y[start:end]), len(y)):
        used = slice(release.time, min(following, len(y)))
        described: dict[str, Any] = release.model or {}
        for number, candidate in enumerate(described["candidates"]):
            right[number, used] = predict(described, np.array(candidate["parameters"]), x[used])[0] == y[used]
    return right[:, FIRST * stream.block :]


def chosen(mechanism: LinearMechanism, right: NDArray[np.bool_], classes: int, deviations: float) -> float:
    """Return the accuracy if evaluations change the candidate once another is better by that many deviations."""
    layout = ClassCounts(classes=classes, publications=len(WINDOWS), bins=False)
    noise = calibrate(mechanism.currency, layout.change, charge=round_down(mechanism.capacity), dimension=layout.size)
    counts, variance, current, hits = np.zeros(len(WINDOWS)), 0.0, WINDOWS.index(FIRST), 0
    for start in range(0, right.shape[1], EVERY * SLOTS):
        block = right[:, start : start + EVERY * SLOTS]
        hits += int(block[current].sum())
        released = noise.sample().astype(np.float64)
        diagonals = [np.trace(layout.table(released, number)) for number in range(len(WINDOWS))]
        counts += block[:, EVERY - 1 :: EVERY].sum(axis=1) + diagonals
        variance += 2.0 * classes * noise.deviation() ** 2
        best = int(counts.argmax())
        if counts[best] - counts[current] > deviations * np.sqrt(variance):
            current = best
    return float(hits / right.shape[1])


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="Candidates of a window, and choosing among them.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=STREAMS)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| stream |", " | ".join(f"{blocks} blocks" for blocks in WINDOWS), end=" | ")
    print(" | ".join(f"chosen, {deviation:g} deviations" for deviation in DEVIATIONS), "|")
    print("|---" * (1 + len(WINDOWS) + len(DEVIATIONS)) + "|")
    for name in options.streams:
        stream = data(name)
        mechanism, classes = window(stream), int(stream.y.max()) + 1
        runs = []
        for _ in range(options.runs):
            right = rights(mechanism, stream)
            runs.append([*right.mean(axis=1), *map(partial(chosen, mechanism, right, classes), DEVIATIONS)])
        print(f"| {name} |", " | ".join(f"{mean:.4f}" for mean in np.mean(runs, axis=0)), "|", flush=True)


if __name__ == "__main__":
    main()
