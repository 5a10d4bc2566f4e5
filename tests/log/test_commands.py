"""Each answer of the log belongs to its command, whatever became of the command before."""

import asyncio
import contextlib
import random
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from redis.asyncio import UnixDomainSocketConnection
from redis.exceptions import ResponseError

from service.log import LogUnavailable, commands
from service.log.commands import Commands
from tests.conftest import HANG_SECONDS


class Relay:
    """Between a client and the server; passes nothing back while it is `held`."""

    def __init__(self, server: str) -> None:
        self._server, self.free = server, asyncio.Event()
        self.clients: list[asyncio.Future[Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._server)
        self.clients.append(asyncio.gather(self._pass(reader, back), self._pass(there, writer, held=True)))

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, held: bool = False) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(2**16):
                if held:
                    await self.free.wait()
                to.write(piece)
                await to.drain()
        to.close()
        with contextlib.suppress(ConnectionError):
            await to.wait_closed()


@contextlib.asynccontextmanager
async def relayed(url: str) -> AsyncIterator[tuple[Relay, Commands]]:
    relay = Relay(unquote(urlsplit(url).path))
    with tempfile.TemporaryDirectory() as folder:  # a socket's name may not be long
        path = Path(folder) / "s"
        async with await asyncio.start_unix_server(relay, path):
            sender = Commands(f"unix://{path}")
            yield relay, sender
            await sender.close()
            await asyncio.gather(*relay.clients)


@pytest.mark.parametrize("connected", [False, True])
def test_a_late_answer_is_not_taken_for_that_of_the_next_command(servers, monkeypatch, connected):
    """Also what the server says when a connection begins."""

    async def ask() -> None:
        async with relayed(servers.redis_url) as (relay, sender):
            if connected:
                relay.free.set()
                assert await sender.send([("ECHO", "first")]) == [b"first"]
                relay.free.clear()
            monkeypatch.setattr(commands, "SECONDS_TO_ANSWER", 0.2)
            with pytest.raises(LogUnavailable):
                await sender.send([("ECHO", "late")])
            monkeypatch.setattr(commands, "SECONDS_TO_ANSWER", HANG_SECONDS)
            again = asyncio.create_task(sender.send([("ECHO", "a"), ("NO", "command"), ("ECHO", "b")]))
            await asyncio.sleep(0.1)  # it is sent, and nothing has come back
            relay.free.set()
            one, error, other = await again
            assert (one, other) == (b"a", b"b")
            assert "unknown command" in str(error)
            assert len(relay.clients) == 2

    asyncio.run(ask())


def test_an_answer_that_is_due_after_another_is_not_waited_for_for_ever(servers, monkeypatch):
    async def ask() -> None:
        monkeypatch.setattr(commands, "SECONDS_TO_ANSWER", 0.4)
        async with relayed(servers.redis_url) as (relay, sender):
            relay.free.set()
            with contextlib.suppress(LogUnavailable):  # on a machine that is that slow
                await sender.send([("ECHO", "first")])
            relay.free.clear()
            await asyncio.sleep(0.2)
            late = asyncio.create_task(sender.send([("ECHO", "late")]))
            await asyncio.sleep(0.3)  # meanwhile the time of the first is over
            assert late.done() or all(each._clock for each in sender._open), "nobody looks whether it is late"
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(late, HANG_SECONDS)
            relay.free.set()

    asyncio.run(ask())


def test_answers_belong_to_their_commands_however_many_are_on_their_way(servers):
    """Also where commands share a connection, and where some are large."""

    async def ask(sender: Commands, number: int) -> None:
        size = 2 ** random.randrange(4, 18)
        value = str(number).encode() * size
        echoed, error = await sender.send([("ECHO", value), ("NO", number)])
        assert echoed == value
        assert isinstance(error, ResponseError)

    async def all_at_once() -> None:
        sender = Commands(servers.redis_url)
        await asyncio.gather(*(ask(sender, number) for number in range(300)))
        assert 1 < len(sender._open) <= commands.MOST_CONNECTIONS
        await sender.close()

    asyncio.run(all_at_once())


def test_who_waits_on_a_lost_connection_is_told_and_the_next_command_gets_another(servers):
    async def ask() -> None:
        async with relayed(servers.redis_url) as (relay, sender):
            relay.free.set()
            assert await sender.send([("ECHO", "first")]) == [b"first"]
            relay.free.clear()
            waiting = [asyncio.create_task(sender.send([("ECHO", number)])) for number in range(3)]
            await asyncio.sleep(0.1)
            for connection in list(sender._open):
                connection.close()
            for each in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(each, LogUnavailable)
            relay.free.set()
            assert await sender.send([("ECHO", "again")]) == [b"again"]

    asyncio.run(ask())


def test_all_others_on_a_lost_connection_are_told_where_one_waits_no_more(servers):
    async def ask() -> None:
        async with relayed(servers.redis_url) as (relay, sender):
            relay.free.set()
            assert await sender.send([("ECHO", "first")]) == [b"first"]
            relay.free.clear()
            gone, stays = (asyncio.create_task(sender.send([("ECHO", each)])) for each in ("gone", "stays"))
            await asyncio.sleep(0)
            gone.cancel()
            waiting = [each.future for each in sender._open[0]._due]
            sender._open[0].close()
            await asyncio.sleep(0)  # the loop says that it is lost
            assert [each.done() for each in waiting] == [True, True]
            with pytest.raises(LogUnavailable):
                await stays
            relay.free.set()

    asyncio.run(ask())


def test_one_who_waits_no_more_takes_no_answer_of_others(servers):
    async def ask() -> None:
        sender = Commands(servers.redis_url)
        assert await sender.send([("ECHO", "first")]) == [b"first"]
        gone = [asyncio.create_task(sender.send([("ECHO", "gone")])) for _ in range(3)]
        await asyncio.sleep(0)
        stays = asyncio.create_task(sender.send([("ECHO", "stays")]))
        for each in gone:
            each.cancel()
        assert await stays == [b"stays"]
        await sender.close()

    asyncio.run(ask())


def _lost_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends after the library has made it, and before `PipelinedConnection` listens."""
    connect = UnixDomainSocketConnection.connect

    async def connect_and_lose(self: UnixDomainSocketConnection) -> None:
        await connect(self)
        self._writer.transport.abort()
        await asyncio.sleep(0.01)

    monkeypatch.setattr(UnixDomainSocketConnection, "connect", connect_and_lose)


def _closed_by_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library was told, and `PipelinedConnection` never will be: this side of the connection is open."""
    connect = UnixDomainSocketConnection.connect

    async def connect_and_hear(self: UnixDomainSocketConnection) -> None:
        await connect(self)
        self._reader.feed_eof()

    monkeypatch.setattr(UnixDomainSocketConnection, "connect", connect_and_hear)


def _lost_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Commands._connect

    async def connect_and_lose(self: Commands) -> None:
        await connect(self)
        self._open[-1].close()
        await asyncio.sleep(0.01)

    monkeypatch.setattr(Commands, "_connect", connect_and_lose)


@pytest.mark.parametrize("lose", [_lost_before_it_is_used, _lost_before_anything_is_sent, _closed_by_the_server])
def test_a_connection_that_is_lost_at_once_keeps_nobody_waiting(servers, monkeypatch, lose):
    """A proxy closes connections so while its server is away: requests must fail, and neither hang nor connect on."""

    async def ask() -> None:
        sender = Commands(servers.redis_url)
        with monkeypatch.context() as lost:
            lose(lost)
            lost.setattr(commands, "SECONDS_TO_ANSWER", 0.2)
            for _ in range(2):
                with pytest.raises(LogUnavailable):
                    await asyncio.wait_for(sender.send([("ECHO", "lost")]), HANG_SECONDS)
        assert await sender.send([("ECHO", "again")]) == [b"again"]
        await sender.close()

    asyncio.run(ask())
