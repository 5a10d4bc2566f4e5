"""A stream's log moves to another primary: nothing is lost or doubled, whatever ends on the way."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from secrets import token_hex
from zlib import crc32

import httpx
import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from service.cli import app
from service.embedded import Servers
from service.log import MovedLog, Overtaken, Position, read_primaries
from service.log import move as moved_logs
from service.log.connection import dead_key, entries_key, state_key
from service.settings import Settings
from service.store import leases, places, streams, tables
from service.store.database import Database
from service.store.leases import LeaseLost
from service.store.segment_files import SegmentFiles
from service.worker import moving, sealer
from service.worker.moving import Immovable
from tests.api.test_records import refused
from tests.conftest import Service, make_world, ok, run_out, running, serving, wait_until
from tests.faults.load import Producer, check, drained
from tests.faults.processes import has_stopped, start_mover
from tests.log.primaries import PRIMARIES, Three, three_in_cluster, three_listed

LEASE_SECONDS = 20.0  # on a busy machine none is lost; of commands that were killed or hang, `run_out` ends them
RECORDS = {"x": [[0.1, 0.2], [0.3, 0.4]], "y": [0, 1]}


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Iterator[Three]:
    with three_listed(tmp_path_factory.mktemp("three")) as three:
        yield three


@pytest.fixture(scope="module")
def service(servers: Servers, three: Three, tmp_path_factory) -> Iterator[Service]:
    world = make_world(servers, tmp_path_factory.mktemp("moving"), redis_url=three.url, lease_seconds=LEASE_SECONDS)
    patience, sealer.TIDY_SECONDS = sealer.TIDY_SECONDS, 0.2
    with running(world.settings) as service:
        yield service
    sealer.TIDY_SECONDS = patience


@pytest.fixture(scope="module")
def database(service: Service) -> Iterator[Database]:
    with closing(Database(service.settings.database_url)) as database:
        yield database


def row(database: Database, name: str) -> streams.Stream:
    with database.transaction() as connection:
        return streams.find(connection, name)


def another(database: Database, name: str) -> int:
    """Return the number of a primary that the stream is not on."""
    return (row(database, name).place or 1) % PRIMARIES + 1


def move(settings: Settings, name: str, place: int) -> list[str]:
    lines: list[str] = []
    moving.run(settings, name, place, lines.append)
    return lines


def send(client: httpx.Client, stream: str, key: str | None = None, records: dict = RECORDS) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post(f"/v1/streams/{stream}/records", json=records, headers=headers)


def numbered(service: Service, stream: str, records: int) -> None:
    wait_until(lambda: ok(service.client().get(f"/v1/streams/{stream}"))["records"] == records)


@contextmanager
def closed(service: Service, database: Database, three: Three, name: str) -> Iterator[None]:
    """As if a command that moves the stream hung: its log is closed, and the lease of the move is held."""
    stream = row(database, name)
    with three.redis(stream.place) as redis:
        redis.hset(state_key(stream.log), "closed", 1)
        yield
        redis.hdel(state_key(stream.log), "closed")


def bury(service: Service, three: Three, stream: streams.Stream) -> str:
    """Put something into the log that is no batch, and return its entry when it was set aside."""
    with three.redis(stream.place) as redis:
        entry = redis.xadd(entries_key(stream.log), {"anything": "else"}).decode()
    url = f"/v1/streams/{stream.name}/dead-letters"
    wait_until(lambda: entry in [each["entry"] for each in ok(service.client().get(url))["items"]])
    return entry


def steps(seed: str, every: int) -> Iterator[int]:
    """Yield the numbers of some steps, from one of the first on."""
    return count(1 + crc32(seed.encode()) % every, every)


def keys_of(three: Three, number: int, log: str) -> set[bytes]:
    with three.redis(number) as redis:
        return set(redis.scan_iter(match=f"perennial:{{{log}}}:*"))


def left_elsewhere(three: Three, stream: streams.Stream) -> list[bytes]:
    """Return what other primaries hold of a stream, but for the mark that it is not there."""
    left = []
    for number in range(1, PRIMARIES + 1):
        if number != stream.place:
            left += keys_of(three, number, stream.log) - {state_key(stream.log).encode()}
            with three.redis(number) as redis:
                assert redis.hget(state_key(stream.log), "log") is None
    return left


def test_it_takes_its_memory_along_and_leaves_a_mark(service: Service, three: Three, database: Database, monkeypatch):
    monkeypatch.setattr(moved_logs, "COPIED_AT_ONCE", 1)
    monkeypatch.setattr(moved_logs, "LETTERS_AT_ONCE", 1)
    name, client = service.stream(), service.client()
    answers = {key: ok(send(client, name, key), 202) for key in ("key", "other")}
    before, target = row(database, name), another(database, name)
    letters, dropped = [bury(service, three, before) for _ in range(2)], bury(service, three, before)
    assert client.delete(f"/v1/streams/{name}/dead-letters/{dropped}").status_code == 204
    with three.redis(before.place) as redis:
        remembered, *_ = redis.scan_iter(match=f"perennial:{{{before.log}}}:idempotency:*")
        milliseconds = redis.pttl(remembered)
    lines = move(service.settings, name, target)
    assert lines[-1] == f"{name} is on primary {target}"
    after = row(database, name)
    assert after.place == target
    assert left_elsewhere(three, after) == []
    with three.redis(target) as redis:
        assert [each.decode() for each, _ in redis.xrange(dead_key(after.log))] == letters
        assert milliseconds - 60_000 < redis.pttl(remembered) <= milliseconds
    assert {key: ok(send(client, name, key), 202) for key in answers} == answers
    refused(send(client, name, "key", {"x": [[0, 0]], "y": [0]}), 422, "idempotency-conflict")
    ok(send(client, name), 202)
    numbered(service, name, 6)
    move(service.settings, name, before.place)  # and back
    ok(send(client, name), 202)
    numbered(service, name, 8)
    assert left_elsewhere(three, row(database, name)) == []


def test_a_letter_that_is_dropped_while_it_is_copied_is_gone(
    service: Service, three: Three, database: Database, monkeypatch
):
    name, target = (made := service.stream()), another(database, made)
    letter = bury(service, three, row(database, name))
    copy = MovedLog.copy_from

    def copy_and_drop(log: MovedLog, source: MovedLog) -> None:
        copy(log, source)
        assert service.client().delete(f"/v1/streams/{name}/dead-letters/{letter}").status_code == 204

    monkeypatch.setattr(MovedLog, "copy_from", copy_and_drop)
    move(service.settings, name, target)
    stream = row(database, name)
    assert left_elsewhere(three, stream) == []
    with three.redis(target) as redis:
        assert redis.xlen(dead_key(stream.log)) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_a_command_killed_before_any_of_its_steps_leaves_a_stream_that_works(
    service: Service, three: Three, database: Database, seed: str, every: int
):
    """Each finds what the one before left. The stream takes batches before the command is run again, too."""
    producers = []
    for step in steps(seed, every):
        name, client = service.stream(), service.client()
        target, producer = another(database, name), Producer(lambda: httpx.Client(
            base_url=service.url, headers={"Authorization": f"Bearer {service.admin_key}"}, timeout=200
        ), name, step, seed=seed, pause=0.02)  # fmt: skip
        producers.append(producer)
        producer.start()
        wait_until(lambda of=producer: len(of.accepted) > 2)
        letter = bury(service, three, row(database, name))
        command = start_mover(service.settings, name, target, at=step)
        command.join(200)
        if command.exitcode != 0:
            assert command.exitcode == -signal.SIGKILL
            run_out(database)
            accepted = len(producer.accepted)
            wait_until(lambda of=producer, than=accepted: len(of.accepted) > than)
            move(service.settings, name, target)
        accepted = len(producer.accepted)
        wait_until(lambda of=producer, than=accepted: len(of.accepted) > than)
        producer.finish()
        for batch in list(producer.accepted.values()):
            assert producer._post(client, batch)  # with its key: it is no new one
        stream = row(database, name)
        assert stream.place == target
        assert stream.halted is None
        assert left_elsewhere(three, stream) == []
        with three.redis(target) as redis:
            assert [each.decode() for each, _ in redis.xrange(dead_key(stream.log))] == [letter]
        if command.exitcode == 0:
            break
    assert step > 20
    for producer in producers:
        wait_until(lambda of=producer: drained(service.client(), of.stream, [of]))
    check(database, SegmentFiles(service.settings.segment_store), producers)


def test_a_closed_log_refuses_until_it_is_opened(service: Service, three: Three, database: Database, monkeypatch):
    name, client = service.stream(), service.client()
    monkeypatch.setattr(sealer, "reopen", lambda *_: None)
    with closed(service, database, three, name):
        answer = send(client, name)
        detail = refused(answer, 503, "log-unavailable")["detail"]
        assert "this stream is being moved to another primary" in detail
        assert int(answer.headers["Retry-After"]) > 0
    ok(send(client, name), 202)
    numbered(service, name, 2)


def test_an_api_that_knew_the_old_place_appends_at_the_new_one(service: Service, three: Three, database: Database):
    name = service.stream()
    with serving(service.settings) as url, httpx.Client(base_url=url, headers=service.client().headers) as client:
        ok(send(client, name), 202)
        source = row(database, name).place
        move(service.settings, name, another(database, name))
        first = ok(send(client, name, "once"), 202)
        assert ok(send(client, name, "once"), 202) == first
        numbered(service, name, 4)
        move(service.settings, name, source)
        ok(send(service.client(), name), 202)  # this one never knew the other place
        move(service.settings, name, another(database, name))
        three.kill(source)
        try:
            wait_until(lambda: send(client, name).status_code == 202)
            numbered(service, name, 8)
        finally:
            three.start(source)


def test_it_waits_until_all_is_numbered(servers: Servers, three: Three, tmp_path):
    """No worker runs: the batches lie in the old log, and so does the stream."""
    world = make_world(servers, tmp_path, redis_url=three.url, lease_seconds=LEASE_SECONDS)
    with serving(world.settings) as url, closing(Database(world.settings.database_url)) as database:
        service = Service(url, world.settings.admin_key.get_secret_value(), world.settings)
        name = service.stream()
        entry = ok(send(service.client(), name), 202)["entry"]
        source, target = row(database, name).place, another(database, name)
        lines: list[str] = []
        command = threading.Thread(target=moving.run, args=(world.settings, name, target, lines.append))
        command.start()
        wait_until(lambda: lines)
        refused(send(service.client(), name), 503, "log-unavailable")
        assert (row(database, name).place, command.is_alive()) == (source, True)
        with running(world.settings) as other:
            command.join(200)
            assert row(database, name).place == target
            assert ok(other.client().get(f"/v1/streams/{name}/entries/{entry}")) == {"start": 0, "end": 2}
        service.client().close()


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_a_command_that_hung_changes_nothing_after_a_later_one(
    service: Service, three: Three, database: Database, seed: str, every: int
):
    """It stops at each of its steps; meanwhile the stream moves there and back, and gets more batches."""
    for step in steps(seed, every):
        name, client = service.stream(), service.client()
        source, target = row(database, name).place, another(database, name)
        first = ok(send(client, name, "key"), 202)
        hung = start_mover(service.settings, name, target, at=step, send=signal.SIGSTOP)
        stopped = wait_until(lambda of=hung: "ended" if of.exitcode is not None else has_stopped(of.pid))
        if stopped == "ended":
            assert hung.exitcode == 0
            break
        run_out(database)
        wait_until(lambda: send(client, name).status_code == 202)  # noqa: B023
        move(service.settings, name, target)
        ok(send(client, name), 202)
        move(service.settings, name, source)
        ok(send(client, name, "later"), 202)
        os.kill(hung.pid, signal.SIGCONT)
        hung.join(200)
        wait_until(lambda: send(client, name, "last").status_code == 202)  # noqa: B023
        assert ok(send(client, name, "key"), 202) == first
        numbered(service, name, 10)
        assert row(database, name).halted is None
    assert step > 20


def test_who_lost_the_lease_of_a_move_can_not_switch(service: Service, database: Database):
    """Also where nothing was numbered since: another command may have moved the stream, which took batches there."""
    name = service.stream()
    stream, target = row(database, name), another(database, name)
    with database.transaction() as connection:
        leases.create_once(connection, leases.move(stream.id))
        lease = leases.take(connection, leases.move(stream.id), owner="first", seconds=600)
        leases.revoke(connection, leases.move(stream.id))
        assert leases.take(connection, leases.move(stream.id), owner="later", seconds=600)
    with pytest.raises(LeaseLost), database.transaction() as connection:
        places.switch(connection, lease, stream, target)
    assert row(database, name).place == stream.place
    with database.transaction() as connection:
        leases.revoke(connection, leases.move(stream.id))


def test_a_log_refuses_all_that_an_earlier_move_wants(three: Three):
    log, position = token_hex(16), Position(entry="5-0", sequence=3)
    primary = read_primaries(three.url).every()[0]
    with closing(MovedLog(primary, log, 2)) as later, closing(MovedLog(primary, log, 1)) as earlier:
        assert later.prepare(position) == "prepared"
        wants = [lambda: earlier.close_for_appends(2), earlier.open_for_appends, earlier.leave]
        wants += [lambda: earlier.prepare(position), lambda: earlier.copy_from(source), lambda: earlier._remember([])]
        with closing(MovedLog(primary, token_hex(16), 2)) as source, three.redis(1) as redis:
            redis.xadd(dead_key(source._log), {"a": "letter"})
            for want in wants:
                with pytest.raises(Overtaken):
                    want()
        assert later.is_numbered(position)
        assert later.open_for_appends() == "opened"
        assert later.close_for_appends(2) == "closed"
        assert later.goes_to() == 2
        assert later.leave()
        assert later.close_for_appends(2) == "left"


def test_a_halted_stream_stays_and_can_be_resumed(service: Service, three: Three, database: Database):
    name, client = service.stream(), service.client()
    stream = row(database, name)
    with three.redis(stream.place) as redis:
        redis.hset(state_key(stream.log), "closed", 1)  # by a command that was killed
    with database.transaction() as connection:
        connection.execute(
            update(tables.streams).where(tables.streams.c.id == stream.id).values(halted="a test did it")
        )
    refused(client.post(f"/v1/streams/{name}/resume"), 503, "log-unavailable")
    with pytest.raises(Immovable, match="resume it first"):
        move(service.settings, name, another(database, name))
    ok(client.post(f"/v1/streams/{name}/resume"))
    wait_until(lambda: send(client, name).status_code == 202)
    numbered(service, name, 2)


def test_a_place_with_an_open_log_is_refused(service: Service, three: Three, database: Database):
    """As after a primary was restored from a backup."""
    name = service.stream()
    ok(send(service.client(), name), 202)
    stream, target = row(database, name), another(database, name)
    with three.redis(target) as redis:
        redis.hset(state_key(stream.log), mapping={"log": stream.log, "sequence": 0})
    with pytest.raises(Immovable, match=f"primary {target} has an open log"):
        move(service.settings, name, target)
    wait_until(lambda: send(service.client(), name).status_code == 202)
    primary = read_primaries(three.url).every()[target - 1]
    with closing(MovedLog(primary, stream.log, 9)) as log:
        assert not log.leave()
        assert log.prepare(Position(entry="0-0", sequence=0)) == "open"


@pytest.mark.parametrize(
    ("stream", "place", "why"),
    [("nobody", 2, "there is no stream nobody"), ("nobody", 0, "1 to 3"), ("nobody", 4, "1 to 3")],
)
def test_the_command_says_why_it_can_not(service: Service, three: Three, stream: str, place: int, why: str):
    done = invoked(service.settings, three.url, stream, place)
    assert done.exit_code == 78
    assert why in done.output


def test_the_command_moves_a_stream_of_a_list_and_none_of_a_cluster_or_of_one_primary(
    service: Service, three: Three, database: Database, tmp_path
):
    name = service.stream()
    target = another(database, name)
    done = invoked(service.settings, three.url, name, target)
    assert done.exit_code == 0, done.output
    assert f"{name} is on primary {target}" in done.output
    assert "names 1 primaries" in invoked(service.settings, three.servers[0].url, name, 1).output
    with three_in_cluster(tmp_path) as cluster:
        assert "slots decide" in invoked(service.settings, cluster.url, name, 1).output


def invoked(settings: Settings, log: str, stream: str, place: int):
    environment = {"PERENNIAL_DATABASE_URL": str(settings.database_url), "PERENNIAL_REDIS_URL": log}
    return CliRunner().invoke(app, ["move-stream", stream, str(place)], env=environment)
