"""Queries that are sent together: their answers, and what a lost connection does to those who ask next."""

import threading
import time
from contextlib import suppress
from select import POLLIN, poll

import psycopg
import pytest
from sqlalchemy import LargeBinary, bindparam, event, func, literal, select, text

from service.store.database import (
    Database,
    DatabaseUnavailable,
    notifications,
    notify,
    pipelined,
    read_together,
    within,
)
from service.store.tables import streams
from tests.conftest import HANG_SECONDS, wait_until


@pytest.fixture(params=[True, False], ids=["pipelined", "one by one"])
def database(world, request, monkeypatch):
    """As it is, and as a server before PostgreSQL 17 is spoken to, which can't bound a transaction."""
    if not request.param:
        monkeypatch.setattr("service.store.database._bounds", lambda connection: False)
    database = Database(world.settings.database_url, connections=1)
    yield database
    database.close()


def test_each_query_has_its_own_rows_in_one_transaction(database):
    doubled = select((2 * bindparam("n", type_=streams.c.records.type)).label("twice"), literal("kept").label("word"))
    with database.transaction() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE one AS SELECT 1"))
        none, two, four = read_together(connection, (select(streams), {}), (doubled, {"n": 1}), (doubled, {"n": 2}))
        assert connection.execute(text("SELECT count(*) FROM one")).scalar_one() == 1
    assert none == []
    assert [(row.twice, row.word) for row in (*two, *four)] == [(2, "kept"), (4, "kept")]


@pytest.mark.parametrize("fails", [False, True])
def test_values_that_are_larger_than_what_a_socket_takes_at_once_come_and_go(database, fails):
    large, back = bytes(2**22), select(bindparam("value", type_=LargeBinary).label("value"))
    queries = [(back, {"value": large})] * 3
    if fails:
        queries[1:1] = [(select(text("1/0")), {})]
    with suppress(psycopg.errors.DivisionByZero), database.transaction() as connection:
        assert [row.value for (row,) in read_together(connection, *queries)] == [large] * 3
        assert not fails
    with database.transaction() as connection:
        assert read_together(connection, (select(streams), {})) == [[]]


def test_a_connection_that_is_cut_is_told_and_replaced(world, database):
    other = Database(world.settings.database_url)
    with pytest.raises(DatabaseUnavailable), database.transaction() as connection:
        ((row,),) = read_together(connection, (select(text("pg_backend_pid() AS pid")), {}))
        with other.transaction() as beside:
            beside.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": row.pid})
        read_together(connection, (select(streams), {}))
    other.close()
    with database.transaction() as connection:
        assert read_together(connection, (select(streams), {})) == [[]]


@pytest.mark.parametrize("use", [Database.transaction, Database.rolled_back])
def test_a_connection_that_is_cut_when_it_was_just_made_is_told(world, database, use):
    other = Database(world.settings.database_url)

    def cut(session, _):
        with other.transaction() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:one)"), {"one": session.info.backend_pid})
        polling = poll()
        polling.register(session.fileno(), POLLIN)
        assert polling.poll(1000 * HANG_SECONDS)

    event.listen(database.engine, "connect", cut)
    with pytest.raises(DatabaseUnavailable, match="as soon as they are made"), use(database):
        pass
    assert database.was_away(HANG_SECONDS)
    event.remove(database.engine, "connect", cut)
    with use(database) as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    other.close()


def test_a_query_that_fails_takes_the_whole_transaction_with_it(database):
    with pytest.raises(psycopg.Error), database.transaction() as connection:
        read_together(connection, (select(text("1/0")), {}), (select(streams), {}))
    with database.transaction() as connection:
        assert read_together(connection, (select(streams), {})) == [[]]


@pytest.mark.parametrize("database", [True], ids=["pipelined"], indirect=True)
def test_a_transaction_ends_within_its_time_also_in_the_middle_of_a_pipeline(database):
    with pytest.raises(DatabaseUnavailable), database.transaction() as connection:
        read_together(connection, (select(streams), {}), *within(connection, 0.2))
        with pipelined(connection):
            connection.execute(text("SELECT 1"))
            time.sleep(0.5)
    with database.transaction() as connection:
        assert read_together(connection, (select(streams), {}), *within(connection, 60)) != []
        assert connection.execute(text("SELECT 1")).scalar_one() == 1


@pytest.mark.parametrize("database", [True], ids=["pipelined"], indirect=True)
def test_who_hangs_after_a_pipeline_keeps_no_lock(world, database):
    """The server ends its transaction, as any that is left idle."""
    other = Database(world.settings.database_url)
    soon = select(func.set_config("idle_in_transaction_session_timeout", "500ms", True))  # after all that is sent
    with pytest.raises(DatabaseUnavailable), database.transaction() as connection:
        slow = (select(func.pg_backend_pid().label("pid"), func.pg_sleep(0.05)), {})
        _, ((pid, _),) = read_together(connection, (soon, {}), slow)

        def is_there() -> bool:
            with other.transaction() as beside:
                return bool(beside.execute(text("SELECT FROM pg_stat_activity WHERE pid = :pid"), {"pid": pid}).all())

        wait_until(lambda: not is_there())
        connection.execute(text("SELECT 1"))
    other.close()


@pytest.mark.parametrize("database", [False], ids=["one by one"], indirect=True)
def test_a_server_that_cannot_bound_a_transaction_is_not_asked_to(database):
    with database.transaction() as connection:
        assert within(connection, 60) == ()
        with pipelined(connection):
            assert connection.execute(text("SELECT 1")).scalar_one() == 1, "no answer is waited for later"


def test_all_that_is_notified_is_heard_until_the_listener_is_to_stop(world):
    database, stop, payloads = Database(world.settings.database_url), threading.Event(), []
    with database.listen("one", "another") as listening:
        for number in range(3):
            with database.transaction() as connection:
                notify(connection, ("one", "another")[number % 2], str(number))
        for notice in notifications(listening, stop):
            payloads.append((notice.channel, notice.payload))
            if len(payloads) == 3:
                stop.set()
    assert payloads == [("one", "0"), ("another", "1"), ("one", "2")]
    database.close()


def test_a_listener_that_was_cut_says_so(world):
    database = Database(world.settings.database_url)
    with pytest.raises(DatabaseUnavailable), database.listen("one") as listening:
        with database.transaction() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": listening.info.backend_pid})
        list(notifications(listening, threading.Event()))
    database.close()


def test_who_gets_no_connection_in_time_is_told_that_the_database_is_away(database, monkeypatch):
    monkeypatch.setattr(database.engine.pool, "_timeout", 0.01)
    with database.transaction(), pytest.raises(DatabaseUnavailable), database.transaction():
        pytest.fail("there is only one")
    with database.transaction() as connection:
        assert read_together(connection, (select(streams), {})) == [[]]


UPDATE, LOCK = text("UPDATE streams SET name = name"), text("SELECT id FROM streams FOR KEY SHARE")


@pytest.mark.parametrize("ask", [lambda on: on.execute(UPDATE), lambda on: read_together(on, (LOCK, {}))])
def test_a_database_that_takes_no_writes_is_away(database, ask):
    """As a standby, at the address of a primary that was lost, until it is promoted."""
    with pytest.raises(DatabaseUnavailable), database.transaction() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        ask(connection)
    with database.transaction() as connection:
        ask(connection)


def test_who_cannot_listen_to_a_standby_is_told_that_the_database_is_away(database):
    """It refuses LISTEN with the error with which every server refuses writes while it takes none."""
    with pytest.raises(DatabaseUnavailable), database.listen("one") as listening:
        listening.execute("SET default_transaction_read_only = on")
        listening.execute("UPDATE streams SET name = name")
