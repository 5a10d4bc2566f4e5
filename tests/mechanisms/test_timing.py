"""A plan's estimate of a fit's memory, beside what a process of its own really takes for it."""

import os
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from subprocess import check_output

import numpy as np
import pytest

from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.mechanism import Mechanism
from service.mechanisms.timing import SECONDS_AT_LEAST, fit_cost, timing
from service.privacy.accounting.obligations import FitSize
from service.streams.schema import StreamSchema

BLOCK = 100
PERTURBED = {"kind": "output_perturbation"}
WINDOW = {"kind": "window_statistics", "block": BLOCK, "blocks": 2}
TASKS = {"kind": "lifelong", "task_size": BLOCK}
BATCHES = {"kind": "independent_batches", "batch": BLOCK}


def linear(features: int, classes: int = 2) -> dict:
    return {"features": features, "task": {"kind": "classification", "classes": classes}}


def categories(cardinality: int) -> dict:
    return {"task": {"kind": "categorical", "cardinality": cardinality}}


def database(queries: str, accuracy: float) -> dict:
    return {"kind": "small_database", "queries": queries, "accuracy": accuracy}


CASES = {  # stream, mechanism, learner, steps
    "window": (linear(700), WINDOW, PERTURBED, 3),
    "long window": (linear(500), WINDOW | {"blocks": 20}, PERTURBED, 22),
    "tasks": (linear(700), TASKS, PERTURBED, 3),
    "tasks, heads": (linear(500), TASKS | {"heads": "per_task", "memory": 6}, PERTURBED, 8),
    "tasks, agem": (linear(500), TASKS | {"training": "agem", "memory": 6, "epochs": 2}, PERTURBED, 8),
    "window, classes": (linear(400, 800), WINDOW, PERTURBED, 3),
    "tasks, classes": (linear(400, 800), TASKS, PERTURBED, 3),
    "intervals": (categories(40), BATCHES, database("intervals", 0.5), 2),
    "points": (categories(55), BATCHES, database("points", 0.99), 2),
    "all": (categories(10), BATCHES, database("all", 0.6), 2),
}


def made(schema: dict, mechanism: dict, learner: dict) -> Mechanism:
    configuration = {"mechanism": mechanism, "learner": learner, "privacy": {"epsilon": 1, "delta": 1e-6}}
    return build(
        StreamSchema.model_validate(schema),
        PublicationConfiguration.model_validate(configuration | {"publish_delay": 0}),
    )


def taken(schema: dict, mechanism: dict, learner: dict, steps: int) -> int:
    """Return how many bytes the first steps take at most, beside what this process holds before."""
    publication, chain, time = made(schema, mechanism, learner), (), 0

    def read(start: int, end: int) -> Records:
        many = end - start
        x = np.full((many, schema.get("features", 0)), 0.01, dtype=np.float32)
        return Records(x=x, y=np.arange(many) % 2, slots=np.arange(start, end))

    before = memory("VmRSS")
    for step in range(steps):
        time = publication.next_time(time)
        chain = publication.step(time, chain, step + 1, read).chain
    return memory("VmHWM") - before


def memory(which: str) -> int:
    """Return what this process holds now (`VmRSS`) or held at most (`VmHWM`), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(which))


def print_what_each_takes() -> None:
    """Run each case in a process of its own, which finds everything imported."""
    for case, of in CASES.items():
        if (child := os.fork()) == 0:
            print(case, taken(*of), sep="=", flush=True)
            os._exit(0)
        os.waitpid(child, 0)


@pytest.mark.more
def test_fits_take_no_more_memory_than_planned_and_not_far_less():
    program = f"from {__name__} import print_what_each_takes; print_what_each_takes()"
    printed = check_output([sys.executable, "-c", program], text=True)
    real = {case: int(taken) for case, taken in (line.split("=") for line in printed.splitlines())}
    planned = {case: fit_cost(made(*each[:3]).obligations().fit, BLOCK).bytes for case, each in CASES.items()}
    assert real.keys() == planned.keys()
    assert {
        case: (planned[case], real[case]) for case in real if not planned[case] / 3 <= real[case] <= planned[case]
    } == {}


def test_a_fit_of_many_features_is_planned_to_take_much_longer_than_one_of_few():
    few, many = (fit_cost(made(linear(each), WINDOW, PERTURBED).obligations().fit, BLOCK) for each in (10, 1500))
    assert few.seconds < 0.03
    assert many.seconds > 2


@pytest.mark.parametrize("mechanism", [WINDOW, TASKS])
def test_sizes_that_make_no_difference_are_not_stored(mechanism):
    """A promise of few features is the same as before there were such sizes."""
    few, many = (made(linear(each), mechanism, PERTURBED).obligations().fit for each in (3, 1500))
    assert not {"numbers", "products"} & few.to_json().keys()
    assert FitSize.from_json(many.to_json()) == many


def test_a_fit_is_planned_to_take_as_long_as_its_longest_part_and_every_pass():
    """One that takes longer than planned is late, and how late it is tells of its records."""
    many, size = 10**6, FitSize(records=10**6, rows=2, columns=10, encoder=0, passes=0, descent_passes=0)

    def seconds(*, in_blocks=False, **more):
        return fit_cost(replace(size, **more), many, in_blocks=in_blocks).seconds - SECONDS_AT_LEAST

    one = many * 2 * (10 + 64) / 1e9
    assert seconds() == pytest.approx(30 * one)
    assert seconds(in_blocks=True) == pytest.approx(90 * one)
    assert seconds(passes=5) == pytest.approx(5 * one)
    assert seconds(passes=5, descent_passes=5) == pytest.approx(5 * one + 5 * 1.5)
    assert seconds(encoder=1000) == pytest.approx(30 * many * 1000 / 1e9)


def test_only_what_is_proved_to_be_fitted_of_blocks_is_fitted_of_blocks():
    """Blocks tell no units, and whatever the solver is, their model is the exact one, which moves farther than some."""
    many, large = 10**8, 10**8 // BLOCK
    assert made(linear(3), BATCHES, PERTURBED).reads_blocks(many)
    assert not made(linear(3), BATCHES, PERTURBED).reads_blocks(BLOCK)
    assert not made(linear(20_000), BATCHES, PERTURBED).reads_blocks(large)
    for learner in ({"solver": "gradient_descent"}, {"solver": "psgd"}, {"kind": "objective_perturbation"}):
        assert not made(linear(3), BATCHES, PERTURBED | learner).reads_blocks(many)
    assert not made(linear(3) | {"unit": {"max_records": 2}}, BATCHES, PERTURBED).reads_blocks(many)


@pytest.mark.parametrize(
    ("delay", "records", "words"),
    [
        ("0", 10**6, "publish_delay is 0"),
        ("0", 0, None),
        ("10", 10**6, None),
        ("0.05", 10**6, "more than half of publish_delay = 0.05 s"),
        ("0.05", 0, "more than half of publish_delay = 0.05 s"),
    ],
)
def test_whoever_can_see_a_fit_s_time_in_its_releases_is_warned(delay, records, words):
    size = FitSize(records=records, rows=2, columns=10, encoder=0, passes=1, descent_passes=0)
    answer = timing(size, Decimal(delay), queued=1.0)
    assert ("warning" in answer) == bool(words)
    assert (words or "") in answer.get("warning", "")
