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
from service.streams.batches import packed
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
    for coding in ("br", "gzip, zstd", "deflate"):
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
        ends = (whole[:-1], whole[:5], b"", b"{}", whole + b"x", whole + bytes(9), b"\0" + whole)
        for body in (*ends, whole + whole[:-1], whole + whole[:1], whole + whole[:9]):
            for piece in (3, 65536):
                with pytest.raises(Problem, match="invalid-records"):
                    unpacked(coding, body, 10_000, piece=piece)

    @pytest.mark.parametrize("size", [0, 1, 100, 70_000, 300_000])
    def test_several_packed_streams_are_one_body(self, coding, size):
        body = np.random.default_rng(5).bytes(size)
        parts = [body[:40], b"", body[40:66_000], body[66_000:], b""]
        packed = b"".join(map(PACKERS[coding], parts))
        assert unpacked(coding, packed, max(size, len(packed))) == body
        if size > 1000:
            with pytest.raises(Problem, match="too-large"):
                unpacked(coding, packed, size - 1)

    def test_a_bomb_of_several_streams_never_becomes_more_than_the_limit(self, coding):
        bomb, limit = PACKERS[coding](bytes(2**20)) * 50, 2**21
        tracemalloc.start()
        try:
            with pytest.raises(Problem, match="too-large"):
                unpacked(coding, bomb, limit)
            assert tracemalloc.get_traced_memory()[1] < 3 * limit + 2 * len(bomb)
        finally:
            tracemalloc.stop()

    def test_so_many_streams_are_read_and_no_more(self, coding):
        one = PACKERS[coding](b"{")
        assert unpacked(coding, one * packed.MOST_STREAMS, 2**20) == b"{" * packed.MOST_STREAMS
        with pytest.raises(Problem, match="invalid-records"):
            unpacked(coding, one * (packed.MOST_STREAMS + 1), 2**20)


def test_zstd_may_have_frames_that_are_skipped():
    skipped = 0x184D2A53.to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    body = skipped + zstd.compress(b"{") + skipped + zstd.compress(b"}") + skipped
    assert unpacked("zstd", body, 1000) == b"{}"


@pytest.mark.parametrize("coding", PACKERS)
def test_a_batch_in_several_packed_streams_is_taken(service: Service, coding):
    headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": coding}
    body = PACKERS[coding](b'{"x":[1,2],"y":0}\n') * 3
    answer = service.client().post(f"/v1/streams/{service.stream()}/records", content=body, headers=headers)
    assert ok(answer, 202)["accepted"] == 3


def test_zstd_may_not_ask_for_a_window_of_its_choice():
    small = zstd.compress(b"{}" * 100, options={zstd.CompressionParameter.window_log: 27})
    assert unpacked("zstd", small, 1000) == b"{}" * 100  # a small frame needs no window
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(Problem, match="invalid-records"):
        unpacked("zstd", compressor.compress(b"{}" * 100) + compressor.flush(), 1000)
