"""`/livez` and `/readyz`: for whoever runs it."""

import asyncio
from collections.abc import Awaitable

from fastapi import APIRouter, Response

from service.api.http.problems import documented
from service.api.schemas import as_json
from service.api.services import Shared
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
    """Records can be taken and models served; if not, which part is away."""
    database, log = await asyncio.gather(
        _state_of(shared.run_once("ready", streams.ready)), _state_of(shared.appender.ready())
    )
    parts = {"database": database, "log": log}
    if set(parts.values()) == {"ready"} and not shared.stopping.is_set():
        return as_json({"status": "ready"} | parts)
    return as_json({"status": "not ready"} | parts, 503, {"Retry-After": "1"})


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
