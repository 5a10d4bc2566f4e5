"""A reader who waits for a newer version with others gets none that is older than what was visible before."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import SimpleNamespace
from typing import Any

import httpx

from service.api import long_polls
from service.api.http.representations import JSON, SAFETENSORS
from tests.conftest import HANG_SECONDS, Service, ok, serving, wait_until


def test_a_search_that_others_began_gives_nobody_an_older_version(service: Service, monkeypatch):
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 1, "blocks": 1}, publish_delay=0)
    newest_of, latest_as_sent = long_polls.newest_of, long_polls._latest_as_sent
    searching, seen, go_on = (threading.Event() for _ in range(3))

    def publish(version: int) -> None:
        service.post(stream, [[1, 0]], [1])
        service.reaches(name, time=version)

    async def begins(*arguments: Any) -> Any:
        newest = await newest_of(*arguments)
        searching.set()
        return newest

    async def finds(*arguments: Any) -> Any:
        latest = await latest_as_sent(*arguments)
        seen.set()
        assert await asyncio.to_thread(go_on.wait, HANG_SECONDS)  # as if it took long to write
        return latest

    monkeypatch.setattr(long_polls, "newest_of", begins)
    monkeypatch.setattr(long_polls, "_latest_as_sent", finds)
    publish(1)
    run = serving(service.settings)
    with run as url, ThreadPoolExecutor(2) as pool:
        headers = {"Authorization": f"Bearer {service.admin_key}", "Prefer": "wait=60", "If-None-Match": '"1.json.1"'}
        latest = f"{url}/v1/publications/{name}/releases/latest"
        polls = run.app.state.services.polls
        first = pool.submit(httpx.get, latest, headers=headers, timeout=HANG_SECONDS)
        assert searching.wait(HANG_SECONDS)
        publish(2)
        assert seen.wait(HANG_SECONDS)
        publish(3)
        second = pool.submit(httpx.get, latest, headers=headers, timeout=HANG_SECONDS)
        wait_until(lambda: second.done() or any(each.waiting > 1 for each in polls._searches.values()))
        go_on.set()
        assert [ok(each.result())["version"] for each in (first, second)] == [2, 3]


def test_who_sees_other_streams_or_reads_another_format_shares_no_answer():
    questions = []

    async def wait(wanted: Any, *_: Any) -> int:
        questions.append(wanted)
        return 2

    async def run_once(question: Any, *_: Any) -> Any:
        questions.append(question)
        return long_polls._Sent("promise", None)

    async def ask() -> None:
        shared: Any = SimpleNamespace(polls=SimpleNamespace(wait=wait), run_once=run_once, rendered=None)
        for streams, form in product((None, frozenset({"a"}), frozenset({"b"})), (JSON, SAFETENSORS)):
            key: Any = SimpleNamespace(streams=streams)
            await long_polls.await_newer(shared, key, "rain", form, than=1, seconds=0)
            await long_polls._latest_as_sent(shared, key, "rain", form)

    asyncio.run(ask())
    assert len(set(questions)) == len(questions) == 12


def test_of_several_tags_the_newest_version_counts():
    """A client that has version 7 and waits would else get version 7 at once, again and again."""
    assert long_polls.known_version('"3.json.1", W/"7.json.1.ab", "other", "5.json.1"') == 7
    assert long_polls.known_version('"other"') is None


def test_nobody_waits_for_more_than_a_minute():
    assert [long_polls.wait_seconds(f"wait={seconds}") for seconds in (0, 60, 61, 10**8)] == [0, 60, 60, 60]
