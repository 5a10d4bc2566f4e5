"""`/metrics`: for Prometheus. What it tells is inside the trust boundary: exact counts and times."""

import asyncio
import time
from collections.abc import Mapping
from functools import lru_cache, partial

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service import metrics
from service.api.problems import Problem
from service.api.services import Services, Shared
from service.log import Backlog, LogUnavailable, Position
from service.mechanisms.building import declassified
from service.store.database import DatabaseUnavailable
from service.store.overview import Overview, overview

router = APIRouter(tags=["health"])

SECONDS_BETWEEN_LOOKS = 1.0  # nobody needs a key for this, so it must not be a way to keep the database busy


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={
        200: {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}
    },
)
async def get_metrics(shared: Shared) -> Response:
    """Counts, sizes, times and privacy budgets of everything, for Prometheus. It answers whatever else is away."""
    async with shared.looking:
        if time.monotonic() >= shared.looked[0] + SECONDS_BETWEEN_LOOKS:
            shared.looked = (time.monotonic(), await _look(shared))
    body = metrics.exposition(metrics.API, metrics.PROCESS) + shared.looked[1]
    return Response(body, media_type=metrics.CONTENT_TYPE)


async def _look(shared: Services) -> bytes:
    socket = shared.settings.worker_metrics
    (found, backlogs), worker = await asyncio.gather(_state(shared), metrics.ask(socket) if socket else _nobody())
    state = metrics.State(found, backlogs, None if socket is None else worker is not None)
    return metrics.exposition(state) + (worker or b"")


async def _nobody() -> None:
    return None


async def _state(shared: Services) -> tuple[Overview | None, Mapping[str, Backlog] | None]:
    found, positions = None, {}
    try:
        found = await shared.run(partial(overview, declassified=declassified))
        positions = {each.log: Position(entry=each.entry, sequence=each.sequence) for each in found.streams}
    except DatabaseUnavailable:
        pass
    try:
        return found, await shared.appender.backlogs(positions)
    except LogUnavailable:
        return found, None


def answered(scope: Scope, status: int, seconds: float) -> None:
    """Times an answer by the route's template: paths hold names of all kinds, and anybody can make up more."""
    route = getattr(scope.get("route"), "path", None)
    _clock(scope["method"] if route else "any", route or "unknown", status).observe(seconds)


_clock = lru_cache(maxsize=None)(metrics.HTTP.labels)


class OwnPort:
    """Keeps `/metrics`, and nothing else, to a port of its own."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["server"][1] == self._port) != (scope["path"] == "/metrics"):
            problem = Problem("not-found", "Metrics have a port of their own here, and it has nothing else.")
            await problem.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)
