"""Where a fit is refused for the model that the same step has drawn, that model is charged and seen."""
# ruff: noqa: F811 - a fixture is another file's

import threading

import numpy as np
import pytest
from sqlalchemy import func, update

from service.learning.optimization.solvers import Inaccurate
from service.ledger.verify import look
from service.privacy.noise.additive import Unaffordable
from service.store import parked, releases, tables
from service.worker import fits
from tests.conftest import World
from tests.mechanisms.refusing import REASON, refuse
from tests.worker.published import Bench, published
from tests.worker.test_publishing import CONFIGURATION, SCHEMA, bench  # noqa: F401

TICKS = CONFIGURATION | {"publish_delay": 0.1}
AT_ONE_STEP = 2  # fits: the second one starts from the first one's model


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
@pytest.mark.parametrize("fit", range(AT_ONE_STEP + 1))
def test_models_before_a_refused_fit_are_charged_and_released(bench: Bench, monkeypatch, fit, error):
    drawn = refuse(monkeypatch, fit, error)
    publisher = bench.publisher()
    for _ in range(3):
        publisher.step(threading.Event())
    assert len(drawn) == fit
    ends_paid(bench, fit)


@pytest.mark.parametrize("bench", [TICKS], indirect=True)
@pytest.mark.parametrize("fit", range(AT_ONE_STEP + 1))
def test_with_ticks_they_are_seen_at_one(bench: Bench, monkeypatch, fit):
    drawn = refuse(monkeypatch, fit, Inaccurate)
    publisher = bench.publisher()
    for _ in range(3):
        publisher.step(threading.Event())
    assert len(drawn) == fit
    assert (bench.now().state, bench.counts()) == ("running", (0, 0))
    with bench.database.transaction() as connection:
        assert parked.of_publication(connection, bench.identity)[-1].following_due is None
        connection.execute(update(tables.parked).values(tick=func.to_timestamp(0)))
    bench.context().ticker.publish(1)
    ends_paid(bench, fit)


@pytest.mark.parametrize("apart", [False, True], ids=["in the worker", "in a process of its own"])
def test_a_base_from_whose_noise_no_fit_can_go_on_is_paid_for(world: World, monkeypatch, apart):
    """Nothing is imitated here. The noise has 101 dimensions, so that it is never short by chance."""
    if apart:
        monkeypatch.setattr(fits, "SMALL_BYTES", 0)
    configuration = {
        "mechanism": {"kind": "sliding_window", "block": 1, "blocks": 3},
        "learner": {"kind": "output_perturbation", "regularization": 2e-5},
        "privacy": {"epsilon": 1e-9, "delta": 0},
    }
    columns = {"x": np.zeros((10, 100), dtype=np.float32), "y": np.zeros(10, dtype=np.int32)}
    with published(world, SCHEMA | {"features": 100}, configuration, columns, epsilon=2) as bench:
        bench.publish_all()
        assert "the model it starts from is less noisy" in bench.now().reason
        assert (bench.now().state, bench.counts()) == ("halted", (1, 1))
