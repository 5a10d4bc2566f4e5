"""Which mechanism to expect most from on a stream that drifts: prequential accuracy on three real ones.

    PERENNIAL_DATA_DIR=… python -m benchmarks.drift

Every record is predicted by the model that was the latest when it came, before any model has seen it. What is private
promises (1, 1e-6) per record for ever. Each line has the regularization that served it best on that stream, in
hindsight: an advantage all lines share, the ones without noise too. Medians of a few runs; the noise differs, the
stream does not.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.replay import Features, Labels, Used, hits, load, publication, replay
from service.learning.learners import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.scheduled import Scheduled

BLOCKS = 7
PRIVACY = {"epsilon": 1, "delta": 1e-6}
REGULARIZATIONS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # times norm_bound²
WHERE = "benchmarks/README.md says how to make it"


def noaa() -> tuple[Features, Labels, int]:
    """Rain, by day: 50 years at one place. A block is a year; public constants put the columns near [-1, 1]."""
    data = load("noaa_weather", WHERE)
    middle, spread = np.array([54, 44, 1017, 10, 8, 14, 64, 44]), np.array([20, 20, 8.4, 4, 4.5, 6, 22, 20])
    return np.clip((data["X"] - middle) / spread, -3, 3).astype(np.float32), data["y"].astype(np.int64), 363


def elec2() -> tuple[Features, Labels, int]:
    """Whether electricity gets dearer, by half-hour: two and a half years. A block is a week."""
    data = load("elec2", WHERE)
    return (2 * data["X"] - 1).astype(np.float32), data["y"].astype(np.int64), 336


def changelog() -> tuple[Features, Labels, int]:
    """Which part of the kernel a change is about, by its title's hashed words: seven years, 24 parts."""
    data = load("linux_changelog", WHERE)
    x = data["X"].astype(np.float32)
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), data["y"].astype(np.int64), 350


STREAMS = {"noaa_weather": noaa, "elec2": elec2, "linux_changelog": changelog}


def mechanisms(block: int) -> dict[str, dict[str, Any]]:
    """What is compared, all with a release after every block."""
    return {
        "sliding window (Algorithm 5)": {"kind": "sliding_window", "block": block, "blocks": BLOCKS},
        "cumulative (Algorithm 4, equal shares)": {"kind": "continual", "base": BLOCKS * block, "update_every": block},
        "cumulative (Algorithm 4, improving shares)": {
            "kind": "continual",
            "base": BLOCKS * block,
            "update_every": block,
            "shares": "improving",
        },
        "each batch near the release before": {"kind": "independent_batches", "batch": block, "warm_start": True},
        "each batch by itself": {"kind": "independent_batches", "batch": block, "warm_start": False},
    }


def window_without_noise(scheduled: Scheduled, block: int, x: Features, y: Labels) -> Iterator[Used]:
    """The last BLOCKS blocks, fitted anew after every block, not private."""
    learner = scheduled.learner
    assert isinstance(learner, OutputPerturbation)
    for time in range(BLOCKS * block, len(x), block):
        records = Records(x=x[time - BLOCKS * block : time], y=y[time - BLOCKS * block : time])
        parameters = learner.fit(records, BLOCKS * block, np.zeros(learner.shape))
        yield Used(start=time, end=min(time + block, len(x)), parameters=parameters)


def compare(name: str, runs: int) -> None:
    """The lines of one stream's table."""
    x, y, block = STREAMS[name]()
    classes = int(y.max()) + 1
    stream: dict[str, Any] = {
        "features": x.shape[1],
        "task": {"kind": "classification", "classes": classes},
        "norm_bound": 1.0 if classes > 2 else float(np.sqrt(x.shape[1]).round(1)),
    }
    counted = slice(BLOCKS * block, None)  # from the first full window on, for all

    def accuracy(mechanism: dict[str, Any], models: Callable[[Scheduled], Iterator[Used]], repeat: int) -> float:
        found = []
        for regularization in REGULARIZATIONS:
            learner = {"kind": "output_perturbation", "regularization": regularization * stream["norm_bound"] ** 2}
            scheduled = publication(stream, {"mechanism": mechanism, "learner": learner, "privacy": PRIVACY})
            each = [float(np.nanmean(hits(scheduled, models(scheduled), x, y)[counted])) for _ in range(repeat)]
            found.append(statistics.median(each))
        return max(found)

    print(f"| {name} | same label as before | {np.mean(y[1:] == y[:-1]):.3f} |", flush=True)
    some = mechanisms(block)["each batch by itself"]
    without = accuracy(some, lambda scheduled: window_without_noise(scheduled, block, x, y), 1)
    print(f"| | window of {BLOCKS} blocks, without noise: not private | {without:.3f} |", flush=True)
    for what, mechanism in mechanisms(block).items():
        print(f"| | {what} | {accuracy(mechanism, lambda each: replay(each, x, y), runs):.3f} |", flush=True)


def main() -> None:
    """The table, in Markdown."""
    parser = argparse.ArgumentParser(description="Prequential accuracy on streams that drift.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| stream | model | accuracy |\n|---|---|---|", flush=True)
    for name in options.streams:
        compare(name, options.runs)


if __name__ == "__main__":
    main()
