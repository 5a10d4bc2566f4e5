"""What the routes share: the parts of one running API, and who is asking."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar, cast
from weakref import WeakValueDictionary

from fastapi import Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.base import SecurityBase
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy import Connection

from service.api.auth.allowance import Allowance
from service.api.http.bodies import ConfigurationRequest, read_body
from service.api.http.flight import Body, InFlight
from service.api.http.problems import Problem
from service.api.notifier import Notifier
from service.api.schemas import is_name
from service.log import Appender
from service.publishing.answering import Answerer
from service.settings import Settings
from service.store import keys, publications, sessions, streams
from service.store.database import Database
from service.store.keys import Key
from service.store.publications import Publication
from service.store.segment_files import SegmentFiles
from service.store.streams import Stream

KEY_CACHE_SECONDS = 2.0  # a revocation is notified at once; this is for the case that the notification is lost
MOST_CACHED = 10_000
MOST_ANSWERING = 8  # requests of queries at the same time: they wait for each other, in threads that others need too
SECONDS_OF_REQUESTS = 2.0  # that a key may ask at once
SECONDS_OF_UNKNOWN_KEYS = 10.0

SESSION = "perennial_session"  # the cookie of who signed in with a browser
OF_OUR_PAGES = "x-perennial-page"  # a header that no other site's page can send unasked

T = TypeVar("T")

Secret = tuple[str, Callable[[Connection, str], Key | None]]
"""What somebody shows to be let in, and how the key that it stands for is found."""


@dataclass
class Rendered:
    """The newest few releases as they are sent, so that many readers of one model cost one query."""

    most_bytes: int = 64 * 2**20
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._bodies: dict[tuple[str, int, str], bytes] = {}

    def get(self, which: tuple[str, int, str]) -> bytes | None:
        return self._bodies.get(which)

    def put(self, which: tuple[str, int, str], body: bytes) -> None:
        if which in self._bodies or len(body) > self.most_bytes:
            return
        self._bodies[which] = body
        self._bytes += len(body)
        while self._bytes > self.most_bytes:
            self._bytes -= len(self._bodies.pop(next(iter(self._bodies))))


@dataclass
class Services:
    """One per process."""

    settings: Settings
    database: Database
    appender: Appender
    notifier: Notifier
    files: SegmentFiles
    answerer: Answerer
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    keys: dict[Hashable, tuple[Key, float]] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    rendered: Rendered = field(default_factory=Rendered)
    due: dict[Hashable, asyncio.Task[Any]] = field(default_factory=dict)  # questions that are not put yet
    put: WeakValueDictionary[Hashable, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    looked: tuple[float, bytes] = (-math.inf, b"")  # when metrics were gathered, and what was found
    running: set[str] = field(default_factory=set)  # requests with an Idempotency-Key
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Large bodies are unpacked and parsed one after the other: two at once would keep the loop waiting for longer."""
    answering: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_ANSWERING))

    def __post_init__(self) -> None:
        self.requests = Allowance(self.settings.max_key_requests, seconds=SECONDS_OF_REQUESTS)
        self.in_flight = InFlight(of_one=self.settings.max_key_body_bytes, of_all=self.settings.max_body_bytes_in_all)
        self.unknown_keys = Allowance(self.settings.max_unknown_keys, seconds=SECONDS_OF_UNKNOWN_KEYS)

    async def body(self, request: Request, held: Body) -> bytes:
        """Read a request's body, or refuse it."""
        return await read_body(request, self.settings.max_body_bytes, held, self.large)

    async def run(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Calls `function(connection, …)` in a transaction of its own, off the event loop."""

        def transact() -> T:
            with self.database.transaction() as connection:
                return function(connection, *args, **options)

        return await run_in_threadpool(transact)

    async def run_once(self, question: Hashable, function: Callable[..., T], *args: Any) -> T:
        """The same for all who ask the same question before it is put: nobody's answer is older than his question."""
        task = self.due.get(question)
        if task is None:
            task = self.due[question] = asyncio.create_task(self._put(question, function, *args))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
        return cast("T", await asyncio.shield(task))

    async def _put(self, question: Hashable, function: Callable[..., T], *args: Any) -> T:
        async with self.put.setdefault(question, asyncio.Lock()):  # one after the other: meanwhile others may join
            del self.due[question]
            return await self.run(function, *args)

    async def key(self, shown: Secret, asker: str | None = None) -> Key | None:
        """The key that this stands for, if it is valid. It is found by a hash: no secret is compared with another.

        Args:
            shown: what somebody sent.
            asker: who has so many guesses a second; each asks the database. What was valid when it was last looked at
                is none. None: who was let in before.
        """
        secret, find = shown
        which = find, keys.digest(secret)
        cached = self.keys.get(which)
        if cached is not None and cached[1] > time.monotonic():
            return cached[0]
        if cached is None and asker is not None and (early := self.unknown_keys.early(asker)):
            raise too_many("This address sends too many keys that are not known.", early)
        key = await self.run_once(("key", which), find, secret)
        self.keys.pop(which, None)
        if key is None:
            self.unknown_keys.count(asker)
        else:
            if len(self.keys) >= MOST_CACHED:
                self.keys.clear()
            self.keys[which] = (key, time.monotonic() + KEY_CACHE_SECONDS)
        return key

    def look_at_keys_again(self) -> None:
        """Some key was made or revoked."""
        self.keys = {which: (key, 0.0) for which, (key, _) in self.keys.items()}

    async def schema(self, name: str) -> Stream | None:
        """A stream as far as it never changes: name, log, schema."""
        if name not in self.streams:
            stream = await self.run(streams.find, name)
            if stream is None:
                return None
            self.streams[name] = stream
        return self.streams[name]


async def services(
    request: Request,
) -> Services:  # were it no coroutine, each request would wait for a thread to run it
    found: Services = request.app.state.services
    return found


Shared = Annotated[Services, Depends(services)]


_bearer = HTTPBearer(auto_error=False, description="An API key: `Authorization: Bearer prn_…`")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def looking(connection: Connection, secret: str) -> Key | None:
    """The key of a session that asks for something by itself, which may look, whatever the key may do."""
    key = sessions.find(connection, secret)
    return key and replace(key, scopes=frozenset({"read"}))


def of_our_page(connection: Connection, secret: str) -> Key | None:
    """The key of a session whose page asks: it may label, too, where the key says so in as many words."""
    key = sessions.find(connection, secret)
    return key and replace(key, scopes=frozenset({"read"}) | (key.scopes & {"label"}))


def shown_by(request: Request) -> Secret | None:
    """A key, else a session's cookie. Browsers send that whoever made them ask: so what does more than read, as does
    being given a record to label, must also come with a header that only pages of this very origin can send, others
    being refused it by the browser.
    """
    scheme, secret = get_authorization_scheme_param(request.headers.get("authorization"))
    if secret and scheme.lower() == "bearer":
        return secret, keys.find
    session = request.cookies.get(SESSION)
    if session and OF_OUR_PAGES in request.headers:
        return session, of_our_page
    return (session, looking) if session and request.method == "GET" else None


class May(SecurityBase):
    """A dependency: the key of the request, which must have this scope (or `admin`).

    It is one, not a chain of them: what each wants is found out anew for every request, at the price of a small batch.
    """

    model, scheme_name = _bearer.model, _bearer.scheme_name

    def __init__(self, needed: str) -> None:
        self._needed = needed

    async def __call__(self, request: Request) -> Key:
        key: Key = request.scope.get("perennial.key") or await self._identified(request)
        if not {self._needed, "admin"} & key.scopes:
            raise Problem("forbidden", f"This needs a key with the scope `{self._needed}`.")
        return key

    async def _identified(self, request: Request) -> Key:
        shared, shown = await services(request), shown_by(request)
        asker = request.client.host if request.client else ""
        key = await shared.key(shown, asker) if shown else None
        if key is None:
            raise Problem(
                "unauthenticated",
                "Send `Authorization: Bearer KEY` with a key that is known and not revoked.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if early := shared.requests.early(key.id):
            raise too_many("This key asks too often.", early)
        shared.requests.count(key.id)
        request.scope["perennial.key"] = key
        if self._needed == "admin":
            request.scope["perennial.audit"] = key.id
        return key


def too_many(what: str, early: float) -> Problem:
    """Of requests, by somebody who asked so many seconds too early."""
    return Problem(
        "too-many-requests",
        f"{what} Nothing was done; wait as long as Retry-After says.",
        headers={"Retry-After": str(math.ceil(early))},
    )


class KeyFirst(APIRoute):
    """Checks the key before the framework reads the body, which it would otherwise do first. JSON is read strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        may = next((each.call for each in self.dependant.dependencies if isinstance(each.call, May)), None)

        async def answer_whom_it_may(request: Request) -> Response:
            if may is not None:
                await may(request)
            return await answer(ConfigurationRequest(request.scope, request.receive))

        return answer_whom_it_may


INGESTER = May("ingest")
READER = May("read")
Reader = Annotated[Key, Depends(READER)]
Ingester = Annotated[Key, Depends(INGESTER)]
Labeller = Annotated[Key, Depends(May("label"))]
Admin = Annotated[Key, Depends(May("admin"))]


def visible(key: Key, stream: str) -> bool:
    """Whether there could be such a stream for this key."""
    return is_name(stream) and (key.streams is None or stream in key.streams)


def stream_or_404(connection: Connection, key: Key, name: str) -> Stream:
    stream = streams.find(connection, name) if visible(key, name) else None
    if stream is None:
        raise no_stream()
    return stream


def publication_or_404(connection: Connection, key: Key, name: str) -> Publication:
    """Return the oldest publication of this name among those that the key may see."""
    publication = publications.find(connection, name, visible=key.streams) if is_name(name) else None
    if publication is None:
        raise no_publication()
    return publication


def no_stream() -> Problem:
    return Problem("not-found", "There is no such stream, or this key may not see it; GET /v1/streams lists them.")


def no_publication() -> Problem:
    return Problem(
        "not-found", "There is no such publication, or this key may not see it; GET /v1/publications lists them."
    )
