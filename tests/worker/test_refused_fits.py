"""Where a fit is refused for the model that the same step has drawn, that model is charged and seen."""
# ruff: noqa: F811 - a fixture is another file's

import threading

import pytest
from sqlalchemy import func, update

from service.learning.solvers import Inaccurate
from service.ledger.verify import look
from service.privacy.noise.additive import Unaffordable
from service.store import parked, releases, tables
from service.worker import fits
from tests.mechanisms.refusing import REASON, refuse
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

TICKS = CONFIGURATION | {"publish_delay": 0.1}
AT_ONE_STEP = 3  # fits, of which each starts from the one before


def ends_paid(bench: Bench, fit: int) -> None:
    """Fail unless the publication has ended with the models before that fit, each charged, and its ledger is whole."""
    now = bench.now()
    assert (now.state, now.version, bench.counts()) == ("halted", fit, (fit, fit))
    assert now.reason == REASON
    with bench.database.transaction() as connection:
        assert look(connection, now.stream_id)[1] == []
        made = releases.page(connection, bench.identity, limit=100, before=None)
    assert [each.version for each in made] == list(range(fit, 0, -1))


@pytest.mark.parametrize("error", [Inaccurate, Unaffordable])
@pytest.mark.parametrize("fit", range(AT_ONE_STEP))
def test_models_before_a_refused_fit_are_charged_and_released(bench: Bench, monkeypatch, fit, error):
    drawn = refuse(monkeypatch, fit, error)
    publisher = bench.publisher()
    for _ in range(3):
        publisher.step(threading.Event())
    assert len(drawn) == fit
    ends_paid(bench, fit)


@pytest.mark.parametrize("bench", [TICKS], indirect=True)
@pytest.mark.parametrize("fit", range(AT_ONE_STEP))
def test_with_ticks_they_are_seen_at_one(bench: Bench, monkeypatch, fit):
    drawn = refuse(monkeypatch, fit, Inaccurate)
    publisher = bench.publisher()
    for _ in range(3):
        publisher.step(threading.Event())
    assert len(drawn) == fit
    assert (bench.now().state, bench.counts()) == ("running", (0, 0))
    with bench.database.transaction() as connection:
        assert [each.following_due for each in parked.of_publication(connection, bench.identity)] == [None]
        connection.execute(update(tables.parked).values(tick=func.to_timestamp(0)))
    bench.shop().ticker.publish(1)
    ends_paid(bench, fit)


HUGE = CONFIGURATION | {
    "mechanism": {"kind": "sliding_window", "block": 1, "blocks": 3},
    "privacy": {"epsilon": 1e-9, "delta": 0},
}


@pytest.mark.parametrize("apart", [False, True], ids=["in the worker", "in a process of its own"])
@pytest.mark.parametrize("bench", [HUGE], indirect=True)
def test_noise_that_makes_the_next_fit_impossible_is_paid_for(bench: Bench, monkeypatch, apart):
    """Nothing is imitated here: the noise of the base is so long that double precision can't go on from it."""
    if apart:
        monkeypatch.setattr(fits, "SMALL_BYTES", 0)
    bench.publisher().step(threading.Event())
    assert "the model it starts from is less noisy" in (bench.now().reason or "")
    assert bench.now().state == "halted"
    assert bench.counts()[0] == bench.counts()[1] >= 1
