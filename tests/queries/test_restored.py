"""PostgreSQL is put back beneath processes that answer: no threshold that has answered yes is compared with again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest
from sqlalchemy.engine import make_url

from service.publishing import confirmation
from service.queries import answering, instances
from service.settings import Settings
from service.store import publications, releases
from service.store.database import Database, DatabaseUnavailable
from service.store.rows import Rows
from tests.conftest import World, run_out
from tests.queries.asking import ALPHA, EVERY, Bench, easy, from_histogram, make_bench, share, with_records

_copies = count()
Restore = Callable[[], None]


def copied(settings: Settings, database: Database) -> Restore:
    """Copy the database as it is; return what puts the copy in its place, under its name."""
    url = make_url(settings.migration_url)
    copy = f"{url.database}_copy_{next(_copies)}"
    admin = url.set(drivername="postgresql", username="postgres", database="postgres").render_as_string(False)

    @contextmanager
    def unused() -> Iterator[psycopg.Connection]:
        database.engine.dispose()
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [url.database]
            )
            yield connection

    def restore() -> None:
        with unused() as connection:
            connection.execute(f"ALTER DATABASE {url.database} RENAME TO {copy}_lost")
            connection.execute(f"ALTER DATABASE {copy} RENAME TO {url.database}")

    with unused() as connection:
        connection.execute(f"CREATE DATABASE {copy} TEMPLATE {url.database} OWNER {url.username}")
    return restore


@pytest.fixture
def alone(world: World, monkeypatch) -> Iterator[Database]:
    """A database where nothing is confirmed but by hand, and nobody waits for that."""
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 0.0)
    monkeypatch.setattr(answering, "SECONDS_TO_FINISH", 0.0)
    monkeypatch.setattr(answering, "SECONDS_BETWEEN_CALLS", 0.0)
    database = Database(world.settings.database_url)
    yield database
    database.close()


@pytest.fixture
def bench(world: World, alone: Database) -> Bench:
    return with_records(make_bench(world.settings, alone))


@pytest.fixture
def copy(world: World, alone: Database) -> Callable[[], Restore]:
    return lambda: copied(world.settings, alone)


def confirm(bench: Bench) -> None:
    bench.publisher._confirmer.confirm(bench.now().stream_id)


def released(bench: Bench) -> list[str]:
    with bench.database.transaction() as connection:
        return [each["sha256"] for each in releases.walk(Rows(connection), bench.identity)]


def failing(trouble: Exception):
    def fails(*_, **__):
        raise trouble

    return fails


@pytest.mark.parametrize("seen", [False, True], ids=["not seen since", "seen unconfirmed"])
def test_a_yes_whose_commit_a_standby_lacks_is_committed_there_again(bench: Bench, copy, compared, monkeypatch, seen):
    answerer = bench.answerer()
    bench.ask(answerer, share(2))
    fail_over = copy()
    with monkeypatch.context() as patch:
        if not seen:
            true = answering.Answerer._look

            def look(self, held):
                patch.setattr(answering.Answerer, "_look", failing(DatabaseUnavailable("it died after the commit")))
                return true(self, held)

            patch.setattr(answering.Answerer, "_look", look)
        assert from_histogram(bench.ask(answerer, share(0))[0], 1 / 7)
    lost, threshold = released(bench), bench.open().noise
    assert len(lost) == 1
    fail_over()
    assert released(bench) == []
    before = len(compared)
    for answer in bench.ask(answerer, share(0), share(0)):
        assert from_histogram(answer, 1 / 7)
    assert len(compared) == before, "its threshold has answered"
    assert (released(bench), bench.open().noise) == (lost, threshold), "the same bytes"
    confirm(bench)
    assert bench.ask(answerer, share(0))[0].answer == pytest.approx(0.75, abs=ALPHA)
    assert len(compared) == before + 1
    assert bench.now().version == 1
    bench.all_is_well()


def test_a_lease_is_not_given_back_before_the_close_is_confirmed(bench: Bench, copy, compared):
    answerer, other = bench.answerer(), bench.another()
    bench.ask(answerer, share(2))
    fail_over = copy()
    bench.ask(answerer, share(0))
    lost = released(bench)
    fail_over()
    answerer._give_back(answerer._held[bench.now().promise])
    before = len(compared)
    assert not bench.ask(other, share(0))[0].measured, "the lease is held"
    answerer.close()
    assert released(bench) == lost, "who ends in order commits it again"
    confirm(bench)
    assert not bench.ask(other, share(0))[0].measured, "it was not confirmed in time to give the lease back"
    assert len(compared) == before


def test_records_that_a_restored_database_does_not_have_are_counted_no_more(bench: Bench, copy, compared):
    """The mark is put back with it, from the same backup."""
    answerer = bench.answerer()
    bench.ask(answerer, share(2))
    (counted,), fail_over = compared, copy()
    marks = {each: each.read_bytes() for each in bench.files.root.glob("*.witness")}
    bench.arrive(*[2] * 10)
    bench.count_in()
    confirm(bench)
    bench.ask(answerer, share(2))
    fail_over()
    for mark, content in marks.items():
        mark.write_bytes(content)
    bench.ask(answerer, share(2))
    assert len(compared) == 3
    assert compared[1] != compared[2] == counted


def test_once_it_is_confirmed_the_lease_is_given_back(bench: Bench):
    answerer, other = bench.answerer(), bench.another()
    bench.ask(answerer, share(0))
    confirm(bench)
    answerer.close()
    charged = bench.charges()
    assert bench.ask(other, share(0))[0].measured
    assert bench.charges() == charged


def test_an_answer_whose_charge_was_lost_is_not_told(bench: Bench, copy, monkeypatch):
    """While it waits for the confirmation, another process closes the instance elsewhere, with the same version."""
    answerer, other, true = bench.answerer(), bench.another(), confirmation.wait
    bench.ask(answerer, share(2))
    fail_over = copy()

    def wait(*args, **more):
        monkeypatch.setattr(confirmation, "wait", true)
        monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 0.0)  # nobody confirms for the other one
        lost = released(bench)
        fail_over()
        run_out(bench.database)
        bench.ask(other, share(2))
        confirm(bench)
        assert bench.now().visible_version == 1
        assert released(bench) != lost
        return true(*args, **more)

    monkeypatch.setattr(confirmation, "wait", wait)
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 60.0)
    assert from_histogram(bench.ask(answerer, share(0))[0], 1 / 7)
    bench.all_is_well()


def test_a_restored_threshold_that_another_process_has_closed_is_not_compared_with(bench: Bench, copy, compared):
    idle, other = bench.answerer(), bench.another()
    assert easy(bench.ask(idle, share(2))[0], 1 / 7)
    idle._give_back(idle._held[bench.now().promise])
    restore = copy()
    bench.ask(other, share(0))
    confirm(bench)
    assert bench.ask(other, share(0))[0].answer == pytest.approx(0.75, abs=ALPHA)
    as_it_was = copy()
    restore()
    assert bench.now().version == 0
    before = len(compared)
    for _ in range(2):
        assert not any(each.measured for each in bench.ask(idle, share(2), share(0)))
    assert len(compared) == before
    as_it_was()
    run_out(bench.database)
    bench.ask(idle, share(2))
    assert len(compared) == before
    confirm(bench)
    assert bench.ask(idle, share(2))[0].measured, "what the mark tells of is there again"


def test_another_publication_of_the_same_id_has_nothing_of_the_first(world: World, alone: Database, copy):
    restore = copy()
    first = with_records(make_bench(world.settings, alone))
    answerer = first.answerer()
    assert first.ask(answerer, EVERY)[0].measured
    old = first.now()
    restore()
    second = make_bench(world.settings, alone)
    second.arrive(*[5] * 40)
    second.count_in()
    assert second.identity == first.identity
    with pytest.raises(DatabaseUnavailable):
        answerer.answers(old, [EVERY])
    second.ask(answerer, share(5))
    confirm(second)
    assert second.ask(answerer, share(5))[0].answer == pytest.approx(1, abs=ALPHA)
    second.all_is_well()


@pytest.mark.parametrize("trouble", [None, RuntimeError("nobody foresaw")], ids=["none", "one publication's"])
def test_at_the_end_every_publication_is_seen_to(world: World, alone: Database, monkeypatch, trouble):
    old, fine = (with_records(make_bench(world.settings, alone)) for _ in range(2))
    answerer = old.answerer()
    old.ask(answerer, share(2))
    with monkeypatch.context() as patch:
        patch.setattr(publications, "move", failing(DatabaseUnavailable("away")))
        old.ask(answerer, share(0))
    assert fine.ask(answerer, share(2))[0].measured
    answerer._held[old.now().promise].forget_records()
    with monkeypatch.context() as patch:
        if trouble is not None:
            patch.setattr(instances, "read", failing(trouble))
        answerer.close()
    assert old.now().version == (1 if trouble is None else 0)
    charged = fine.charges()
    assert fine.ask(fine.another(), share(2))[0].measured, "its lease was given back"
    assert fine.charges() == charged
