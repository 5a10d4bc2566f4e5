"""`/v1/streams/{stream}/records`: the way in. Answers when the batch is on disk."""

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, cast

import orjson
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from service import metrics
from service.api.auth.access import authorize, no_stream, stream_or_404
from service.api.auth.scopes import Admin, Authorized, Ingester, KeyFirst
from service.api.http.bodies import LargeBody, refusal, too_large
from service.api.http.flight import Body
from service.api.http.large_bodies import ReadBatch, ReaderDied
from service.api.http.large_process import ReadTask
from service.api.http.prebuilt_responses import Head, PrebuiltResponse, head
from service.api.http.problems import Problem, documented, invalid, media_type, unread_format
from service.api.schemas import IN_DIGITS, UNIT_COLUMN, X_COLUMN, Y_COLUMN, Range, is_entry
from service.api.services import Services, Shared, services_of
from service.log import BacklogFull, IdempotencyConflict, IdempotencyFull
from service.settings import Settings
from service.store import erasing, numbering, retention
from service.store.erasing import NotNumbered
from service.store.keys import Key
from service.store.streams import Stream
from service.streams import batches
from service.streams.batches.packed import TooLong
from service.streams.layout import RecordLayout

router = APIRouter(route_class=KeyFirst, prefix="/v1/streams/{stream}", tags=["records"])

LONGEST_IDEMPOTENCY_KEY = 255
INLINE_NAMED_BYTES = 2**16  # of a stream with names: records by name take several times as long to read


class Accepted(BaseModel):
    """The batch is on disk. Its records are numbered soon; `entries/{entry}` tells when and how."""

    accepted: int = Field(description="How many records")
    entry: str = Field(description="The batch's id in the log")


_REPEATING = "Repeating a request with the same key and body, within 24 hours, gives the first answer again"
_POST = {
    "security": [{Authorized.scheme_name: []}],
    "parameters": [
        {"name": "stream", "in": "path", "required": True, "schema": {"type": "string", "title": "Stream"}},
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "schema": {
                "anyOf": [{"type": "string", "minLength": 1, "maxLength": LONGEST_IDEMPOTENCY_KEY}, {"type": "null"}],
                "description": _REPEATING,
                "title": "Idempotency-Key",
            },
            "description": _REPEATING,
        },
    ],
    "requestBody": {
        "required": True,
        "description": "With every format, `Content-Encoding: gzip` and `zstd` are read too.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"x": X_COLUMN, "y": Y_COLUMN, "unit": UNIT_COLUMN},
                    "additionalProperties": False,
                    "example": {"x": [[0.1, -1.2], [0.4, 0.3]], "y": [0, 1]},
                }
            },
            "application/x-ndjson": {
                "schema": {
                    "type": "string",
                    "description": "One record per line; x may be an object by column name, y a class name",
                    "example": '{"x":[0.1,-1.2],"y":0}\n{"x":[0.4,0.3],"y":1}\n',
                }
            },
            "application/vnd.apache.arrow.stream": {
                "schema": {
                    "description": "Columns x (fixed_size_list or list of numbers), y (integers or floats) and, on "
                    "streams with units, unit (texts or integers), no nulls"
                }
            },
        },
    },
}


async def post_records(request: Request) -> Response:
    """Appends a batch to the stream, whole or not at all."""
    key, shared = await authorize(request, "ingest"), services_of(request)
    stream = await shared.schema(request.path_params["stream"])
    if stream is None:
        raise no_stream()
    idempotency_key = _idempotency_key(request)
    kind = media_type(request)
    if kind not in batches.READERS:
        raise unread_format(*batches.READERS)
    with _only_once(shared, stream, key, idempotency_key) as scope, shared.in_flight.body(key.id) as held:
        batch = await _read(request, kind, shared, stream, held, known_again=scope is not None)
        await shared.keys.check_again(request)
        body = orjson.dumps(await _append(shared, stream, batch, scope))
    return PrebuiltResponse(202, _head(len(body)), body)


@functools.lru_cache(maxsize=256)
def _head(size: int) -> Head:
    """Return the head of an answer of so many bytes."""
    return head(Response(bytes(size), media_type="application/json"))


async def _append(shared: Services, stream: Stream, batch: ReadBatch, scope: str | None) -> dict[str, Any]:
    """Append a batch that was read, and return the answer.

    scope: whose Idempotency-Key it has, and which; None: it has none.
    """
    idempotency = (scope, batch.fingerprint) if scope else None
    try:
        appended = await shared.appender.append(stream.log, batch.content, batch.records, idempotency=idempotency)
    except BacklogFull:
        raise Problem(
            "backlog-full", "Send it again later; nothing was stored.", headers={"Retry-After": "1"}
        ) from None
    except IdempotencyFull as full:
        raise Problem(
            "idempotency-full",
            f"A stream remembers {full.limit} Idempotency-Keys of one API key, each for at least 24 hours. Send larger "
            "batches, or none of these keys. Nothing was stored.",
            headers={"Retry-After": str(full.seconds)},
        ) from None
    except IdempotencyConflict:
        raise Problem("idempotency-conflict", "Use a new Idempotency-Key for a new body; nothing was stored.") from None
    if appended.new:
        _accepted(stream.name).inc(appended.records)
    return {"accepted": appended.records, "entry": appended.entry}


_accepted = functools.cache(metrics.ACCEPTED.labels)  # to look for it takes as long as to count


async def _read(
    request: Request, kind: str, shared: Services, stream: Stream, held: Body, *, known_again: bool
) -> ReadBatch:
    """Return the batch that a request holds, or refuse it: a large one is read in a process of its own.

    kind: the media type. known_again: the batch needs a fingerprint.
    """
    body, secret = await shared.batch(request, held), await shared.secret_of_units(stream)
    layout, settings = stream.layout, shared.settings
    most = min(settings.max_batch_records, layout.most_records)
    with _refusals(settings, most):
        if isinstance(body, LargeBody):
            task = ReadTask(
                schema=stream.schema,
                format=kind,
                coding=body.coding,
                limit=settings.max_body_bytes,
                most=most,
                secret=None if secret is None else secret.hex(),
            )
            batch = await shared.large_bodies.read(task, body.sent)
            held.resize(batch.size)
            return batch
        if _is_slow(layout, len(body)):
            return await run_in_threadpool(read_batch, body, kind, stream, most, secret, known_again=known_again)
        return read_batch(body, kind, stream, most, secret, known_again=known_again)


def _is_slow(layout: RecordLayout, size: int) -> bool:
    """Return whether a body of so many bytes takes so long to read that other requests would wait for it."""
    return layout.reads_text or (bool(layout.names) and size > INLINE_NAMED_BYTES)


def read_batch(
    body: bytes, kind: str, stream: Stream, most: int, secret: bytes | None, *, known_again: bool
) -> ReadBatch:
    """Return the batch that a body of at most so many records holds.

    secret: of the stream's pseudonyms, if it has units. known_again: the batch needs a fingerprint.
    """
    records, content = batches.read_batch(batches.READERS[kind], body, stream.layout, most, secret)
    fingerprint = batches.fingerprint(body, secret) if known_again else ""
    return ReadBatch(content=content, records=records, size=len(body), fingerprint=fingerprint)


@contextlib.contextmanager
def _refusals(settings: Settings, most: int) -> Iterator[None]:
    """Raise the Problem of a batch that can't be read, or holds more than so many records."""
    try:
        yield
    except batches.InvalidRecords as refused:
        raise refusal(refused, " Nothing was stored.") from None
    except batches.TooManyRecords:
        raise Problem("too-large", f"A batch of this stream holds at most {most} records; split it.") from None
    except TooLong:
        raise too_large(settings.max_body_bytes) from None
    except ReaderDied:
        raise Problem(
            "too-large", "To read this body takes more memory than there is. Nothing was stored; send smaller batches."
        ) from None


router.add_api_route(
    "/records",
    post_records,
    methods=["POST"],
    status_code=202,
    response_model=Accepted,
    openapi_extra=_POST,
    responses=documented(
        "invalid-request",
        "not-found",
        "too-large",
        "unsupported-media-type",
        "invalid-records",
        "idempotency-conflict",
        "idempotency-running",
        "backlog-full",
        "idempotency-full",
        "too-much-at-once",
        "log-unavailable",
    ),
)

POST = cast("APIRoute", router.routes[-1])


@router.get("/entries/{entry}", responses=documented("not-found", "entry-forgotten"))
async def get_entry(stream: str, entry: str, key: Ingester, shared: Shared) -> Range:
    """The numbers of a batch's records, once they are numbered. They are remembered for seven days at least."""

    def look(connection: Connection) -> Range:
        of_stream = stream_or_404(connection, key, stream)
        numbers = numbering.find_entry(connection, of_stream.id, entry) if is_entry(entry) else None
        if numbers is None and is_entry(entry) and numbering.is_forgotten(connection, of_stream, entry):
            raise Problem(
                "entry-forgotten",
                f"Numbers of batches are remembered for {retention.ENTRIES_SECONDS // 86_400} days at least, and this "
                "one is older than all that are: do not send it again.",
            )
        if numbers is None:
            raise Problem("not-found", "This entry is not numbered yet, or there is none; ask again shortly.")
        return Range(start=numbers[0], end=numbers[1])

    return await shared.run(look)


@router.delete("/records", status_code=202, responses=documented("invalid-request", "not-found"))
async def erase_records(
    stream: str,
    admin: Admin,
    shared: Shared,
    start: Annotated[int, Query(ge=0, lt=2**63), IN_DIGITS],
    end: Annotated[int, Query(ge=1, lt=2**63), IN_DIGITS],
) -> Range:
    """Erases records [start, end): nothing for every later fit, and their bytes are deleted. They stay charged."""

    def erase(connection: Connection) -> Range:
        try:
            erasing.erase(connection, stream_or_404(connection, admin, stream).id, start, end)
        except NotNumbered as refused:
            field, reason = (
                ("end", f"must be at most {refused.records}, the number of records numbered so far")
                if end > refused.records
                else ("start", "must be less than end")
            )
            within = f"Give start < end within the records numbered so far, [0, {refused.records})."
            raise invalid(f"query.{field}", reason, within) from None
        return Range(start=start, end=end)

    return await shared.run(erase)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= LONGEST_IDEMPOTENCY_KEY:
        length = f"1 to {LONGEST_IDEMPOTENCY_KEY} characters"
        raise invalid("header.idempotency-key", f"must have {length}", f"An Idempotency-Key has {length}.")
    return key


def _only_once(
    shared: Services, stream: Stream, key: Key, idempotency_key: str | None
) -> contextlib.AbstractContextManager[str | None]:
    """Return whose Idempotency-Key a request has, and which; None: it has none.

    Refuses a second request with the same one while the first runs in this process. It only spares work: what keeps a
    batch from being stored twice is the log's own step, whichever process asks it.
    """
    return _running(shared, stream, key, idempotency_key) if idempotency_key else _WITHOUT_KEY


_WITHOUT_KEY = contextlib.nullcontext(None)


@contextlib.contextmanager
def _running(shared: Services, stream: Stream, key: Key, idempotency_key: str) -> Iterator[str]:
    scope = f"{key.id}:{hashlib.sha256(idempotency_key.encode()).hexdigest()}"
    request = f"{stream.log}:{scope}"
    if request in shared.running:
        raise Problem("idempotency-running", "Wait for the first request's answer, or repeat it later.")
    shared.running.add(request)
    try:
        yield scope
    finally:
        shared.running.discard(request)
