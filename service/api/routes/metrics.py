"""`/metrics`: for Prometheus. Its exact counts and times are inside the trust boundary.

On the port for Prometheus it needs no key. On the API's port it needs one with the scope `metrics`.
"""

import asyncio
import time
from functools import lru_cache

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from sqlalchemy import Connection
from starlette.types import ASGIApp, Receive, Scope, Send

from service import metrics
from service.api.auth.scopes import KeyFirst, MetricsReader
from service.api.http.problems import Problem, documented
from service.api.services import Services, Shared
from service.figures.drift_alarms import BLOCKS, EvaluatedPublication, judged
from service.ledger.overview import Overview, overview
from service.log import LogState, LogUnavailable, Position
from service.mechanisms.building import declassified
from service.store import evaluations
from service.store import streams as stored_streams
from service.store.database import ONE_VIEW, DatabaseUnavailable
from service.store.streams import Stream

router = APIRouter(route_class=KeyFirst, tags=["health"])

SECONDS_BETWEEN_LOOKS = 1.0  # on its own port this needs no key, so it must not be a way to keep the database busy


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=documented()
    | {200: {"description": "Prometheus' text format", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(key: MetricsReader, shared: Shared) -> Response:
    """Counts, sizes, times and privacy budgets of everything, for Prometheus.

    `PERENNIAL_METRICS_PORT` answers the same without a key, whatever else is away. A key that is limited to streams
    gets 403: metrics tell of every stream.
    """
    if key.streams is not None:
        raise Problem("forbidden", "Metrics tell of every stream: use a key that is not limited to streams.")
    return await _exposition(shared)


ROUTE = router.routes[-1]


async def _exposition(shared: Services) -> Response:
    async with shared.metrics_lock:
        if time.monotonic() >= shared.gathered_metrics[0] + SECONDS_BETWEEN_LOOKS:
            shared.gathered_metrics = (time.monotonic(), await _look(shared))
    body = metrics.exposition(metrics.API, metrics.PROCESS) + shared.gathered_metrics[1]
    return Response(body, media_type=metrics.CONTENT_TYPE)


async def _look(shared: Services) -> bytes:
    socket = shared.settings.worker_metrics
    known, writes, worker = await asyncio.gather(
        _state(shared), _takes_writes(shared), metrics.ask(socket) if socket else _nobody()
    )
    recorded, log, good = known
    state = metrics.ServiceState(recorded, log, None if socket is None else worker is not None, good, database=writes)
    return metrics.exposition(state) + (worker or b"")


async def _nobody() -> None:
    return None


async def _takes_writes(shared: Services) -> bool:
    try:
        await shared.run_once("ready", stored_streams.ready)
    except DatabaseUnavailable:
        return False
    return True


async def _state(shared: Services) -> tuple[Overview | None, LogState, list[EvaluatedPublication]]:
    recorded, numbered = None, {}
    good: list[EvaluatedPublication] = []
    try:
        recorded, good = await shared.run(_recorded)
        numbered = {summary.stream.log: _position(summary.stream) for summary in recorded.streams}
    except DatabaseUnavailable:
        pass
    try:
        return recorded, await shared.appender.state(numbered), good
    except LogUnavailable:
        return recorded, LogState(), good


def _position(stream: Stream) -> Position:
    return Position(entry=stream.sealed_entry, sequence=stream.sealed_sequence)


def _recorded(connection: Connection) -> tuple[Overview, list[EvaluatedPublication]]:
    connection.execute(ONE_VIEW)
    evaluated = evaluations.of_running(connection, limit=BLOCKS)
    good = [judgement for evaluation, stream, blocks in evaluated for judgement in judged(evaluation, stream, blocks)]
    return overview(connection, declassified=declassified), good


def answered(scope: Scope, status: int, seconds: float) -> None:
    """Time an answer by the route's template: paths hold names of all kinds, and anybody can make up more.

    Routes about labels are left out: their counts would tell how many labels people were asked for.
    """
    route = scope.get("route")
    if "labels" not in getattr(route, "tags", ()):
        path = getattr(route, "path", None)
        _clock(scope["method"] if path else "any", path or "unknown", status).observe(seconds)


_clock = lru_cache(maxsize=None)(metrics.HTTP.labels)


class MetricsPort:
    """Answers `GET /metrics` on the port for Prometheus, without a key, and nothing else there."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["server"][1] != self._port:
            await self._app(scope, receive, send)
        elif (scope["method"], scope["path"]) == ("GET", "/metrics"):
            scope["route"] = ROUTE
            await (await _exposition(scope["app"].state.services))(scope, receive, send)
        else:
            problem = Problem("not-found", "This port answers `GET /metrics` and nothing else.")
            await problem.response()(scope, receive, send)
