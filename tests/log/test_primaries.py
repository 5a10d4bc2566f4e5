"""The primaries of a cluster hold the logs of different streams, and one that is away keeps no other stream waiting."""

import asyncio
import time
from collections.abc import Iterator
from secrets import token_hex

import httpx
import pytest

from service.embedded import Servers
from service.ledger.verify import verify
from service.log import (
    Appenders,
    LogState,
    LogUnavailable,
    LogUnsuitable,
    Position,
    open_readers,
    probe,
    read_primaries,
)
from service.log.primaries import OnePrimary
from service.store import streams
from service.store.database import Database
from tests.api.test_records import refused
from tests.conftest import Service, make_world, ok, running, unique, wait_until
from tests.log.primaries import PRIMARIES, Three, three_in_cluster

STREAMS = 9
RECORDS = {"x": [[0.1, 0.2], [0.3, 0.4]], "y": [0, 1]}


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Iterator[Three]:
    with three_in_cluster(tmp_path_factory.mktemp("three")) as three:
        yield three


@pytest.fixture(scope="module")
def service(servers: Servers, three: Three, tmp_path_factory) -> Iterator[Service]:
    world = make_world(servers, tmp_path_factory.mktemp("several"), redis_url=three.url, lease_seconds=1.0)
    with running(world.settings) as service:
        yield service


@pytest.fixture
def names(service: Service) -> list[str]:
    """Return the names of new streams, some on each primary."""
    made = [service.stream() for _ in range(STREAMS)]
    while len(set(places(service, made).values())) < PRIMARIES:
        made.append(service.stream())
    return made


def places(service: Service, names: list[str]) -> dict[str, int]:
    """Return the number of each stream's primary."""
    primaries = read_primaries(service.settings.redis_url)
    primaries.refresh()
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        rows = [streams.find(connection, name) for name in names]
    database.close()
    return {row.name: primaries.of(row.log).number for row in rows}


def send(service: Service, stream: str, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return service.client().post(f"/v1/streams/{stream}/records", json=RECORDS, headers=headers)


def numbered(service: Service, stream: str, records: int) -> None:
    url = f"/v1/streams/{stream}"
    wait_until(lambda: ok(service.client().get(url))["records"] == records)


@pytest.mark.more
def test_streams_are_on_all_primaries_and_each_batch_is_numbered_once(service: Service, three: Three, names: list[str]):
    for name in names:
        key = unique("key")
        first = ok(send(service, name, key), 202)
        assert ok(send(service, name, key), 202) == first
        ok(send(service, name), 202)
    for name in names:
        numbered(service, name, 4)
        ok(service.client().delete(f"/v1/streams/{name}/records?start=1&end=2"), 202)
    for name in names:
        url = f"/v1/streams/{name}"
        wait_until(lambda: ok(service.client().get(url))["erased"]["waiting"] == 0)  # noqa: B023
    assert three.refused_across_slots() == 0
    metrics = httpx.get(f"{service.url}/metrics", headers={"Authorization": f"Bearer {service.admin_key}"}).text
    for number in range(1, PRIMARIES + 1):
        assert f'perennial_log_primary_up{{primary="{number}"}} 1.0' in metrics
    assert ok(service.client().get("/readyz"))["log"] == "ready"


@pytest.mark.more
def test_one_primary_that_is_away_keeps_no_other_stream_waiting(service: Service, three: Three, names: list[str]):
    by_place = places(service, names)
    for name in names:
        ok(send(service, name), 202)
    three.kill(2)
    try:
        for name in names:
            if by_place[name] == 2:
                answer = refused(
                    service.client().post(f"/v1/streams/{name}/records", json=RECORDS), 503, "log-unavailable"
                )
                assert "primary 2: the log does not answer" in answer["detail"]
            else:
                ok(send(service, name), 202)
                numbered(service, name, 4)
        health = ok(service.client().get("/readyz"))
        assert health["status"] == "ready"
        assert health["log"].startswith("primary 2: the log does not answer")
        wait_until(lambda: 'perennial_log_primary_up{primary="2"} 0.0' in exposed(service))
        assert "perennial_log_up 0.0" in exposed(service)
    finally:
        three.start(2)
    for name in names:
        if by_place[name] == 2:
            wait_until(lambda: send(service, name).status_code == 202)  # noqa: B023
        numbered(service, name, 4)
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        assert verify(connection).findings == []
    database.close()


@pytest.mark.more
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_streams_of_other_primaries_go_on(service: Service, three: Three, names: list[str], kills: int):
    """Each gets its numbers while one primary is away. With --long within a second of the kill, at best of three."""
    by_place = places(service, names)
    seconds = []
    for sent in range(1, kills + 1):
        three.kill(2)
        began = time.monotonic()
        try:
            others = [name for name in names if by_place[name] != 2]
            for name in others:
                ok(send(service, name), 202)
            for name in others:
                numbered(service, name, 2 * sent)
            seconds.append(time.monotonic() - began)
        finally:
            three.start(2)
    assert kills == 1 or min(seconds) < 1
    for name in names:
        if by_place[name] == 2:
            wait_until(lambda: send(service, name).status_code == 202)  # noqa: B023


def test_a_reader_sees_what_came_before_it_looked_and_what_comes_later(three: Three):
    primaries = read_primaries(three.url)
    primaries.refresh()
    log = token_hex(16)
    reader = next(reader for reader in open_readers(primaries) if reader.primary == primaries.of(log))

    async def append(*, first: bool) -> None:
        appenders = Appenders(primaries, max_batches=9, max_bytes=10**6)
        if first:
            await appenders.create(log)
        for _ in range(2):
            await appenders.append(log, b"x", 1, idempotency=None)
        await appenders.close()

    position = Position(entry="0-0", sequence=0)
    for first, batches in ((True, 2), (False, 1)):
        asyncio.run(append(first=first))
        for _ in range(2 // batches):
            assert wait_until(lambda: reader.wait({log: position}, milliseconds=0)) == [log]  # noqa: B023
            last = reader.read(log, position, batches=batches + first)[-1]
            reader.trim(log, last.id)
            position = Position(entry=last.id, sequence=last.sequence)
    assert position.sequence == 4
    assert reader.read(log, position, batches=1) == []
    assert reader.wait({log: position}, milliseconds=0) == []
    reader.close()


def exposed(service: Service) -> str:
    answer = service.client().get("/metrics")
    assert answer.status_code == 200
    return answer.text


def test_after_a_primary_did_not_answer_it_is_looked_where_primaries_are_now():
    """Otherwise a primary whose address or slots moved counts as away until a client appends there."""

    class Moved(OnePrimary):
        refreshed = 0

        def refresh(self) -> None:
            self.refreshed += 1

    async def state() -> LogState:
        appenders = Appenders(primaries, max_batches=9, max_bytes=10**6)
        try:
            return await appenders.state({})
        finally:
            await appenders.close()

    primaries = Moved("unix:///nowhere")
    assert asyncio.run(state()).up == {1: False}
    assert primaries.refreshed == 1


def test_primaries_are_known_though_nodes_that_were_named_are_away(three: Three):
    named = three.url.partition(",")[0]
    primaries = read_primaries(named)
    primaries.refresh()
    before = primaries.every()
    three.kill(1)
    try:
        primaries.refresh()
        assert primaries.every() == before, "the other nodes know them"
        with pytest.raises(LogUnavailable):
            read_primaries(named).refresh()
    finally:
        three.start(1)


def test_a_primary_that_syncs_late_is_refused(three: Three):
    with three.redis(2) as redis:
        redis.config_set("appendfsync", "everysec")
        try:
            with pytest.raises(LogUnsuitable, match="primary 2: the Redis server could lose what it has answered"):
                probe(read_primaries(three.url))
        finally:
            redis.config_set("appendfsync", "always")
