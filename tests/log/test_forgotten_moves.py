"""Two logs of one stream never take batches, whatever the database has forgotten, and whoever ends or hangs on the way.

Where the database was put back to before a move, the stream halts, and the same move shows it where its log is.
"""
# ruff: noqa: F401, F811 - the fixtures are another file's

from contextlib import closing
from secrets import token_hex
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, update

from service.embedded import Servers
from service.log import LogUnavailable, MovedLog, Position, read_primaries
from service.log.connection import entries_key, state_key
from service.store import leases, numbering, places, streams, tables
from service.store.database import Database
from service.store.leases import LeaseLost
from service.worker import moving, sealer
from service.worker.moving import Immovable
from tests.api.test_records import refused
from tests.conftest import Service, make_world, ok, running, serving, wait_until
from tests.log.primaries import Three
from tests.log.test_moving import (
    LEASE_SECONDS,
    another,
    database,
    left_elsewhere,
    move,
    numbered,
    row,
    send,
    service,
    three,
)


@pytest.fixture
def forgotten(service: Service, three: Three, database: Database) -> tuple[str, int]:
    """Return the name of a stream whose move the database has forgotten, and where it went."""
    name = service.stream()
    ok(send(service.client(), name), 202)
    numbered(service, name, 2)
    before, target = row(database, name), another(database, name)
    move(service.settings, name, target)
    with database.transaction() as connection:
        leases.revoke(connection, leases.stream(before.id))
        connection.execute(update(tables.streams).where(tables.streams.c.id == before.id).values(place=before.place))
    wait_until(lambda: row(database, name).halted)
    return name, target


@pytest.mark.more
def test_the_same_move_shows_a_stream_where_its_log_is(
    service: Service, three: Three, database: Database, forgotten: tuple[str, int]
):
    name, target = forgotten
    client = service.client()
    refused(send(client, name), 503, "log-unavailable")
    refused(client.post(f"/v1/streams/{name}/resume"), 503, "log-unavailable")
    (third,) = {1, 2, 3} - {target, row(database, name).place}
    with pytest.raises(Immovable, match="resume it first"):
        move(service.settings, name, third)
    assert "resume it now" in move(service.settings, name, target)[0]
    assert row(database, name).place == target
    assert ok(client.post(f"/v1/streams/{name}/resume"))["lost_batches"] == 0
    wait_until(lambda: send(client, name).status_code == 202)
    numbered(service, name, 4)
    assert left_elsewhere(three, row(database, name)) == []
    service.verifies(name)


@pytest.mark.parametrize("where", ["at the place it left", "at a third place"])
def test_a_stream_with_a_second_open_log_is_not_moved(
    service: Service, three: Three, database: Database, forgotten: tuple[str, int], where: str
):
    name, target = forgotten
    stream = row(database, name)
    (third,) = {1, 2, 3} - {target, stream.place}
    with three.redis(stream.place if where == "at the place it left" else third) as redis:
        redis.delete(state_key(stream.log))
        redis.hset(state_key(stream.log), mapping={"log": stream.log, "sequence": 7})
    with pytest.raises(Immovable, match="resume it first"):
        move(service.settings, name, target)
    assert row(database, name).place == stream.place


@pytest.mark.parametrize("forgets", ["the switch", "the whole move"])
def test_a_log_is_not_opened_again_where_the_database_has_forgotten_that_its_stream_moved(
    servers: Servers, three: Three, tmp_path, monkeypatch, forgets: str
):
    """The command is killed when the new log takes batches; then the database is put back to before the switch."""
    world = make_world(servers, tmp_path, redis_url=three.url, lease_seconds=LEASE_SECONDS)
    monkeypatch.setattr(sealer, "TIDY_SECONDS", 0.2)
    with serving(world.settings) as url, closing(Database(world.settings.database_url)) as database:
        service = Service(url, world.settings.admin_key.get_secret_value(), world.settings)
        name = service.stream()
        source, target = row(database, name).place, another(database, name)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(MovedLog, "leave", keyboard_interrupt)
            move(world.settings, name, target)
        ok(send(service.client(), name), 202)
        service.client().close()
        with database.transaction() as connection:
            connection.execute(update(tables.streams).where(tables.streams.c.name == name).values(place=source))
            if forgets == "the whole move":
                connection.execute(delete(tables.leases).where(tables.leases.c.resource.startswith("move:")))
        with running(world.settings) as service:
            client, third = service.client(), 6 - source - target
            why = wait_until(lambda: ok(client.get(f"/v1/streams/{name}"))["halted"] or send(client, name).is_success)
            assert why is not True
            assert f"`perennial move-stream {name} {target}`" in why
            with pytest.raises(Immovable, match=f"the move of {name} to primary {target}"):
                move(world.settings, name, third)
            assert f"{name} was moved" in move(world.settings, name, target)[0]
            ok(client.post(f"/v1/streams/{name}/resume"))
            wait_until(lambda: send(client, name).status_code == 202)
            numbered(service, name, 4)
        assert left_elsewhere(three, row(database, name)) == []


def keyboard_interrupt(*_) -> None:
    raise KeyboardInterrupt


def test_no_move_from_before_a_stream_was_resumed_can_switch_it(service: Service, database: Database):
    """Nothing of it was numbered since; but its log may be another, and take batches."""
    name = service.stream()
    stream, target = row(database, name), another(database, name)
    with database.transaction() as connection:
        leases.create_once(connection, leases.move(stream.id))
        lease = leases.take(connection, leases.move(stream.id), owner="first", seconds=600)
        streams.halt(connection, stream.id, "a test did it")
        halted = streams.get(connection, stream.id)
        numbering.resume(connection, halted, sequence=halted.sealed_sequence, lost_batches=None)
    with pytest.raises(LeaseLost), database.transaction() as connection:
        places.switch(connection, lease, stream, target)


def test_the_new_log_is_closed_until_its_stream_is_there(
    service: Service, three: Three, database: Database, monkeypatch
):
    """Else a command that ends before the switch would leave two logs of one stream that take batches."""
    name, switch, before = service.stream(), places.switch, []

    def look(connection, lease, stream, place):
        with closing(MovedLog(read_primaries(three.url).every()[place - 1], stream.log, lease.epoch)) as log:
            before.append(log.state()[0])
        switch(connection, lease, stream, place)

    monkeypatch.setattr(places, "switch", look)
    move(service.settings, name, another(database, name))
    assert before == ["closed"]


def test_ids_of_the_new_log_follow_those_of_the_old_one(three: Three):
    """Also where the clock of its server is behind."""
    log, primary = token_hex(16), read_primaries(three.url).every()[0]
    with closing(MovedLog(primary, log, 1)) as moved, three.redis(1) as redis:
        moved.prepare(Position(entry="99999999999999-7", sequence=3))
        assert redis.xlen(entries_key(log)) == 0
        assert redis.xadd(entries_key(log), {"any": "batch"}) == b"99999999999999-8"


def test_a_log_that_is_left_is_written_anew_until_nothing_of_it_is_left(monkeypatch):
    monkeypatch.setattr(moving, "PAUSE_SECONDS", 0.0)
    answers, closed, lines = [False, False, True], [], []
    left = SimpleNamespace(leave=lambda: True, forget=lambda: answers.pop(0), close=lambda: closed.append("left"))
    mover = moving.Mover(None, None, None, lines.append)
    mover._leave(left)

    def away() -> bool:
        raise LogUnavailable("away")

    mover._leave(SimpleNamespace(leave=away, close=lambda: closed.append("away"), primary=SimpleNamespace(number=2)))
    assert (answers, closed) == ([], ["left", "away"])
    assert lines == ["primary 2 is away: run this again later, to delete what it holds"]
