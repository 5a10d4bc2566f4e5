"""The client for asyncio: as `client`, with `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from perennial import appending, operations, settings
from perennial.exchange import PATIENCE_SECONDS
from perennial.journal import opened
from perennial.operations import version_of
from perennial.progress import reporting
from perennial.schema import Schema
from perennial.transport import AsyncTransport

if TYPE_CHECKING:
    from pathlib import Path

    from perennial.appending import Appended
    from perennial.journal import Resolution
    from perennial.model import Model
    from perennial.operations import Ledger
    from perennial.tables import Table


async def connect_async(url: str, key: str) -> AsyncClient:
    """Return a client of the service at `url`, such as http://127.0.0.1:8000; key: the text of a key.

    Raises Unreachable where nothing answers, UnknownServer where something else than Perennial does.
    """
    client = AsyncClient(url, key)
    try:
        await client.check()
    except BaseException:
        await client.close()
        raise
    return client


class AsyncClient:
    """A service. Use it as an asynchronous context manager, or `close` it. All calls are for one event loop."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._transport = AsyncTransport(url, key)
        self._run = self._transport.run

    def __repr__(self) -> str:
        return f"<AsyncClient of {self.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def check(self) -> None:
        """Raise an error unless a Perennial service answers."""
        await self._run(operations.check())

    def stream(self, name: str) -> AsyncStream:
        """Return the stream of that name, without asking whether there is one."""
        return AsyncStream(self._transport, name)

    def publication(self, name: str) -> AsyncPublication:
        """Return the publication of that name, without asking whether there is one."""
        return AsyncPublication(self._transport, name)

    async def streams(self) -> Table:
        """Return all streams that the key may see, newest first."""
        return await self._run(operations.listed("streams"))

    async def publications(self) -> Table:
        """Return all publications that the key may see, newest first."""
        return await self._run(operations.listed("publications"))

    async def create_stream(self, name: str, **more: Any) -> AsyncStream:
        """Make a stream and return it, as `Client.create_stream` does."""
        await self._run(operations.create_stream(settings.stream(name, **more)))
        return self.stream(name)

    async def plan(self, stream: str, **more: Any) -> dict[str, Any]:
        """Return what a publication would cost, as `Client.plan` does."""
        return await self._run(operations.plan(settings.publication(stream, **more)))

    async def publish(self, name: str, stream: str, **more: Any) -> AsyncPublication:
        """Start a publication and return it, as `Client.publish` does."""
        body = settings.publication(stream, name=name, **more)
        await self._run(operations.publish(body))
        return self.publication(name)

    async def ledger(self, stream: str, *, start: int | None = None, end: int | None = None) -> Ledger:
        """Return what a stream's records have spent, of all or of those from `start` on and before `end`."""
        return await self.stream(stream).ledger(start=start, end=end)


class AsyncStream:
    """A stream of a service."""

    def __init__(self, transport: AsyncTransport, name: str) -> None:
        self.name, self._sender = name, transport.sender
        self._run = transport.run
        self._known: Schema | None = None

    def __repr__(self) -> str:
        return f"<AsyncStream {self.name}>"

    async def info(self) -> dict[str, Any]:
        """Return the stream as the service's JSON has it."""
        return await self._run(operations.information("streams", self.name))

    async def append(
        self,
        data: Any,
        label: Any = None,
        *,
        unit: Any = None,
        features: Iterable[str] | None = None,
        key: str | None = None,
        batch: int | None = None,
        progress: bool | Callable[[int], object] = False,
        patience: float = PATIENCE_SECONDS,
        journal: str | Path | None = None,
        uncertain: Resolution = "refuse",
        ahead: bool = False,
    ) -> Appended:
        """Append records as `Stream.append` does; `data` is read in the event loop, so let it come from memory."""
        with (
            reporting(progress, data) as report,
            opened(journal, self.name, key, self._sender, uncertain) as notes,
        ):
            return await self._run(
                appending.append(
                    self.name,
                    data,
                    label=label,
                    unit=unit,
                    features=features,
                    schema=await self._schema(),
                    key=key,
                    batch=batch,
                    progress=report,
                    patience=patience,
                    journal=notes,
                    ahead=ahead,
                )
            )

    async def _schema(self) -> Schema:
        """Return the stream's schema, which never changes, so that it is asked for once."""
        self._known = self._known or await self._run(operations.schema(self.name))
        return self._known or Schema()

    async def numbers(self, appended: Appended) -> list[tuple[int, int]] | None:
        """Return the ranges of numbers, [start, end), that the records got, by batch; None: some have none yet."""
        return await self._run(appending.numbers(self.name, appended))

    async def erase(self, start: int, end: int) -> None:
        """Erase records [start, end): no later fit reads them, and their bytes are deleted. They stay charged."""
        await self._run(operations.erase(self.name, start, end))

    async def ledger(self, *, start: int | None = None, end: int | None = None) -> Ledger:
        """Return what records have spent, of all or of those from `start` on and before `end`."""
        return await self._run(operations.ledger(self.name, start, end))

    async def charges(self) -> Table:
        """Return the append-only list of charges, newest first."""
        return await self._run(operations.charges(self.name))


class AsyncPublication:
    """A publication of a service."""

    def __init__(self, transport: AsyncTransport, name: str) -> None:
        self.name = name
        self._run = transport.run
        self._poll = operations.LongPoll()

    def __repr__(self) -> str:
        return f"<AsyncPublication {self.name}>"

    async def info(self) -> dict[str, Any]:
        """Return the publication as the service's JSON has it: its configuration, plan and state."""
        return await self._run(operations.information("publications", self.name))

    async def latest(self, wait: float = 0.0, *, newer_than: Model | int = 0) -> Model:
        """Return the newest model, as `Publication.latest` does."""
        return await self._run(operations.latest(self.name, wait, version_of(newer_than), self._poll))

    async def release(self, version: int) -> Model:
        """Return one release. It never changes."""
        return await self._run(operations.release(self.name, version))

    async def releases(self) -> Table:
        """Return all releases without their parameters' values, newest first."""
        return await self._run(operations.releases(self.name))

    async def follow(self, *, after: Model | int | None = None) -> AsyncIterator[Model]:
        """Yield every model as it is published, as `Publication.follow` does."""
        start = (
            max(0, await self._run(operations.newest_version(self.name)) - 1) if after is None else version_of(after)
        )
        while (models := await self._run(operations.following(self.name, start, self._poll))) is not None:
            for model in models:
                yield model
                start = model.version

    async def ledger(self) -> Table:
        """Return the publication's charges, newest first."""
        return await self._run(operations.charges_of(self.name))

    async def stop(self) -> dict[str, Any]:
        """Stop the publication for ever, and return it. Releases stay, and what is not spent is given back."""
        return await self._run(operations.stop(self.name))
