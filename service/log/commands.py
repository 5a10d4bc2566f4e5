"""Sends commands to the log's server for the API, with one time limit and as little work as possible around each.

It uses connections of the client library without its client. The client looks at spans, retries and counters around
each command, which takes longer than the command itself. Nothing is sent twice: whoever sends a command again must know
that the server may have done it already.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from service.log.connection import CONNECTING, SECONDS_TO_ANSWER, errors_as_unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Connection

MOST_CONNECTIONS = 256


class Commands:
    """Sends commands on at most MOST_CONNECTIONS connections, which stay open in between."""

    def __init__(self, url: str) -> None:
        # No time limit of the library's: it would start a task and two timers where `send` needs one timer.
        self._pool = ConnectionPool.from_url(url, socket_timeout=None, retry=Retry(NoBackoff(), 0), **CONNECTING)
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)

    async def send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send all commands together and return the server's answers, in the same order.

        An answer is a ResponseError where the server refuses a command.

        Raises:
            LogUnavailable: the server did not answer in time. It may have done some or all of the commands.
        """
        with errors_as_unavailable():
            async with asyncio.timeout(SECONDS_TO_ANSWER), self._free:
                connection = self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]
                try:
                    await self._pool.ensure_connection(connection)
                    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                    answers = [await _answer(connection) for _ in commands]
                except BaseException:
                    await connection.disconnect(nowait=True)  # a late answer must not be taken for the next one
                    raise
                self._idle.append(connection)
                return answers

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().disconnect()


async def _answer(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as refusal:
        return refusal
