"""Units set aside for evaluations: no fit reads their records, evaluations read no others, and each kind pays alone."""

from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import pytest

from service.ledger import spending
from service.ledger.errors import BudgetExceeded
from service.ledger.verify import verify
from service.privacy.accounting.composition import PrivacyLoss, Slots
from service.segments.locating import locate, read_records
from service.segments.records import Located, load
from service.store import erasing
from tests.conftest import World
from tests.worker.published import Bench, published
from tests.worker.test_evaluating import make, released

PATTERN = np.array([0, 1, 1, 2, 3, 0, 0, 1, 2, 2, 3, 1, 0, 2, 3, 3, 1, 0, 1, 2, 3, 0, 1, 2])
"""The unit of every slot. A unit's pseudonym is its number 16 times, so every odd one is set aside."""
SCHEMA = {
    "features": 1,
    "task": {"kind": "classification", "classes": 2},
    "unit": {"max_records": 9, "min_separation": 1},
    "evaluation": {"every": 2},
}
MODELS = {
    "mechanism": {"kind": "independent_batches", "batch": 6},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 0},
}
EVALUATION = {
    "mechanism": {"kind": "evaluation", "of": ["p"], "block": 3},
    "privacy": {"epsilon": 1, "delta": 0},
}


@pytest.fixture
def bench(world: World) -> Iterator[Bench]:
    records = {
        "x": np.arange(len(PATTERN), dtype=np.float32)[:, None],
        "y": (PATTERN % 2).astype(np.int32),
        "unit": np.repeat(PATTERN.astype(np.uint8)[:, None], 16, axis=1),
        "counts": np.ones(len(PATTERN), dtype=np.uint8),
    }
    with published(world, SCHEMA, MODELS, records, epsilon=1) as bench:
        yield bench


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_range_is_read_without_the_units_of_the_other_kind(bench: Bench, evaluates):
    with bench.database.transaction() as connection:
        erasing.erase(connection, bench.stream().id, 6, 8)
    of_kind = [slot for slot in range(3, 15) if PATTERN[slot] % 2 == evaluates]
    expected = [slot for slot in of_kind if slot not in (6, 7)]
    shares = [1 / sum(PATTERN[each] == PATTERN[slot] for each in of_kind) for slot in expected]
    located = locate(bench.database, bench.stream(), 0, 3, 15, evaluates=evaluates)
    for records in (
        read_records(bench.database, bench.files, bench.stream(), 0, 3, 15, evaluates=evaluates),
        load(bench.files, lambda: Located.from_json(located.to_json())),
    ):
        assert records.x[:, 0].tolist() == expected
        assert records.units == 2, "those of the other kind are in no n"
        assert records.weights == pytest.approx(shares)
        assert [PATTERN[slot] for slot in expected] == [
            {each: PATTERN[slot] for each, slot in zip(records.owners, expected, strict=True)}[each]
            for each in records.owners
        ]


def test_models_and_evaluations_both_spend_the_whole_budget_on_units_of_their_own(bench: Bench):
    evaluation = make(bench, "e", EVALUATION)
    for name, more in (("q", MODELS), ("f", EVALUATION)):
        with pytest.raises(BudgetExceeded):
            make(bench, name, more | {"privacy": {"epsilon": 0.1, "delta": 0}})
    bench.publish_all()
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []
    assert bench.now().version == 4
    assert [each.fit for each in released(bench, evaluation)] == [(start, start + 6) for start in range(0, 24, 6)]
    firsts = [len({*PATTERN[start : start + 6]} & {1, 3}) for start in range(0, 24, 6)]
    assert [each.model["slots"] for each in released(bench, evaluation)] == firsts
    assert [each.model["versions"] for each in released(bench, evaluation)] == [[None], [1], [2], [3]]


def test_a_unit_has_spent_what_publications_of_its_kind_charged(bench: Bench):
    bench.publish_all()
    slots = np.flatnonzero(PATTERN == 1).tolist()
    with bench.database.transaction() as connection:
        of_kind = [spending.of_unit(connection, bench.stream().id, slots, 9, kind) for kind in Slots]
    models = of_kind[list(Slots).index(Slots.TRAINING)]
    assert 0 < models.epsilon <= Decimal(1)
    assert of_kind[list(Slots).index(Slots.EVALUATION)] == PrivacyLoss()
