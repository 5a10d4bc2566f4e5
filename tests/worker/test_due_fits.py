"""People see when the next fit is due, and can't see when it ends."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from service.api.routes.releases import _nothing_yet
from service.ledger import open_entry
from service.ledger.overview import PublicationState, overview
from service.store import leases, parked, tables, waits
from service.store.due_fits import DueFit, due_fits
from service.worker import fits
from tests.worker.published import Bench
from tests.worker.test_confirmation import crash_before_the_mark
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

LATE = CONFIGURATION | {"publish_delay": 3600}


@pytest.fixture(autouse=True)
def numbered(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        connection.execute(update(tables.entries).values(numbered_at=func.clock_timestamp() - timedelta(minutes=5)))


def seen(bench: Bench) -> DueFit | None:
    with bench.database.transaction() as connection:
        return due_fits(connection, [bench.identity]).get(bench.identity)


def counted(bench: Bench) -> PublicationState:
    with bench.database.transaction() as connection:
        (summary,) = overview(connection, declassified=lambda _: 0).publications
    return summary


def measured(bench: Bench) -> tuple[float | None, float | None]:
    summary = counted(bench)
    return summary.fitting_seconds, summary.waiting_seconds


def test_it_is_due_since_its_last_record_was_numbered(bench: Bench):
    fit = seen(bench)
    assert fit.since.second == fit.since.microsecond == 0
    assert timedelta(minutes=5) <= datetime.now(UTC) - fit.since <= timedelta(minutes=7)
    fitting, waiting = measured(bench)
    assert fitting is None
    assert waiting >= 300
    assert f"due since {fit.since:%H:%M} UTC" in _nothing_yet(fit=fit).detail


def test_only_metrics_tell_when_a_worker_took_it(bench: Bench):
    """How long the fits before it took tells of the records of those, on any stream."""
    before = seen(bench)
    with bench.database.transaction() as connection:
        leases.take(connection, leases.publication(bench.identity), owner="a worker", seconds=600)
    assert seen(bench) == before
    fitting, waiting = measured(bench)
    assert waiting is None
    assert 0 <= fitting < 300


def test_a_fit_that_is_too_large_for_a_worker_says_so_for_as_long_as_it_waits(bench: Bench, monkeypatch):
    monkeypatch.setattr(fits, "memory_limit", lambda: fits.BYTES_OF_A_PROCESS)
    bench.publisher().step(threading.Event())
    fit = seen(bench)
    assert fit.reason.endswith("give a worker more memory")
    assert f"due since {fit.since:%H:%M} UTC and waits, because a fit of" in _nothing_yet(fit=fit).detail
    with bench.database.transaction() as connection:
        open_entry(connection, bench.now()).end("stopped")
        assert connection.execute(tables.waits.select()).all() == []


@pytest.mark.parametrize("bench", [LATE], indirect=True)
def test_why_it_waits_is_said_from_a_tick_on(bench: Bench, monkeypatch):
    """When a worker met it depends on how long other fits took."""
    monkeypatch.setattr(fits, "memory_limit", lambda: fits.BYTES_OF_A_PROCESS)
    before = seen(bench)
    bench.publisher().step(threading.Event())
    with bench.database.transaction() as connection:
        (noted,) = connection.execute(tables.waits.select()).all()
    assert noted.shown_at.timestamp() % 3600 == 0
    assert seen(bench) == before
    with bench.database.transaction() as connection:
        connection.execute(update(tables.waits).values(shown_at=func.clock_timestamp()))
    assert seen(bench).reason == noted.reason


def test_why_a_fit_waited_is_not_said_of_the_next_one(bench: Bench):
    with bench.database.transaction() as connection:
        waits.note(connection, bench.identity, bench.now().due - 1, "of another step")
    assert seen(bench).reason is None


@pytest.mark.parametrize("bench", [LATE], indirect=True)
def test_that_it_has_ended_is_not_seen_before_its_tick(bench: Bench):
    before = seen(bench)
    bench.publisher().step(threading.Event())
    with bench.database.transaction() as connection:
        assert len(connection.execute(tables.parked.select()).all()) == 3
    assert seen(bench) == before, "nor that a worker went on to later ones"
    assert bench.counts() == (0, 0)


@pytest.mark.parametrize("bench", [CONFIGURATION | {"publish_delay": 86_400}], indirect=True)
def test_a_publication_of_old_records_is_first_seen_a_delay_after_it_was_made(bench: Bench):
    """Not when its fit has ended."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.entries).values(numbered_at=func.clock_timestamp() - timedelta(days=9)))
        tick, _ = parked.tick_of(connection, bench.now(), 10)
    assert tick - bench.now().created_at >= timedelta(days=1)


@pytest.mark.parametrize("bench", [LATE], indirect=True)
def test_no_age_is_negative_where_a_clock_was_ahead(bench: Bench):
    with bench.database.transaction() as connection:
        ahead = func.clock_timestamp() + timedelta(days=1)
        connection.execute(update(tables.entries).values(numbered_at=ahead))
    assert seen(bench).since <= datetime.now(UTC)
    assert measured(bench)[1] >= 0
    assert counted(bench).overdue_records == 4, "nobody knows since when it is due"
    bench.publisher().step(threading.Event())
    with bench.database.transaction() as connection:
        connection.execute(update(tables.leases).values(taken_at=ahead))
        connection.execute(update(tables.entries).values(numbered_at=func.clock_timestamp()))
    assert measured(bench)[0] == 0


def test_without_its_records_there_is_none(bench: Bench):
    bench.publish_all()
    assert seen(bench) is None
    assert measured(bench) == (None, None)
    assert "the plan tells" in _nothing_yet().detail


@pytest.mark.parametrize("why", ["distrusted", "halted", "stopped"])
def test_where_nothing_goes_on_there_is_none(bench: Bench, why):
    assert seen(bench) is not None
    with bench.database.transaction() as connection:
        if why == "stopped":
            open_entry(connection, bench.now()).end("stopped")
        else:
            connection.execute(update(tables.streams).values({why: "a reason"}))
    assert seen(bench) is None
    assert measured(bench) == (None, None)
    assert (counted(bench).overdue_records == 0) == (why == "stopped")


def test_metrics_count_no_release_that_is_not_confirmed(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    summary = counted(bench)
    assert (summary.versions, summary.latest, summary.age_seconds, summary.overdue_records) == (0, None, None, 4)
    bench.context().confirmer.confirm(1)
    summary = counted(bench)
    assert (summary.versions, summary.latest, summary.overdue_records) == (5, 5, 0)


def test_the_latest_of_metrics_is_a_model(bench: Bench):
    bench.publish_all()
    with bench.database.transaction() as connection:
        rows = connection.execute(select(tables.releases.c.number, tables.releases.c.role).order_by("number")).all()
    models = [number for number, role in rows if role == "model"]
    newest = next(number for number, role in rows if role != "model" and number > models[0])
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(confirmed_releases=newest))
    assert (counted(bench).versions, counted(bench).latest) == (newest, max(each for each in models if each < newest))


def test_metrics_count_a_publication_as_halted_whose_ledger_is_distrusted(bench: Bench):
    assert not counted(bench).halted
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(distrusted="a reason"))
    assert counted(bench).halted


@pytest.mark.parametrize(("bench", "overdue"), [(CONFIGURATION, 4), (LATE, 0)], indirect=["bench"])
def test_metrics_count_no_record_as_overdue_whose_tick_has_not_come(bench: Bench, overdue):
    assert counted(bench).overdue_records == overdue
