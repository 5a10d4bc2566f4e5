"""Two ways to run an exchange: with blocking sockets, and with asyncio."""

from __future__ import annotations

import hashlib
import ipaddress
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from perennial.errors import InvalidArgument, Unreachable
from perennial.exchange import Answer, NoAnswer, Pause, Request
from perennial.plain_http import PlainConnections

if TYPE_CHECKING:
    import httpx

    from perennial.exchange import Exchange

Result = TypeVar("Result")
CONNECT_SECONDS = 10.0
_NOT_SENT = (
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "UnsupportedProtocol",
)  # httpx's errors before a request was sent


class Transport:
    """Runs exchanges with one server, blocking. sender: a digest of the API key."""

    def __init__(self, url: str, key: str) -> None:
        settings, parts = _settings(url, key), _address(url)
        is_plain = parts.scheme == "http" and not (settings["trust_env"] and getproxies())
        self.connections: PlainConnections | LibraryConnections | NoConnections = (
            PlainConnections(parts, settings["headers"], CONNECT_SECONDS) if is_plain else LibraryConnections(settings)
        )
        self.sender = _sender(key)

    def run(self, exchange: Exchange[Result]) -> Result:
        """Return the exchange's result."""
        answer: Answer | NoAnswer | None = None
        with closing(exchange):  # also where this is interrupted
            while True:
                try:
                    step = exchange.send(answer)
                except StopIteration as done:
                    result: Result = done.value
                    return result
                answer = None
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    answer = self.connections.send(step)

    def close(self) -> None:
        """Close all connections."""
        self.connections.close()

    def refuse(self, reason: str) -> None:
        """Close all connections, and let every later request raise Unreachable at once."""
        self.close()
        self.connections = NoConnections(reason)


class NoConnections:
    """Connections to a server that is known to have stopped: every request raises Unreachable."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def send(self, _: Request) -> Answer | NoAnswer:
        """Raise Unreachable."""
        raise Unreachable(self._reason)

    def close(self) -> None:
        """Do nothing."""


class LibraryConnections:
    """Connections to one server by httpx, which knows TLS and proxies."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import httpx

        self._http, self._errors = httpx.Client(**settings), httpx.HTTPError

    def send(self, request: Request) -> Answer | NoAnswer:
        """Return the server's answer."""
        try:
            return _answer(self._http.send(_built(self._http, request)))
        except self._errors as error:
            return _no_answer(error)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()


class AsyncTransport:
    """Runs exchanges with one server in asyncio's loop. sender: a digest of the API key."""

    def __init__(self, url: str, key: str) -> None:
        import httpx

        self._http, self._errors = httpx.AsyncClient(**_settings(url, key)), httpx.HTTPError
        self.sender = _sender(key)

    async def run(self, exchange: Exchange[Result]) -> Result:
        """Return the exchange's result."""
        import asyncio

        answer: Answer | NoAnswer | None = None
        with closing(exchange):  # also where this is interrupted
            while True:
                try:
                    step = exchange.send(answer)
                except StopIteration as done:
                    result: Result = done.value
                    return result
                answer = None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    answer = await self._send(step)

    async def _send(self, request: Request) -> Answer | NoAnswer:
        try:
            return _answer(await self._http.send(_built(self._http, request)))
        except self._errors as error:
            return _no_answer(error)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()


def _sender(key: str) -> str:
    return hashlib.sha256(key.strip().encode()).hexdigest()


def _settings(url: str, key: str) -> dict[str, Any]:
    parts = _address(url)
    key = key.strip() if isinstance(key, str) else ""  # None: probably from an unset environment variable
    if not is_key(key):
        raise InvalidArgument("key must be the text of a key, as POST /v1/keys showed it")
    return {
        "base_url": url.rstrip("/"),
        "headers": {"Authorization": f"Bearer {key}", "User-Agent": "perennial-client"},
        "verify": parts.scheme == "https",  # otherwise certificates are loaded for nothing, which is slow
        "trust_env": not _is_this_machine(parts.hostname or ""),  # no proxy between a machine and itself
    }


def is_key(text: str) -> bool:
    """Return whether a text can be a key: whether a header can hold it."""
    return bool(text) and text.isascii() and text.isprintable()


def _address(url: str) -> SplitResult:
    """Return the parts of a server's address. Raises InvalidArgument where it is none."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        _ = (parts.hostname or "").encode("idna")  # every connection encodes the host so
    except ValueError:  # the port, a host in brackets, or the host's name is invalid
        known = False
    if not known:
        raise InvalidArgument("url must be the address of a server, such as http://127.0.0.1:8000")
    return parts


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _built(http: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    return http.build_request(
        request.method,
        request.path,
        params=dict(request.query),
        headers={name.encode(): value.encode("latin-1") for name, value in request.headers.items()},
        content=request.body,
        timeout=(CONNECT_SECONDS, request.seconds, request.seconds, request.seconds),  # to connect, read, write, wait
    )


def _answer(response: httpx.Response) -> Answer:
    return Answer(status=response.status_code, headers=dict(response.headers), body=response.content)


def _no_answer(error: httpx.HTTPError) -> NoAnswer:
    return NoAnswer(reason=type(error).__name__, sent=type(error).__name__ not in _NOT_SENT)
