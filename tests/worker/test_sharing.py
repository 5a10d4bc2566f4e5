"""Several workers on many streams: each has its share, no stream has two, and of the dead the others take over."""

import math
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from service.store import changes, erasing, leases, segments, streams, tables
from service.store.database import FREE_STREAM
from service.worker import sealer as sealing
from service.worker.leases import LeaseKeeper
from service.worker.listener import Listener
from service.worker.sealer import Sealer
from tests.conftest import HANG_SECONDS, join, run_out, wait_until
from tests.worker.conftest import Bench, new_stream

STREAMS = 6


@pytest.fixture
def many(bench: Bench) -> Bench:
    """The stream of the bench, and others."""
    for number in range(STREAMS - 1):
        new_stream(bench.world, bench.database, f"s{number}")
    return bench


def shares(*sealers: Sealer) -> list[int]:
    for _ in range(2):
        for each in sealers:
            each.step(wait_milliseconds=0)
    return [len(each._held) for each in sealers]


def test_workers_share_streams_fairly(many: Bench):
    first, second, third = (many.sealer() for _ in range(3))
    assert shares(first) == [STREAMS]
    assert shares(first, second) == [3, 3]
    assert shares(first, second, third) == [2, 2, 2]
    held = [set(each._held) for each in (first, second, third)]
    assert len(set.union(*held)) == STREAMS


def test_every_stream_has_its_turn_though_the_first_are_due_again_before_the_last(many: Bench, monkeypatch):
    monkeypatch.setattr(sealing, "TIDIED_AT_ONCE", 2)
    monkeypatch.setattr(sealing, "TIDY_SECONDS", 0.0)
    sealer, tidied = many.sealer(), []
    monkeypatch.setattr(sealer, "_tidy_one", lambda stream, lost, moved: tidied.append(stream.log))
    for _ in range(STREAMS // 2):
        sealer.step(wait_milliseconds=0)
    assert sorted(tidied) == sorted(sealer._held)


@pytest.mark.parametrize("what", ["erased", "unneeded", "lost"])
def test_all_streams_that_a_sealer_holds_are_looked_after(bench: Bench, monkeypatch, what):
    monkeypatch.setattr(sealing, "TIDY_SECONDS", 0.0)
    benches = [bench, replace(bench, stream=new_stream(bench.world, bench.database, "other"))]
    for each in benches:
        each.append(1)
    sealer = bench.sealer()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), all(each.now().records for each in benches))[1])

    def done(each: Bench) -> object:
        with bench.database.transaction() as connection:
            stream, identity = each.now(), each.stream.id
            dropped = segments.kept_from(connection, identity) == stream.records
            waiting = segments.undeleted_erasures(connection, identity)
            return {"erased": not waiting, "unneeded": dropped, "lost": stream.halted}[what]

    with bench.database.transaction() as connection:
        if what == "unneeded":
            connection.execute(update(tables.streams).values(retention="needed"))
        for each in benches if what == "erased" else ():
            erasing.erase(connection, each.stream.id, 0, 1)
    for each in benches if what == "lost" else ():
        bench.redis().delete(each.key("entries"), each.key("state"))
    assert not any(map(done, benches))
    if what == "unneeded":
        sealer._let_go(*sealer._held)  # for it to know of the other retention
        wait_until(lambda: (sealer.step(wait_milliseconds=0), len(sealer._held) == 2)[1])
    else:
        sealer.step(wait_milliseconds=0)
    assert all(map(done, benches))


def test_a_stream_whose_lease_is_lost_is_held_no_more_though_nothing_comes_on_it(bench: Bench):
    keeper = LeaseKeeper(bench.database, seconds=600.0)
    overtaken = bench.sealer(keeper)
    assert shares(overtaken) == [1]
    assert shares(bench.successor()) == [1]
    keeper._forget(list(keeper._held.values()))  # as it does once it could not renew them
    assert shares(overtaken) == [0]


def test_a_share_is_rounded_up_so_that_no_stream_is_left(many: Bench):
    new_stream(many.world, many.database, "odd")
    assert sum(shares(many.sealer(), many.sealer())) == STREAMS + 1


def test_of_a_dead_worker_all_streams_are_taken_over_together(many: Bench, monkeypatch):
    many.append(1)
    assert shares(many.sealer(), many.sealer()) == [3, 3]
    run_out(many.database)
    taken, real = [], LeaseKeeper.take_several
    monkeypatch.setattr(LeaseKeeper, "take_several", lambda *a, **b: taken.append(real(*a, **b)) or taken[-1])
    successor = many.sealer()
    successor.step(wait_milliseconds=10)
    assert len(successor._held) == STREAMS
    assert [len(each) for each in taken] == [STREAMS]
    assert many.now().records == 1


def test_who_ends_leaves_its_share_to_the_others_at_once(many: Bench):
    first, second = many.sealer(), many.sealer()
    assert shares(first, second) == [3, 3]
    stop = threading.Event()
    stop.set()
    first.run(stop)
    second.step(wait_milliseconds=0)
    assert len(second._held) == STREAMS


def test_two_workers_that_take_at_once_take_no_stream_twice(many: Bench):
    both, taken = threading.Barrier(2), dict[str, list[leases.Lease]]()

    def take(owner: str) -> None:
        wanted = changes.wanting_a_sealer(but=[])
        with many.database.transaction() as connection:
            both.wait(HANG_SECONDS)
            taken[owner] = leases.take_several(connection, wanted, owner=owner, seconds=600, most=STREAMS)
            both.wait(HANG_SECONDS)  # neither has committed: who comes second finds the rows locked

    threads = [threading.Thread(target=take, args=(owner,)) for owner in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    assert sorted(each.resource for mine in taken.values() for each in mine) == sorted(
        leases.stream(each) for each in _identities(many)
    )


def test_what_another_holds_is_not_taken(many: Bench):
    wanted = changes.wanting_a_sealer(but=[])
    with many.database.transaction() as connection:
        first = leases.take_several(connection, wanted, owner="one", seconds=600, most=2)
    with many.database.transaction() as connection:
        second = leases.take_several(connection, wanted, owner="two", seconds=600, most=STREAMS)
        assert leases.take_several(connection, wanted, owner="three", seconds=600, most=STREAMS) == []
        for lease in first + second:
            leases.check(connection, lease)
    assert (len(first), len(second)) == (2, STREAMS - 2)


def test_a_stream_that_nobody_takes_is_anybodys(many: Bench):
    """The worker whose share it would be fails at it, so that the other has more than its share."""
    healthy, failing = many.sealer(), many.sealer()
    assert shares(healthy, failing) == [3, 3]
    failing._let_go(*failing._held)
    healthy.step(wait_milliseconds=0)
    assert len(healthy._held) == 3
    with many.database.transaction() as connection:
        free = update(tables.leases).where(tables.leases.c.owner.is_(None))
        connection.execute(free.values(expires_at=tables.leases.c.expires_at - timedelta(seconds=700)))
    healthy.step(wait_milliseconds=0)
    assert len(healthy._held) == STREAMS


def test_a_new_stream_is_heard_of(bench: Bench, monkeypatch):
    monkeypatch.setattr(sealing, "LOOK_SECONDS", math.inf)
    sealer, stop = bench.sealer(), threading.Event()
    listener = Listener(bench.database, {FREE_STREAM: lambda _: sealer.look_soon()})
    threads = [threading.Thread(target=job, args=(stop,)) for job in (sealer.run, listener.run)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sealer._held and _listens(bench))
        new = new_stream(bench.world, bench.database, "new")
        wait_until(lambda: new.log in sealer._held)
    finally:
        stop.set()
        for thread in threads:
            join(thread)


def _listens(bench: Bench) -> bool:
    with bench.database.transaction() as connection:
        return bool(
            connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND query LIKE 'LISTEN%%' AND state = 'idle'"
            ).scalar_one()
        )


def _streams(bench: Bench) -> list[streams.Stream]:
    with bench.database.transaction() as connection:
        return streams.every(connection)


def _identities(bench: Bench) -> list[int]:
    return [each.id for each in _streams(bench)]
