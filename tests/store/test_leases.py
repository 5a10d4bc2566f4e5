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


@pytest.mark.parametrize("way", ["for another one", "at the end", "dropped"])
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
        match way:
            case "for another one":
                assert keeper.take(SECOND, instead=mine) is not None
            case "dropped":
                keeper.drop(mine)
        if way != "at the end":
            assert not keeper.holds(mine)
        keeper.stop()
        with database.transaction() as connection:
            assert taken(connection, "another").abandoned is None
