"""A worker confirms at every later look, and confirms all that it was asked for before it ends."""
# ruff: noqa: F811 - a fixture is another file's

import errno
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, update

from service import metrics
from service.ledger import open_ledger
from service.store import publications, streams, tables
from service.worker import audit as auditing
from service.worker.main import _until_stopped
from tests.conftest import join, wait_until
from tests.worker.published import Bench
from tests.worker.test_confirmation import crash_before_the_mark, visible
from tests.worker.test_publishing import bench  # noqa: F401
from tests.worker.test_ticks import add_without_ticks, far_away, park_all, waiting
from tests.worker.test_ticks_together import add_stream
from tests.worker.test_walks import another_stream


@contextmanager
def unwritable(bench: Bench, log: str = "log") -> Iterator[None]:
    """Nobody can write the mark of a stream."""
    obstacle = bench.files.root / f"{log}.lock"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    yield
    obstacle.rmdir()


def publications_of(bench: Bench, *each: int) -> list[publications.Publication]:
    with bench.database.transaction() as connection:
        return [publication for stream in each for publication in publications.of_stream(connection, stream)]


def test_what_could_not_be_confirmed_at_one_look_is_confirmed_at_the_next(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    audit = bench.context().audit
    with unwritable(bench):
        for _ in range(2):
            audit.confirm()
    assert visible(bench)[0] is None
    audit.confirm()
    assert visible(bench)[0] == 5


def test_what_changes_between_full_looks_is_confirmed_at_the_second_look_that_finds_it(bench: Bench, monkeypatch):
    audit = bench.context().audit
    for _ in range(4):
        audit.confirm()
    crash_before_the_mark(bench, monkeypatch)
    audit.confirm()
    assert visible(bench)[0] is None, "the process that published it may still confirm it"
    audit.confirm()
    assert visible(bench)[0] == 5


def test_every_mark_is_looked_at_again_though_its_stream_has_not_changed(bench: Bench, monkeypatch):
    bench.publish_all()
    audit = bench.context().audit
    monkeypatch.setattr(auditing, "SECONDS_BETWEEN_FULL_LOOKS", 0.0)
    for _ in range(2):
        audit.confirm()
    (bench.files.root / "log.witness").unlink()
    audit.confirm()
    assert "is missing" in bench.stream().distrusted


def test_all_that_a_worker_was_asked_to_confirm_is_confirmed_before_it_ends(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    confirmer, other, stop = bench.context().confirmer, another_stream(bench), threading.Event()
    confirmer._running = True
    confirmer.soon(1)
    confirmer.soon(other)
    stop.set()
    confirmer.run(stop)
    assert visible(bench)[0] == 5
    assert bench.files.high_water_mark("other") is not None


def test_what_is_confirmed_together_is_shown_of_each_publication_and_told(bench: Bench, monkeypatch):
    other = add_stream(bench)
    add_without_ticks(bench)
    with bench.database.listen("perennial_release") as listening:
        crash_before_the_mark(bench, monkeypatch)
        bench.context().confirmer.confirm_each([1, other])
        names = [notice.payload for notice in listening.notifies(timeout=30.0, stop_after=3)]
    assert sorted(names) == ["p", "q", "together"]
    assert [each.visible_position for each in publications_of(bench, 1, other)] == [10, 10, 10]
    with bench.database.transaction() as connection:
        both = streams.of_each(connection, [1, other])
    assert [each.confirmed_releases for each in both] == [each.releases for each in both]


def test_a_locked_stream_is_shown_after_those_that_are_free(bench: Bench, monkeypatch):
    other = add_stream(bench)
    crash_before_the_mark(bench, monkeypatch)
    with bench.database.transaction() as holder:
        open_ledger(holder, other)
        thread = threading.Thread(target=bench.context().confirmer.confirm_each, args=([1, other],))
        thread.start()
        wait_until(lambda: publications_of(bench, 1)[0].visible_position == 10)
        assert publications_of(bench, other)[0].visible_position == 0
    join(thread)
    assert publications_of(bench, other)[0].visible_position == 10


def test_a_mark_that_can_be_read_and_not_be_written_counts_as_one_that_can_not(bench: Bench, monkeypatch):
    """As on a full disk: what is committed unseen does not grow."""
    publisher = bench.publisher()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(bench.files.__class__, "put_high_water_mark", full)
        for _ in range(3):
            publisher.step(threading.Event())
        assert (bench.counts(), visible(bench)[0]) == ((2, 2), None)
    wait_until(lambda: (publisher.step(threading.Event()), visible(bench)[0] == 5)[1])


@far_away
def test_while_the_mark_can_not_be_written_no_other_step_is_published_at_its_tick(bench: Bench):
    publisher = park_all(bench)
    ticker, first = publisher._ticker, waiting(bench)[0].position

    def come(*condition: object) -> None:
        with bench.database.transaction() as connection:
            connection.execute(update(tables.parked).where(*condition).values(tick=func.to_timestamp(0)))
        ticker.step()

    with unwritable(bench):
        come(tables.parked.c.position == first)
        before = bench.counts()
        come()
        assert bench.counts() == before > (0, 0)
    ticker.step()
    assert bench.counts() == (5, 5)


def test_as_long_as_it_runs_an_audit_confirms_asks_invariants_and_forgets_what_has_ended(bench: Bench, monkeypatch):
    for name, value in (("BETWEEN_LOOKS", 0.01), ("BETWEEN_INVARIANTS", 0.0)):
        monkeypatch.setattr(auditing, f"SECONDS_{name}", value)
    for name in ("SHARE_OF_LOOKS", "SHARE_OF_TIME"):
        monkeypatch.setattr(auditing, name, math.inf)
    metrics.begin("ended", "s")
    metrics.VIOLATIONS.labels("broken_chain").set(0)
    audit, stop = bench.context().audit, threading.Event()
    crash_before_the_mark(bench, monkeypatch)
    thread = threading.Thread(target=audit.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: bench.stream().confirmed_releases == 5)
        with bench.database.transaction() as connection:
            connection.execute(update(tables.streams).values(distrusted="a reason"))
        wait_until(lambda: 'violations{invariant="broken_chain"} 1.0' in metrics.exposition(metrics.WORKER).decode())
        wait_until(lambda: ("ended", "s") not in metrics.timed_publications())
    finally:
        stop.set()
        join(thread)


def test_a_part_of_a_worker_that_fails_begins_again_and_its_error_is_not_told_word_for_word(monkeypatch, capsys):
    stop, began = threading.Event(), []
    monkeypatch.setattr(stop, "wait", lambda _: False)

    def job(_: threading.Event) -> None:
        began.append(True)
        if len(began) == 1:
            raise ValueError("of a record")
        stop.set()

    _until_stopped(job, stop)
    assert len(began) == 2
    assert "of a record" not in capsys.readouterr().out
