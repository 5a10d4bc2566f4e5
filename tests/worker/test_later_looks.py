"""A worker confirms what nobody has at every later look too, and all that it was asked for before it ends."""
# ruff: noqa: F811 - a fixture is another file's

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, update

from service.store import streams, tables
from service.worker import audit as auditing
from tests.conftest import wait_until
from tests.worker.published import Bench
from tests.worker.test_confirmation import crash_before_the_mark, visible
from tests.worker.test_publishing import bench  # noqa: F401
from tests.worker.test_ticks import far_away, park_all, waiting
from tests.worker.test_walks import another_stream


@contextmanager
def unwritable(bench: Bench, log: str = "log") -> Iterator[None]:
    """Nobody can write the mark of a stream."""
    obstacle = bench.files.root / f"{log}.lock"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    yield
    obstacle.rmdir()


def test_what_could_not_be_confirmed_at_one_look_is_confirmed_at_the_next(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    audit = bench.shop().audit
    with unwritable(bench):
        for _ in range(2):
            audit.confirm()
    assert visible(bench)[0] is None
    audit.confirm()
    assert visible(bench)[0] == 5


def test_what_changes_between_full_looks_is_confirmed_at_the_second_look_that_finds_it(bench: Bench, monkeypatch):
    audit = bench.shop().audit
    for _ in range(4):
        audit.confirm()
    crash_before_the_mark(bench, monkeypatch)
    audit.confirm()
    assert visible(bench)[0] is None, "whoever published may be at it"
    audit.confirm()
    assert visible(bench)[0] == 5


def test_every_mark_is_looked_at_again_though_its_stream_has_not_changed(bench: Bench, monkeypatch):
    bench.publish_all()
    audit = bench.shop().audit
    monkeypatch.setattr(auditing, "SECONDS_BETWEEN_FULL_LOOKS", 0.0)
    for _ in range(2):
        audit.confirm()
    (bench.files.root / "log.witness").unlink()
    audit.confirm()
    assert "is missing" in bench.stream().distrusted


def test_all_that_a_worker_was_asked_to_confirm_is_confirmed_before_it_ends(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    confirmer, other, stop = bench.shop().confirmer, another_stream(bench), threading.Event()
    confirmer._running = True
    confirmer.soon(1)
    confirmer.soon(other)
    stop.set()
    confirmer.run(stop)
    assert visible(bench)[0] == 5
    assert bench.files.high_water_mark("other") is not None


def test_what_is_confirmed_together_is_shown_of_each_stream(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    other = another_stream(bench)
    bench.shop().confirmer.confirm_each([1, other])
    with bench.database.transaction() as connection:
        assert [each.marked for each in streams.of_each(connection, [1, other])] == [True, True]
    assert visible(bench)[0] == 5


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
