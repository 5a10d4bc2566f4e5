"""Wakes those who wait: one listening connection per process, whatever the number of waiters."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial

import structlog

from service.store.database import KEYS_CHANGED, NEW_RELEASE, Database, DatabaseUnavailable, notifications

_log = structlog.get_logger(__name__)


class Notifier:
    """Tells waiters of a publication that something about it was committed."""

    def __init__(self, database: Database, *, keys_changed: Callable[[], None]) -> None:
        self._database = database
        self._keys_changed = keys_changed
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="notifier", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 3.0)

    @staticmethod
    async def wait(event: asyncio.Event, seconds: float) -> None:
        """Wait until the event is set, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # `wait_for` would wake a task for each who waits, beside his own
                await event.wait()

    @contextlib.asynccontextmanager
    async def waiting(self, publication: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when the publication changes. Look at the record only after entering."""
        event = asyncio.Event()
        self._waiting.setdefault(publication, set()).add(event)
        try:
            yield event
        finally:
            waiters = self._waiting[publication]
            waiters.discard(event)
            if not waiters:
                del self._waiting[publication]

    def wake_everybody(self) -> None:
        """Wake all who wait, so that the server can stop."""
        for publication in list(self._waiting):
            self._wake(publication)

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.listen(NEW_RELEASE, KEYS_CHANGED) as connection:
                    self._call(self._wake_all)  # what came while nobody listened
                    for notice in notifications(connection, self._stop):
                        if notice.channel == KEYS_CHANGED:
                            self._call(self._keys_changed)
                        else:
                            self._call(partial(self._wake, notice.payload))
            except DatabaseUnavailable:
                _log.warning("database_unavailable", part="notifier")
                self._stop.wait(0.5)

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function)

    def _wake(self, publication: str) -> None:
        for event in self._waiting.get(publication, ()):
            event.set()

    def _wake_all(self) -> None:
        self._keys_changed()
        self.wake_everybody()
