"""Batches that this process can append at once: their key and their stream are known, and all of their body is here."""

from __future__ import annotations

import math
import re
import time
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import orjson
from fastapi import Response
from starlette.requests import ClientDisconnect

from service.api.http.bodies import INLINE_BYTES
from service.api.http.whole_answers import head, send_whole
from service.api.ready_keys import ready_key, shown_key
from service.api.routes import metrics
from service.api.routes.records import (
    LONGEST_IDEMPOTENCY_KEY,
    POST,
    REFUSED,
    append,
    only_once,
    read_batch,
    refusals,
    slow,
)
from service.streams.batches import READERS

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.api.auth.credentials import Secret
    from service.api.http.flight import Body
    from service.api.http.whole_answers import Head
    from service.api.services import Services
    from service.store.keys import Key
    from service.store.streams import Stream

_PATH = re.compile(r"/v1/streams/([^/]+)/records")
_FOR_THE_APPLICATION = {b"content-encoding", b"transfer-encoding", b"expect"}
_IDEMPOTENCY_KEY_LENGTHS = range(1, LONGEST_IDEMPOTENCY_KEY + 1)


class Ready(NamedTuple):
    """A request for which all was looked up."""

    shared: Services
    key: Key
    shown: Secret | None
    stream: Stream
    kind: str  # the media type
    idempotency_key: str  # or ""


class ReadyAppends:
    """Append batches of known streams that known keys send, without the framework.

    Whatever is not plain goes on to the application as if nothing had been here: a key or a stream that has to be
    looked up, a key that asks too often or may not write, a packed body, a large one, one of no declared length, a
    header in several lines. A request that is refused later goes there with its error: only the application refuses.

    Numbers, as processor time of a request of one record between the server and the log, reading it included, the least
    of many on two shared cores: JSON 66 µs (through the application 101), NDJSON 67 (125), Arrow 58 (92). Answers and
    commands to the log have become cheaper since (http/connections.py, log/commands.py).
    """

    def __init__(self, app: ASGIApp, metrics_port: int | None = None) -> None:
        self._app, self._metrics_port = app, metrics_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ready = self._find(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        if ready is None:
            await self._app(scope, receive, send)
            return
        began = scope[metrics.BEGAN] = time.perf_counter()
        scope["perennial.key"] = ready.key
        ready.shared.requests.count(ready.key.id)
        try:
            body = orjson.dumps(await _appended(ready, receive))
        except Exception as error:  # noqa: BLE001 - the application answers it
            scope[REFUSED] = error
            await self._app(scope, receive, send)
            return
        scope["route"] = POST
        metrics.answered(scope, 202, time.perf_counter() - began)
        await send_whole(scope, send, 202, _head(len(body)), body)

    def _find(self, scope: Scope) -> Ready | None:
        path, headers = _PATH.fullmatch(scope["path"]), dict(scope["headers"])
        in_one_line_each = len(headers) == len(scope["headers"])
        if path is None or scope["server"][1] == self._metrics_port or not in_one_line_each:
            return None
        shared: Services = scope["app"].state.services
        stream, kind = shared.streams.get(path[1]), _kind(headers.get(b"content-type"))
        if stream is None or kind is None or not _reads_at_once(shared, stream, headers):
            return None
        key = ready_key(shared, headers, "ingest")
        if key is None or (key.streams is not None and stream.name not in key.streams):
            return None
        return Ready(
            shared, key, shown_key(headers), stream, kind, headers.get(b"idempotency-key", b"").decode("latin-1")
        )


def _reads_at_once(shared: Services, stream: Stream, headers: dict[bytes, bytes]) -> bool:
    """Return whether a body with these headers can be read without waiting for anything."""
    declared = headers.get(b"content-length", b"")
    size = int(declared) if declared.isdigit() else math.inf
    return (
        size <= min(INLINE_BYTES, shared.settings.max_body_bytes)
        and not slow(stream.layout, size)
        and len(headers.get(b"idempotency-key", b"-")) in _IDEMPOTENCY_KEY_LENGTHS
        and (stream.unit_secret_digest is None or stream.id in shared.secrets)
        and _FOR_THE_APPLICATION.isdisjoint(headers)
    )


async def _appended(ready: Ready, receive: Receive) -> dict[str, object]:
    """Return the answer. Raises what the application raises where it refuses."""
    shared, stream = ready.shared, ready.stream
    secret = None if stream.unit_secret_digest is None else shared.secrets[stream.id]
    most = min(shared.settings.max_batch_records, stream.layout.most_records)
    with (
        only_once(shared, stream, ready.key, ready.idempotency_key) as scope,
        shared.in_flight.body(ready.key.id) as held,
    ):
        body = await _body(receive, held)
        await shared.keys.check(ready.shown)
        with refusals(shared.settings, most):
            batch = read_batch(body, ready.kind, stream, most, secret, known_again=scope is not None)
        return await append(shared, stream, batch, scope)


@lru_cache(maxsize=64)
def _kind(content_type: bytes | None) -> str | None:
    """Return a media type that is read, as `problems.media_type` does; None: it is none of these."""
    sent = "application/json" if content_type is None else content_type.decode("latin-1")
    kind = sent.partition(";")[0].strip().lower()
    return kind if kind in READERS else None


async def _body(receive: Receive, held: Body) -> bytes:
    """Return the whole body, which the connection keeps to its declared length. Raises ClientDisconnect."""
    pieces, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        size += len(piece)
        held.resize(size)
        pieces.append(piece)
        more = message.get("more_body", False)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@lru_cache(maxsize=256)
def _head(size: int) -> Head:
    """Return the head of an answer of so many bytes."""
    return head(Response(bytes(size), media_type="application/json"))
