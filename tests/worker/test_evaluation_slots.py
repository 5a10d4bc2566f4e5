"""Fits read training slots alone, and evaluations read evaluation slots alone, whatever records are in them."""

import numpy as np
import pytest

from service.learning.output_perturbation import OutputPerturbation
from service.ledger.verify import verify
from service.segments.locating import locate, read_records
from service.segments.records import Located, load
from service.store import erasing
from tests.conftest import World
from tests.worker.published import number, published

SCHEMA = {"features": 1, "task": {"kind": "classification", "classes": 2}, "evaluation": {"every": 3}}
CONFIGURATION = {
    "mechanism": {"kind": "independent_batches", "batch": 10},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 0},
}


def columns(start, stop):
    return {"x": np.arange(start, stop, dtype=np.float32)[:, None], "y": np.zeros(stop - start, dtype=np.int32)}


@pytest.mark.parametrize(("evaluates", "rest"), [(False, (0, 1)), (True, (2,))])
def test_a_range_is_read_without_the_slots_of_the_other_kind(world: World, evaluates, rest):
    with published(world, SCHEMA, CONFIGURATION, columns(0, 8), epsilon=1) as bench:
        number(bench.database, bench.files, bench.stream().id, columns(8, 17))
        with bench.database.transaction() as connection:
            erasing.erase(connection, bench.stream().id, 4, 7)
        expected = [slot for slot in range(1, 16) if slot % 3 in rest and slot not in (4, 5, 6)]
        records = read_records(bench.database, bench.files, bench.stream(), 1, 0, 15, evaluates=evaluates)
        assert records.x[:, 0].tolist() == expected
        assert records.slots.tolist() == [slot - 1 for slot in expected]

        located = locate(bench.database, bench.stream(), 1, 0, 15, evaluates=evaluates)
        apart = load(bench.files, lambda: Located.from_json(located.to_json()))
        assert apart.x[:, 0].tolist() == expected, "as a process of its own reads it"


def test_a_worker_fits_no_evaluation_slot(world: World, monkeypatch):
    fit, seen = OutputPerturbation.fit, []

    def spy(self, records, n, *of_the_fit):
        seen.append((records.x[:, 0].tolist(), n))
        return fit(self, records, n, *of_the_fit)

    monkeypatch.setattr(OutputPerturbation, "fit", spy)
    with published(world, SCHEMA, CONFIGURATION, columns(0, 20), epsilon=1) as bench:
        bench.publish_all()
        with bench.database.transaction() as connection:
            assert verify(connection).findings == []
    assert seen == [
        ([slot for slot in range(10) if slot % 3 != 2], 7),
        ([slot for slot in range(10, 20) if slot % 3 != 2], 7),
    ]
