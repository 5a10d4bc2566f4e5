"""The least that a handler can do, under the same server: what the API is compared with.

    python -m benchmarks.bare PORT REDIS_URL

`POST` parses a batch into arrays and appends them to a Redis stream in one XADD. It knows no key and no schema, checks
nothing, counts nothing. `GET /` answers a constant; `GET /wait` does so when `GET /wake` is asked, `GET /events` too,
as a stream of events without end.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import nanoarrow
import numpy as np
import simdjson
import uvicorn
from nanoarrow.ipc import InputStream
from redis.asyncio import Redis

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

PARSER = simdjson.Parser()
CONSTANT = b"x" * 1500  # bytes: about the size of a release of 32 weights


def parse_json(body: bytes) -> bytes:
    document: Any = PARSER.parse(body)
    return _packed(document["x"].as_buffer(of_type="d"), document["y"].as_buffer(of_type="d"))


def parse_rows(body: bytes) -> bytes:
    rows: Any = PARSER.parse(b"[" + body.rstrip().replace(b"\n", b",") + b"]")
    x, y = [], []
    for row in rows:
        x.append(row["x"].as_buffer(of_type="d"))
        y.append(row["y"])
    return _packed(b"".join(x), np.array(y, np.float64))


def parse_arrow(body: bytes) -> bytes:
    with InputStream.from_readable(body) as source, nanoarrow.c_array_stream(source) as stream:
        view = next(iter(stream)).view()
        x, y = view.child(0).child(0).buffer(1), view.child(1).buffer(1)
        return b"".join((np.asarray(x, np.float32).data, np.asarray(y).astype(np.int32).data))


def _packed(x: Any, y: Any) -> bytes:
    return b"".join(
        (np.frombuffer(x, np.float64).astype(np.float32).data, np.frombuffer(y, np.float64).astype(np.int32).data)
    )


PARSERS = {
    b"application/json": parse_json,
    b"application/x-ndjson": parse_rows,
    b"application/vnd.apache.arrow.stream": parse_arrow,
}


class Bare:
    """An ASGI application."""

    def __init__(self, redis_url: str) -> None:
        self._redis: Any = Redis.from_url(redis_url, protocol=2)
        self._woken = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case "POST", _:
                pieces, more = [], True
                while more:
                    message = await receive()
                    pieces.append(message["body"])
                    more = message["more_body"]
                packed = PARSERS[dict(scope["headers"])[b"content-type"]](b"".join(pieces))
                await _answer(send, 202, await self._redis.xadd("bare", {"batch": packed}))
            case _, "/wait":
                await self._woken.wait()
                await _answer(send, 200, CONSTANT)
            case _, "/events":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                while True:
                    await self._woken.wait()
                    await send({"type": "http.response.body", "body": b"data: woken\n\n", "more_body": True})
            case _, "/wake":
                self._woken.set()
                self._woken = asyncio.Event()
                await _answer(send, 200, b"")
            case _:
                await _answer(send, 200, CONSTANT)


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        Bare(sys.argv[2]),
        port=int(sys.argv[1]),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=75,
    )
