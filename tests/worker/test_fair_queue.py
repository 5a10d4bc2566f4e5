"""Whose step is next, from public estimates alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from service.worker import fair_queue
from service.worker.fair_queue import FairQueue


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(fair_queue.time, "monotonic", lambda: now.seconds)
    monkeypatch.setattr(fair_queue, "largest_cost", lambda size: SimpleNamespace(seconds=size))
    return now


def waits(identity: int, stream: int, seconds: float, position: int = 0) -> Any:
    return SimpleNamespace(id=identity, stream_id=stream, size=seconds, position=position, version=0)


def in_order(line: FairQueue, waiting: list[Any]) -> list[Any]:
    unknown = line.unknown(waiting)
    line.estimate_by_plan({step.id: step.size for step in waiting if step.id in unknown})
    line.update(waiting)
    ordered, left = [], list(waiting)
    while left:
        ordered.append(line.first(left))
        left.remove(ordered[-1])
    return ordered


def served(line: FairQueue, waiting: list[Any], times: int, clock: SimpleNamespace) -> list[int]:
    """Serve the first so often, each for as long as it was estimated to take; return whose steps those were."""
    identities = []
    for _ in range(times):
        first = in_order(line, waiting)[0]
        line.serve(first, line.estimate(first))
        clock.seconds += line.estimate(first)
        identities.append(first.id)
    return identities


def test_streams_take_turns_however_many_publications_each_has(clock):
    waiting = [waits(identity, 1, 1.0) for identity in range(100)] + [waits(100, 2, 1.0)]
    assert served(FairQueue(), waiting, 20, clock).count(100) == 10


def test_a_stream_with_long_steps_has_fewer_of_them(clock):
    turns = served(FairQueue(), [waits(1, 1, 9.0), waits(2, 2, 1.0)], 30, clock)
    assert turns.count(1) == 3


def test_a_short_step_overtakes_a_long_one_but_none_waits_for_ever(clock):
    line, long = FairQueue(), waits(1, 1, 100.0)
    in_order(line, [long])
    clock.seconds = 50.0
    turns = served(line, [long, waits(2, 1, 1.0)], 60, clock)
    assert turns[:49] == [2] * 49
    assert 1 in turns


def test_who_had_nothing_due_saves_nothing_up(clock):
    line, busy = FairQueue(), waits(1, 1, 1.0)
    served(line, [busy], 50, clock)
    assert served(line, [busy, waits(2, 2, 1.0)], 10, clock).count(1) == 5


def test_what_a_step_reads_is_known_better_than_by_its_plan(clock):
    line = FairQueue()
    line.learn(waits(1, 1, 1.0), 500.0)
    assert [each.id for each in in_order(line, [waits(1, 1, 1.0), waits(2, 1, 9.0)])] == [2, 1]
    assert line.estimate(waits(1, 1, 1.0, position=10)) == 1.0, "of the next step it is not known"
