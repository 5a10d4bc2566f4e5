"""A stream that keeps what is needed drops the rest, beside publications that are asked for at the same moment."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import text, update

from service.ledger import open_entry
from service.store import leases, publications, retention, segments, tables
from tests.conftest import ADMIN_KEY, Service, World, blocked, publication, serving, wait_until
from tests.worker.conftest import new_sealer
from tests.worker.published import Bench, number, published
from tests.worker.test_publishing import SCHEMA, bench  # noqa: F401


def stop(bench: Bench) -> None:
    """No publication needs anything."""
    with bench.database.transaction() as connection:
        open_entry(connection, publications.get(connection, bench.identity)).end("stopped")


def drop(bench: Bench) -> None:
    """Drop segments, as a sealer does now and then."""
    keeper = bench.context().keeper
    sealer = new_sealer(bench.database, bench.world.settings.redis_url, bench.files, keeper)
    stream = bench.stream()
    sealer._dropper.drop_unneeded(keeper.take(leases.stream(stream.id)), stream)


def stored_segments(bench: Bench) -> list[segments.Segment]:
    with bench.database.transaction() as connection:
        return segments.holding(connection, 1, 0, 10)


def test_what_is_to_be_kept_is_kept_whatever_is_needed(bench: Bench):
    stop(bench)
    before = stored_segments(bench)
    drop(bench)
    assert stored_segments(bench) == before
    assert (bench.world.settings.segment_store / "log" / before[0].file).exists()


@pytest.mark.parametrize("bench", ["needed"], indirect=True)
def test_what_came_before_the_first_publication_begins_goes_with_its_files(bench: Bench):
    (segment,) = stored_segments(bench)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.publications).values(start=segment.stop))
    drop(bench)
    assert stored_segments(bench) == []
    assert bench.files.names("log") == set()


def test_what_blocks_of_evaluation_slots_need_depends_on_where_their_publication_begins(world: World):
    """It began at record 1, and every fourth slot is set aside, so that its first block ends at record 4."""
    evaluation = {"mechanism": {"kind": "evaluation", "of": ["p"], "block": 1}, "privacy": {"epsilon": 1, "delta": 0}}
    columns = {"x": np.zeros((4, 1), dtype=np.float32), "y": np.zeros(4, dtype=np.int32)}
    schema = SCHEMA | {"evaluation": {"every": 4}}
    with published(world, schema, evaluation, columns, epsilon=1, retention="needed") as bench:
        number(bench.database, bench.files, 1, columns)
        with bench.database.transaction() as connection:
            connection.execute(update(tables.publications).values(start=1, position=3, seal="of it"))
        drop(bench)
        assert [each.start for each in stored_segments(bench)] == [4]


@pytest.mark.parametrize("bench", ["needed"], indirect=True)
def test_whatever_changes_what_is_needed_has_a_worker_look_again(bench: Bench):
    seen = set()
    for table, changed in (
        (tables.streams, {"records": 9}),
        (tables.publications, {"position": 1, "seal": "1"}),
        (tables.shown, {"state": "stopped"}),
    ):
        with bench.database.transaction() as connection:
            seen.add(retention.progress_of_each(connection, [1])[1])
            connection.execute(update(table).values(changed))
            seen.add(retention.progress_of_each(connection, [1])[1])
    assert len(seen) == 4


@pytest.mark.parametrize("bench", ["needed"], indirect=True)
def test_what_the_last_of_several_publications_needs_is_kept(bench: Bench, monkeypatch):
    first, last = bench.now(), replace(bench.now(), name="last")
    monkeypatch.setattr(publications, "of_stream", lambda *_: [first, last])
    before = stored_segments(bench)
    with bench.database.transaction() as connection:
        lease = leases.take(connection, leases.stream(1), owner="test", seconds=600)
        needed = {first.name: 10, last.name: 3}  # of the middle of a segment on
        assert retention.drop_unneeded(connection, lease, bench.stream(), lambda each: needed[each.name]) == (
            [],
            needed,
        )
    assert stored_segments(bench) == before


@pytest.mark.parametrize("bench", ["needed"], indirect=True)
def test_a_publication_that_begins_meanwhile_finds_its_records_or_is_refused(bench: Bench, monkeypatch):
    """It is asked for when the sealer has just seen that nothing is needed."""
    stop(bench)
    real, answers = publications.of_stream, []
    with serving(bench.world.settings) as url:
        service = Service(url, ADMIN_KEY, bench.world.settings)
        body = publication("s", {"kind": "independent_batches", "batch": 2}, epsilon=1, start=0)
        ask = threading.Thread(
            target=lambda: answers.append(service.client().post("/v1/publications", json=body).status_code)
        )

        def meanwhile(connection, stream):
            needed = real(connection, stream)
            if threading.current_thread() is threading.main_thread():
                monkeypatch.undo()
                ask.start()
                # Asking all the time, since PostgreSQL ends a transaction that is idle for five seconds.
                wait_until(lambda: connection.execute(text("SELECT 1")) and (answers or blocked(bench.database)))
            return needed

        monkeypatch.setattr(publications, "of_stream", meanwhile)
        drop(bench)
        ask.join()
        for client in service.clients.values():
            client.close()
    assert (answers, stored_segments(bench)) == ([422], [])
