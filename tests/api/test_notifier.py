"""The one connection on which a process listens: who is woken by which notification."""

import asyncio

from service.api.notifier import Notifier
from service.store.database import KEYS_CHANGED, NEW_RELEASE, Database, notify
from tests.conftest import HANG_SECONDS


def test_a_release_wakes_those_who_wait_for_it_and_whoever_listens_anew_looks_at_everything_again(world):
    """Notifications that came while nobody listened are lost: a key may have been revoked, a release may be there."""
    database, changes = Database(world.settings.database_url), asyncio.Event()

    def notify_of(*notices: tuple[str, str]) -> None:
        with database.transaction() as connection:
            for channel, payload in notices:
                notify(connection, channel, payload)

    async def scenario() -> None:
        notifier = Notifier(database, keys_changed=changes.set)
        async with asyncio.timeout(HANG_SECONDS), notifier.waiting("p") as mine, notifier.waiting("q") as other:
            notifier.start()
            await mine.wait()
            assert changes.is_set()
            assert other.is_set()
            for event in (changes, mine, other):
                event.clear()
            await asyncio.to_thread(notify_of, (NEW_RELEASE, "p"))
            await mine.wait()
            assert not other.is_set()
            assert not changes.is_set()
            mine.clear()
            await asyncio.to_thread(notify_of, (KEYS_CHANGED, ""), (NEW_RELEASE, "q"))
            await other.wait()
            assert changes.is_set()
            assert not mine.is_set()
        await notifier.stop()

    asyncio.run(scenario())
    database.close()
