"""`/livez` and `/readyz`: for whoever runs it."""

import asyncio
from collections.abc import Awaitable, Mapping

from fastapi import APIRouter, Response

from service.api.http.problems import documented
from service.api.schemas import as_json
from service.api.services import Services, Shared
from service.log import LogUnavailable
from service.store import streams
from service.store.database import DatabaseUnavailable

router = APIRouter(tags=["health"])


SECONDS_TO_TELL = 3.0  # whoever asks wants to know now


@router.get("/livez")
async def alive() -> dict[str, str]:
    """This process answers."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: documented("log-unavailable")[503]})
async def ready(shared: Shared) -> Response:
    """Records can be taken and models served; if not, which part is away.

    If the log has several primaries, one that is away makes nothing but its own streams wait.
    """
    database, logs = await asyncio.gather(_state_of(shared.run_once("ready", streams.ready)), _logs(shared))
    parts = {"database": database, "log": _joined(logs)}
    if database == "ready" and "ready" in logs.values() and not shared.stopping.is_set():
        return as_json({"status": "ready"} | parts)
    return as_json({"status": "not ready"} | parts, 503, {"Retry-After": "1"})


async def _logs(shared: Services) -> dict[int, str]:
    """Return the state of each primary of the log, by number."""
    try:
        ends = shared.appender.ends()
    except LogUnavailable as error:
        return {1: str(error)}
    return dict(zip(ends, await asyncio.gather(*(_state_of(end.ready()) for end in ends.values())), strict=True))


def _joined(states: Mapping[int, str]) -> str:
    """Return the state of the log, whose primaries are in these states, by number."""
    if len(states) == 1:
        return states[1]
    away = [f"primary {number}: {state}" for number, state in states.items() if state != "ready"]
    return "; ".join(away) or "ready"


async def _state_of(looking: Awaitable[None]) -> str:
    """`ready`, or why not."""
    try:
        async with asyncio.timeout(SECONDS_TO_TELL):
            await looking
    except TimeoutError:
        return f"no answer within {SECONDS_TO_TELL:g} s"
    except (DatabaseUnavailable, LogUnavailable) as error:
        return str(error)
    return "ready"
