"""A log that is not the one that was numbered halts its stream, until an operator says that it goes on with it.

On a Valkey of its own, which can be flushed, stopped, and put back from a copy of its folder.
"""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.embedded import Servers
from service.embedded.directory import open_data_directory
from service.embedded.processes import stop_together
from service.embedded.valkey import Valkey
from service.embedded.waiting import StopRequest
from service.ledger.verify import verify
from service.log import Appender, LogUnavailable, Reader
from service.log.appender import Resumed
from service.store import numbering, streams
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, Service, World, make_world, ok, serving, wait_until
from tests.worker.conftest import Bench


@dataclass
class Log:
    """A Valkey and its folder."""

    server: Valkey
    folder: Path

    def start(self) -> None:
        self.server.start()
        wait_until(self.server.ready)

    def stop(self) -> None:
        stop_together([self.server.child])

    def back_up(self) -> None:
        self.stop()
        shutil.copytree(self.folder / "valkey", self.folder / "copy")
        self.start()

    def restore(self) -> None:
        self.stop()
        shutil.rmtree(self.folder / "valkey")
        shutil.move(self.folder / "copy", self.folder / "valkey")
        self.start()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_data_directory(tmp_path / "log", StopRequest()) as directory:
        running = Log(Valkey(directory), directory.path)
        running.start()
        yield running
        running.stop()


@pytest.fixture
def world(servers: Servers, tmp_path: Path, log: Log) -> World:
    settings = make_world(servers, tmp_path, lease_seconds=1.0).settings
    return World(settings.model_copy(update={"redis_url": log.server.url}))


@pytest.fixture
def api(bench: Bench) -> Iterator[Service]:
    with serving(bench.world.settings) as url:
        service = Service(url, ADMIN_KEY, bench.world.settings)
        yield service
        for client in service.clients.values():
            client.close()


def sealed(bench: Bench, records: int) -> None:
    sealer = bench.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().records == records)[1])


def halted(bench: Bench) -> str:
    sealer = bench.successor()
    return wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().halted)[1])


def check(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []


def test_a_flushed_log_halts_and_goes_on_when_told(bench: Bench, api: Service):
    refused(api.client().post("/v1/streams/s/resume"), 409, "not-halted")
    bench.append(1, 2)
    sealed(bench, 2)
    last = bench.now().sealed_entry
    bench.append(3)  # accepted, never numbered
    bench.redis().flushall()
    with pytest.raises(LogUnavailable, match="lost"):
        bench.append(4)
    assert "holds nothing" in halted(bench)
    resumed = ok(api.client().post("/v1/streams/s/resume"))
    assert {name: resumed[name] for name in ("records", "entry", "lost_batches")} == {
        "records": 2,
        "entry": last,
        "lost_batches": None,
    }
    entry = bench.append(5)
    assert tuple(map(int, entry.split("-"))) > tuple(map(int, last.split("-")))
    sealed(bench, 3)
    assert bench.values() == [1, 2, 5]
    assert ok(api.client().get("/v1/streams/s"))["resumptions"] == [resumed]
    refused(api.client().post("/v1/streams/s/resume"), 409, "not-halted")
    check(bench)


def test_an_api_that_dies_while_it_resumes_can_be_asked_again(bench: Bench, api: Service, monkeypatch):
    """Between the log and the record: batches are taken again, and numbered once the record says so too."""
    bench.append(1)
    sealed(bench, 1)
    bench.redis().flushall()
    halted(bench)
    with monkeypatch.context() as patched:
        patched.setattr(numbering, "resume", None)
        assert api.client().post("/v1/streams/s/resume").status_code == 500
    bench.append(2)
    assert bench.now().halted is not None
    assert ok(api.client().post("/v1/streams/s/resume"))["records"] == 1
    sealed(bench, 2)
    assert bench.values() == [1, 2]


def test_ids_go_on_after_a_flush_even_if_the_servers_clock_is_behind(bench: Bench, api: Service):
    bench.append(1)
    sealed(bench, 1)
    with bench.database.transaction() as connection:
        ahead = "99999999999999-5"
        streams.halt(connection, bench.stream.id, "why")
        connection.execute(streams.update(streams.streams).values(sealed_entry=ahead))
    bench.redis().flushall()
    ok(api.client().post("/v1/streams/s/resume"))
    assert bench.append(2) == "99999999999999-6"
    sealed(bench, 2)
    assert bench.values() == [1, 2]


def test_a_resume_that_comes_after_another_halt_is_refused(bench: Bench, api: Service, monkeypatch):
    """It asked the log at the first halt: it would count batches as lost that have numbers, and number from before."""
    cut = bench.append(1)
    bench.append(2)
    bench.redis().xdel(bench.key("entries"), cut)
    halted(bench)
    ask_log = Appender.resume

    def resumed_and_halted_again() -> None:
        monkeypatch.setattr(Appender, "resume", ask_log)
        assert ok(api.client().post("/v1/streams/s/resume"))["lost_batches"] == 1
        sealed(bench, 1)
        lost = [bench.append(3), bench.append(4)]
        bench.append(5)
        bench.redis().xdel(bench.key("entries"), *lost)
        halted(bench)

    async def late(*arguments: object) -> Resumed:
        answer = await ask_log(*arguments)
        await asyncio.to_thread(resumed_and_halted_again)
        return answer

    monkeypatch.setattr(Appender, "resume", late)
    refused(api.client().post("/v1/streams/s/resume"), 409, "not-halted")
    assert ok(api.client().post("/v1/streams/s/resume"))["lost_batches"] == 2
    sealed(bench, 2)
    assert bench.values() == [2, 5]
    check(bench)


def test_a_log_put_back_from_an_old_copy_halts_and_goes_on_when_told(bench: Bench, api: Service, log: Log):
    bench.append(1)
    sealed(bench, 1)
    log.back_up()
    bench.append(2)
    sealed(bench, 2)
    log.restore()
    late = bench.append(3)  # before anybody noticed
    reason = halted(bench)
    assert "older than what is numbered" in reason or "came where" in reason or "lost" in reason
    with pytest.raises(LogUnavailable, match="lost"):
        bench.append(4)
    assert ok(api.client().post("/v1/streams/s/resume"))["lost_batches"] is None
    bench.append(5)
    sealed(bench, 4)
    assert bench.values() == [1, 2, 3, 5], "what it still holds is numbered; what had a number is not again"
    assert ok(api.client().get(f"/v1/streams/s/entries/{late}")) == {"start": 2, "end": 3}
    check(bench)


def test_what_came_before_a_lost_batch_is_numbered_and_numbering_goes_on_behind_it(bench: Bench, api: Service):
    bench.append(1)
    cut = bench.append(2)
    bench.append(3)
    bench.redis().xdel(bench.key("entries"), cut)
    assert "batch 3 came where 2 was due" in halted(bench)
    assert ok(api.client().post("/v1/streams/s/resume"))["lost_batches"] == 1
    sealed(bench, 2)
    assert bench.values() == [1, 3]
    check(bench)


def test_a_stream_that_halts_takes_nothing_more_though_its_log_was_away_then(bench: Bench, monkeypatch):
    bench.append(1)
    bench.sealer().step(wait_milliseconds=10)
    cut = bench.append(2)
    bench.append(3)
    bench.redis().xdel(bench.key("entries"), cut)

    def away(*_: object) -> None:
        raise LogUnavailable("away")

    with monkeypatch.context() as patched, pytest.raises(LogUnavailable):
        patched.setattr(Reader, "halt", away)
        bench.successor().step(wait_milliseconds=10)
    assert "came where 2 was due" in halted(bench)
    with pytest.raises(LogUnavailable, match="halted"):
        bench.append(4)


def test_a_batch_cut_from_the_middle_is_counted_as_lost(bench: Bench, api: Service):
    bench.append(1)
    sealed(bench, 1)

    def post(value: float, name: str) -> str:
        body, headers = {"x": [[value]], "y": [0]}, {"Idempotency-Key": name}
        return ok(api.client().post("/v1/streams/s/records", json=body, headers=headers), 202)["entry"]

    cut = [bench.append(2), post(3, "k")]
    bench.append(4)
    bench.redis().xdel(bench.key("entries"), *cut)
    assert "batch 4 came where 2 was due" in halted(bench)
    assert ok(api.client().post("/v1/streams/s/resume"))["lost_batches"] == 2
    sealed(bench, 2)
    assert bench.values() == [1, 4]
    assert post(3, "k") == cut[1], "which is lost: docs/operations.md says to send it under a new key"
    post(3, "new")
    sealed(bench, 3)
    assert bench.values() == [1, 4, 3]
    check(bench)
