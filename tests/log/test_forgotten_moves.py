"""A database that was put back to before a move: the stream halts, and the same move shows it where its log is."""
# ruff: noqa: F401, F811 - the fixtures are another file's

from contextlib import closing

import pytest
from sqlalchemy import update

from service.embedded import Servers
from service.log import MovedLog
from service.log.connection import state_key
from service.store import leases, tables
from service.store.database import Database
from service.worker import sealer
from service.worker.moving import Immovable
from tests.api.test_records import refused
from tests.conftest import Service, make_world, ok, running, serving, wait_until
from tests.log.primaries import Three
from tests.log.test_moving import another, database, left_elsewhere, move, numbered, row, send, service, three


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


def test_a_log_is_not_opened_again_where_the_database_has_forgotten_that_its_stream_moved(
    servers: Servers, three: Three, tmp_path, monkeypatch
):
    """The command is killed when the new log takes batches; then the database is put back to before the switch."""
    world = make_world(servers, tmp_path, redis_url=three.url, lease_seconds=1.0)
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
