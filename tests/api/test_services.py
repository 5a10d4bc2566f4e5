"""The database answers many equal requests at once, but never before the last of them asks."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from service.api.http.problems import Problem
from service.api.routes.records import _only_once
from service.api.services import Services
from service.store.database import Database
from tests.conftest import wait_until


class Question:
    """One that is answered when it may be, with how often it was put."""

    def __init__(self) -> None:
        self.put = 0
        self.may = threading.Semaphore(0)

    def __call__(self, _: object) -> int:
        self.put += 1
        mine = self.put
        assert self.may.acquire(timeout=200)
        return mine


@pytest.fixture
def services(world) -> Iterator[Services]:
    with contextlib.closing(Database(world.settings.database_url)) as database:
        others = dict.fromkeys(("appender", "notifier", "files", "answerer"))
        yield Services(settings=world.settings, database=database, **others)


async def put(question: Question, times: int) -> None:
    await asyncio.to_thread(wait_until, lambda: question.put >= times)
    await asyncio.sleep(0.05)  # for what must not happen


def test_who_asks_while_it_is_answered_gets_an_answer_of_his_own(services):
    async def ask() -> None:
        question = Question()
        first = asyncio.create_task(services.run_once("q", question))
        await put(question, 1)
        late = [asyncio.create_task(services.run_once("q", question)) for _ in range(50)]
        await put(question, 1)
        question.may.release()
        assert await first == 1
        await put(question, 2)
        question.may.release()
        assert await asyncio.gather(*late) == [2] * 50
        assert question.put == 2
        assert not services.due
        assert not services.put

    asyncio.run(ask())


def test_one_idempotency_key_runs_at_once_on_two_streams_and_only_once_on_each():
    """A producer may name its batches alike on all of its streams."""
    shared, key = SimpleNamespace(running=set()), SimpleNamespace(id=1)
    one, other = SimpleNamespace(log="one"), SimpleNamespace(log="other")
    with _only_once(shared, one, key, "a"), _only_once(shared, other, key, "a"):
        with pytest.raises(Problem) as refusal, _only_once(shared, other, key, "a"):
            pass
        assert refusal.value.slug == "idempotency-running"
        with _only_once(shared, other, SimpleNamespace(id=2), "a"):
            pass
    assert shared.running == set()


def test_who_goes_away_takes_nobody_elses_answer_with_him(services):
    async def ask() -> None:
        question = Question()
        gone, stays = (asyncio.create_task(services.run_once("q", question)) for _ in range(2))
        await put(question, 1)
        gone.cancel()
        question.may.release()
        assert await stays == 1

    asyncio.run(ask())


def test_an_error_is_told_to_all_who_asked_and_to_nobody_after_them(services):
    def fails(_: object) -> None:
        raise ValueError

    async def ask() -> None:
        answers = await asyncio.gather(*(services.run_once("q", fails) for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in answers] == [ValueError] * 3
        assert await services.run_once("q", lambda _: 7) == 7

    asyncio.run(ask())
