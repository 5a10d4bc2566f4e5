"""The one connection on which a process listens: who is woken by which notification."""

import asyncio
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from service.api.notifier import Notifier
from service.store.database import KEYS_CHANGED, NEW_RELEASE
from tests.conftest import HANG_SECONDS


class _Database:
    """Notifies of what is put into `notices`."""

    def __init__(self) -> None:
        self.notices: queue.Queue[SimpleNamespace] = queue.Queue()

    @contextmanager
    def listen(self, *channels: str) -> Iterator["_Database"]:
        assert set(channels) == {NEW_RELEASE, KEYS_CHANGED}
        yield self

    def notifies(self, timeout: float) -> Iterator[SimpleNamespace]:
        try:
            yield self.notices.get(timeout=timeout / 50)
        except queue.Empty:
            return


def test_a_release_wakes_those_who_wait_for_it_and_whoever_listens_anew_looks_at_everything_again():
    """Notifications that came while nobody listened are lost: a key may have been revoked, a release may be there."""
    database, changes = _Database(), asyncio.Event()

    async def scenario() -> None:
        notifier = Notifier(database, keys_changed=changes.set)
        async with asyncio.timeout(HANG_SECONDS), notifier.waiting("p") as mine, notifier.waiting("q") as other:
            notifier.start()
            await mine.wait()
            assert changes.is_set()
            assert other.is_set()
            for each in (changes, mine, other):
                each.clear()
            database.notices.put(SimpleNamespace(channel=NEW_RELEASE, payload="p"))
            await mine.wait()
            assert not other.is_set()
            assert not changes.is_set()
            mine.clear()
            database.notices.put(SimpleNamespace(channel=KEYS_CHANGED, payload=""))
            database.notices.put(SimpleNamespace(channel=NEW_RELEASE, payload="q"))
            await other.wait()
            assert changes.is_set()
            assert not mine.is_set()
        await notifier.stop()

    asyncio.run(scenario())
