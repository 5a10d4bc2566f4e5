"""Linear queries on a stream with units: what counts, what a slot is charged, and that the ledger adds it up."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from sqlalchemy import update

from service.ledger.verify import verify
from service.store import publications, tables
from tests.queries.asking import SCHEMA, make_bench, share
from tests.worker import published

M = 3
UNIT = {"max_records": M, "min_separation": 1}


@pytest.fixture(params=[{"epsilon": 1000, "delta": 0}, {"epsilon": 1000, "delta": 1e-6}], ids=["pure", "gaussian"])
def bench(settings, database, request):
    bench = make_bench(settings, database, privacy=request.param, schema=SCHEMA | {"unit": UNIT}, hits=2)
    units = np.arange(40, dtype=np.uint8) // 2
    counts = (np.arange(40) < 30).astype(np.uint8)
    columns = {
        "y": np.where(counts, 1, 0).astype(np.int32),
        "unit": np.repeat(units[:, None], 16, axis=1),
        "counts": counts,
    }
    published.number(bench.database, bench.files, bench.now().stream_id, columns)
    bench.count_in()
    return bench


def test_slots_that_do_not_count_are_in_no_category_and_a_slot_pays_its_part(bench):
    answerer = bench.answerer()
    first, second, third = bench.ask(answerer, share(1), share(0), share(2))
    assert first.answer == pytest.approx(0.75, abs=0.02)
    assert second.answer == pytest.approx(0.0, abs=0.25)
    assert third.answer == pytest.approx(0.0, abs=0.25)
    now = bench.now()
    assert 0 < now.version <= 2
    factor = Fraction(M if now.kind == "pure" else M * M)
    assert Fraction(now.unit_factor) == factor
    capacity = Fraction(now.plan["guarantee"]["capacity"])
    assert Fraction(now.worst_amount) * factor <= capacity * (1 + Fraction(1, 2**40))
    bench.all_is_well()


def test_a_group_factor_of_independent_noise_is_found(bench):
    bench.ask(bench.answerer(), share(1))
    now = bench.now()
    unit = now.obligations["unit"]
    forged = now.obligations | {"unit": unit | {"factor": str(Fraction(unit["factor"]) - 1)}}
    with bench.database.engine.connect() as connection, connection.begin() as transaction:
        which = tables.publications.c.id == now.id
        digest = publications.obligations_digest(replace(now, obligations=forged))
        connection.execute(
            update(tables.publications).where(which).values(obligations=forged, obligations_digest=digest)
        )
        findings = verify(connection, isolated=False).findings
        transaction.rollback()
    assert any("less often" in each for each in findings)
