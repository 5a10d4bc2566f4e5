"""People see when the next fit is due, and can't see when it ends."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, update

from service.api.routes.releases import _nothing_yet
from service.ledger.overview import overview
from service.store import leases, tables
from service.store.due_fits import DueFit, due_fits
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

LATE = CONFIGURATION | {"publish_delay": 3600}


@pytest.fixture(autouse=True)
def numbered(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        connection.execute(update(tables.entries).values(numbered_at=func.clock_timestamp() - timedelta(minutes=5)))


def seen(bench: Bench) -> DueFit | None:
    with bench.database.transaction() as connection:
        return due_fits(connection, [bench.identity]).get(bench.identity)


def measured(bench: Bench) -> tuple[float | None, float | None]:
    with bench.database.transaction() as connection:
        (summary,) = overview(connection, declassified=lambda _: 0).publications
    return summary.fitting_seconds, summary.waiting_seconds


def test_it_waits_for_a_worker_since_its_last_record_was_numbered(bench: Bench):
    fit = seen(bench)
    assert fit.state == "waiting"
    assert fit.since.second == fit.since.microsecond == 0
    assert timedelta(minutes=5) <= datetime.now(UTC) - fit.since
    fitting, waiting = measured(bench)
    assert fitting is None
    assert waiting >= 300
    assert "waiting for a free worker since" in _nothing_yet(fit=fit).detail


def test_it_is_fitted_since_a_worker_took_it(bench: Bench):
    with bench.database.transaction() as connection:
        leases.take(connection, leases.publication(bench.identity), owner="a worker", seconds=600)
    fit = seen(bench)
    assert fit.state == "fitting"
    assert datetime.now(UTC) - fit.since < timedelta(minutes=4)
    fitting, waiting = measured(bench)
    assert waiting is None
    assert 0 <= fitting < 300
    assert f"fitting since {fit.since:%H:%M} UTC" in _nothing_yet(fit=fit).detail


@pytest.mark.parametrize("bench", [LATE], indirect=True)
def test_that_it_has_ended_is_not_seen_before_its_tick(bench: Bench):
    bench.publisher().step(threading.Event())
    with bench.database.transaction() as connection:
        assert connection.execute(tables.parked.select()).first() is not None
    assert seen(bench).state == "fitting"
    assert bench.counts() == (0, 0)


def test_without_its_records_there_is_none(bench: Bench):
    bench.publish_all()
    assert seen(bench) is None
    assert measured(bench) == (None, None)
    assert "the plan tells" in _nothing_yet().detail
