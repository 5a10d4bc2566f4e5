"""No answer of `GET latest` is older than what was visible when it was asked for; a revoked key reads no more.

Readers, publishing, a stop and revocations run side by side for a while, and everybody notes what was seen from when to
when. Only the order of those moments is judged, so a slow machine changes nothing.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from service.api.auth.known_keys import KEY_CACHE_SECONDS
from service.store import newest
from service.store.database import Database
from tests.conftest import Service, ok, wait_until

DELAYS = (0.05, 0.2, 1.0)
BATCHES = {"kind": "independent_batches", "batch": 2}
VERSIONS = 12  # that the first publication reaches


@dataclass(frozen=True)
class Seen:
    """The newest version, and between which moments it was looked for."""

    name: str
    began: float
    ended: float
    version: int


def observe(look: Callable[[], int], name: str, done: threading.Event) -> list[Seen]:
    """Look again and again until told to stop, and once after that."""
    found, last = [], False
    while not last:
        last, began = done.is_set(), time.monotonic()
        version = look()
        found.append(Seen(name, began, time.monotonic(), version))
        time.sleep(random.uniform(0, 0.01))
    return found


def not_older(answers: list[Seen], truth: list[Seen]) -> None:
    """Check that each answer is at least as new as all that had been seen before it was asked for."""
    for answer in answers:
        before = max((each.version for each in truth if each.ended < answer.began), default=0)
        assert answer.version >= before, f"{answer.name}: version {answer.version} after {before} was visible"


def get_latest(client: httpx.Client, name: str) -> int:
    answer = client.get(f"/v1/publications/{name}/releases/latest")
    return 0 if answer.status_code == 404 else ok(answer)["version"]


def test_no_answer_is_older_than_its_question(service: Service):
    stream, reader = service.stream(epsilon=100), service.client(service.key("read"))
    names = [service.publish(stream, BATCHES, publish_delay=delay) for delay in DELAYS]
    done = threading.Event()

    def visible(name: str) -> int:
        with database.transaction() as connection:
            return newest.find(connection, name, None).latest or 0

    with contextlib.closing(Database(service.settings.database_url)) as database, ThreadPoolExecutor(6) as pool:
        truths = [pool.submit(observe, lambda of=name: visible(of), name, done) for name in names]
        reads = [pool.submit(observe, lambda of=name: get_latest(reader, of), name, done) for name in names]
        stopped, posted = random.randrange(1, VERSIONS), 0
        try:
            while visible(names[0]) < VERSIONS:
                posted += 1
                service.post(stream, [[1, 0], [0, 1]], [0, 1])
                if posted == stopped:
                    ok(service.client().delete(f"/v1/publications/{names[1]}"))
                time.sleep(random.uniform(0, 0.1))
        finally:
            done.set()
        for truth, read in zip(truths, reads, strict=True):
            not_older(read.result(), truth.result())
            not_older(truth.result(), read.result())


@pytest.mark.slow
def test_a_revoked_key_reads_nothing_after_the_stated_time(service: Service):
    stream = service.stream()
    name = service.publish(stream, BATCHES, publish_delay=DELAYS[-1])
    service.post(stream, [[1, 0], [0, 1]], [0, 1])
    service.reaches(name, time=2)
    made = ok(service.client().post("/v1/keys", json={"name": f"for-{name}", "scopes": ["read"]}), 201)
    client = service.client(made["key"])
    url = f"/v1/publications/{name}/releases/latest"
    assert client.get(url).status_code == 200
    assert service.client().delete(f"/v1/keys/{made['id']}").status_code == 204
    revoked = time.monotonic()
    asked = []

    def refused() -> bool:
        asked.append(time.monotonic())
        return client.get(url).status_code == 401

    wait_until(refused)
    assert all(moment <= revoked + KEY_CACHE_SECONDS for moment in asked[:-1])
