"""An attempt that ends without a public reason is noted; a second one at the same step halts its publication."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, select, text, update

from service.learning.output_perturbation import OutputPerturbation
from service.store import attempts as stored_attempts
from service.store import parked, publications, releases, tables
from service.store.database import Database, DatabaseUnavailable
from service.worker import publisher as publisher_module
from service.worker.leases import LeaseKeeper
from service.worker.publisher import Publisher
from tests.conftest import wait_until
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

TICKS = CONFIGURATION | {"publish_delay": 0.1}


class Unforeseen(Exception):
    """A failure that nobody expected."""


def fail(monkeypatch: pytest.MonkeyPatch, times: int, error: type[Exception] = Unforeseen) -> list[int]:
    """The next so many fits end so, after their noise was drawn; returns a list that grows with each fit."""
    real, calls = OutputPerturbation.release, []

    def release(self: OutputPerturbation, *arguments: Any) -> Any:
        calls.append(1)
        model = real(self, *arguments)
        if len(calls) <= times:
            raise error
        return model

    monkeypatch.setattr(OutputPerturbation, "release", release)
    return calls


def attempts(bench: Bench) -> list[tuple[int, int]]:
    with bench.database.transaction() as connection:
        rows = connection.execute(select(tables.attempts.c.position, tables.attempts.c.version))
        return [tuple(row) for row in rows]


def kill(bench: Bench) -> None:
    """As if whoever was at a publication had been killed, and its lease had run out."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.leases).values(owner="dead", expires_at=func.clock_timestamp()))


def step(bench: Bench, publisher: Publisher | None = None) -> None:
    (publisher or bench.publisher()).step(threading.Event())


def test_an_unforeseen_error_is_noted_and_one_more_attempt_succeeds(bench: Bench, monkeypatch):
    fail(monkeypatch, 1)
    step(bench)
    assert (attempts(bench), bench.counts()) == ([(0, 0)], (0, 0))
    bench.publish_all()
    assert bench.now().state == "running"
    assert bench.counts() == (5, 5)


def test_an_error_of_the_driver_before_anything_is_drawn_is_no_attempt(bench: Bench):
    """Whatever ends the query that says where records are: no result is there of which another could be chosen."""
    owner = Database(bench.world.settings.migration_url)
    with owner.transaction() as connection:
        connection.execute(text("REVOKE SELECT ON segments FROM perennial_service"))
    for _ in range(3):
        step(bench)
    assert (bench.now().state, attempts(bench), bench.counts()) == ("running", [], (0, 0))
    with owner.transaction() as connection:
        connection.execute(text("GRANT SELECT ON segments TO perennial_service"))
    owner.close()
    bench.publish_all()
    assert bench.counts() == (5, 5)


def test_an_error_of_the_driver_after_noise_was_drawn_is_one(bench: Bench, monkeypatch):
    calls = fail(monkeypatch, 9, psycopg.errors.InsufficientPrivilege)
    for _ in range(4):
        step(bench)
    assert (bench.now().state, len(calls)) == ("halted", 2)


def test_after_a_second_one_at_the_same_step_it_halts(bench: Bench, monkeypatch):
    calls = fail(monkeypatch, 9)
    for _ in range(4):
        step(bench)
    assert bench.now().state == "halted"
    assert "two attempts" in bench.now().reason
    assert (len(calls), bench.counts()) == (2, (0, 0))


@pytest.mark.parametrize("bench", [TICKS], indirect=True)
def test_with_ticks_it_halts_at_one_and_keeps_what_was_parked_before(bench: Bench, monkeypatch):
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    step(bench)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    fail(monkeypatch, 9)
    for _ in range(3):
        step(bench)
    assert (bench.now().state, attempts(bench)) == ("running", [(6, 2)])
    with bench.database.transaction() as connection:
        assert [each.following_due for each in parked.of_publication(connection, 1)] == [8, None]
        connection.execute(update(tables.parked).values(tick=func.to_timestamp(0)))
    bench.context().ticker.publish(1)
    assert (bench.now().state, bench.now().version) == ("halted", 2)


def test_an_attempt_is_counted_at_its_step_alone(bench: Bench):
    with bench.database.transaction() as connection:
        counted = [
            stored_attempts.note(connection, bench.identity, *at) for at in ((0, 0), (6, 2), (6, 3), (8, 3), (8, 3))
        ]
        assert counted == [False, False, False, False, True]


def test_errors_at_different_steps_halt_nothing(bench: Bench, monkeypatch):
    real, seen = OutputPerturbation.release, set()

    def release(self: OutputPerturbation, *arguments: Any) -> Any:
        at = bench.now().version
        if at not in seen:
            seen.add(at)
            raise Unforeseen
        return real(self, *arguments)

    monkeypatch.setattr(OutputPerturbation, "release", release)
    wait_until(lambda: (step(bench), bench.counts() == (5, 5))[1])
    assert bench.now().state == "running"
    assert len(seen) == 3


def test_who_takes_over_from_one_that_was_killed_notes_that(bench: Bench):
    kill(bench)
    step(bench)
    assert attempts(bench) == [(0, 0)]
    assert bench.counts() != (0, 0)


def test_two_kills_at_the_same_due_step_halt_it(bench: Bench, monkeypatch):
    calls = fail(monkeypatch, 0)
    kill(bench)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("service.worker.fits.prepare", _killed)
        step(bench)
    kill(bench)
    step(bench)
    assert bench.now().state == "halted"
    assert (len(calls), bench.counts()) == (2, (0, 0))  # both fits of the first step's two releases


@pytest.mark.more
@pytest.mark.parametrize("obstacle", ["the mark can't be written", "the mark can't be read", "an old ledger"])
@pytest.mark.parametrize("who", ["the same worker", "another"])
def test_a_kill_is_noted_though_whoever_takes_over_can_not_go_on_at_first(bench: Bench, monkeypatch, obstacle, who):
    publisher, mark = bench.publisher(), bench.files.root / "log.witness"
    publisher._audit.look(1)  # all was well when the worker started
    kill(bench)
    with monkeypatch.context() as patched:
        match obstacle:
            case "the mark can't be written":
                patched.setattr(publisher._confirmer, "can_confirm", lambda _: False)
            case "the mark can't be read":
                mark.unlink(missing_ok=True)
                mark.mkdir()
            case _:
                patched.setattr(publisher_module.high_water_mark, "contradicts", lambda *_: "it is an old one")
        step(bench, publisher)
    assert (attempts(bench), bench.counts()) == ([], (0, 0))
    if mark.is_dir():
        mark.rmdir()
    publisher._dispatcher._retry_at.clear()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(distrusted=None))
    step(bench, publisher if who == "the same worker" else None)
    assert attempts(bench) == [(0, 0)]
    assert bench.counts() != (0, 0)


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_kill_while_nothing_was_due_counts_for_nothing(bench: Bench):
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=1))
    kill(bench)
    step(bench)
    assert attempts(bench) == []


@pytest.mark.parametrize("bench", [CONFIGURATION, TICKS], indirect=True, ids=["at once", "with ticks"])
def test_who_was_overtaken_while_it_drew_commits_nothing(bench: Bench, monkeypatch):
    real = Publisher._commit

    def overtaken(self: Publisher, *drawn: Any) -> Any:
        kill(bench)
        return real(self, *drawn)

    monkeypatch.setattr(Publisher, "_commit", overtaken)
    step(bench)
    assert (bench.counts(), bench.now().position) == ((0, 0), 0)
    with bench.database.transaction() as connection:
        assert parked.of_publication(connection, bench.identity) == []


def test_a_lease_that_was_given_back_tells_of_no_attempt(bench: Bench):
    step(bench)
    with bench.database.transaction() as connection:
        assert connection.execute(select(tables.leases.c.owner).where(tables.leases.c.owner.isnot(None))).all() == []
    assert attempts(bench) == []


def database_goes_away(bench: Bench) -> None:
    """Cut one connection, and let the leases of all workers run out."""
    with pytest.raises(DatabaseUnavailable), bench.database.transaction() as connection:
        connection.connection.driver_connection.close()
        connection.execute(select(1))
    kill(bench)


def test_a_lease_that_ran_out_while_the_database_was_away_is_foreseen(bench: Bench):
    publisher = bench.publisher()
    database_goes_away(bench)
    step(bench, publisher)
    assert attempts(bench) == []
    assert bench.counts() != (0, 0)


@pytest.mark.parametrize("bench", [CONFIGURATION, TICKS], indirect=True, ids=["at once", "with ticks"])
def test_a_result_whose_commit_failed_is_committed_again_with_the_same_bytes(bench: Bench, monkeypatch):
    """However often the database goes away, nothing is drawn again."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    calls, real, away = fail(monkeypatch, 0), Publisher._commit, [True] * 3
    publisher, drawn = bench.publisher(), []

    def commit(self: Publisher, lease: Any, turn: Any, prepared: Any) -> Any:
        drawn.append(prepared)
        if away:
            away.pop()
            raise DatabaseUnavailable("gone")
        return real(self, lease, turn, prepared)

    monkeypatch.setattr(Publisher, "_commit", commit)
    for _ in range(3):
        with pytest.raises(DatabaseUnavailable):
            step(bench, publisher)
    step(bench, publisher)
    assert len(set(map(id, drawn))) == 1
    assert len(calls) == 2
    assert attempts(bench) == []
    with bench.database.transaction() as connection:
        connection.execute(update(tables.parked).values(tick=func.to_timestamp(0)))
    bench.context().ticker.publish(1)
    with bench.database.transaction() as connection:
        assert publications.get(connection, 1).version == 2
        for release in drawn[0].releases:
            assert (releases.parameters(connection, 1, release.version) == release.parameters).all()


@pytest.mark.parametrize("lease", ["given up", "run out"])
def test_a_note_that_could_not_be_written_is_written_before_the_next_attempt(bench: Bench, monkeypatch, lease):
    """Also where the lease could not be given up either, and tells of no attempt since the database was away."""
    calls, real, publisher = fail(monkeypatch, 2), Publisher._note, bench.publisher()
    monkeypatch.setattr(publisher._dispatcher, "retry_later", lambda *_: None)

    def away(*_: object) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patched, pytest.raises(DatabaseUnavailable):
        patched.setattr(Publisher, "_note", away)
        if lease == "run out":
            patched.setattr(LeaseKeeper, "abandon", lambda keeper, held, _: keeper._forget([held]))
        step(bench, publisher)
    if lease == "run out":
        database_goes_away(bench)
    assert attempts(bench) == []
    step(bench, publisher)  # notes the first, tries again, which fails too, and halts
    assert real is Publisher._note
    assert bench.now().state == "halted"
    assert (len(calls), bench.counts()) == (2, (0, 0))


def test_an_attempt_that_is_noted_late_is_noted_once(bench: Bench, monkeypatch):
    """The next end of the step is a foreseen one, and counts for nothing."""
    fail(monkeypatch, 1)
    publisher = bench.publisher()
    monkeypatch.setattr(publisher._dispatcher, "retry_later", lambda *_: None)

    def away(*_: object) -> None:
        raise DatabaseUnavailable("gone")

    for owner, name in ((Publisher, "_note"), (publisher_module.fits, "draw")):
        with monkeypatch.context() as patched, pytest.raises(DatabaseUnavailable):
            patched.setattr(owner, name, away)
            step(bench, publisher)
    assert attempts(bench) == [(0, 0)]
    step(bench, publisher)
    assert (bench.now().state, bench.counts()) == ("running", (5, 5))


def test_who_was_overtaken_notes_no_attempt(bench: Bench, monkeypatch):
    """Else one more end, of whoever took over, halts the publication."""

    def overtaken(*_: object) -> None:
        kill(bench)
        raise Unforeseen

    monkeypatch.setattr(publisher_module.fits, "draw", overtaken)
    step(bench)
    assert attempts(bench) == []


@pytest.mark.parametrize("fails", ["_note", "_halt"])
def test_an_attempt_is_left_to_whoever_comes_next_while_it_can_not_be_noted(bench: Bench, monkeypatch, fails):
    """Or while the publication can't be halted for it: nothing is drawn a third time."""
    calls, publisher = fail(monkeypatch, 9), bench.publisher()
    if fails == "_halt":
        step(bench)

    def away(*_: object) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patched, pytest.raises(DatabaseUnavailable):
        patched.setattr(Publisher, fails, away)
        step(bench, publisher)
    step(bench)
    assert bench.now().state == "halted"
    assert (len(calls), bench.counts()) == (2, (0, 0))


def test_a_thread_takes_nothing_that_another_of_its_process_is_still_at(bench: Bench):
    """Though the lease has run out: two would draw noise for the same step."""
    publisher = bench.publisher()
    dispatcher = publisher._dispatcher
    dispatcher.look()
    step = dispatcher.take(wait=False)
    assert step is not None
    assert dispatcher.take(wait=False) is None, "nor by an older look at what is due"
    assert not publisher.step(threading.Event())
    dispatcher.finish(step, look_again=False)
    assert publisher.step(threading.Event())
