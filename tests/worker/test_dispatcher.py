"""Publishers of one worker get what is due from one dispatcher, and take no lease of what others have taken since."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from typing import Any

import pytest

from service.store import leases
from service.store.due_steps import DueStep, due_steps, untaken
from service.worker import dispatcher as dispatching
from service.worker import fits
from service.worker.dispatcher import Dispatcher
from tests.conftest import HANG_SECONDS, wait_until
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

TICKS = CONFIGURATION | {"publish_delay": 3600}


class NoDatabase:
    """The database of dispatchers whose looks a test answers itself."""

    def transaction(self) -> Any:
        return threading.Lock()


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Publications that are due at a look, as a test says."""
    identities = [1, 2]

    def look(_connection: object, *, but: Any) -> list[DueStep]:
        return [DueStep(each, "p", each, "s", 0, 0, 0) for each in identities if each not in but]

    monkeypatch.setattr(dispatching, "due_steps", look)
    monkeypatch.setattr(dispatching.publications, "fit_sizes", lambda *_: {})
    return identities


def taken(dispatcher: Dispatcher, **how: Any) -> list[int]:
    """Take all that is there."""
    return sorted(step.id for step in iter(lambda: dispatcher.take(wait=False, **how), None))


def test_each_publication_is_handed_out_once_until_it_is_finished(due: list[int]):
    dispatcher = Dispatcher(NoDatabase())
    dispatcher.look()
    first = dispatcher.take(wait=False)
    dispatcher.look()
    assert taken(dispatcher) == sorted({1, 2} - {first.id})
    dispatcher.finish(first, look_again=True)
    assert taken(dispatcher) == [], "whether more of it is due is known after the next look"
    dispatcher.look()
    assert taken(dispatcher) == [first.id]


def test_what_was_finished_during_a_look_waits_for_the_next_one(due: list[int], monkeypatch: pytest.MonkeyPatch):
    """The look may have read the state before it."""
    dispatcher = Dispatcher(NoDatabase())
    dispatcher.look()
    first, look = dispatcher.take(wait=False), dispatching.due_steps

    def slow(*given: Any, **named: Any) -> list[DueStep]:
        answer = look(*given, **named)
        dispatcher.finish(first, look_again=False)
        return [*answer, first]

    with monkeypatch.context() as patched:
        patched.setattr(dispatching, "due_steps", slow)
        dispatcher.look()
    assert first.id not in taken(dispatcher)
    dispatcher.look()
    assert taken(dispatcher) == [first.id]


def test_a_publication_that_failed_is_left_alone_for_a_while(due: list[int]):
    dispatcher = Dispatcher(NoDatabase())
    dispatcher.retry_later(1, HANG_SECONDS)
    dispatcher.retry_later(2, 0.0)
    dispatcher.look()
    assert taken(dispatcher) == [2]


def test_a_publisher_of_short_steps_gets_no_long_one(due: list[int]):
    dispatcher = Dispatcher(NoDatabase())
    dispatcher.look()
    long = dispatcher.take(wait=False, short=True)
    assert not dispatcher.begin_step(long, fits.SHORT_SECONDS + 1, short=True)
    dispatcher.finish(long, look_again=True)
    dispatcher.look()
    assert long.id not in taken(dispatcher, short=True)
    assert taken(dispatcher) == [long.id]


def test_a_waiting_publisher_gets_what_a_wake_shows_and_ends_when_it_is_closed(due: list[int], monkeypatch):
    monkeypatch.setattr(dispatching, "SECONDS_BETWEEN_LOOKS", HANG_SECONDS)
    due.clear()
    dispatcher, got, stop = Dispatcher(NoDatabase()), [], threading.Event()
    looking = threading.Thread(target=dispatcher.run, args=[stop], daemon=True)
    waiting = threading.Thread(target=lambda: got.extend(iter(dispatcher.take, None)), daemon=True)
    looking.start()
    waiting.start()
    due.append(7)
    dispatcher.wake()
    wait_until(lambda: [step.id for step in got] == [7])
    dispatcher.close()
    wait_until(lambda: not waiting.is_alive() and not looking.is_alive())


def take(bench: Bench, step: DueStep) -> leases.Lease | None:
    resource = leases.publication(step.id)
    with bench.database.rolled_back() as connection:
        return leases.take(connection, resource, owner="late", seconds=60, among=untaken(step))


@pytest.mark.parametrize("bench", [CONFIGURATION, TICKS], indirect=True, ids=["at once", "at its tick"])
def test_a_step_that_another_worker_took_since_the_look_costs_no_lease(bench: Bench, monkeypatch: Any):
    monkeypatch.setattr("service.worker.publisher.TURN_SECONDS", 0)
    with bench.database.transaction() as connection:
        (before,) = due_steps(connection)
    assert take(bench, before) is not None
    assert bench.publisher().step(threading.Event())
    assert take(bench, before) is None
    with bench.database.transaction() as connection:
        (after,) = due_steps(connection)
    assert take(bench, after) is not None, "the next step is due as well"
