"""A database that was put back to before a move: the stream halts, and the same move shows it where its log is."""
# ruff: noqa: F401, F811 - the fixtures are another file's

import pytest
from sqlalchemy import update

from service.log.connection import state_key
from service.store import leases, tables
from service.store.database import Database
from service.worker.moving import Immovable
from tests.api.test_records import refused
from tests.conftest import Service, ok, wait_until
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
