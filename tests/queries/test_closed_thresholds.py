"""A threshold that has answered yes is compared with no more, whatever came of the yes; and one process compares."""

import threading
import time

import pytest

from service.ledger.errors import LedgerBroken
from service.publishing import confirmation
from service.queries import answering, instances
from service.settings import Settings
from service.store import leases, publications, releases
from service.store.database import Database, DatabaseUnavailable
from tests.conftest import run_out, wait_until
from tests.queries.asking import (
    ALPHA,
    EVERY,
    LEASE_SECONDS,
    Bench,
    by_hand,
    easy,
    from_histogram,
    make_bench,
    share,
    with_records,
)


def test_of_two_processes_one_compares_and_the_other_answers_from_the_histogram(bench: Bench, compared: list):
    one, other = bench.answerer(), bench.another()
    assert easy(bench.ask(one, share(2))[0], 1 / 7), "it holds the lease now"
    assert len(compared) == 1
    assert from_histogram(bench.ask(other, share(0))[0], 1 / 7)
    assert len(compared) == 1
    hard = bench.ask(one, share(0))[0].answer
    charged = bench.charges()
    late, later = bench.ask(other, share(0), share(1))
    assert late.answer == pytest.approx(hard, abs=ALPHA), "from what is released"
    assert (late.measured, late.error_bound, later.measured, later.error_bound) == (False, None, False, None)
    assert (len(compared), bench.charges()) == (2, charged)
    one.close()
    assert bench.ask(other, share(0))[0].measured, "the lease was given back"
    assert bench.charges() == charged, "in order, so that nothing had to be closed"
    bench.all_is_well()


def failing(trouble: Exception):
    def fails(*_, **__):
        raise trouble

    return fails


TROUBLES = [DatabaseUnavailable("away"), RuntimeError("nobody foresaw"), LedgerBroken("it does not verify")]


@pytest.mark.parametrize("trouble", TROUBLES, ids=str)
@pytest.mark.parametrize("where", ["hold", "move"])
def test_after_a_yes_that_could_not_be_committed_nothing_is_compared_until_it_is(
    bench: Bench, compared, monkeypatch, capsys, where, trouble
):
    answerer, noise = bench.answerer(), bench.open().noise
    bench.ask(answerer, share(2))
    charged = bench.charges()
    with monkeypatch.context() as patch:
        patch.setattr(
            *{"hold": (instances, "open_leased_entry"), "move": (publications, "move")}[where], failing(trouble)
        )
        before, hard, *after = bench.ask(answerer, share(2), share(0), share(0), EVERY)
        assert easy(before, 1 / 7)
        assert from_histogram(hard, 1 / 7)
        assert from_histogram(after[0], 1 / 7)
        assert from_histogram(after[1], 6 / 7)
        assert len(compared) == 3
        closing = answerer._held[bench.now().promise].closing
        measured, step = closing.measurement, closing.step
        assert from_histogram(bench.ask(answerer, share(0))[0], 1 / 7)
        assert (len(compared), bench.charges(), bench.open().noise) == (3, charged, noise)
    assert "nobody foresaw" not in capsys.readouterr().out
    again = bench.ask(answerer, share(0))[0]
    assert easy(again, measured.moved.shares[0]), "compared with the next instance"
    assert (bench.now().version, len(bench.charges())) == (1, 4), "the yes is committed, once"
    assert bench.open().noise != noise
    with bench.database.transaction() as connection:
        release = releases.find(connection, bench.identity, 1)
    assert release.parameters.tobytes() == measured.moved.shares.tobytes(), "as it was drawn"
    if step is not None:
        assert (bench.open().part().values == step.left.new[bench.open().number]).all(), "all of it"
    bench.all_is_well()


def test_a_yes_that_is_kept_is_committed_once_also_when_records_come_meanwhile(bench: Bench, monkeypatch):
    answerer = bench.answerer()
    bench.ask(answerer, share(2))
    with monkeypatch.context() as patch:
        patch.setattr(publications, "move", failing(DatabaseUnavailable("away")))
        bench.ask(answerer, share(0))
    measured = answerer._held[bench.now().promise].closing.measurement
    bench.arrive(*[5] * 10)
    bench.count_in()
    bench.ask(answerer, share(2))
    with bench.database.transaction() as connection:
        release = releases.find(connection, bench.identity, 1)
    assert release.parameters.tobytes() == measured.moved.shares.tobytes()
    ranges = [(each["start"], each["end"], each["version"]) for each in bench.charges()]
    assert ranges == [(0, 20, None), (20, 40, None), (40, 50, None), (0, 40, 1), (0, 50, None)]
    bench.all_is_well()


def test_a_commit_whose_answer_is_lost_is_found_to_be_done(bench: Bench, monkeypatch):
    answerer, true = bench.answerer(), confirmation.ask
    bench.ask(answerer, share(2))

    def ask(connection, stream):
        true(connection, stream)
        connection.exec_driver_sql("COMMIT")
        raise DatabaseUnavailable("the answer to COMMIT was lost")

    with monkeypatch.context() as patch:
        patch.setattr(confirmation, "ask", ask)
        assert from_histogram(bench.ask(answerer, share(0))[0], 1 / 7)
    assert bench.ask(answerer, share(0))[0].answer == pytest.approx(0.75, abs=ALPHA)
    assert (bench.now().version, len(bench.charges())) == (1, 4)
    bench.all_is_well()


@pytest.mark.parametrize("yes", [False, True], ids=["nothing was kept", "a yes was kept"])
def test_after_a_crash_the_open_instance_is_closed_first_for_a_new_charge(bench: Bench, compared, monkeypatch, yes):
    dies, noise = bench.answerer(), bench.open().noise
    bench.ask(dies, share(2))
    if yes:
        with monkeypatch.context() as patch:
            patch.setattr(instances, "open_leased_entry", failing(DatabaseUnavailable("away")))
            bench.ask(dies, share(0))
    bench.arrive(0)
    bench.count_in()
    count, charged = len(compared), len(bench.charges())
    after = bench.another()
    assert not bench.ask(after, share(2))[0].measured, "until the lease runs out"
    run_out(bench.database)
    with monkeypatch.context() as patch:
        patch.setattr(instances, "open_leased_entry", failing(DatabaseUnavailable("away")))
        assert not bench.ask(after, share(2))[0].measured
        assert len(compared) == count, "nothing is compared before it is closed"
        run_out(bench.database)
        assert not bench.ask(after, share(2))[0].measured, "though nobody else had the lease meanwhile"
        after.close()
    third = bench.another()
    assert not bench.ask(third, share(2))[0].measured
    run_out(bench.database)
    assert easy(bench.ask(third, share(2))[0], 1 / 7), "the histogram has not moved"
    assert (len(compared), bench.now().version, len(bench.charges())) == (count + 1, 1, charged + 2)
    measured, opening = bench.charges()[charged:]
    assert (measured["version"], measured["start"], measured["end"]) == (1, 0, 41)
    assert (opening["version"], opening["start"], opening["end"]) == (None, 0, 41)
    assert bench.open().noise != noise
    bench.ask(dies, share(2))
    assert bench.now().version == 1, "what it had kept is of an instance that is closed"
    bench.all_is_well()
    by_hand(bench)


def test_who_ends_in_order_leaves_the_instance_open_unless_a_yes_is_kept(bench: Bench, monkeypatch):
    first = bench.answerer()
    bench.ask(first, share(2))
    noise, charged = bench.open().noise, bench.charges()
    second = bench.answerer()  # the first one has ended
    assert easy(bench.ask(second, share(2))[0], 1 / 7)
    assert (bench.open().noise, bench.charges()) == (noise, charged)
    with monkeypatch.context() as patch:
        patch.setattr(publications, "move", failing(DatabaseUnavailable("away")))
        bench.ask(second, share(0))
        second.close()
    third = bench.another()
    assert not bench.ask(third, share(2))[0].measured, "the lease was not given back"
    run_out(bench.database)
    assert bench.ask(third, share(2))[0].measured
    assert bench.open().noise != noise
    bench.all_is_well()


def test_who_ends_in_order_commits_the_yes_that_is_kept(bench: Bench, monkeypatch):
    answerer = bench.answerer()
    with monkeypatch.context() as patch:
        patch.setattr(publications, "move", failing(DatabaseUnavailable("away")))
        bench.ask(answerer, share(0))
    after = bench.answerer()
    assert bench.ask(after, share(0))[0].answer == pytest.approx(0.75, abs=ALPHA)
    assert (bench.now().version, len(bench.charges())) == (1, 4)
    bench.all_is_well()


def test_a_turn_counts_on_its_lease_only_as_long_as_the_database_says(bench: Bench, monkeypatch):
    answerer, true, renewed = bench.another(), leases.keep, []
    bench.ask(answerer, share(2))
    held = answerer._held[bench.now().promise]

    def keep(*args, **more):
        renewed.append(time.monotonic())
        return true(*args, **more)

    monkeypatch.setattr(leases, "keep", keep)
    with held.lock:  # as during a turn
        before = held.until
        answerer._keep_lease(held)
        until = held.until
        assert before < until < renewed[0] + LEASE_SECONDS, "counted from before it was renewed"
        run_out(bench.database)
        with bench.database.transaction() as connection:
            assert leases.take(connection, leases.queries(bench.identity), owner="another", seconds=LEASE_SECONDS)
        answerer._keep_lease(held)
        assert (len(renewed), held.until) == (2, until), "another process has it"


class Twice(threading.Event):
    """Is set after two waits, however long these are to be."""

    left = 2

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def test_leases_are_looked_after_though_one_look_fails(bench: Bench, monkeypatch):
    answerer = bench.another()
    bench.ask(answerer, share(2))
    held, true, troubles = answerer._held[bench.now().promise], leases.keep, [RuntimeError("nobody foresaw")]
    until = held.until

    def keep(*args, **more):
        if troubles:
            raise troubles.pop()
        return true(*args, **more)

    monkeypatch.setattr(leases, "keep", keep)
    monkeypatch.setattr(answerer, "_ending", Twice())
    answerer._keep_leases()
    assert held.until > until


def test_the_records_of_those_that_nobody_asked_for_longest_are_forgotten(
    bench: Bench, settings: Settings, database: Database, monkeypatch
):
    answerer, other = bench.another(), with_records(make_bench(settings, database))
    monkeypatch.setattr(answering, "MAX_CELLS", bench.now().owes.cells)
    bench.ask(answerer, share(2))
    other.ask(answerer, share(2))
    states = [answerer._held[each.now().promise].state for each in (bench, other)]
    assert [state is None for state in states] == [True, False]
    assert easy(bench.ask(answerer, share(2))[0], 1 / 7), "they are read again"


class Often(threading.Event):
    """Waits a moment, however long it is asked to wait."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(0.05 if timeout else timeout)


def test_a_lease_that_no_turn_uses_is_given_back_and_one_in_use_is_not(bench: Bench):
    one, other = bench.another(), bench.another()
    one._ending = Often()  # it looks after its leases all the time
    one.start()
    noise = bench.open().noise
    held = one._keep(bench.now())
    with held.lock:  # as during a turn
        one._look(held)
        held.used -= LEASE_SECONDS  # as if the turn were long
        for _ in range(2):
            until = held.until
            wait_until(lambda since=until: held.until > since)
        assert not bench.ask(other, share(2))[0].measured
    wait_until(lambda: bench.ask(other, share(2))[0].measured)
    assert bench.open().noise == noise
    for each in (one, other):
        each.close()


def test_where_nothing_is_confirmed_nothing_is_compared(settings: Settings, monkeypatch):
    """No worker listens here but the bench's own, which confirms what it counts in and nothing else."""
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 0.5)
    database = Database(settings.database_url)
    bench = with_records(make_bench(settings, database))
    monkeypatch.setattr(answering.confirmation, "ask", lambda *_: None)
    answerer = bench.answerer()
    assert from_histogram(bench.ask(answerer, share(0))[0], 1 / 7), "its release is committed, and not visible"
    assert bench.now().version == 1
    assert bench.now().visible_version is None
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 1e6)
    assert from_histogram(bench.ask(answerer, share(0))[0], 1 / 7), "nobody waits a second time"
    bench.publisher._confirmer.confirm(bench.now().stream_id)
    assert bench.ask(answerer, share(0))[0].answer == pytest.approx(0.75, abs=ALPHA)
    bench.all_is_well()
    database.close()
