"""How often a release waits for PostgreSQL between the end of its fit and its being visible: counted, not timed."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from service.publishing.confirmation import Confirmer
from service.worker.publisher import Publisher
from tests.worker.published import Bench
from tests.worker.test_publishing import bench  # noqa: F401
from tests.worker.test_ticks import come, park_all, with_ticks


@pytest.fixture
def round_trips(bench: Bench, tmp_path: Path) -> Iterator[Callable[[], int]]:
    """Yield what counts them, by the messages with which the server says that it waits for the next one."""
    trace = tmp_path / "trace"
    with trace.open("wb") as file:

        def follow(session: Any, _: Any) -> None:
            session.prepare_threshold = None  # to prepare a statement, once, is a round trip of its own
            session.pgconn.trace(file.fileno())

        event.listen(bench.database.engine, "connect", follow)
        bench.database.close()
        yield lambda: trace.read_bytes().count(b"ReadyForQuery")
        bench.database.close()


def test_a_release_without_ticks_waits_for_few_answers(bench: Bench, round_trips, monkeypatch):
    """A commit takes six, reading what is committed three, making it visible four; they were 26 once."""
    counted: list[int] = []
    real_commit, real_soon = Publisher._commit, Confirmer.soon

    def commit(*given: Any) -> Any:
        counted.append(-round_trips())
        return real_commit(*given)

    def soon(*given: Any) -> None:
        real_soon(*given)
        counted[-1] += round_trips()

    monkeypatch.setattr(Publisher, "_commit", commit)
    monkeypatch.setattr(Confirmer, "soon", soon)
    bench.publisher().step(threading.Event())
    assert bench.stream().confirmed_releases == bench.counts()[0] > 0
    assert max(counted) <= 13


@with_ticks
def test_releases_at_a_tick_wait_for_few_answers(bench: Bench, round_trips):
    """Three steps, of which each takes some under the lock; they were 39 once."""
    publisher = park_all(bench)
    come(bench)
    before = round_trips()
    publisher._ticker.step()
    taken = round_trips() - before
    assert bench.stream().confirmed_releases == bench.counts()[0] > 0
    assert taken <= 27
