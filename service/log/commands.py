"""Sends commands to the log's server for the API, with one time limit and as little work as possible around each.

The client library connects; then its connections are used without it (`pipelined`). The library looks at spans, retries
and counters around each command, and wakes several coroutines for each answer, which takes longer than the command
itself. Nothing is sent twice: whoever sends a command again must know that the server may have done it already.

Numbers, as processor time of an append of which eight come at once, the least of many: of 250 bytes 20 µs, before 34;
of 13 kB, 44 µs, before 77; of 132 kB, 64 µs, before 114 (with its payload copied into the rest of its command, 170).
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError

from service.log.connection import CONNECTING, SECONDS_TO_ANSWER, errors_as_unavailable, unavailable
from service.log.pipelined import PipelinedConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Command = tuple[bytes | str | int, ...]

MOST_CONNECTIONS = 8
COPIED_BYTES = 2**14
SENT_AT_ONCE = 2**16  # bytes: many small commands cost less together, large ones only wait for each other


class Commands:
    """Sends commands on at most MOST_CONNECTIONS connections, which stay open in between."""

    def __init__(self, url: str) -> None:
        self._pool = ConnectionPool.from_url(url, socket_timeout=None, retry=Retry(NoBackoff(), 0), **CONNECTING)
        self._open: list[PipelinedConnection] = []
        self._opening: asyncio.Task[None] | None = None

    async def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send all commands together and return the server's answers, in the same order.

        An answer is a ResponseError where the server refuses a command.

        Raises:
            LogUnavailable: the server did not answer in time. It may have done some or all of the commands.
        """
        pieces = [piece for command in commands for piece in _packed(command)]
        connection = self._choose(sum(map(len, pieces)))
        try:
            if connection is None:
                await asyncio.shield(self._open_another())
                connection = self._choose(0)
            if connection is None:
                raise ConnectionLost("the server closes each connection at once")
            return await connection.send(pieces, len(commands), SECONDS_TO_ANSWER)
        except RedisError as error:
            raise unavailable(error) from error

    def _choose(self, size: int) -> PipelinedConnection | None:
        """Return the connection for so many bytes, one that these can go out with or the least busy one."""
        for connection in self._open:
            if 0 < connection.unsent_bytes <= SENT_AT_ONCE - size:
                return connection
        least = min(self._open, key=attrgetter("waiting"), default=None)
        if least is not None and least.waiting and len(self._open) < MOST_CONNECTIONS:
            self._open_another()
        return least

    def _open_another(self) -> asyncio.Task[None]:
        """Begin to open one more connection, unless that is under way."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._connect())
            self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits
        return self._opening

    async def _connect(self) -> None:
        """Raise LogUnavailable if the server can't be reached in time."""
        with errors_as_unavailable():
            connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                async with asyncio.timeout(SECONDS_TO_ANSWER):
                    await connection.connect()
                self._open.append(PipelinedConnection(connection, self._open.remove))
            except BaseException:
                await connection.disconnect(nowait=True)
                raise

    async def close(self) -> None:
        """Close the connections."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for connection in list(self._open):
            connection.close()


_pack: Callable[[Command], bytes] = cast("Any", hiredis.pack_command)


def _packed(command: Command) -> list[bytes]:
    """Return what is sent of a command: in one piece, or a large argument by itself, uncopied."""
    for place, each in enumerate(command):
        if isinstance(each, bytes) and len(each) > COPIED_BYTES:
            before, after = (_pack(some).partition(b"\n")[2] for some in (command[:place], command[place + 1 :]))
            return [b"*%d\r\n%b$%d\r\n" % (len(command), before, len(each)), each, b"\r\n" + after]
    return [_pack(command)]
