"""How the writing end asks the server: in time, and with little around each question."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from service.log.connection import CONNECTING, SECONDS_TO_ANSWER, LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from redis.asyncio import Connection

MOST_CONNECTIONS = 256


class Questions:
    """Sends commands on connections of the client library, without the client.

    That looks at spans, retries and counts around each command, which takes it longer than the command itself. Nothing
    is sent twice here: whoever asked must know that it may have been done.
    """

    def __init__(self, url: str) -> None:
        # One clock for a question, below; the library would start a task and two clocks.
        self._pool = ConnectionPool.from_url(url, socket_timeout=None, retry=Retry(NoBackoff(), 0), **CONNECTING)
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)

    async def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what the server says to each of these commands, sent together: an error, too, if it says so.

        Raises:
            LogUnavailable: it did not say anything in time. Some or all may have been done.
        """
        with told():
            async with asyncio.timeout(SECONDS_TO_ANSWER), self._free:
                connection = self._idle.pop() if self._idle else self._pool.make_connection()  # type: ignore[no-untyped-call]
                try:
                    await self._pool.ensure_connection(connection)
                    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                    answers = [await _answer(connection) for _ in commands]
                except BaseException:
                    await connection.disconnect(nowait=True)  # what it still says is no answer to the next question
                    raise
                self._idle.append(connection)
                return answers

    async def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            await self._idle.pop().disconnect()


async def _answer(connection: Connection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as said:
        return said


@contextmanager
def told() -> Iterator[None]:
    """Makes LogUnavailable of the server's errors, and of those on the way to it."""
    try:
        yield
    except (RedisError, TimeoutError) as error:
        raise unavailable(error) from error


def unavailable(error: Exception) -> LogUnavailable:
    """What is told of such an error."""
    return LogUnavailable(f"the log does not answer ({type(error).__name__})")
