"""A key that was looked up is remembered for as long as the look could know it, and no longer."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from service.api.auth import known_keys
from service.api.auth.known_keys import KEY_CACHE_SECONDS, VALID_DIGESTS, KnownKeys
from service.api.auth.scopes import Authorized
from service.api.http.problems import Problem
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


def test_a_revoked_key_is_from_then_on_a_guess():
    """A client that sends it again and again would else ask the database each time."""
    keys_there: list[keys.Key | None] = [KEY]

    async def run_once(question: object, *_: object) -> keys.Key | frozenset[bytes] | None:
        return frozenset() if question == VALID_DIGESTS else keys_there[0]

    async def scenario() -> None:
        known = KnownKeys(run_once, guesses=0.001)
        for _ in range(2):
            assert await known.find(SHOWN, "10.0.0.1") == KEY
            known.look_again()
        keys_there[0] = None
        assert await known.find(SHOWN, "10.0.0.1") is None
        with pytest.raises(Problem) as refusal:
            await known.find(SHOWN, "10.0.0.1")
        assert refusal.value.slug == "too-many-requests"

    asyncio.run(scenario())


def test_who_guesses_at_one_address_holds_up_no_other():
    async def run_once(question: object, *_: object) -> frozenset[bytes] | None:
        return frozenset() if question == VALID_DIGESTS else None

    known = KnownKeys(run_once, guesses=0.001)
    app = SimpleNamespace(state=SimpleNamespace(services=SimpleNamespace(keys=known)))

    async def ask(address: str) -> str:
        head: dict[str, Any] = {"method": "GET", "headers": [(b"authorization", b"Bearer prn_guess")]}
        with pytest.raises(Problem) as refusal:
            await Authorized("read")(Request(head | {"type": "http", "app": app, "client": (address, 1)}))
        return refusal.value.slug

    async def scenario() -> list[str]:
        return [await ask(address) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2")]

    assert asyncio.run(scenario()) == ["unauthenticated", "too-many-requests", "unauthenticated"]
