"""Request bodies: records are unpacked within limits, configuration is read strictly. No refusal repeats a body."""

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from service.api.http.flight import Body
from service.api.http.problems import Problem, field_name, media_type, unread_coding, unread_format
from service.inputs import strict_json
from service.streams.batches import InvalidRecords

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LARGEST_WINDOW = 23  # 2^23 bytes: what RFC 9659 lets a sender ask for


class _Decompressor(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_CODINGS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zstd": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW}),
}
_CODINGS["x-gzip"] = _CODINGS["gzip"]
UNPACKED = ("gzip", "zstd")
FIRST_BYTES = 2**18  # of a packed body: what is unpacked before there must be room for all that it may become
INLINE_BYTES = 2**20  # below this a thread costs more than it spares others: unpacking and parsing hold the interpreter


class ConfigurationRequest(Request):
    """A request whose JSON the framework reads by `json()`: each name once, each number as it is written."""

    async def json(self) -> Any:
        """Return the body's document, or raise the Problem that tells what in it is not clear."""
        try:
            return strict_json.read(await self.body())
        except strict_json.Misread as misread:
            field = field_name(tuple(misread.place)) or "body"
            raise Problem(
                "invalid-request",
                f"{field}: {misread.reason}",
                errors=[{"field": field, "reason": misread.reason}],
            ) from None


def require_json(request: Request) -> None:
    """Refuses other formats."""
    if media_type(request) != "application/json":
        raise unread_format("application/json")


async def read_body(request: Request, limit: int, held: Body, turn: asyncio.Semaphore) -> bytes:
    """Read the whole body and unpack it; refuse it as soon as it is too long.

    Args:
        request: whose body it is.
        limit: the most bytes that it may have, packed and unpacked.
        held: where it is counted. A bomb never becomes more than the limit, nor several more than there is room for.
        turn: which large bodies wait for, to be unpacked one after the other.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    decompressor = _decompressor(request)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        held.resize(size)
        pieces.append(piece)
    body = b"".join(pieces)
    if decompressor is None:
        return body
    unpacked = _unpack(decompressor, body, min(limit + 1, FIRST_BYTES))
    if not decompressor.eof and len(unpacked) == FIRST_BYTES:
        held.resize(len(body) + limit)
        unpacked += _unpack(decompressor, _rest(decompressor), min(limit + 1, INLINE_BYTES) - FIRST_BYTES)
    if not decompressor.eof and len(unpacked) == INLINE_BYTES:
        async with turn:
            room = limit + 1 - len(unpacked)
            unpacked += await run_in_threadpool(_unpack, decompressor, _rest(decompressor), room)
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not decompressor.eof:
        raise _not_packed()
    held.resize(len(unpacked))
    return unpacked


def _decompressor(request: Request) -> _Decompressor | None:
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        return None
    if coding not in _CODINGS:
        raise unread_coding(*UNPACKED)
    made: _Decompressor = _CODINGS[coding]()
    return made


def _rest(decompressor: _Decompressor) -> bytes:
    return getattr(decompressor, "unconsumed_tail", b"")  # zstd keeps it itself


def _unpack(decompressor: _Decompressor, packed: bytes, room: int) -> bytes:
    """Return the next bytes, as many as there is room for."""
    try:
        unpacked = decompressor.decompress(packed, room)
    except (zlib.error, zstd.ZstdError, EOFError):
        raise _not_packed() from None
    if decompressor.unused_data:  # a second packed stream could hide any number of further ones
        raise _not_packed()
    return unpacked


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"A request body holds at most {limit} bytes, unpacked too; send smaller batches.")


def _not_packed() -> Problem:
    return refusal(InvalidRecords((None, "the body is not what Content-Encoding says: one whole packed stream")))


def refusal(refused: InvalidRecords, consequence: str = "") -> Problem:
    """Return what is wrong with which rows, and what follows from that."""
    errors = [{"row": row, "reason": reason} for row, reason in refused.reasons]
    first = errors[0]
    where = f"row {first['row']}: " if first["row"] is not None else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem("invalid-records", f"{where}{first['reason']}{more}.{consequence}", errors=errors)
