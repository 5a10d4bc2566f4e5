"""HTTP without TLS and without a proxy, by the standard library.

Numbers, as processor time on two shared cores: to load it takes 0.03 s, and httpx 0.25 s where rich is installed, which
httpx loads too; to send 180 MB takes half the time, since nothing is copied before it is sent.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from http.client import HTTP_PORT, HTTPConnection, HTTPException
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlencode

from perennial.exchange import Answer, NoAnswer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perennial.exchange import Request


class PlainConnections:
    """Connections to one server, which stay open in between. Several threads may send at the same time."""

    def __init__(self, url: SplitResult, headers: Mapping[str, str], connect_seconds: float) -> None:
        self._url, self._headers, self._connect_seconds = url, {"Accept": "*/*"} | dict(headers), connect_seconds
        self._idle: deque[HTTPConnection] = deque()

    def send(self, request: Request) -> Answer | NoAnswer:
        """Return the server's answer."""
        try:
            connection = self._connected()
        except OSError as error:
            return NoAnswer(reason=type(error).__name__, sent=False)
        try:
            answer, goes_on = self._answer(connection, request)
        except (OSError, HTTPException) as error:
            connection.close()
            return NoAnswer(reason=type(error).__name__, sent=True)
        except BaseException:
            connection.close()
            raise
        if goes_on:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _connected(self) -> HTTPConnection:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if _is_open(connection.sock):
                    return connection
                connection.close()
        port = self._url.port or HTTP_PORT  # otherwise http.client reads a port from the end of an IPv6 address
        connection = HTTPConnection(self._url.hostname or "", port, timeout=self._connect_seconds)
        connection.connect()
        return connection

    def _answer(self, connection: HTTPConnection, request: Request) -> tuple[Answer, bool]:
        """Return the answer, and whether the connection can be used again."""
        query = f"?{urlencode(request.query)}" if request.query else ""
        target = f"{self._url.path.rstrip('/')}{request.path}{query}"
        connection.sock.settimeout(request.seconds)
        with suppress(BrokenPipeError, ConnectionResetError):  # a server may refuse a body that it has not read
            connection.request(request.method, target, request.body, self._headers | dict(request.headers))
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(status=response.status, headers=headers, body=response.read())
        return answer, not response.will_close


def _is_open(connected: socket.socket) -> bool:
    """Return whether an idle connection is still open."""
    connected.settimeout(0)
    try:
        connected.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
