"""A lease has one owner at a time, and its next owner knows of the one before."""
# ruff: noqa: F811 - a fixture is another file's

from contextlib import closing
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Select, func, select, update

from service.store import leases, tables
from service.store.database import FREE_STREAM, Database
from service.worker.leases import LeaseKeeper
from tests.conftest import World, run_out
from tests.store.test_spending import connection  # noqa: F401

SECONDS = 4e5  # beside which no machine is slow
FIRST, SECOND = leases.publication(1), leases.publication(2)
EVERY: Select[str] = select(tables.leases.c.resource).where(tables.leases.c.resource.in_([FIRST, SECOND]))


def taken(connection: Connection, owner: str) -> leases.Lease:
    lease = leases.take(connection, FIRST, owner=owner, seconds=SECONDS)
    assert lease is not None
    return lease


def end(connection: Connection, seconds: float) -> None:
    """Let all leases have run out so many seconds ago."""
    ended = func.clock_timestamp() - timedelta(seconds=seconds)
    connection.execute(update(tables.leases).values(expires_at=ended))


def test_the_next_owner_knows_since_when_its_predecessor_was_gone(connection: Connection):
    leases.create(connection, FIRST)
    lease = taken(connection, "a")
    leases.release(connection, lease)
    assert [lease.abandoned, taken(connection, "b").abandoned] == [None, None], "it was given back"
    end(connection, 2e5)
    assert taken(connection, "b").abandoned is None, "it was its own"
    end(connection, 2e5)
    assert 6e5 <= (taken(connection, "a").abandoned or 0) < 7e5


def test_a_lease_that_is_abandoned_tells_its_next_owner_so_whoever_that_is(connection: Connection):
    leases.create(connection, FIRST)
    lease = taken(connection, "a")
    leases.abandon(connection, lease, abandoned=1e6, seconds=SECONDS)
    again = taken(connection, "a")
    assert 1e6 <= (again.abandoned or 0) < 1.1e6
    leases.abandon(connection, lease, abandoned=1e6, seconds=SECONDS)
    assert leases.keep(connection, again, seconds=SECONDS), "it is another one by now"


def test_what_nobody_holds_is_taken_after_a_while_where_others_are_to_be_first(connection: Connection):
    for each in (FIRST, SECOND):
        leases.create(connection, each)
    end(connection, 2e5)
    wants = {"owner": "a", "seconds": SECONDS}
    assert leases.take_several(connection, EVERY, most=9, since=3e5, **wants) == []
    assert len(leases.take_several(connection, EVERY, most=1, since=1e5, **wants)) == 1
    assert len(leases.take_several(connection, EVERY, most=9, **wants)) == 1


def test_sealers_hear_of_a_stream_that_is_given_back(connection: Connection, monkeypatch: pytest.MonkeyPatch):
    for each in (FIRST, leases.stream(1)):
        leases.create(connection, each)
    both = [leases.take(connection, each, owner="a", seconds=SECONDS) for each in (FIRST, leases.stream(1))]
    heard = []
    monkeypatch.setattr(leases, "notify", lambda _, channel: heard.append(channel))
    leases.release_several(connection, [each for each in both if each is not None])
    assert heard == [FREE_STREAM]
    leases.release(connection, taken(connection, "a"))
    assert heard == [FREE_STREAM], "no sealer wants a publication"


def test_what_was_not_given_back_in_time_was_left(connection: Connection):
    leases.create(connection, FIRST)
    late = taken(connection, "a")
    end(connection, 2e5)
    leases.release(connection, late)
    assert taken(connection, "b").abandoned is not None, "it had run out before it was given back"


def test_what_was_given_back_before_a_failover_may_be_held_by_somebody_who_is_lost(connection: Connection):
    leases.create(connection, FIRST)
    leases.release(connection, taken(connection, "a"))
    connection.execute(update(tables.leases).values(timeline=tables.leases.c.timeline - 1))
    again = taken(connection, "b")
    assert again.abandoned is not None
    leases.release(connection, again)
    again = taken(connection, "a")
    assert again.abandoned is None, "it was given back after it"
    connection.execute(update(tables.leases).values(timeline=0))
    leases.revoke(connection, FIRST)
    assert taken(connection, "b").abandoned is None, "it was taken from its owner after it"


def test_who_appears_again_has_lost_the_share_it_had_and_drops_dead_sealers_alone(connection: Connection):
    for each in (FIRST, leases.stream(1)):
        leases.create(connection, each)
    leases.appear(connection, "dead", primary=1, seconds=1.0)
    elsewhere = leases.appear(connection, "dead", primary=2, seconds=1.0)
    end(connection, 1e7)
    first = leases.appear(connection, "a", primary=1, seconds=SECONDS)
    again = leases.appear(connection, "a", primary=1, seconds=SECONDS)
    assert [leases.keep(connection, each, seconds=SECONDS) for each in (first, again)] == [False, True]
    there = connection.execute(select(tables.leases.c.resource)).scalars().all()
    assert sorted(there) == sorted([FIRST, leases.stream(1), elsewhere.resource, again.resource])


def test_sealers_of_each_primary_are_counted_apart(connection: Connection):
    for owner, primary in (("a", 1), ("b", 1), ("b", 2), ("c", 3)):
        leases.appear(connection, owner, primary=primary, seconds=SECONDS)
    leases.create(connection, leases.stream(1))
    counts = [leases.sealers(SECONDS, primary=each) for each in (1, 2, 3, 4)]
    assert [*connection.execute(select(*counts)).one()] == [2, 1, 1, 0]
    end(connection, 1.0)
    assert connection.execute(select(counts[0])).scalar_one() == 0


def test_a_stream_that_is_taken_from_its_sealer_is_anybodys_at_once(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
):
    heard: list[str] = []
    monkeypatch.setattr(leases, "notify", lambda _, channel: heard.append(channel))
    for each in (leases.stream(1), leases.publication(1)):
        leases.create(connection, each)
        held = leases.take(connection, each, owner="a", seconds=SECONDS)
        assert held is not None
        leases.revoke(connection, each)
        assert not leases.keep(connection, held, seconds=SECONDS)
        assert leases.take(connection, each, owner="b", seconds=SECONDS) is not None
    assert heard == [FREE_STREAM], "no sealer wants a publication"


def test_a_worker_knows_which_leases_it_holds(world: World):
    with closing(Database(world.settings.database_url)) as database:
        keeper = LeaseKeeper(database, seconds=SECONDS)
        with database.transaction() as connection:
            for each in (FIRST, SECOND):
                leases.create(connection, each)
            end(connection, 2e5)
        assert keeper.take_several(EVERY, most=9, since=3e5) == []
        first, second = keeper.take_several(EVERY, most=9, since=1e5)
        assert (keeper.holds(first), keeper.holds(second)) == (True, True)
        keeper.abandon(first, 1.0)
        run_out(database)
        again = keeper.take(second.resource)
        assert again is not None
        keeper.drop(second)
        assert (keeper.holds(first), keeper.holds(second), keeper.holds(again)) == (False, False, True)


@pytest.mark.parametrize("way", ["at the end", "dropped"])
def test_a_lease_that_a_worker_needs_no_more_is_anybodys_at_once(world: World, way):
    """And its next owner learns of no attempt: it was given back in order."""
    with closing(Database(world.settings.database_url)) as database:
        with database.transaction() as connection:
            for each in (FIRST, SECOND):
                leases.create(connection, each)
        keeper = LeaseKeeper(database, seconds=SECONDS)
        keeper.start()
        mine = keeper.take(FIRST)
        assert mine is not None
        if way == "dropped":
            keeper.drop(mine)
        if way != "at the end":
            assert not keeper.holds(mine)
        keeper.stop()
        with database.transaction() as connection:
            assert taken(connection, "another").abandoned is None
