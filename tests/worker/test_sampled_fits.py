"""A worker fits a secret sample of training slots, in its process or in one of its own; `ledger verify` agrees."""

import sys
import threading

import numpy as np
import pytest

from service.learning.output_perturbation import OutputPerturbation
from service.ledger.verify import verify
from service.mechanisms.scheduled import mechanism as scheduled
from service.store import erasing, releases
from service.worker import fits
from tests.conftest import World
from tests.worker.published import number, published

SAMPLE, BATCH, EVERY = 5, 24, 3
SCHEMA = {"features": 1, "task": {"kind": "classification", "classes": 2}, "evaluation": {"every": EVERY}}
CONFIGURATION = {
    "mechanism": {"kind": "continual", "base": BATCH, "update_every": 3},
    "learner": {"kind": "output_perturbation", "sample": SAMPLE},
    "privacy": {"epsilon": 1, "delta": 0},
}
SAMPLED = [("sampled_weights", SAMPLE, (0, BATCH)), ("weights", None, (BATCH, 27))]
"""The first 24 slots have 16 training slots, the next three have two, fewer than a sample."""


def columns(start, stop):
    return {"x": np.arange(start, stop, dtype=np.float32)[:, None], "y": np.zeros(stop - start, dtype=np.int32)}


def found_and_released(bench):
    """Return what is wrong with the ledger, and of each release the noise, the sample and the range."""
    with bench.database.transaction() as connection:
        findings = verify(connection).findings
    with bench.database.transaction() as connection:
        made = [releases.find(connection, bench.identity, version) for version in (1, 2)]
    return findings, [(each.noise["added_to"], each.noise.get("sample"), tuple(each.fit)) for each in made]


def test_a_sample_is_of_training_slots_and_counts_empty_ones(world: World, monkeypatch):
    fit, seen = OutputPerturbation.fit, []

    def spy(self, records, n, *of_the_fit):
        seen.append((records.x[:, 0].astype(int).tolist(), n))
        return fit(self, records, n, *of_the_fit)

    monkeypatch.setattr(OutputPerturbation, "fit", spy)
    with published(world, SCHEMA, CONFIGURATION, columns(0, 10), epsilon=1) as bench:
        number(bench.database, bench.files, bench.stream().id, columns(10, 27))
        with bench.database.transaction() as connection:
            erasing.erase(connection, bench.stream().id, 0, 20)
        bench.publish_all()
        assert found_and_released(bench) == ([], SAMPLED)
    (sample, drawn), (update, all_of_it) = seen
    assert drawn == SAMPLE
    assert set(sample) <= {21, 22}, "all others are erased, or evaluation slots"
    assert (update, all_of_it) == ([24, 25], 2)


@pytest.mark.more
@pytest.mark.parametrize("solver", ["exact", "psgd"])
def test_a_sample_is_drawn_in_a_process_that_never_has_all_records(world: World, monkeypatch, solver):
    monkeypatch.setattr(scheduled, "LARGE_BYTES", 0)
    monkeypatch.setattr(fits, "command", lambda number: [sys.executable, "-m", "tests.worker.in_blocks", str(number)])
    learner = CONFIGURATION["learner"] | {"solver": solver}
    with published(world, SCHEMA, CONFIGURATION | {"learner": learner}, columns(0, 27), epsilon=1) as bench:
        publisher = bench.publisher()
        for _ in range(2):
            publisher.step(threading.Event())
        assert (bench.now().state, bench.counts()) == ("running", (2, 2))
        assert found_and_released(bench) == ([], SAMPLED)
