"""A key that was looked up is remembered for as long as the look could know it, and no longer."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

from service.api.auth import known_keys
from service.api.auth.known_keys import KEY_CACHE_SECONDS, KnownKeys
from service.store import keys

SHOWN = "prn_secret", keys.find
KEY = keys.Key(id=1, name="a", scopes=frozenset({"read"}), streams=None, created_at=datetime.now(UTC))


class _Database:
    """Sees the key, and answers when `answer` is set."""

    def __init__(self) -> None:
        self.looked, self.answer = asyncio.Event(), asyncio.Event()

    async def run_once(self, *_: object) -> keys.Key:
        self.looked.set()
        await self.answer.wait()
        return KEY


def test_a_key_that_is_revoked_between_a_look_and_its_answer_is_looked_at_again():
    async def scenario() -> None:
        database = _Database()
        known = KnownKeys(database.run_once, guesses=1)
        finding = asyncio.create_task(known.find(SHOWN))
        await database.looked.wait()
        known.look_again()
        database.answer.set()
        assert await finding == KEY, "it was valid when it was asked for"
        assert known.remembered(SHOWN) is None
        await known.find(SHOWN)
        assert known.remembered(SHOWN) == KEY

    asyncio.run(scenario())


def test_its_time_begins_when_it_is_asked_for(monkeypatch):
    """However late the answer comes."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(known_keys, "time", clock)

    async def scenario() -> None:
        database = _Database()
        known = KnownKeys(database.run_once, guesses=1)
        finding = asyncio.create_task(known.find(SHOWN))
        await database.looked.wait()
        clock.now += KEY_CACHE_SECONDS - 0.5
        database.answer.set()
        assert await finding == known.remembered(SHOWN) == KEY
        clock.now += 0.6
        assert known.remembered(SHOWN) is None

    asyncio.run(scenario())
