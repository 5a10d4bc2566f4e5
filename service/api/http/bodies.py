"""Request bodies: records are unpacked within limits, configuration is read strictly. No refusal repeats a body."""

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service.api.http.flight import Body
from service.api.http.problems import Problem, field_name, invalid, media_type, unread_coding, unread_format
from service.inputs import strict_json
from service.streams.batches import InvalidRecords, packed

FIRST_BYTES = 2**18  # of a packed body: what is unpacked before there must be room for all that it may become
INLINE_BYTES = 2**20  # below this a thread costs more than it spares others: unpacking and parsing hold the interpreter


@dataclass(frozen=True)
class LargeBody:
    """A body of more than `INLINE_BYTES`, as it was sent: it is unpacked and read where nobody waits for that."""

    sent: bytes
    coding: str


class ConfigurationRequest(Request):
    """A request whose JSON the framework reads by `json()`: each name once, each number as it is written."""

    async def json(self) -> Any:
        """Return the body's document, or raise the Problem that tells what in it is not clear."""
        try:
            return strict_json.read(await self.body())
        except strict_json.Misread as misread:
            raise invalid(field_name(tuple(misread.place)) or "body", misread.reason) from None


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
    body = await receive(request, limit, held)
    if not isinstance(body, LargeBody):
        return body
    if body.coding == packed.IDENTITY:
        return body.sent
    try:
        async with turn:
            unpacked = await run_in_threadpool(packed.unpack, body.sent, body.coding, limit)
    except packed.TooLong:
        raise too_large(limit) from None
    except InvalidRecords as refused:
        raise refusal(refused) from None
    held.resize(len(unpacked))
    return unpacked


async def receive(request: Request, limit: int, held: Body) -> bytes | LargeBody:
    """Read the whole body, and unpack it unless it is large. The arguments are those of `read_body`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    coding = request.headers.get("content-encoding", packed.IDENTITY).strip().lower()
    if not packed.known(coding):
        raise unread_coding(*packed.UNPACKED)
    pieces, size, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece, more = message.get("body", b""), message.get("more_body", False)
        size += len(piece)
        if size > limit:
            raise too_large(limit)
        held.resize(size)
        pieces.append(piece)
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if coding == packed.IDENTITY:
        return LargeBody(body, coding) if size > INLINE_BYTES else body
    try:
        return _unpack(body, coding, limit, held)
    except packed.TooLong:
        raise too_large(limit) from None
    except InvalidRecords as refused:
        raise refusal(refused) from None


def _unpack(body: bytes, coding: str, limit: int, held: Body) -> bytes | LargeBody:
    unpacking = packed.Unpacking(body, coding)
    unpacked = unpacking.next(min(limit + 1, FIRST_BYTES))
    if not unpacking.ended and len(unpacked) == FIRST_BYTES:
        held.resize(len(body) + limit)
        unpacked += unpacking.next(min(limit + 1, INLINE_BYTES) - FIRST_BYTES)
    if not unpacking.ended and len(unpacked) == INLINE_BYTES:
        return LargeBody(body, coding)
    unpacked = unpacking.whole(unpacked, limit)
    held.resize(len(unpacked))
    return unpacked


def too_large(limit: int) -> Problem:
    """Return the refusal of a body of more bytes."""
    return Problem("too-large", f"A request body holds at most {limit} bytes, unpacked too; send smaller batches.")


def refusal(refused: InvalidRecords, consequence: str = "") -> Problem:
    """Return what is wrong with which rows, and what follows from that."""
    errors = [{"row": row, "reason": reason} for row, reason in refused.reasons]
    first = errors[0]
    where = f"row {first['row']}: " if first["row"] is not None else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem("invalid-records", f"{where}{first['reason']}{more}.{consequence}", errors=errors)
