"""All who wait for models after the same one share a look, and nobody looks for those who went."""

import asyncio
import contextlib
from types import SimpleNamespace

from service.api.newer_models import NewerModels
from service.store.database import DatabaseUnavailable


class _Shared(SimpleNamespace):
    """The parts of an API that a look needs; the database answers with `published`, or is away."""

    def __init__(self) -> None:
        super().__init__(stopping=asyncio.Event(), published=[], looks=0, away=False, waiting_for=[])
        self.notifier = SimpleNamespace(waiting=self._waiting, wait=lambda event, _: event.wait())

    async def run(self, _, publication, identity, after):
        self.looks += 1
        if self.away:
            raise DatabaseUnavailable
        await asyncio.sleep(0)
        return [(version, b"event") for version in self.published if version > after]

    def wake(self) -> None:
        for event in self.waiting_for:
            event.set()

    @contextlib.asynccontextmanager
    async def _waiting(self, _):
        event = asyncio.Event()
        self.waiting_for.append(event)
        try:
            yield event
        finally:
            self.waiting_for.remove(event)


async def _all_wait(shared: _Shared, models: NewerModels, *, seconds: float) -> list[asyncio.Task]:
    """Start ten who wait for models after the second; return once the first look showed that there is none."""
    shared.looks = 0
    tasks = [asyncio.create_task(models.wait("rain", 1, 2, seconds)) for _ in range(10)]
    await _turns()
    return tasks


async def _turns() -> None:
    """Let all tasks go on until each waits for somebody else."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_one_look_serves_all_who_wait_also_after_the_database_was_away():
    async def scenario() -> None:
        shared = _Shared()
        waiting = await _all_wait(
            shared, models := NewerModels(shared.run, shared.notifier, shared.stopping), seconds=200
        )
        assert shared.looks == 1
        shared.away = True
        shared.wake()
        await _turns()
        shared.away, shared.published = False, [3]
        shared.wake()
        assert await asyncio.gather(*waiting) == [[(3, b"event")]] * 10
        assert shared.looks == 3
        assert await models.wait("rain", 1, 0, 200) == [(3, b"event")]

    asyncio.run(scenario())


def test_nobody_looks_for_those_whose_time_is_up():
    async def scenario() -> None:
        shared = _Shared()
        waiting = await _all_wait(shared, NewerModels(shared.run, shared.notifier, shared.stopping), seconds=0)
        assert await asyncio.gather(*waiting) == [[]] * 10
        await _turns()
        assert not shared.waiting_for

    asyncio.run(scenario())


def test_a_server_that_stops_wakes_all():
    async def scenario() -> None:
        shared = _Shared()
        waiting = await _all_wait(shared, NewerModels(shared.run, shared.notifier, shared.stopping), seconds=200)
        shared.stopping.set()
        shared.wake()
        assert await asyncio.gather(*waiting) == [[]] * 10

    asyncio.run(scenario())


def test_publications_of_one_name_are_looked_at_apart():
    async def scenario() -> None:
        shared = _Shared()
        waiting = await _all_wait(
            shared, models := NewerModels(shared.run, shared.notifier, shared.stopping), seconds=200
        )
        waiting.append(asyncio.create_task(models.wait("rain", 7, 2, 200)))
        await _turns()
        assert shared.looks == 2
        shared.stopping.set()
        shared.wake()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())
