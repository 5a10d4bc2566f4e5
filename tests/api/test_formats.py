"""Records in every format over HTTP, packed or not; nothing unpacks to more than its limit."""

import asyncio
import gzip
import tracemalloc

import numpy as np
import pytest
from starlette.requests import Request

from service.api.http.bodies import read_body
from service.api.http.flight import InFlight
from service.api.http.problems import Problem
from service.streams.batches.packed import zstd
from tests.api.formats import WRITERS, as_json
from tests.api.test_records import refused
from tests.conftest import Service, ok, unique

PACKERS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "zstd": zstd.compress}


@pytest.mark.more
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("coding", [None, *PACKERS])
def test_every_format_is_taken_over_http_packed_or_not(service: Service, name, coding):
    media_type, write = WRITERS[name]
    body = write([[1, 2], [3, 4], [5, 6]], [0, 1, 1])
    headers = {"Content-Type": media_type} | ({"Content-Encoding": coding} if coding else {})
    answer = service.client().post(
        f"/v1/streams/{service.stream()}/records", content=PACKERS[coding](body) if coding else body, headers=headers
    )
    assert ok(answer, 202)["accepted"] == 3


def test_a_packed_body_is_the_same_body_to_an_idempotency_key(service: Service):
    url, body = f"/v1/streams/{service.stream()}/records", as_json([[1, 2]], [0])
    headers = {"Idempotency-Key": unique("key")}
    first = ok(service.client().post(url, content=body, headers=headers), 202)
    headers["Content-Encoding"] = "gzip"
    for level in (1, 9):
        assert ok(service.client().post(url, content=gzip.compress(body, level), headers=headers), 202) == first


def test_other_codings_are_415(service: Service):
    url = f"/v1/streams/{service.stream()}/records"
    for coding in ("br", "gzip, zstd"):
        answer = service.client().post(url, content=b"", headers={"Content-Encoding": coding})
        refused(answer, 415, "unsupported-media-type")
        assert answer.headers["accept-encoding"] == "gzip, zstd"


def unpacked(coding: str, body: bytes, limit: int, *, piece: int = 65536) -> bytes:
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)] or [b""]
    messages = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
    messages[-1]["more_body"] = False

    async def receive():
        return messages.pop(0)

    headers = [(b"content-encoding", coding.encode())]

    async def read() -> bytes:
        request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        with InFlight(of_one=limit, of_all=limit).body(1) as held:
            return await read_body(request, limit, held, asyncio.Semaphore(1))

    return asyncio.run(read())


@pytest.mark.parametrize("coding", PACKERS)
class TestPacked:
    @pytest.mark.parametrize("piece", [1, 7, 65536])
    def test_up_to_the_limit_and_no_further(self, coding, piece):
        body = np.random.default_rng(4).bytes(400)
        assert unpacked(coding, PACKERS[coding](body), 500, piece=piece) == body
        assert unpacked(coding, PACKERS[coding](body * 2), 800, piece=piece) == body * 2
        with pytest.raises(Problem, match="too-large"):
            unpacked(coding, PACKERS[coding](body * 2), 799, piece=piece)

    def test_a_bomb_never_becomes_more_than_the_limit(self, coding):
        bomb = PACKERS[coding](bytes(2**25))
        limit = 2**20
        tracemalloc.start()
        try:
            with pytest.raises(Problem, match="too-large"):
                unpacked(coding, bomb, limit)
            assert tracemalloc.get_traced_memory()[1] < 3 * limit + 2 * len(bomb)
        finally:
            tracemalloc.stop()

    def test_what_is_cut_damaged_or_followed_by_more_is_refused(self, coding):
        whole = PACKERS[coding](b"{}" * 100)
        for body in (whole[:-1], whole[:5], b"", b"{}", whole + b"x", whole + whole, b"\0" + whole):
            for piece in (3, 65536):
                with pytest.raises(Problem, match="invalid-records"):
                    unpacked(coding, body, 10_000, piece=piece)


def test_zstd_may_not_ask_for_a_window_of_its_choice():
    packed = zstd.compress(b"{}" * 100, options={zstd.CompressionParameter.window_log: 27})
    assert unpacked("zstd", packed, 1000) == b"{}" * 100  # a small frame needs no window
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(Problem, match="invalid-records"):
        unpacked("zstd", compressor.compress(b"{}" * 100) + compressor.flush(), 1000)
