"""A look at the newest model holds until the next tick, or for nobody else where something is under way."""
# ruff: noqa: F811 - a fixture is another file's

from decimal import Decimal

import pytest
from sqlalchemy import func, select, text, update

from service.ledger import open_ledger
from service.store import newest, tables
from service.store.newest import Look
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401
from tests.worker.test_ticks import TICK, TICKS, come, park_all, publish, with_ticks

SLOW = CONFIGURATION | {"publish_delay": 86_400}


def seen(bench: Bench) -> newest.Newest:
    with bench.database.transaction() as connection:
        return newest.find(connection, "p", None)


def look(bench: Bench) -> Look:
    known = seen(bench)
    with bench.database.rolled_back() as connection:
        return newest.look(connection, known)


@pytest.mark.parametrize("bench", [SLOW], indirect=True)
def test_a_look_holds_until_the_next_multiple_of_the_delay(bench: Bench):
    clock, day = select(func.extract("epoch", func.clock_timestamp())), Decimal(SLOW["publish_delay"])
    with bench.database.transaction() as connection:
        before = connection.execute(clock).scalar_one()
        holds = Decimal(look(bench).seconds)
        after = connection.execute(clock).scalar_one()
    first, last = (moment // day * day + day for moment in (before, after))  # two if a tick came in between
    assert before + holds <= last + Decimal("1e-3")
    assert after + holds >= first - Decimal("1e-3")


@pytest.mark.parametrize("bench", [CONFIGURATION], indirect=True)
def test_without_ticks_a_look_holds_for_nobody_else(bench: Bench):
    assert look(bench).seconds == 0


@pytest.mark.parametrize("bench", [SLOW], indirect=True)
def test_a_step_that_is_due_makes_the_look_hold_for_nobody_else(bench: Bench):
    park_all(bench)
    assert look(bench).seconds > 0
    come(bench)
    assert look(bench).seconds == 0
    publish(bench)
    assert look(bench).newest.latest
    assert look(bench).seconds > 0


@pytest.mark.parametrize("bench", [SLOW], indirect=True)
def test_a_release_that_is_not_confirmed_makes_the_look_hold_for_nobody_else(bench: Bench):
    park_all(bench)
    come(bench)
    publish(bench)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(confirmed_releases=0))
    answer = look(bench)
    assert (answer.newest.latest, answer.seconds) == (None, 0)


@pytest.mark.parametrize("bench", [SLOW], indirect=True)
def test_a_step_that_is_being_parked_makes_the_look_hold_for_nobody_else(bench: Bench):
    """Its tick is chosen already, and may come before it can be seen."""
    with bench.database.transaction() as connection:
        open_ledger(connection, 1)
        assert look(bench).seconds == 0
    assert look(bench).seconds > 0


@with_ticks
def test_a_look_at_a_publication_that_is_not_the_same_any_more_finds_nothing(bench: Bench):
    known = seen(bench)
    assert known.publish_delay == TICK == Decimal(str(TICKS["publish_delay"]))
    with bench.database.rolled_back() as connection:
        assert newest.look(connection, known._replace(promise="another")) is None


@pytest.mark.parametrize("bench", [SLOW], indirect=True)
def test_a_look_waits_for_nobody_and_leaves_no_lock_nor_keeps_it_for_ever(bench: Bench):
    with bench.database.rolled_back() as reading:
        assert newest.look(reading, seen(bench)).seconds > 0
        assert reading.execute(text("SHOW transaction_timeout")).scalar_one() == "20s"
    with bench.database.transaction() as connection:
        open_ledger(connection, 1)
