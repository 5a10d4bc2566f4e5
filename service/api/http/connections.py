"""Connections that hold up nobody: who sends or reads slowly or sends no HTTP is let go, and there are only so many.

uvicorn by itself bounds only how long a connection is idle between two requests. All that is counted here is counted as
bytes come; whose time is up is looked for once a second, so that a quick request pays for none of it.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service import metrics
from service.api.http.headers import as_lines, completed, next_request, of_one_answer
from service.api.http.problems import Problem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable


SEND_WHOLE = "perennial.send_whole"  # in the scope of a request: the function that sends its whole answer at once
SECONDS_TO_SEND = 20.0  # a request, and as much longer as its body needs at the least rate
SECONDS_STALLED = 30.0  # of an answer that is not read at the least rate
LEAST_BYTES_A_SECOND = 1024
MOST_HEAD_BYTES = 2**16
MOST_PACKAGING = 16  # bytes of framing to a byte of body, where it is sent in chunks


class JoinedWrites:
    """A transport that sends at once what is written in one turn of the loop: an answer's head with its body.

    A system call costs as much as checking a small batch, and wakes the client, which finds half an answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []
        self.is_closing = transport.is_closing  # asked for every request: not by way of __getattr__

    def write(self, data: bytes) -> None:
        """Sends it before the loop waits for anything."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """Sends what was written, then closes."""
        self._send()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the client has not taken yet."""
        return sum(map(len, self._written)) + self._transport.get_write_buffer_size()

    def _send(self) -> None:
        if self._written and not self.is_closing():
            self._transport.write(b"".join(self._written))
        self._written = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def _send_whole(cycle: RequestResponseCycle, status: int, head: bytes, body: bytes) -> None:
    """Send a whole answer at once.

    uvicorn looks at each header of an answer with two regular expressions. So heads of answers that come in their
    thousands are joined once, and sent as they are: a 202 takes 2 µs of processor time, before 7 (least of many).

    cycle: of the request. head: the lines of all headers. body: as long as they say.
    """
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    last = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
    cycle.transport.write(b"".join((STATUS_LINE[status], head, last, body)))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()


class Connection(HttpToolsProtocol):
    """One client's. `most` of them may be open."""

    most = 4096

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts its clock, unless there are too many already."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
        self._wait_for_request()
        self._unread, self._unread_since = 0, self._since
        self._refusal: tuple[str, str] | None = None  # waits until the requests before it are answered
        if len(self.connections) > self.most:
            self._refuse("too-many-connections", "full")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._wait_for_request()

    def _wait_for_request(self) -> None:
        self._whole, self._since = False, self.loop.time()
        self._new, self._raw, self._body = True, 0, 0

    def data_received(self, data: bytes) -> None:
        """Takes what came, unless a request is more packaging than request: the parser keeps heads, however long."""
        self._unset_keepalive_if_required()
        self._piece = len(data)
        try:
            self._parse(data)
        except HttpParserError:
            self._refuse("malformed-request", "malformed")
        if not self._whole:
            if self._new:  # it may be the end of the request before; the next ones count
                self._new = False
            else:
                self._raw += len(data)
                if self._raw > MOST_HEAD_BYTES + MOST_PACKAGING * self._body:
                    self._refuse("head-too-large", "large head")

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse what came; read a request that asks for an upgrade again, without `Upgrade`.

        Nothing is upgraded here, so the header is passed over (RFC 9110, 7.8). The parser by itself takes all that
        follows such a head for another protocol.
        """
        while data:
            try:
                self.parser.feed_data(data)
                data = b""
            except HttpParserUpgrade as upgrade:
                head, self.parser = self._head_without_upgrade(), HttpRequestParser(self)  # the old one may be closed
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(head)
                data = memoryview(data)[upgrade.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        return line + as_lines([header for header in self.headers if header[0] != b"upgrade"]) + b"\r\n"

    def on_headers_complete(self) -> None:
        """Read a head; refuse it if it is too large, or if RFC 9112 (3.2, 6.1) calls it faulty.

        A proxy may read a faulty one otherwise than we do. Most heads come in one small piece: those need no counting.
        """
        if (self._piece > MOST_HEAD_BYTES or not self._new) and self._head_bytes() > MOST_HEAD_BYTES:
            self._refuse("head-too-large", "large head")
            raise HttpParserError
        names = [name for name, _ in self.headers]
        if self.parser.get_http_version() == "1.0":
            if b"transfer-encoding" in names:
                raise HttpParserError
        elif names.count(b"host") != 1:
            raise HttpParserError
        if self.parser.should_upgrade():
            if b"upgrade" not in names:  # CONNECT: this is no proxy
                raise HttpParserError
            return
        super().on_headers_complete()
        cast("dict[str, Any]", self.scope)[SEND_WHOLE] = partial(_send_whole, self.cycle)

    def _head_bytes(self) -> int:
        """Return how long a head is without blanks around values."""
        line = len(self.parser.get_method()) + len(self.url) + len(b"  HTTP/1.1\r\n")
        return line + sum(len(name) + len(value) + len(b": \r\n") for name, value in self.headers) + len(b"\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body, and read no more if the application has not taken much of it before.

        uvicorn by itself stops reading after each piece of more than 64 KiB, which costs two system calls, though the
        application takes it in the same turn of the loop. Without that a batch of 66 kB takes the API 325 µs of
        processor time, before 355, and the bare handler, which has uvicorn's way, 242 (benchmarks/bare.py). uvicorn
        copies each body into an array and out of it again: one that comes whole is kept as it is, so that on another
        machine the batch takes 262 µs, before 291.
        """
        if not self.cycle.response_complete:
            cycle: Any = self.cycle
            if not cycle.body:
                cycle.body = body
            else:
                if len(cycle.body) > HIGH_WATER_LIMIT:
                    self.flow.pause_reading()
                if isinstance(cycle.body, bytes):
                    cycle.body = bytearray(cycle.body)
                cycle.body += body
            cycle.message_event.set()
        self._body += len(body)

    def on_message_complete(self) -> None:
        """The request is here, it is our turn."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._whole = True

    def close_if_overdue(self, now: float) -> None:
        """Lets it go if its time is up."""
        self._abort_stalled_reader(now)
        if self.transport.is_closing():
            return
        answered = self.cycle is None or self.cycle.response_complete
        if self._whole:
            if answered and self.timeout_keep_alive_task is None:  # what came since the answer was no request
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self.flow.read_paused:
            self._since = now  # it waits for us
        elif now > self._since + SECONDS_TO_SEND + (0 if answered else self._body / LEAST_BYTES_A_SECOND):
            self._refuse("request-timed-out", "slow to send")

    def _abort_stalled_reader(self, now: float) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread > self._unread:
            self._unread, self._unread_since = unread, now
        elif now > self._unread_since + SECONDS_STALLED:
            if self._unread - unread < LEAST_BYTES_A_SECOND * SECONDS_STALLED:
                metrics.LET_GO.labels("slow to read").inc()
                self.transport.abort()
            self._unread, self._unread_since = unread, now

    def on_response_complete(self) -> None:
        """An answer was sent: now it is the next request's turn, or the refusal's that waited."""
        super().on_response_complete()
        if self._refusal is not None:
            self._refuse(*self._refusal)

    def _refuse(self, slug: str, reason: str) -> None:
        """Says why, if nothing else is being said, and closes.

        Whole requests that came before are answered first: a client that reads the refusal as the answer to one of them
        would send records again that are stored.
        """
        if self.transport.is_closing():
            return
        if self._is_answering():
            self._refusal = self._refusal or (slug, reason)
            self.flow.pause_reading()
            return
        metrics.LET_GO.labels(reason).inc()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            status, answer = _refusal(slug)
            head = as_lines(of_one_answer(next_request()))
            self.transport.write(status + head + answer)
        self.transport.close()

    def _is_answering(self) -> bool:
        """Return whether a whole request waits for its answer, of which nothing was sent."""
        return bool(self.pipeline) or not (
            self.cycle is None or self.cycle.response_complete or self.cycle.more_body or self.cycle.response_started
        )


def close_overdue(connections: Iterable[object], now: float) -> None:
    """Close connections whose time is up. Call it once a second with the time on the loop's clock."""
    for connection in list(connections):
        if isinstance(connection, Connection):
            connection.close_if_overdue(now)


_DETAILS = {
    "too-many-connections": "Close connections that are not needed, or try again later.",
    "head-too-large": f"The request line and all headers together have at most {MOST_HEAD_BYTES} bytes.",
    "malformed-request": "Send HTTP/1.1 with exactly one Host header; HTTP/1.0 must give a Content-Length, not chunks.",
    "request-timed-out": f"Send a request within {SECONDS_TO_SEND:g} seconds, longer bodies at "
    f"{LEAST_BYTES_A_SECOND} bytes a second at least.",
}


@cache
def _refusal(slug: str) -> tuple[bytes, bytes]:
    """Return the first line of an answer, and all that is the same in each after it."""
    answer = Problem(slug, _DETAILS[slug]).response()
    headers = completed([*answer.raw_headers, (b"cache-control", b"no-store"), (b"connection", b"close")])
    return STATUS_LINE[answer.status_code], as_lines(headers) + b"\r\n" + bytes(answer.body)
