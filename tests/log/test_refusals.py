"""A log whose server answers, but takes no writes: what readiness says, and that nothing is appended meanwhile."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Iterator
from secrets import token_hex

import pytest
import uvloop

from service.log import Appender, Appenders, LogUnavailable, read_primaries
from tests.log.test_appending import redis, url  # noqa: F401

REFUSALS: dict[str, tuple[list[str], list[str], str]] = {
    "full": (["CONFIG SET maxmemory 1mb"], ["CONFIG SET maxmemory 0"], "memory is full"),
    "replica": (["REPLICAOF 127.0.0.1 1"], ["REPLICAOF NO ONE"], "is a replica"),
    "no replicas": (
        ["CONFIG SET min-replicas-to-write 1"],
        ["CONFIG SET min-replicas-to-write 0"],
        "fewer replicas than min-replicas-to-write",
    ),
    "password": (["CONFIG SET requirepass another"], ["AUTH another", "CONFIG SET requirepass ''"], "the password of"),
    "right": (["ACL SETUSER default -eval -evalsha"], ["ACL SETUSER default +@all"], "lacks a right"),
}


def asked(address: str, log: str, *, times: int = 1) -> list[tuple[str, str]]:
    """Return what readiness says, and what an append says, each time in a sentence; "" where all is well."""

    async def say(work: Awaitable[object]) -> str:
        try:
            await work
        except LogUnavailable as error:
            return str(error)
        return ""

    async def ask() -> list[tuple[str, str]]:
        end = Appender(address, max_batches=9, max_bytes=999)
        said = [
            (await say(end.ready()), await say(end.append(log, b"batch", 1, idempotency=None))) for _ in range(times)
        ]
        await end.close()
        return said

    return uvloop.run(ask())


def create(address: str, log: str) -> None:
    async def make() -> None:
        end = Appender(address, max_batches=9, max_bytes=999)
        await end.create(log)
        await end.close()

    asyncio.run(make())


def up(address: str) -> bool:
    async def state() -> bool:
        ends = Appenders(read_primaries(address), max_batches=9, max_bytes=999)
        answer = await ends.state({})
        await ends.close()
        return answer.up[1]

    return asyncio.run(state())


@pytest.mark.parametrize(("begin", "end", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_log_that_takes_no_writes_is_not_ready_and_says_why(url, redis, begin, end, reason):  # noqa: F811
    log = token_hex(8)
    create(url, log)
    for command in begin:
        redis.execute_command(*command.split())
    try:
        for sentence in asked(url, log)[0]:
            assert reason in sentence
        assert not up(url)
    finally:
        for command in end:
            redis.execute_command(*command.replace("''", "").split(" "))
    keys = redis.dbsize()
    assert up(url)
    assert redis.dbsize() == keys  # to look writes nothing
    assert asked(url, log) == [("", "")]


@contextlib.contextmanager
def closing_server(says: bytes) -> Iterator[str]:
    """A server that accepts, says something perhaps, and closes at once, as one in protected mode does."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    client.sendall(says)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


@pytest.mark.parametrize("says", [b"", b"-DENIED Valkey is running in protected mode\r\n"], ids=["nothing", "denied"])
def test_a_log_that_closes_every_connection_does_not_answer(says: bytes):
    """Which error the library raises is chance: the server may have closed before, while or after it is written to."""
    with closing_server(says) as address:
        said = {sentence for both in asked(address, "log", times=100) for sentence in both}
    assert said
    assert all("the log does not answer" in sentence or "protected mode" in sentence for sentence in said)
