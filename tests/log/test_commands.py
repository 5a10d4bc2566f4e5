"""Each answer of the log belongs to its command, whatever became of the command before."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

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
