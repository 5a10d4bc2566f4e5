"""Readers of several APIs who compare what they were shown: two contents under one version break the guarantee."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import orjson

from tests.faults.load import PAUSE_SECONDS, rest_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

NEWEST = 10  # items of a list that are looked at
Thing = tuple[str, str, int]
"""A thing with one content for ever: ("release" or "weights", publication, version) or ("charge", stream, number)."""


class Shown:
    """Everything that any reader was shown, and which reader was shown it first."""

    def __init__(self) -> None:
        self._contents: dict[Thing, dict[str, str]] = {}
        self._lock = threading.Lock()

    def release(self, body: dict[str, Any], reader: str) -> None:
        publication, version = body["publication"], body["version"]
        parameters = dict(body["parameters"])
        values = parameters.pop("values", None)
        self._note(("release", publication, version), body | {"parameters": parameters}, reader)
        if values is not None:
            self._note(("weights", publication, version), values, reader)

    def charge(self, stream: str, body: dict[str, Any], reader: str) -> None:
        self._note(("charge", stream, body["id"]), body, reader)

    def _note(self, thing: Thing, content: Any, reader: str) -> None:
        digest = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
        with self._lock:
            self._contents.setdefault(thing, {}).setdefault(digest, reader)

    def versions(self, publications: set[str]) -> set[tuple[str, int]]:
        with self._lock:
            return {
                (name, number) for kind, name, number in self._contents if kind != "charge" and name in publications
            }

    def charges(self, stream: str) -> set[int]:
        with self._lock:
            return {number for kind, name, number in self._contents if kind == "charge" and name == stream}

    def doubles(self) -> dict[Thing, list[str]]:
        """Return what was shown with more than one content, and by whom."""
        with self._lock:
            return {thing: list(shown.values()) for thing, shown in self._contents.items() if len(shown) > 1}


class Reader(threading.Thread):
    """Asks one API for everything that it shows of the stream at hand, all the time."""

    def __init__(self, client: Callable[[], httpx.Client], name: str, shown: Shown, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self._client, self._shown = client, shown
        self._choose = random.Random(f"{seed} {name}")
        self._over = threading.Event()
        self._of: tuple[str, tuple[str, ...]] | None = None

    def look_at(self, stream: str, publications: tuple[str, ...]) -> None:
        self._of = stream, publications

    def finish(self) -> None:
        self._over.set()
        self.join(200)
        assert not self.is_alive()

    def run(self) -> None:
        began = time.monotonic()
        with self._client() as client:
            while not self._over.wait(rest_seconds(2 * PAUSE_SECONDS, began)):
                began = time.monotonic()
                if self._of is not None:
                    self._look(client, *self._of)

    def _look(self, client: httpx.Client, stream: str, publications: tuple[str, ...]) -> None:
        for each in self._get(client, f"/v1/streams/{stream}/ledger/charges?limit={NEWEST}").get("items", ()):
            self._shown.charge(stream, each, self.name)
        for name in publications:
            of = f"/v1/publications/{name}/releases"
            if latest := self._get(client, f"{of}/latest"):
                self._shown.release(latest, self.name)
            items = self._get(client, f"{of}?limit={NEWEST}").get("items", ())
            for each in items:
                self._shown.release(each, self.name)
            if items and (one := self._get(client, f"{of}/{self._choose.choice(items)['version']}")):
                self._shown.release(one, self.name)

    @staticmethod
    def _get(client: httpx.Client, path: str) -> dict[str, Any]:
        """The answer; {} if there is none or it is not 200."""
        try:
            answer = client.get(path)
        except httpx.HTTPError:
            return {}
        return answer.json() if answer.status_code == 200 else {}


class Follower(threading.Thread):
    """Follows the events of one publication by one API, and connects again when the connection breaks."""

    def __init__(self, client: Callable[[], httpx.Client], name: str, shown: Shown, publication: str) -> None:
        super().__init__(name=name, daemon=True)
        self._client, self._shown, self._publication = client, shown, publication
        self._over = threading.Event()

    def finish(self) -> None:
        """It ends with the next event, or with its connection."""
        self._over.set()

    def run(self) -> None:
        with self._client() as client:
            while not self._over.wait(PAUSE_SECONDS):
                try:
                    self._follow(client)
                except httpx.HTTPError:
                    continue

    def _follow(self, client: httpx.Client) -> None:
        with client.stream("GET", f"/v1/publications/{self._publication}/events", timeout=1.0) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self._shown.release(orjson.loads(line.removeprefix("data: ")), self.name)
                if self._over.is_set():
                    return
