"""No answer of `GET latest` is older than what was visible when it was asked for; a revoked key reads no more.

Readers of the latest and of versions, some who wait for a version that is to come, publishing, a stop and revocations
of keys run side by side for a while, and everybody notes what was seen from when to when. Only the order of those
moments is judged, so a slow machine changes nothing.
"""

import contextlib
import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from service.api.auth.known_keys import KEY_CACHE_SECONDS
from service.store import newest
from service.store.database import Database
from tests.conftest import Service, ok, unique, wait_until

DELAYS = (0.05, 0.2, 1.0)
BATCHES = {"kind": "independent_batches", "batch": 2}
VERSIONS = 12  # that the first publication reaches
WAITING = 6  # keys, for its last version; half of them are revoked


@dataclass(frozen=True)
class Seen:
    """The newest version, and between which moments it was looked for."""

    name: str
    began: float
    ended: float
    version: int


@dataclass
class Moments:
    """From when to when something was under way."""

    began: float
    ended: float = math.inf


def observe(look: Callable[[], int], name: str, done: threading.Event) -> list[Seen]:
    """Look again and again until told to stop, and once after that."""
    violations, last = [], False
    while not last:
        last, began = done.is_set(), time.monotonic()
        version = look()
        violations.append(Seen(name, began, time.monotonic(), version))
        time.sleep(random.uniform(0, 0.01))
    return violations


def not_older(answers: list[Seen], truth: list[Seen]) -> None:
    """Check that each answer is at least as new as all that had been seen before it was asked for."""
    for answer in answers:
        before = max((each.version for each in truth if each.ended < answer.began), default=0)
        assert answer.version >= before, f"{answer.name}: version {answer.version} after {before} was visible"


class Reader:
    """Reads a publication in all ways. Its keys are its own, and each may be revoked at any moment."""

    def __init__(self, service: Service, name: str) -> None:
        self._service, self._url = service, f"/v1/publications/{name}/releases"
        self.revoked: dict[int, Moments] = {}
        self.let_in: list[tuple[int, float]] = []
        self._new_key()

    def __call__(self) -> int:
        """Return the newest version that it is shown."""
        answer = self._get("latest", random.choice(({}, {"If-None-Match": '"1.json.1"'}, {"Prefer": "wait=0"})))
        if answer.status_code == 404:
            return 0
        version = int(answer.headers["etag"][1:].partition(".")[0])
        assert (answer.status_code, version) == (304, 1) or ok(answer)["version"] == version
        while random.random() < 0.5 and self._get(str(version + 1), {}).status_code == 200:
            version += 1
        return version

    def revoke(self) -> None:
        """Take its key away from it."""
        key = self.key
        if key in self.revoked:
            return
        moments = self.revoked[key] = Moments(time.monotonic())
        assert self._service.client().delete(f"/v1/keys/{key}").status_code == 204
        moments.ended = time.monotonic()

    def check(self) -> None:
        """Check that no key was let in for longer than is stated."""
        for key, began in self.let_in:
            assert key not in self.revoked or began <= self.revoked[key].ended + KEY_CACHE_SECONDS

    def _new_key(self) -> None:
        made = ok(self._service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]}), 201)
        self._client, self.key = self._service.client(made["key"]), made["id"]

    def _get(self, which: str, headers: dict[str, str]) -> httpx.Response:
        while True:
            began, answer = time.monotonic(), self._client.get(f"{self._url}/{which}", headers=headers)
            if answer.status_code != 401:
                self.let_in.append((self.key, began))
                return answer
            assert self.key in self.revoked, "a key was refused before it was revoked"
            self._new_key()


class Waiter:
    """Waits for the version after this one, with a key of its own, which may be revoked at any moment."""

    def __init__(self, service: Service, name: str, version: int, done: threading.Event) -> None:
        made = ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]}), 201)
        self._service, self._client, self._key = service, service.client(made["key"]), made["id"]
        self._name, self._version, self._done = name, version, done
        self.revoked = Moments(math.inf)

    def __call__(self) -> httpx.Response:
        """Return the answer to it."""
        headers = {"Prefer": "wait=60", "If-None-Match": f'"{self._version}.json.1"'}
        while True:
            last = self._done.is_set()  # then the version is there
            answer = self._client.get(f"/v1/publications/{self._name}/releases/latest", headers=headers)
            if answer.status_code != 304 or last:  # 304: its time was up
                return answer

    def revoke(self) -> None:
        """Take its key away from it."""
        self.revoked = Moments(time.monotonic())
        assert self._service.client().delete(f"/v1/keys/{self._key}").status_code == 204
        self.revoked.ended = time.monotonic()

    def is_over(self) -> bool:
        """Return whether its key was revoked so long ago that it gets nothing new."""
        return time.monotonic() > self.revoked.ended + KEY_CACHE_SECONDS

    def check(self, answer: httpx.Response, truth: list[Seen]) -> None:
        """Check that its key gets nothing that came after its time, and is refused only if it was revoked."""
        if answer.status_code == 401:
            assert self.revoked.began < math.inf, "a key was refused that nobody revoked"
            return
        version = ok(answer)["version"]
        assert version > self._version
        not_yet = max(each.began for each in truth if each.version < version)
        assert not_yet <= self.revoked.ended + KEY_CACHE_SECONDS, "a key was sent what came after it was revoked"


def test_no_answer_is_older_than_its_question_and_no_key_outlives_its_time(service: Service):
    stream = service.stream(epsilon=100)
    names = [service.publish(stream, BATCHES, publish_delay=delay) for delay in DELAYS]
    readers = [Reader(service, name) for name in names]
    done = threading.Event()
    waiters = [Waiter(service, names[0], VERSIONS - 1, done) for _ in range(WAITING)]
    to_revoke = dict(zip(random.sample(range(1, VERSIONS), WAITING // 2), waiters, strict=False))

    def visible(name: str) -> int:
        with database.transaction() as connection:
            return newest.find(connection, name, None).latest or 0

    with (
        contextlib.closing(Database(service.settings.database_url)) as database,
        ThreadPoolExecutor(6 + WAITING) as pool,
    ):
        truths = [pool.submit(observe, lambda of=name: visible(of), name, done) for name in names]
        reads = [pool.submit(observe, reader, name, done) for name, reader in zip(names, readers, strict=True)]
        waits = [pool.submit(waiter) for waiter in waiters]
        stopped, posted = random.randrange(1, VERSIONS), 0
        try:
            while visible(names[0]) < VERSIONS:
                posted += 1
                if posted in to_revoke:
                    to_revoke[posted].revoke()
                if posted == VERSIONS:
                    wait_until(lambda: all(waiter.is_over() for waiter in to_revoke.values()))
                service.post(stream, [[1, 0], [0, 1]], [0, 1])
                if posted == stopped:
                    ok(service.client().delete(f"/v1/publications/{names[1]}"))
                if random.random() < 0.5:
                    random.choice(readers).revoke()
                time.sleep(random.uniform(0, 0.1))
        finally:
            done.set()
        for reader, truth, read in zip(readers, truths, reads, strict=True):
            not_older(read.result(), truth.result())
            not_older(truth.result(), read.result())
            reader.check()
        for waiter, wait in zip(waiters, waits, strict=True):
            waiter.check(wait.result(), truths[0].result())
