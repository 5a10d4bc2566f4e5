"""A selected slot without bytes is shown to nobody; in counts, times and |B| it is one that nobody labels."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, func, select, update

from service.mechanisms.active_learning.active_gradient import ActiveGradient
from service.store import erasing, labels
from service.store.due_steps import due_steps
from tests.conftest import World, wait_until
from tests.worker.published import Bench, published
from tests.worker.test_labelling import CONFIGURATION, REQUESTS, SCHEMA

SLOT = 2
OTHERS = [0, 1, 3]
BEFORE, ASKED, LEASED, ANSWERED = "before it is asked for", "while it is asked for", "while leased", "after its answer"
ERASURES = [BEFORE, ASKED, LEASED, ANSWERED]


def bench_of(world: World, *, empty: bool = False) -> Any:
    """Ten records, of whose first window all are selected, but once in a billion. empty: SLOT came empty."""
    x = np.linspace(-1, 1, 10, dtype=np.float32)[:, None]
    if empty:
        x[SLOT] = np.inf
    return published(world, SCHEMA, CONFIGURATION, {"x": x}, epsilon=25)


def erase(connection: Connection, stream: int, record: int) -> None:
    """Erase as the API does."""
    erasing.erase(connection, stream, record, record + 1)


def answer(bench: Bench, record: int) -> bool:
    with bench.database.transaction() as connection:
        return labels.answer(connection, bench.identity, "p", record, record % 2)


def lease_all(bench: Bench) -> list[int]:
    """Lease all that can be leased when every lease has run out."""
    records = []
    with bench.database.transaction() as connection:
        connection.execute(
            update(REQUESTS).where(REQUESTS.c.leased_until < labels.NEVER).values(leased_until=func.now())
        )
    with bench.database.transaction() as connection:
        while leased := labels.lease(connection, bench.identity, seconds=60):
            records.append(leased.record)
    return records


def run(bench: Bench, erased: str | None) -> tuple[list[Any], list[int], bool]:
    """Return all that is seen of the batch from the erasure on, what was leased then, and if SLOT took an answer."""

    def at(moment: str) -> None:
        if erased == moment:
            with bench.database.transaction() as connection:
                erase(connection, bench.stream().id, SLOT)

    def seen() -> tuple[labels.Progress, bool, tuple[int, int]]:
        bench.publish_all()
        with bench.database.transaction() as connection:
            progress = labels.progress(connection, [bench.identity])[bench.identity]
            return progress, bool(due_steps(connection)), bench.counts()

    at(BEFORE)
    timeline = [seen()]
    at(ASKED)
    if erased == LEASED:
        assert SLOT in lease_all(bench)
    at(LEASED)
    if erased == ANSWERED:
        assert answer(bench, SLOT)
    at(ANSWERED)
    timeline.append(seen())
    leased = lease_all(bench)
    for record in OTHERS:
        assert answer(bench, record)
        timeline.append(seen())
    answered = erased is not None and answer(bench, SLOT)
    timeline += [seen(), *times(bench)]
    with bench.database.transaction() as connection:
        connection.execute(update(REQUESTS).values(expires_at=func.now()))
    timeline.append(seen())
    return timeline, leased, answered


def times(bench: Bench) -> list[int]:
    """How many hours each record of the batch is still asked for, rounded."""
    with bench.database.transaction() as connection:
        query = select(func.extract("epoch", REQUESTS.c.expires_at - func.now())).order_by(REQUESTS.c.record)
        return [round(float(each) / 3600) for each in connection.execute(query).scalars()]


@pytest.fixture
def sizes(monkeypatch) -> list[tuple[int, int]]:
    """Return by update |B|, and how many labels it learns from."""
    updates, true = [], ActiveGradient.update

    def spied(self, records, count, *more):
        updates.append((count, int(np.sum(np.isfinite(records.x).all(axis=1) & np.isfinite(records.y)))))
        return true(self, records, count, *more)

    monkeypatch.setattr(ActiveGradient, "update", spied)
    return updates


@pytest.mark.parametrize("fate", ["nobody labels it", "it came empty", *ERASURES])
def test_a_slot_without_bytes_is_waited_for_and_counted_like_one_that_nobody_labels(world: World, sizes, fate):
    """Six worlds, one expectation: whoever sees counts and times of the batch can't tell them apart."""
    waits, requested = labels.Progress, (0, 1)
    with bench_of(world, empty=fate == "it came empty") as bench:
        timeline, leased, answered = run(bench, fate if fate in ERASURES else None)
    assert timeline == [
        (waits(waiting=4, answered=0), False, requested),
        (waits(waiting=4, answered=0), False, requested),
        (waits(waiting=3, answered=1), False, requested),
        (waits(waiting=2, answered=2), False, requested),
        (waits(waiting=1, answered=3), False, requested),
        (waits(waiting=1, answered=3), False, requested),
        *([1] * 4),
        (waits(waiting=4, answered=0), False, (1, 2)),  # learnt from, and the next window is asked for
    ]
    assert sizes == [(4, 3)]
    assert leased == ([0, 1, 2, 3] if fate == "nobody labels it" else OTHERS)
    assert not answered


def test_a_slot_that_came_empty_takes_no_answer(world: World):
    with bench_of(world, empty=True) as bench:
        bench.publish_all()
        assert not answer(bench, SLOT)


def test_a_record_that_is_erased_between_coins_and_their_commit_is_shown_to_nobody(world: World, monkeypatch):
    """The step read it; the erasure has the stream's lock first."""
    with bench_of(world) as bench:
        true = ActiveGradient.select

        def select_then_erase(self, *more):
            selected = true(self, *more)
            with bench.database.transaction() as connection:
                erase(connection, bench.stream().id, SLOT)
            return selected

        monkeypatch.setattr(ActiveGradient, "select", select_then_erase)
        bench.publish_all()
        assert lease_all(bench) == OTHERS
        assert not answer(bench, SLOT)


def test_what_is_erased_before_a_step_or_after_it_changes_no_other_request(world: World):
    with bench_of(world) as bench:
        with bench.database.transaction() as connection:
            erase(connection, bench.stream().id, 9)
        bench.publish_all()
        assert all(answer(bench, record) for record in [*OTHERS, SLOT])
        bench.publish_all()
        with bench.database.transaction() as connection:
            erase(connection, bench.stream().id, SLOT)
        assert lease_all(bench) == [4, 5, 6, 7]


@pytest.mark.parametrize("first", ["answer", "erasure"])
def test_no_answer_survives_an_erasure_at_the_same_time(world: World, first):
    """Both transactions have begun; the second waits for the first one's row, and then does what is right."""
    with bench_of(world) as bench:
        bench.publish_all()
        stream = bench.stream().id

        def give(connection: Connection) -> bool:
            return labels.answer(connection, bench.identity, "p", SLOT, 1)

        def take(connection: Connection) -> None:
            erase(connection, stream, SLOT)

        one, other = (give, take) if first == "answer" else (take, give)
        results = both(bench, one, other)
        assert results[0 if first == "answer" else 1] == (first == "answer")
        with bench.database.transaction() as connection:
            assert labels.answers(connection, bench.identity, 0, 10) == []
            assert labels.progress(connection, [bench.identity])[bench.identity] == labels.Progress(waiting=4)
        assert lease_all(bench) == OTHERS
        bench.publish_all()
        assert bench.counts() == (0, 1)


def both(bench: Bench, one: Callable[[Connection], Any], other: Callable[[Connection], Any]) -> list[Any]:
    """Run two transactions; the other one is made to wait for the first one's lock. Return what they return."""
    waiting = threading.Event()

    def run_other() -> Any:
        with bench.database.transaction() as connection:
            waiting.set()
            return other(connection)

    with ThreadPoolExecutor(1) as thread:
        with bench.database.transaction() as connection:
            result = one(connection)
            future = thread.submit(run_other)
            assert waiting.wait(200)
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            wait_until(lambda: future.done() or connection.exec_driver_sql(blocked).scalar())
        return [result, future.result(200)]
