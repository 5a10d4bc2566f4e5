"""Batches of more than 1 MiB are read in a process of their own: with the same answers, and whatever becomes of it."""

import asyncio
import gzip
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from service.api.http import large_bodies
from service.api.http.bodies import INLINE_BYTES
from service.api.http.large_bodies import LargeBodies, ReadBatch, ReaderDied, ReaderFailed
from service.api.http.large_process import ReadTask
from service.api.routes.records import read_batch
from service.streams import batches
from service.streams.schema import stored_schema
from tests.api.test_records import refused
from tests.conftest import HANG_SECONDS, Service, make_world, ok, running, unique, wait_until

MOST = 30_000
X, Y = np.random.default_rng(20).normal(size=(MOST, 2)), np.arange(MOST) % 2
SCHEMA = {"features": 2, "task": {"kind": "classification", "classes": 2}}


@pytest.fixture(scope="module")
def large(servers, tmp_path_factory) -> Iterator[Service]:
    settings = make_world(servers, tmp_path_factory.mktemp("large"), max_batch_records=MOST, max_body_bytes=2**22)
    with running(settings.settings) as service:
        yield service


def as_columns(x: np.ndarray = X, y: np.ndarray = Y) -> bytes:
    body = orjson.dumps({"x": x.tolist(), "y": y.tolist()})
    assert len(body) > INLINE_BYTES
    return body


def as_lines() -> bytes:
    return b"".join(orjson.dumps({"x": x, "y": y}) + b"\n" for x, y in zip(X.tolist(), Y.tolist(), strict=True))


def send(service: Service, stream: str, body: bytes, **headers: str) -> httpx.Response:
    named = {"Content-Type": "application/json"} | {name.replace("_", "-"): each for name, each in headers.items()}
    return service.client().post(f"/v1/streams/{stream}/records", content=body, headers=named)


def numbered(service: Service, stream: str, entry: str) -> tuple[int, int]:
    def look() -> httpx.Response | None:
        answer = service.client().get(f"/v1/streams/{stream}/entries/{entry}")
        return answer if answer.status_code == 200 else None

    numbers = ok(wait_until(look))
    return numbers["start"], numbers["end"]


@pytest.mark.more
def test_every_format_and_packing_is_taken_whole_and_once(large: Service):
    stream, key = large.stream(), unique("key")
    columns, lines = as_columns(), as_lines()
    sent = [
        send(large, stream, columns, Idempotency_Key=key),
        send(large, stream, gzip.compress(columns, 1), Content_Encoding="gzip", Idempotency_Key=key),
        send(large, stream, lines, Content_Type="application/x-ndjson"),
        send(large, stream, gzip.compress(lines, 1), Content_Encoding="gzip", Content_Type="application/x-ndjson"),
        send(large, stream, gzip.compress(columns[:9]) + gzip.compress(columns[9:], 1), Content_Encoding="gzip"),
    ]
    first, repeated, *others = (ok(each, 202) for each in sent)
    assert repeated == first
    assert first["accepted"] == MOST
    places = [numbered(large, stream, each["entry"]) for each in (first, *others)]
    assert places == [(start, start + MOST) for start in range(0, 4 * MOST, MOST)]
    refused(send(large, stream, as_columns(X + 1), Idempotency_Key=key), 422, "idempotency-conflict")


def test_what_is_wrong_is_told_as_of_small_ones_and_nothing_is_stored(large: Service):
    stream, wrong = large.stream(), X.astype(object)
    wrong[12_345, 1] = None
    problem = refused(send(large, stream, as_columns(wrong)), 422, "invalid-records")
    assert [each["row"] for each in problem["errors"]] == [12_345]
    more = np.concatenate([X, X[:1]]), np.append(Y, 0)
    assert f"at most {MOST} records" in refused(send(large, stream, as_columns(*more)), 413, "too-large")["detail"]
    bomb = gzip.compress(bytes(2**23))
    assert "4194304 bytes" in refused(send(large, stream, bomb, Content_Encoding="gzip"), 413, "too-large")["detail"]
    cut = gzip.compress(as_columns(), 1)[:-8]
    refused(send(large, stream, cut, Content_Encoding="gzip"), 422, "invalid-records")
    assert large.post(stream, [[0, 0]], [0]) == (0, 1)


def test_a_body_that_kills_its_reader_is_refused_and_the_next_one_is_taken(large: Service, monkeypatch):
    stream = large.stream()
    monkeypatch.setattr(LargeBodies, "_ask", _dying)
    assert "smaller batches" in refused(send(large, stream, as_columns()), 413, "too-large")["detail"]
    monkeypatch.undo()
    assert numbered(large, stream, ok(send(large, stream, as_columns()), 202)["entry"]) == (0, MOST)


def _dying(self: LargeBodies, task: ReadTask, sent: bytes) -> ReadBatch:
    if self._connection is None:
        self._start()
    self._process.kill()
    return ASK(self, task, sent)


ASK = LargeBodies._ask


def task_of(**more: Any) -> ReadTask:
    given = {
        "schema": SCHEMA,
        "format": "application/json",
        "coding": "identity",
        "limit": 2**22,
        "most": MOST,
        "secret": None,
    }
    return ReadTask(**given | more)


def test_a_killed_process_is_started_again_for_the_same_body():
    async def read() -> list[ReadBatch]:
        reader = LargeBodies()
        try:
            before = await reader.read(task_of(), as_columns())
            reader._process.kill()
            return [before, await reader.read(task_of(), as_columns())]
        finally:
            reader.close()

    before, after = asyncio.run(read())
    layout = stored_schema(SCHEMA).layout()
    assert (before.records, before.content) == batches.read_batch(batches.read_json, as_columns(), layout, MOST)
    assert after == before
    assert before.fingerprint == batches.fingerprint(as_columns(), None)


@pytest.mark.more
def test_a_request_that_is_cancelled_leaves_its_answer_to_nobody_else():
    async def read() -> list[ReadBatch]:
        reader = LargeBodies()
        try:
            await reader.read(task_of(), as_columns())  # the process runs
            others = []
            for seconds in (0, 0.001, 0.002, 0.003, 0.01):
                cancelled = asyncio.create_task(reader.read(task_of(), as_columns()))
                await asyncio.sleep(seconds)
                cancelled.cancel()
                others.append(await reader.read(task_of(), b'{"x": [[0, 1]], "y": [1]}'))
            return others
        finally:
            reader.close()

    assert [batch.records for batch in asyncio.run(read())] == [1] * 5


@pytest.mark.more
@pytest.mark.parametrize("message", ["answer", "batch"])
def test_an_answer_that_finds_no_memory_is_nobody_elses(monkeypatch, message):
    received, left = Connection.recv_bytes, ["answer", "batch"]

    def without_memory(self: Connection) -> bytes:
        if left and left.pop(0) == message:
            left.clear()
            raise MemoryError
        return received(self)

    async def read() -> ReadBatch:
        reader = LargeBodies()
        try:
            await reader.read(task_of(), as_columns())  # the process runs
            monkeypatch.setattr(Connection, "recv_bytes", without_memory)
            with pytest.raises(MemoryError):
                await reader.read(task_of(), as_columns())
            return await asyncio.wait_for(reader.read(task_of(), b'{"x": [[0, 1]], "y": [1]}'), HANG_SECONDS)
        finally:
            reader.close()

    assert asyncio.run(read()).records == 1


@pytest.mark.more
def test_an_error_of_one_body_never_closes_what_another_is_sent_through(monkeypatch):
    """As a thread of a cancelled request goes on: on a closed connection's number, a body would reach a client."""
    begun, failed, sending, again = (threading.Event() for _ in range(4))
    closed = list[bool]()
    going_on, dying, send_bytes = b'{"x": [[0, 1]], "y": [1]} ', b"dying", Connection.send_bytes

    def ask(self: LargeBodies, task: ReadTask, sent: bytes) -> ReadBatch:
        first = not failed.is_set()
        if sent == going_on:
            begun.set()
            failed.wait(HANG_SECONDS)
        elif not first:
            again.set()
        try:
            return ASK(self, task, sent)
        finally:
            if sent == dying and first:
                failed.set()
                sending.wait(HANG_SECONDS)

    def send(self: Connection, content: bytes) -> None:
        if content == dying:
            raise EOFError
        if content == going_on:
            sending.set()
            again.wait(HANG_SECONDS)
            closed.append(self.closed)
        send_bytes(self, content)

    async def read() -> None:
        reader = LargeBodies()
        try:
            await reader.read(task_of(), going_on.strip())  # the process runs
            monkeypatch.setattr(LargeBodies, "_ask", ask)
            monkeypatch.setattr(Connection, "send_bytes", send)
            cancelled = asyncio.create_task(reader.read(task_of(), going_on))
            await asyncio.to_thread(begun.wait, HANG_SECONDS)
            cancelled.cancel()
            with pytest.raises(ReaderDied):
                await reader.read(task_of(), dying)
        finally:
            await asyncio.to_thread(reader.close)

    asyncio.run(read())
    assert closed == [False]


def test_pseudonyms_of_units_and_the_fingerprint_are_those_of_small_batches():
    schema, secret = SCHEMA | {"unit": {"max_records": 3}}, bytes(range(32))
    body = orjson.dumps({"x": [[0, 1], [2, 3]], "y": [0, 1], "unit": ["a", 7]})
    task = task_of(schema=schema, secret=secret.hex())

    async def read() -> ReadBatch:
        reader = LargeBodies()
        try:
            return await reader.read(task, body)
        finally:
            reader.close()

    batch = asyncio.run(read())
    stream: Any = SimpleNamespace(layout=stored_schema(schema).layout())
    assert batch == read_batch(body, "application/json", stream, MOST, secret, known_again=True)
    assert batch.fingerprint == batches.fingerprint(body, secret)


def test_a_process_that_cannot_start_or_fails_says_so(monkeypatch):
    async def read(task: ReadTask) -> None:
        reader = LargeBodies()
        try:
            await reader.read(task, b"{}")
        finally:
            reader.close()

    with pytest.raises(ReaderFailed):
        asyncio.run(read(task_of(format="none")))
    monkeypatch.setattr(large_bodies, "command", lambda _: [sys.executable, "-c", "raise SystemExit(9)"])
    with pytest.raises(ReaderDied):
        asyncio.run(read(task_of()))


@pytest.mark.more
def test_the_process_ends_with_its_parent():
    async def read() -> LargeBodies:
        reader = LargeBodies()
        await reader.read(task_of(), as_columns())
        return reader

    reader = asyncio.run(read())
    reader._connection.close()
    assert reader._process.wait(HANG_SECONDS) == 0


def test_the_process_is_given_no_settings_of_the_service(monkeypatch):
    """It reads what anybody sends. The address of the database has a password."""
    monkeypatch.setenv("PERENNIAL_DATABASE_URL", "postgresql://somebody:secret@database")
    monkeypatch.setenv("LARGE_BODIES_OF_A_TEST", "1")
    says = (
        "import json, os, sys; from multiprocessing.connection import Connection; there = Connection(int(sys.argv[1]));"
        "there.recv_bytes(), there.recv_bytes();"
        "names = [name for name in os.environ if name[:5] in ('PEREN', 'LARGE')];"
        "there.send_bytes(json.dumps({'refused': [[None, name] for name in names]}).encode()); there.recv_bytes()"
    )
    monkeypatch.setattr(large_bodies, "command", lambda descriptor: [sys.executable, "-c", says, str(descriptor)])

    async def read() -> None:
        reader = LargeBodies()
        try:
            await reader.read(task_of(), b"{}")
        finally:
            reader.close()

    with pytest.raises(batches.InvalidRecords) as refusal:
        asyncio.run(read())
    assert list(refusal.value.reasons) == [(None, "LARGE_BODIES_OF_A_TEST")]
