"""Numbers of batches are forgotten once nobody asks for them any more, a few at a time, and the newest never."""

from datetime import timedelta

import httpx
import pytest
from sqlalchemy import func, select, update

from service.ledger.invariants import INVARIANTS
from service.ledger.verify import verify
from service.store import numbering, retention, streams, tables
from tests.conftest import ADMIN_KEY, serving, wait_until
from tests.worker.conftest import Bench


def sealed(bench: Bench, batches: int) -> list[str]:
    """Return the entries of so many batches of two records, numbered."""
    appended = [bench.append(0.1, 0.2) for _ in range(batches)]
    sealer = bench.sealer()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().records == 2 * batches)[1])
    return appended


def numbered_ago(bench: Bench, below: int, **ago: float) -> None:
    """Batches that begin below a record were numbered so long ago."""
    with bench.database.transaction() as connection:
        mine = tables.entries.c.start < below
        connection.execute(
            update(tables.entries).where(mine).values(numbered_at=func.clock_timestamp() - timedelta(**ago))
        )


def remembered(bench: Bench) -> list[int]:
    with bench.database.transaction() as connection:
        return list(connection.execute(select(tables.entries.c.start).order_by(tables.entries.c.start)).scalars())


def assert_whole(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        assert verify(connection, isolated=False).findings == []
        assert INVARIANTS["record_gap"](connection) == []


@pytest.mark.parametrize("at_once", [1, 2, 1000])
def test_batches_of_a_week_ago_are_forgotten_a_few_at_a_time(bench: Bench, monkeypatch, at_once):
    monkeypatch.setattr(retention, "FORGOTTEN_AT_ONCE", at_once)
    entries = sealed(bench, 5)
    numbered_ago(bench, 6, days=7, minutes=1)
    sealer = bench.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), remembered(bench) == [6, 8])[1])
    with bench.database.transaction() as connection:
        stream = streams.get(connection, bench.stream.id)
        numbers = [numbering.find_entry(connection, stream.id, entry) for entry in entries]
        assert numbers == [None, None, None, (6, 8), (8, 10)]
        assert [numbering.is_forgotten(connection, stream, entry) for entry in entries] == [True] * 3 + [False] * 2
    assert stream.entries_from == 6
    assert_whole(bench)


def test_the_numbers_of_the_newest_batch_and_of_this_week_stay(bench: Bench):
    sealed(bench, 3)
    numbered_ago(bench, 6, days=6, hours=23)
    sealer = bench.successor()
    for _ in range(3):
        sealer.step(wait_milliseconds=10)
    assert remembered(bench) == [0, 2, 4]
    numbered_ago(bench, 6, days=99)
    wait_until(lambda: (bench.successor().step(wait_milliseconds=10), remembered(bench) == [4])[1])
    bench.successor().step(wait_milliseconds=10)
    assert remembered(bench) == [4]
    assert_whole(bench)


def test_a_clock_that_was_ahead_makes_no_hole(bench: Bench):
    """Numbers of a batch stay as long as those of one before it."""
    sealed(bench, 3)
    numbered_ago(bench, 6, days=8)
    numbered_ago(bench, 1, days=-1)
    bench.successor().step(wait_milliseconds=10)
    assert remembered(bench) == [0, 2, 4]
    assert_whole(bench)


def test_a_producer_is_told_that_its_batch_is_forgotten_not_that_it_was_lost(bench: Bench):
    """A producer that reads 404 for ever sends the batch again, and each of its records would spend twice."""
    entries = sealed(bench, 3)
    numbered_ago(bench, 2, days=8)
    wait_until(lambda: (bench.successor().step(wait_milliseconds=10), remembered(bench) == [2, 4])[1])
    with serving(bench.world.settings) as url:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        paths = [*entries, f"{int(entries[-1].split('-')[0]) + 1}-0"]
        answers = [httpx.get(f"{url}/v1/streams/s/entries/{entry}", headers=headers, timeout=60) for entry in paths]
    assert [answer.status_code for answer in answers] == [410, 200, 200, 404]
    assert answers[0].json()["type"].endswith(":entry-forgotten")
    assert "do not send it again" in answers[0].json()["detail"]


def test_entries_that_are_missing_after_the_first_that_is_remembered_are_found(bench: Bench):
    sealed(bench, 3)
    with bench.database.transaction() as connection:
        connection.execute(tables.entries.delete().where(tables.entries.c.start == 0))
    with bench.database.transaction() as connection:
        assert any("entries are not continuous" in finding for finding in verify(connection, isolated=False).findings)
        assert INVARIANTS["record_gap"](connection) != []
