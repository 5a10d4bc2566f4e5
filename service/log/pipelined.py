"""A connection to the log's server that sends commands without waiting for the answers to those before.

The server answers in the order in which commands come, so an answer belongs to the oldest command that has none. All
that is sent in one turn of the event loop goes out in one write. `commands` says how much that saves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import hiredis
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse
from redis.exceptions import TimeoutError as AnswerLate

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Connection

_NO_ANSWER = object()


class _Due(NamedTuple):
    """Commands that wait for answers: so many, until that time on the loop's clock."""

    commands: int
    until: float
    answers: list[Any]
    future: asyncio.Future[list[Any]]


class PipelinedConnection(asyncio.Protocol):
    """An open connection. It closes for good when an answer is late or is none; then all that wait get the error.

    connected: by the client library, which authenticated and chose the database. on_close: called once, with this.

    Raises:
        ConnectionLost: the server has closed it meanwhile, which the library was told, and this would never be.
    """

    def __init__(self, connected: Connection, on_close: Callable[[PipelinedConnection], None]) -> None:
        self._on_close, self._loop = on_close, asyncio.get_running_loop()
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_NO_ANSWER
        )
        self._due: deque[_Due] = deque()
        self._unsent: list[bytes] = []
        self._clock: asyncio.TimerHandle | None = None
        self._error: Exception = ConnectionLost("the connection was closed")
        library: Any = connected
        if library._reader.at_eof() or library._writer.transport.is_closing():  # noqa: SLF001
            raise ConnectionLost("the server has closed the connection")
        self._writer = library._writer  # noqa: SLF001 - it would close the connection if it went
        library._reader = library._writer = None  # noqa: SLF001
        self._transport: asyncio.Transport = self._writer.transport
        self._transport.set_protocol(self)
        self.unsent_bytes = 0
        """How long the commands are that go out together with the next ones of this turn; 0: there are none."""

    @property
    def waiting(self) -> int:
        """How many groups of commands wait for answers."""
        return len(self._due)

    def send(self, pieces: list[bytes], count: int, seconds: float) -> asyncio.Future[list[Any]]:
        """Send so many commands, packed, and return what will be their answers, errors among them."""
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent += pieces
        self.unsent_bytes += sum(map(len, pieces))
        due = _Due(count, self._loop.time() + seconds, [], self._loop.create_future())
        self._due.append(due)
        if self._clock is None:
            self._clock = self._loop.call_at(due.until, self._look)
        return due.future

    def close(self, error: Exception | None = None) -> None:
        """Close at once."""
        self._error = error or self._error
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass answers on to who waits for them."""
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not _NO_ANSWER:
                due = self._due[0]  # IndexError: nobody asked
                due.answers.append(answer)
                if len(due.answers) == due.commands:
                    self._due.popleft()
                    if not due.future.done():  # or nobody waits any more
                        due.future.set_result(due.answers)
        except (InvalidResponse, IndexError):
            self.close(InvalidResponse("the server sent what is no answer"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - its text may hold anything
        """Tell all who wait."""
        self._on_close(self)
        if self._clock is not None:
            self._clock.cancel()
        for due in self._due:
            if not due.future.done():
                due.future.set_exception(self._error)
        self._due.clear()

    def _write(self) -> None:
        if not self._transport.is_closing():
            self._transport.writelines(self._unsent)
        self._unsent, self.unsent_bytes = [], 0

    def _look(self) -> None:
        """Close if the oldest answer is late."""
        self._clock = None
        if self._due and self._due[0].until <= self._loop.time():
            self.close(AnswerLate("no answer in time"))
        elif self._due:
            self._clock = self._loop.call_at(self._due[0].until, self._look)
