"""How many bytes of request bodies may be on their way at the same time; each request by itself is allowed."""

import asyncio
import gzip
from contextlib import ExitStack

import httpx
import orjson
import pytest
from fastapi import Request

from service.api.http.bodies import read_body
from service.api.http.flight import InFlight
from service.api.http.problems import Problem
from tests.api.test_records import VALID, refused
from tests.api.wires import wire
from tests.conftest import ADMIN_KEY, Service, make_world, ok, serving, wait_until

MEBIBYTE = 2**20


class Bounded(Service):
    """An API that is alone on its servers, and what it counts."""

    in_flight: InFlight

    def await_held(self, size: int) -> None:
        wait_until(lambda: self.in_flight.all == size)


@pytest.fixture
def bounded(servers, tmp_path):
    sizes = {"max_body_bytes": MEBIBYTE, "max_key_body_bytes": MEBIBYTE, "max_body_bytes_in_all": 2 * MEBIBYTE}
    settings = make_world(servers, tmp_path, **sizes).settings
    api = serving(settings)
    with api as url:
        alone = Bounded(url, ADMIN_KEY, settings)
        alone.in_flight = api.app.state.services.in_flight
        yield alone
        for client in alone.clients.values():
            client.close()


def test_one_key_holds_so_many_bytes_at_the_same_time_and_others_are_served(bounded: Bounded):
    stream, body = bounded.stream(), orjson.dumps(VALID).ljust(2 * MEBIBYTE // 3)
    address, headers = f"/v1/streams/{stream}/records", {"Content-Type": "application/json"}

    def post(key: str) -> httpx.Response:
        return bounded.client(key).post(address, content=body, headers=headers)

    with wire(bounded) as dawdler:
        dawdler.post(stream, f"Content-Length: {len(body)}", body=body[:-1])
        bounded.await_held(len(body) - 1)
        answer = post(ADMIN_KEY)
        refused(answer, 429, "too-much-at-once")
        assert answer.headers["retry-after"] == "1"
        ok(post(bounded.key("ingest")), 202)
        dawdler.socket.sendall(body[-1:])
        assert dawdler.answer()[0] == 202
    for _ in range(3):
        ok(post(ADMIN_KEY), 202)


def test_all_keys_together_hold_so_many_bytes(bounded: Bounded):
    stream, body = bounded.stream(), orjson.dumps(VALID).ljust(2 * MEBIBYTE // 3)
    keys = [bounded.key("ingest") for _ in range(4)]
    with ExitStack() as open_:
        for key in keys[:3]:
            dawdler = open_.enter_context(wire(bounded))
            head = f"POST /v1/streams/{stream}/records HTTP/1.1", "Host: h", f"Authorization: Bearer {key}"
            dawdler.send(*head, f"Content-Length: {len(body)}", body=body[:-1])
        bounded.await_held(3 * (len(body) - 1))
        last = bounded.client(keys[3])
        refused(last.post(f"/v1/streams/{stream}/records", content=body), 429, "too-much-at-once")
    bounded.await_held(0)
    ok(last.post(f"/v1/streams/{stream}/records", content=body), 202)


def test_keys_that_hold_much_leave_room_for_one_that_holds_nothing():
    flight = InFlight(of_one=4, of_all=16)
    for key in range(3):
        for _ in range(4):
            flight.body(key).resize(1)
    flight.body(3).resize(3)
    with pytest.raises(Problem) as refusal:
        flight.body(3).resize(1)
    assert "All keys together send more than 12 bytes" in refusal.value.detail
    flight.body(4).resize(1)


def test_packed_bodies_count_as_what_they_may_become():
    """Here of many requests, none of which is answered yet."""
    packed, limit = gzip.compress(bytes(2 * MEBIBYTE)), 16 * MEBIBYTE

    async def read(room: InFlight, turn: asyncio.Semaphore) -> int:
        async def receive():
            return {"type": "http.request", "body": packed, "more_body": False}

        scope = {"type": "http", "method": "POST", "headers": [(b"content-encoding", b"gzip")]}
        with room.body(1) as held:
            return len(await read_body(Request(scope, receive), limit, held, turn))

    async def read_all() -> list[int | BaseException]:
        room, turn = InFlight(of_one=3 * limit, of_all=10 * limit), asyncio.Semaphore(1)
        return await asyncio.gather(*(read(room, turn) for _ in range(100)), return_exceptions=True)

    batches = asyncio.run(read_all())
    refusals = [each for each in batches if isinstance(each, Problem)]
    assert {each.slug for each in refusals} == {"too-much-at-once"}
    assert 1 <= batches.count(2 * MEBIBYTE) <= 100 - len(refusals) < 20


@pytest.mark.parametrize("size", [1000, 2**18 + 1, 2 * MEBIBYTE], ids=["small", "usual", "large"])
def test_a_packed_body_counts_as_what_it_became_until_it_is_answered(size):
    packed = gzip.compress(bytes(size))

    async def read() -> tuple[int, int]:
        async def receive():
            return {"type": "http.request", "body": packed, "more_body": False}

        scope = {"type": "http", "method": "POST", "headers": [(b"content-encoding", b"gzip")]}
        room, turn = InFlight(of_one=64 * MEBIBYTE, of_all=64 * MEBIBYTE), asyncio.Semaphore(1)
        with room.body(1) as held:
            body = await read_body(Request(scope, receive), 16 * MEBIBYTE, held, turn)
            return len(body), room.all

    assert asyncio.run(read()) == (size, size)
