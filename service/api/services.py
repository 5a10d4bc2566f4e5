"""The parts of one running API, which its routes share."""

import asyncio
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast
from weakref import WeakValueDictionary

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from service.api.auth.allowance import Allowance
from service.api.auth.known_keys import KnownKeys
from service.api.http.bodies import LargeBody, read_body, receive
from service.api.http.flight import Body, InFlight
from service.api.http.large_bodies import LargeBodies
from service.api.http.representations import Rendered
from service.api.newer_models import NewerModels
from service.api.newest_models import NewestModels
from service.api.notifier import Notifier
from service.api.shared_waits import SharedWaits
from service.log import Appenders, LogUnavailable
from service.queries.answering import Answerer
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store import streams
from service.store.database import Database
from service.store.streams import Stream

MOST_ANSWERING = 8  # requests of queries at the same time: they wait for each other, in threads that others need too
SECONDS_OF_REQUESTS = 2.0  # that a key may ask at once

T = TypeVar("T")


@dataclass
class Services:
    """One per process."""

    settings: Settings
    database: Database
    appender: Appenders
    notifier: Notifier
    files: SegmentFiles
    answerer: Answerer
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    streams: dict[str, Stream] = field(default_factory=dict)
    secrets: dict[int, bytes] = field(default_factory=dict, repr=False)
    """Secrets of the pseudonyms of units, by stream; never shown to anybody."""
    rendered: Rendered = field(default_factory=Rendered)
    due: dict[Hashable, asyncio.Task[Any]] = field(default_factory=dict)  # questions that are not put yet
    put: WeakValueDictionary[Hashable, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    metrics_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    gathered_metrics: tuple[float, bytes] = (-math.inf, b"")  # the time at which they were gathered, and their text
    running: set[str] = field(default_factory=set)  # requests with an Idempotency-Key
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Large bodies are unpacked one after the other: two at once would keep the loop waiting for longer."""
    data_sets: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Data sets of the explorer are read one after the other: a small file may become hundreds of megabytes."""
    large_bodies: LargeBodies = field(default_factory=LargeBodies)
    answering: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_ANSWERING))

    def __post_init__(self) -> None:
        self.requests = Allowance(self.settings.max_key_requests, seconds=SECONDS_OF_REQUESTS)
        self.in_flight = InFlight(of_one=self.settings.max_key_body_bytes, of_all=self.settings.max_body_bytes_in_all)
        self.keys = KnownKeys(self.run_once, guesses=self.settings.max_unknown_keys)
        self.newest_models = NewestModels(self.run_once)
        self.newer_models = NewerModels(self.run, self.notifier, self.stopping)
        self.polls: SharedWaits[int | None] = SharedWaits()

    async def body(self, request: Request, held: Body) -> bytes:
        """Read a request's body, or refuse it."""
        body = await read_body(request, self.settings.max_body_bytes, held, self.large)
        await self.keys.check_again(request)
        return body

    async def batch(self, request: Request, held: Body) -> bytes | LargeBody:
        """Read the body of a request that sends records, or refuse it; a large one is neither unpacked nor parsed."""
        return await receive(request, self.settings.max_body_bytes, held)

    async def run(self, function: Callable[..., T], *args: Any, undone: bool = False, **options: Any) -> T:
        """Call `function(connection, …)` in a transaction of its own, off the event loop.

        undone: the transaction is undone in the end.
        """

        def transact() -> T:
            with self.database.rolled_back() if undone else self.database.transaction() as connection:
                return function(connection, *args, **options)

        return await run_in_threadpool(transact)

    async def run_once(self, question: Hashable, function: Callable[..., T], *args: Any, undone: bool = False) -> T:
        """Call the function once for all who ask the same question before the call begins.

        So no answer is older than its question.
        """
        task = self.due.get(question)
        if task is None:
            task = self.due[question] = asyncio.create_task(self._put(question, function, *args, undone=undone))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        return cast("T", await asyncio.shield(task))

    async def _put(self, question: Hashable, function: Callable[..., T], *args: Any, undone: bool) -> T:
        async with self.put.setdefault(question, asyncio.Lock()):  # one after the other: meanwhile others may join
            del self.due[question]
            return await self.run(function, *args, undone=undone)

    async def secret_of_units(self, stream: Stream) -> bytes | None:
        """Return the secret of a stream's pseudonyms; None: it has no units.

        Raises:
            LogUnavailable: it is lost, for which the stream is halted.
        """
        if stream.unit_secret_digest is None:
            return None
        if stream.id not in self.secrets:
            try:
                self.secrets[stream.id] = await self.run(streams.secret_of_units, stream)
            except streams.SecretLost as lost:
                await self.run(streams.halt, stream.id, str(lost))
                raise LogUnavailable(f"nothing more is accepted on this stream: {lost}") from None
        return self.secrets[stream.id]

    async def schema(self, name: str) -> Stream | None:
        """Return a stream, of which only what never changes may be used: name, log, schema, digest of its secret."""
        if name not in self.streams:
            stream = await self.run(streams.find, name)
            if stream is None:
                return None
            self.streams[name] = stream
        return self.streams[name]


def services_of(request: Request) -> Services:
    """Return the parts of the API that answers a request."""
    running: Services = request.app.state.services
    return running


async def services(request: Request) -> Services:
    """Return the same to the framework, which would have a thread run a function that is no coroutine."""
    return services_of(request)


Shared = Annotated[Services, Depends(services)]
