"""Which mechanism to expect most from on a stream that drifts: prequential accuracy on three real ones.

    PERENNIAL_DATA_DIR=… python -m benchmarks.drift

Every record is predicted by the model that was the latest when it came, before any model has seen it. Each private
line promises (1, 1e-6) per record for ever, with the settings that a publication gets that says nothing. The one
without noise has the regularization that served it best on that stream, in hindsight. Medians of a few runs; the noise
differs, the stream does not.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.replay import Features, Labels, Used, hits, load, publication, replay, titles
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.linear import LinearMechanism

BLOCKS = 7
PRIVACY = {"epsilon": 1, "delta": 1e-6}
REGULARIZATIONS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # times norm_bound²
MANY_WEIGHTS = 1000  # from here on exact fits take long: only every third of them is tried
WHERE = "benchmarks/README.md says how to make it"


def noaa() -> tuple[Features, Labels, int]:
    """Rain, by day: 50 years at one place. A block is a year; public constants put the columns near [-1, 1]."""
    data = load("noaa_weather", WHERE)
    middle, spread = np.array([54, 44, 1017, 10, 8, 14, 64, 44]), np.array([20, 20, 8.4, 4, 4.5, 6, 22, 20])
    return np.clip((data["X"] - middle) / spread, -3, 3).astype(np.float32), data["y"].astype(np.int64), 363


def elec2() -> tuple[Features, Labels, int]:
    """Whether electricity gets dearer, by half-hour: two and a half years. A block is a week; public constants."""
    data = load("elec2", WHERE)
    middle, spread = np.array([0.5, 0.06, 0.43, 0.0035, 0.42, 0.5]), np.array([0.3, 0.03, 0.16, 0.002, 0.08, 0.15])
    return np.clip((data["X"] - middle) / spread, -3, 3).astype(np.float32), data["y"].astype(np.int64), 336


def changelog() -> tuple[Features, Labels, int]:
    """Which part of the kernel a change is about, by its title's hashed words: seven years, 24 parts."""
    return *titles("linux_changelog", WHERE, 256), 350


STREAMS = {"noaa_weather": noaa, "elec2": elec2, "linux_changelog": changelog}


OUTPUT, DESCENT = {"kind": "output_perturbation"}, {"kind": "noisy_gradient_descent"}


def lines(block: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the lines to compare, all with a release after every block: mechanism and learner."""
    window = {"kind": "sliding_window", "block": block, "blocks": BLOCKS}
    cumulative = {"kind": "continual", "base": BLOCKS * block, "update_every": block}
    batches = {"kind": "independent_batches", "batch": block}
    return {
        "sliding window (Algorithm 5), output perturbation": (window, OUTPUT),
        "sliding window, noisy gradient descent": (window, DESCENT),
        "cumulative (Algorithm 4), output perturbation": (cumulative, OUTPUT),
        "cumulative, improving shares, noisy gradient descent": (cumulative | {"shares": "improving"}, DESCENT),
        "each batch near the release before, output perturbation": (batches | {"warm_start": True}, OUTPUT),
        "each batch near the release before, noisy gradient descent": (batches | {"warm_start": True}, DESCENT),
        "window of private statistics": (window | {"kind": "window_statistics"}, OUTPUT),
        "online leader": ({"kind": "online_leader", "batch": block}, DESCENT),
        "online leader, all averaged": ({"kind": "online_leader", "batch": block, "averaging": True}, DESCENT),
        "online leader, without averaging": ({"kind": "online_leader", "batch": block, "averaging": False}, DESCENT),
        "each batch by itself, output perturbation": (batches, OUTPUT),
        "each batch by itself, noisy gradient descent": (batches, DESCENT),
    }


def window_without_noise(scheduled: LinearMechanism, block: int, x: Features, y: Labels) -> Iterator[Used]:
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

    regularizations = REGULARIZATIONS[::3] if x.shape[1] * classes >= MANY_WEIGHTS else REGULARIZATIONS

    def accuracy(
        mechanism: dict[str, Any],
        learner: dict[str, Any],
        models: Callable[[LinearMechanism], Iterator[Used]],
        runs: int,
    ) -> float:
        configuration = {"mechanism": mechanism, "learner": learner, "privacy": PRIVACY}
        scheduled = publication(stream, configuration, begun=True)
        return statistics.median(
            float(np.nanmean(hits(scheduled, models(scheduled), x, y)[counted])) for _ in range(runs)
        )

    print(f"| {name} | same label as before | {np.mean(y[1:] == y[:-1]):.3f} |", flush=True)
    some = {"kind": "independent_batches", "batch": block}
    exact = max(
        accuracy(
            some,
            OUTPUT | {"regularization": each * stream["norm_bound"] ** 2},
            lambda scheduled: window_without_noise(scheduled, block, x, y),
            1,
        )
        for each in regularizations
    )
    print(f"| | window of {BLOCKS} blocks, without noise: NOT private | {exact:.3f} |", flush=True)
    for what, (mechanism, learner) in lines(block).items():
        median = accuracy(mechanism, learner, lambda each: replay(each, x, y), runs)
        print(f"| | {what} | {median:.3f} |", flush=True)


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
