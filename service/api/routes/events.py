"""`/v1/publications/{publication}/events`: every new model, told as soon as it is visible (Server-Sent Events)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event

from service.api.auth.access import publication_or_404
from service.api.auth.credentials import Secret, secret_of
from service.api.auth.scopes import KeyFirst, Reader
from service.api.http.problems import Problem, documented
from service.api.schemas import IN_DIGITS
from service.api.services import Services, Shared
from service.store.database import DatabaseUnavailable

router = APIRouter(route_class=KeyFirst, prefix="/v1/publications/{publication}", tags=["releases"])

SECONDS_OF_SILENCE = 15.0  # then a comment says that the connection lives; proxies close what says nothing

_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One event per model: `id` its version, `data` the release without its parameters' values",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@router.get(
    "/events",
    response_class=StreamingResponse,  # FastAPI's own would call a generator after the answer has begun: no 404
    responses=_EVENTS | documented("invalid-request", "not-found", "stopping"),
)
async def follow(
    publication: str,
    request: Request,
    key: Reader,
    shared: Shared,
    last_event_id: Annotated[
        int | None,
        Header(ge=0, lt=2**31, description="The newest version you have; what came after it is sent first"),
        IN_DIGITS,
    ] = None,
) -> EventSourceResponse:
    """New models as they are published: the latest first, or with Last-Event-ID everything since. It has no end."""
    row = await shared.run(publication_or_404, key, publication)
    if shared.stopping.is_set():
        raise Problem("stopping", "Ask again, whoever answers then.", headers={"Retry-After": "1"})
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if "perennial.head" in request.scope:  # the answer has no end, so its beginning is all there can be
        return EventSourceResponse(iter(()), headers=headers)
    after = (row.visible_latest or 1) - 1 if last_event_id is None else last_event_id
    return EventSourceResponse(
        _events(shared, secret_of(request), publication, row.id, after),
        headers=headers,
    )


async def _events(
    shared: Services, shown_key: Secret | None, publication: str, identity: int, after: int
) -> AsyncIterator[bytes]:
    """Holds a page at most: who reads slowly is asked for later, from where it stopped."""
    clock = asyncio.get_running_loop().time
    sent = clock()
    while True:
        new = await shared.newer_models.wait(
            publication, identity, after, max(0.0, sent + SECONDS_OF_SILENCE - clock())
        )
        try:
            if shared.stopping.is_set() or shown_key is None or await shared.keys.find(shown_key) is None:
                return  # who asks again is told why
        except DatabaseUnavailable:
            new = []  # they are sent once it is known that the key holds
        for version, event in new:
            after = version
            sent = clock()
            yield event
        # By what was sent, not by when this was woken: a publication of the same name elsewhere wakes it, too.
        if not new and clock() >= sent + SECONDS_OF_SILENCE:
            sent = clock()
            yield format_sse_event(comment="still here")
