"""Accuracy where persons are protected, over m, the most records of a person that count.

    PERENNIAL_DATA_DIR=… python -m benchmarks.units

All lines promise (1, 1e-6): to a person with up to m records at least s slots apart, or, where it is said, to a record
alone. A simulated stream has 200,000 records of 20,000 persons, half of whom have 6 records or fewer, and labels that
follow a direction which turns once; `hapt_windows` are movements of 30 persons by their phones, in an order drawn once.
Every record is predicted by the model that was the latest when it came. Means of a few runs; the noise differs, the
stream does not.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.replay import Features, Labels, Used, hits, load, publication
from service.explorer.comparison import releases
from service.learning.records import Records
from service.privacy.accounting.groups import UnitBound
from service.streams.units import UnitState, UnitStates, contributions, counting_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from service.mechanisms.linear import LinearMechanism

PRIVACY = {"epsilon": 1, "delta": 1e-6}
WHERE = "see benchmarks/README.md"
SEED = 24


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """Records in the order in which they come, and of each its person, 0, 1, …; `batch`: records of a batch."""

    x: Features
    y: Labels
    persons: NDArray[np.int64]
    batch: int
    most: tuple[int, ...]
    apart: int
    """a min_separation to compare, in slots"""

    @property
    def bounds(self) -> list[UnitBound]:
        """Return the bounds to compare: m with s = 1, and some of them with records so far apart."""
        apart = [UnitBound(max_records=most, min_separation=self.apart) for most in self.most[2:5]]
        return [*(UnitBound(max_records=most) for most in self.most), *apart]

    def schema(self) -> dict[str, Any]:
        """Return the stream, without units."""
        task = {"kind": "classification", "classes": int(self.y.max()) + 1}
        return {"features": self.x.shape[1], "task": task, "norm_bound": 1.0}


def simulated(records: int = 200_000, persons: int = 20_000, features: int = 8) -> People:
    """Return records whose person moves them, and of whom some have many more than others."""
    random = np.random.default_rng(SEED)
    often = random.lognormal(0.0, 1.0, persons)
    of_whom = random.choice(persons, records, p=often / often.sum())
    x = random.normal(size=(records, features)) + random.normal(0, 0.7, (persons, features))[of_whom]
    turned = np.linspace(0, 2 * np.pi, records)
    direction = np.zeros((records, features))
    direction[:, 0], direction[:, 1] = np.cos(turned), np.sin(turned)
    y = (x * direction).sum(axis=1) + random.normal(0, 0.5, records) > 0
    longest = np.maximum(1.0, np.linalg.norm(x, axis=1) / 4.0)[:, None]
    return People(
        x=(x / longest / 4.0).astype(np.float32),
        y=y.astype(np.int64),
        persons=of_whom,
        batch=1000,
        most=(1, 2, 4, 8, 16, 32, 64),
        apart=16_000,
    )


def hapt() -> People:
    """Return windows of twelve movements of thirty persons."""
    data = load("hapt_windows", WHERE)
    order = np.random.default_rng(SEED).permutation(len(data["y"]))
    x = data["X"][order] / np.maximum(1e-9, np.linalg.norm(data["X"][order], axis=1))[:, None]
    persons = np.unique(data["subject"][order], return_inverse=True)[1].astype(np.int64)
    y = data["y"][order].astype(np.int64)
    return People(x=x.astype(np.float32), y=y, persons=persons, batch=500, most=(1, 4, 16, 64, 256), apart=8_000)


STREAMS = {"simulated": simulated, "hapt_windows": hapt}


def mechanisms(batch: int) -> dict[str, dict[str, Any]]:
    """Return the mechanisms to compare."""
    return {
        "online_leader": {"kind": "online_leader", "batch": batch},
        "sliding_window": {"kind": "sliding_window", "block": batch, "blocks": 7},
    }


def counting(people: People, bound: UnitBound) -> NDArray[np.bool_]:
    """Return which records count."""
    nobody = UnitStates.of([UnitState()] * (int(people.persons.max()) + 1))
    return counting_slots(bound, nobody, people.persons, 0)[0]


def of_persons(people: People, counts: NDArray[np.bool_]) -> Callable[[int, int], Records]:
    """Return a reader of ranges with persons as units, as in the service."""

    def read(start: int, end: int) -> Records:
        slots = np.flatnonzero(counts[start:end]) + start
        units, places = np.unique(people.persons[slots], return_inverse=True)
        return Records(
            x=people.x[slots], y=people.y[slots], slots=slots, weights=contributions(places), units=len(units)
        )

    return read


def accuracy(people: People, schema: dict[str, Any], mechanism: dict[str, Any], read: Any, runs: int) -> float:
    """Return the share of all records that were predicted right, from the first model on."""
    configuration = {"mechanism": mechanism, "learner": {"kind": "noisy_gradient_descent"}, "privacy": PRIVACY}
    built = publication(schema, configuration)
    accuracies = [
        float(np.nanmean(hits(built, used(built, read, len(people.y)), people.x, people.y))) for _ in range(runs)
    ]
    return statistics.mean(accuracies)


def used(built: LinearMechanism, read: Callable[[int, int], Records], records: int) -> Iterator[Used]:
    """Yield each model with the records that arrive while it is the latest."""
    for release, upcoming in releases(built, read, records):
        yield Used(start=release.time, end=min(upcoming, records), parameters=release.parameters)


def compare(name: str, runs: int) -> None:
    """Print the lines of one stream."""
    people = STREAMS[name]()
    commonest = np.bincount(people.y).max() / len(people.y)
    print(f"| {name} | commonest class | | | {commonest:.3f} |", flush=True)
    for kind, mechanism in mechanisms(people.batch).items():
        whole = accuracy(people, people.schema(), mechanism, lambda start, end: _all(people, start, end), runs)
        print(f"| | {kind}, a record alone | 1.00 | 1.0 | {whole:.3f} |", flush=True)
        for bound in people.bounds:
            counts = counting(people, bound)
            schema = people.schema() | {"unit": vars(bound)}
            right = accuracy(people, schema, mechanism, of_persons(people, counts), runs)
            which = f"m = {bound.max_records}, s = {bound.min_separation}"
            noise = _noise(people, schema, mechanism)
            print(f"| | {kind}, {which} | {counts.mean():.2f} | {noise:.1f} | {right:.3f} |", flush=True)


def _all(people: People, start: int, end: int) -> Records:
    return Records(x=people.x[start:end], y=people.y[start:end])


def _noise(people: People, schema: dict[str, Any], mechanism: dict[str, Any]) -> float:
    """Return the noise for persons as a multiple of the noise for single records."""
    configuration = {"mechanism": mechanism, "learner": {"kind": "noisy_gradient_descent"}, "privacy": PRIVACY}
    both = [
        publication(described, configuration).plan()["fits"][0]["noise"]["scale"]
        for described in (schema, people.schema())
    ]
    return float(both[0] / both[1])


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="Accuracy over the number of a person's records that count.")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    print("| stream | model | records that count | noise | accuracy |\n|---|---|---|---|---|", flush=True)
    for name in options.streams:
        compare(name, options.runs)


if __name__ == "__main__":
    main()
