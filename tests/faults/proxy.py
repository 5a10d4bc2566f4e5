"""Stands between the service and one of its servers, and gives trouble: late, broken and lost answers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """delay: of every answer, in seconds. lose_after: requests that hold this reach the server and are carried out
    there, but their answers never come back: the connection breaks instead.
    """

    delay: float = 0.0
    lose_after: bytes | None = None


class Proxy:
    """Listens on a free local port for as long as the block runs, and forwards to a unix socket, or to none."""

    def __init__(self, server: Path | None) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: set[asyncio.Task[None]] = set()
        self.trouble = Trouble()
        self.lost = 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        listening = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._listener = asyncio.run_coroutine_threadsafe(listening, self._loop).result(200)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._listener.close)
        self.reset()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(200)
        self._loop.close()

    def switch(self, server: Path | None) -> None:
        """Breaks every connection; from now on all go to that server. None: they are broken too."""
        self._server = server
        self.reset()

    def reset(self) -> None:
        """Breaks every connection that there is now."""

        async def break_all() -> None:
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)
            await asyncio.sleep(0)  # what was aborted is told so

        asyncio.run_coroutine_threadsafe(break_all(), self._loop).result(200)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Whatever becomes of the link, also before its first step: once it is over, the client's connection is."""
        task = self._loop.create_task(self._link(reader, writer))
        self._links.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._links.discard(task)
            writer.transport.abort()

        task.add_done_callback(over)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:
            return
        with contextlib.suppress(OSError, asyncio.CancelledError):
            from_server, to_server = await asyncio.open_unix_connection(str(self._server))
            link = _Link(self, writer, to_server)
            ways = [asyncio.ensure_future(link.ask(reader)), asyncio.ensure_future(link.answer(from_server))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                to_server.transport.abort()  # first: who resets at this moment ends what is waited for below
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


class _Link:
    """One client's connection to the server. A way that ends breaks the other."""

    def __init__(self, proxy: Proxy, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self._proxy, self._to_client, self._to_server = proxy, to_client, to_server
        self._lost = False

    async def ask(self, client: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await client.read(2**16):
                wanted = self._proxy.trouble.lose_after
                self._lost = self._lost or (wanted is not None and wanted in data)
                self._to_server.write(data)
                await self._to_server.drain()

    async def answer(self, server: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(2**16):
                if self._lost:
                    self._proxy.lost += 1
                    return
                await asyncio.sleep(self._proxy.trouble.delay)
                self._to_client.write(data)
                await self._to_client.drain()
