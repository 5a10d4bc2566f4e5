"""The models after a version, as events: one look at the database for all who wait for those after the same one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import orjson
from fastapi.sse import format_sse_event

from service.api.release_body import shown
from service.api.shared_waits import SharedWaits
from service.store import releases
from service.store.database import DatabaseUnavailable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from sqlalchemy import Connection

    from service.api.notifier import Notifier

    Event = tuple[int, bytes]  # a model's version, and its event as it is sent

RELEASES_AT_ONCE = 100
SECONDS_BETWEEN_LOOKS = 15.0  # a notification can be lost while the database is away


class NewerModels:
    """Looks for new models when something is published.

    Args:
        run: asks the database, as `Services.run` does.
        notifier: says when something is published.
        stopping: set when the server stops.
    """

    def __init__(self, run: Callable[..., Awaitable[list[Event]]], notifier: Notifier, stopping: asyncio.Event) -> None:
        self._run, self._notifier, self._stopping = run, notifier, stopping
        self._waits: SharedWaits[list[Event]] = SharedWaits()

    async def wait(self, publication: str, identity: int, after: int, seconds: float) -> list[Event]:
        """Return the models after a version as soon as there are any; none after so many seconds, or to stop."""
        find = partial(self._find, publication, identity, after)
        return await self._waits.wait((identity, after), find, seconds) or []

    async def _find(self, publication: str, identity: int, after: int) -> list[Event]:
        async with self._notifier.waiting(publication) as changed:
            while not self._stopping.is_set():
                changed.clear()
                try:
                    if new := await self._run(_newer, publication, identity, after):
                        return new
                except DatabaseUnavailable:
                    pass  # nothing can be published meanwhile
                await self._notifier.wait(changed, SECONDS_BETWEEN_LOOKS)
        return []


def _newer(connection: Connection, publication: str, identity: int, after: int) -> list[Event]:
    return [
        (
            release.version,
            format_sse_event(id=str(release.version), data_str=orjson.dumps(shown(publication, release)).decode()),
        )
        for release in releases.models_after(connection, identity, after, limit=RELEASES_AT_ONCE)
    ]
