"""Which mechanism to expect most from on a stream that drifts: prequential accuracy on three real ones.

    PERENNIAL_DATA_DIR=… python -m benchmarks.drift [--write]

Every record is predicted by the model that was the latest when it came, before any model has seen it. Each private
line promises (1, 1e-6) per record for ever, with the settings that a publication gets that says nothing. The one
without noise has the regularization that served it best on that stream, in hindsight. Medians of a few runs; the noise
differs, the stream does not.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.replay import Features, Labels, Used, hits, load, publication, replay, titles
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.measured import FILE, LINES

BLOCKS = 7
PRIVACY = {"epsilon": 1, "delta": 1e-6}
REGULARIZATIONS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # times norm_bound²
MANY_WEIGHTS = 1000  # values from which on exact fits are slow, so that only every third is tried
WHERE = "benchmarks/README.md says how to make it"


def noaa() -> tuple[Features, Labels, int]:
    """Return 50 years of days at one place, labelled by rain; a block is a year, columns scaled to about [-1, 1]."""
    data = load("noaa_weather", WHERE)
    middle, spread = np.array([54, 44, 1017, 10, 8, 14, 64, 44]), np.array([20, 20, 8.4, 4, 4.5, 6, 22, 20])
    return np.clip((data["X"] - middle) / spread, -3, 3).astype(np.float32), data["y"].astype(np.int64), 363


def elec2() -> tuple[Features, Labels, int]:
    """Return two and a half years of half-hours, labelled by whether electricity gets dearer; a block is a week."""
    data = load("elec2", WHERE)
    middle, spread = np.array([0.5, 0.06, 0.43, 0.0035, 0.42, 0.5]), np.array([0.3, 0.03, 0.16, 0.002, 0.08, 0.15])
    return np.clip((data["X"] - middle) / spread, -3, 3).astype(np.float32), data["y"].astype(np.int64), 336


def changelog() -> tuple[Features, Labels, int]:
    """Return which part of the kernel a change is about, by its title's hashed words: seven years, 24 parts."""
    return *titles("linux_changelog", WHERE, 256), 350


STREAMS = {"noaa_weather": noaa, "elec2": elec2, "linux_changelog": changelog}


OUTPUT, DESCENT = {"kind": "output_perturbation"}, {"kind": "noisy_gradient_descent"}


def lines(block: int) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the lines of `measured.toml` that a mechanism has, all with a release after every block."""
    window = {"block": block, "blocks": BLOCKS}
    sizes = {
        "sliding_window": window,
        "window_statistics": window,
        "continual": {"base": BLOCKS * block, "update_every": block},
        "independent_batches": {"batch": block},
        "online_leader": {"batch": block},
    }
    return {
        line.title: ({**line.mechanism, **sizes[line.mechanism["kind"]]}, {"kind": line.learner})
        for line in LINES
        if line.mechanism is not None
    }


def window_without_noise(scheduled: LinearMechanism, block: int, x: Features, y: Labels) -> Iterator[Used]:
    """Yield models of the last BLOCKS blocks, fitted anew after every block. NOT private."""
    learner = scheduled.learner
    assert isinstance(learner, OutputPerturbation)
    for time in range(BLOCKS * block, len(x), block):
        records = Records(x=x[time - BLOCKS * block : time], y=y[time - BLOCKS * block : time])
        parameters = learner.fit(records, BLOCKS * block, np.zeros(learner.shape))
        yield Used(start=time, end=min(time + block, len(x)), parameters=parameters)


def compare(name: str, runs: int) -> dict[str, float]:
    """Print the lines of one stream's table, and return the accuracies by title."""
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

    unchanged, without_noise, *_ = (line.title for line in LINES)
    found = {unchanged: float(np.mean(y[1:] == y[:-1]))}
    print(f"| {name} | {unchanged} | {found[unchanged]:.3f} |", flush=True)
    some = {"kind": "independent_batches", "batch": block}
    found[without_noise] = max(
        accuracy(
            some,
            OUTPUT | {"regularization": regularization * stream["norm_bound"] ** 2},
            lambda scheduled: window_without_noise(scheduled, block, x, y),
            1,
        )
        for regularization in regularizations
    )
    print(f"| | {without_noise} | {found[without_noise]:.3f} |", flush=True)
    for what, (mechanism, learner) in lines(block).items():
        found[what] = accuracy(mechanism, learner, lambda scheduled: replay(scheduled, x, y), runs)
        print(f"| | {what} | {found[what]:.3f} |", flush=True)
    return found


def write(found: list[dict[str, float]]) -> None:
    """Write the accuracies on all streams, in the order of `STREAMS`, into `measured.toml`."""
    text = FILE.read_text()
    for line in LINES:
        before, title, after = text.partition(f"title = {json.dumps(line.title)}\naccuracies = ")
        accuracies = ", ".join(f"{of_stream[line.title]:.3f}" for of_stream in found)
        text = f"{before}{title}[{accuracies}]\n{after.partition(chr(10))[2]}"
    FILE.write_text(text)


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="Prequential accuracy on streams that drift.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write them into service/mechanisms/measured.toml")
    options = parser.parse_args()
    if options.write and options.streams != list(STREAMS):
        parser.error("--write needs all streams, in their order")
    print("| stream | model | accuracy |\n|---|---|---|", flush=True)
    found = [compare(name, options.runs) for name in options.streams]
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
