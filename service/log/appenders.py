"""The writing ends of all primaries: the API's. No command is about two streams."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from service.log.appender import Appended, Appender, Backlog, Memory, Newest, Resumed
from service.log.connection import LogUnavailable, Position
from service.log.primaries import Primaries, Primary


@dataclass(frozen=True, kw_only=True)
class LogState:
    """Which primaries take writes, and the memory of those that answer, by number; each log's primary and backlog."""

    up: dict[int, bool] = field(default_factory=dict)
    memory: dict[int, Memory] = field(default_factory=dict)
    primaries: dict[str, int] = field(default_factory=dict)
    backlogs: dict[str, Backlog] = field(default_factory=dict)


class Appenders:
    """Send what is about a stream to the primary that holds its log."""

    def __init__(self, primaries: Primaries, **limits: int) -> None:
        """`limits`: those of `Appender`."""
        self._primaries, self._limits = primaries, limits
        self._ends: dict[str, Appender] = {}  # by URL
        self._newest: dict[str, Newest] = {}  # by log, whichever primary has it
        self._refreshing: asyncio.Task[None] | None = None

    def ends(self) -> dict[int, Appender]:
        """Return the writing end of each primary, by number. LogUnavailable: nobody says which there are."""
        try:
            return {primary.number: self._end(primary) for primary in self._primaries.every()}
        except LogUnavailable:
            self.refresh()
            raise

    async def create(self, log: str) -> None:
        """Make an empty log. Harmless when it is never used."""
        with self._end_of(log) as end:
            await end.create(log)

    async def append(self, log: str, batch: bytes, records: int, *, idempotency: tuple[str, str] | None) -> Appended:
        """Append one batch, as `Appender.append` does."""
        with self._end_of(log) as end:
            return await end.append(log, batch, records, idempotency=idempotency)

    async def resume(self, log: str, position: Position) -> Resumed:
        """Make a log take batches again, as `Appender.resume` does."""
        with self._end_of(log) as end:
            return await end.resume(log, position)

    async def drop_dead(self, log: str, entry: str) -> None:
        """Delete what could not be numbered. Repeating it changes nothing."""
        with self._end_of(log) as end:
            await end.drop_dead(log, entry)

    async def state(self, numbered: Mapping[str, Position]) -> LogState:
        """Return which primaries take writes, and the backlogs of some logs.

        numbered: how far each log is numbered, by its name.
        """
        ends, primaries = self.ends(), {}
        positions: dict[int, dict[str, Position]] = {number: {} for number in ends}
        for log, position in numbered.items():
            with suppress(LogUnavailable):
                primaries[log] = self._primaries.of(log).number
                positions[primaries[log]][log] = position
        answers, ready = await asyncio.gather(
            asyncio.gather(*(_state(ends[number], of) for number, of in positions.items())),
            asyncio.gather(*(_is_ready(ends[number]) for number in positions)),
        )
        if not all(ready):
            self.refresh()
        known = {number: answer for number, answer in zip(positions, answers, strict=True) if answer is not None}
        return LogState(
            up=dict(zip(positions, ready, strict=True)),
            memory={number: memory for number, (memory, _) in known.items()},
            primaries=primaries,
            backlogs={log: backlog for _, backlogs in known.values() for log, backlog in backlogs.items()},
        )

    def refresh(self) -> None:
        """Begin to look which primaries there are now, unless a look is under way."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())

    async def _refresh(self) -> None:
        with suppress(LogUnavailable):
            await asyncio.to_thread(self._primaries.refresh)

    async def close(self) -> None:
        if self._refreshing is not None:
            await self._refreshing
        for end in self._ends.values():
            await end.close()

    def _end(self, primary: Primary) -> Appender:
        if primary.url not in self._ends:
            self._ends[primary.url] = Appender(primary.url, newest=self._newest, **self._limits)
        return self._ends[primary.url]

    @contextmanager
    def _end_of(self, log: str) -> Iterator[Appender]:
        """Yield the writing end of a log. If there are several, an error says which of them it is about.

        After an error it is looked which primaries there are now.
        """
        primary = None
        try:
            primary = self._primaries.of(log)
            yield self._end(primary)
        except LogUnavailable as error:
            self.refresh()
            if primary is None or len(self.ends()) == 1:
                raise
            raise type(error)(f"primary {primary.number}: {error}") from error


async def _state(end: Appender, positions: Mapping[str, Position]) -> tuple[Memory, dict[str, Backlog]] | None:
    try:
        return await end.state(positions)
    except LogUnavailable:
        return None


async def _is_ready(end: Appender) -> bool:
    try:
        await end.ready()
    except LogUnavailable:
        return False
    return True
