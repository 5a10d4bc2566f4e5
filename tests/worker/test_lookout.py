"""Publishers of one worker share a look at what is due, and take no lease of what others have taken since."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from service.store import leases
from service.store.due_steps import DueStep, due_steps, untaken
from service.worker import lookout, workshop
from service.worker.lookout import LOOK_SECONDS, LOOKS_TO_ONE, Look, Lookout
from service.worker.workshop import Desk
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

TICKS = CONFIGURATION | {"publish_delay": 3600}
TOOK_SECONDS = 2**-6  # exact, as are sums of it


class Shared:
    """A lookout on a clock that only looks and pauses move; what is due is what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.looks, self.due = 100.0, 0, [1, 2]
        clock = SimpleNamespace(monotonic=lambda: self.seconds)
        monkeypatch.setattr(lookout, "time", clock)
        monkeypatch.setattr(workshop, "time", clock)
        self.desk = Desk()
        self.lookout = Lookout(self.desk)

    def ask(self) -> Look:
        began = self.seconds
        self.pause(TOOK_SECONDS)
        self.looks += 1
        return Look(0, began, self.seconds, [DueStep(each, "p", each, "s", 0, 0, 0) for each in self.due])

    def pause(self, seconds: float) -> None:
        self.seconds += seconds

    def look(self, wanted: set[int]) -> Look:
        def wants(step: DueStep, look: Look) -> bool:
            return step.id in wanted and self.desk.is_free(step.id, since=look.began)

        return self.lookout.look(self.ask, wants, self.pause)

    def serve(self, publication: int, look: Look) -> bool:
        taken = self.desk.take(publication, since=look.began)
        if taken:
            self.pause(TOOK_SECONDS)
            self.desk.leave(publication)
        return taken


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Shared:
    return Shared(monkeypatch)


def test_one_look_serves_all_publishers_while_something_of_it_is_left(shared: Shared):
    first = shared.look({1, 2})
    assert shared.serve(1, first)
    assert shared.look({1, 2}) is first
    assert not shared.serve(1, first), "it was taken since the look, and may be due no more"
    assert shared.serve(2, first)
    assert shared.look({1, 2}) is not first
    assert shared.serve(1, shared.look({1}))


def test_with_nothing_left_of_a_look_the_next_one_rests(shared: Shared):
    first = shared.look({1, 2})
    for each in (1, 2):
        shared.serve(each, first)
    assert shared.look({1, 2}).began == first.ended + LOOKS_TO_ONE * TOOK_SECONDS


def test_with_something_left_that_others_want_it_looks_at_once(shared: Shared):
    first = shared.look({1})
    shared.serve(1, first)
    left_at = shared.seconds
    assert shared.look({1}).began == left_at


def test_what_becomes_due_meanwhile_waits_for_no_turn_to_end(shared: Shared):
    first = shared.look({1, 2})
    shared.pause(max(LOOK_SECONDS, LOOKS_TO_ONE * TOOK_SECONDS))
    assert shared.look({1, 2}) is not first


def take(bench: Bench, step: DueStep) -> leases.Lease | None:
    resource = leases.publication(step.id)
    with bench.database.look() as connection:
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
