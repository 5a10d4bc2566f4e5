"""`/livez` and `/readyz`: for whoever runs it."""

from fastapi import APIRouter, Response

from service.api.problems import documented
from service.api.schemas import as_json
from service.api.services import Shared
from service.log import LogUnavailable
from service.store import streams
from service.store.database import DatabaseUnavailable

router = APIRouter(tags=["health"])


@router.get("/livez")
async def alive() -> dict[str, str]:
    """This process answers."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: documented("log-unavailable")[503]})
async def ready(shared: Shared) -> Response:
    """Records can be taken and models served; if not, which part is away."""
    parts = {"database": "ready", "log": "ready"}
    try:
        await shared.run(streams.ready)
    except DatabaseUnavailable as error:
        parts["database"] = str(error)
    try:
        await shared.appender.ready()
    except LogUnavailable as error:
        parts["log"] = str(error)
    if set(parts.values()) == {"ready"} and not shared.stopping.is_set():
        return as_json({"status": "ready"} | parts)
    return as_json({"status": "not ready"} | parts, 503, {"Retry-After": "1"})
