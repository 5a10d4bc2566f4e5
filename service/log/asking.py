"""How the writing end asks the server: in time, and with little around each question."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from service.log.connection import SECONDS_TO_ANSWER, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Connection, ConnectionPool

MOST_CONNECTIONS = 256


class Questions:
    """Sends commands on connections of the client library, without the client.

    That looks at spans, retries and counts around each command, which takes it longer than the command itself. Nothing
    is sent twice here: whoever asked must know that it may have been done.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)

    async def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what the server says to each of these commands, sent together: an error, too, if it says so.

        Raises:
            LogUnavailable: it did not say anything in time. Some or all may have been done.
        """
        async with in_time(), self._free:
            connection = self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await self._pool.ensure_connection(connection)
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                return [await _answer(connection) for _ in commands]
            finally:
                self._idle.append(connection)  # one that failed has closed itself, and is opened when it is wanted

    async def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            await self._idle.pop().disconnect()


async def _answer(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as said:
        return said


class in_time:  # noqa: N801 - read as what it says; a generator would cost as much as the rest
    """Limits what is asked of the server to SECONDS_TO_ANSWER. That, and its errors, become LogUnavailable."""

    async def __aenter__(self) -> None:
        self._limit = asyncio.timeout(SECONDS_TO_ANSWER)
        await self._limit.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        try:
            await self._limit.__aexit__(kind, error, at)
        except TimeoutError as late:
            raise unavailable(late) from error
        if isinstance(error, RedisError):
            raise unavailable(error) from error


def unavailable(error: Exception) -> LogUnavailable:
    """What is told of an error of the server's, or of the way to it."""
    return LogUnavailable(f"the log does not answer ({type(error).__name__})")
