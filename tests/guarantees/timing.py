"""A reader with a key and a clock, and a stream on which one record decides how long each fit takes.

Every record is zero. In some batches the first record, the target, is not: the minimiser then is another one than the
model that the solver starts from, and finding it takes more passes over the records.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import orjson

from service.segments.files import SegmentFiles
from service.store import leases, numbering, segments, streams
from service.store.database import Database
from tests.conftest import ok, publication, wait_until
from tests.faults.processes import Api, _server, end

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from service.settings import Settings

CLASSES, FEATURES, BATCH = 10, 200, 20_000
REGULARIZATION = 5e-6  # the weaker, the more passes the target costs
STREAM, PUBLICATION = "watched", "slow-or-quick"
TRAINING = 20  # bits that the reader knows before the first guess
NEIGHBOURS = 5
MOST_UNSEEN = 24  # batches whose releases the reader has not seen, before the next one is numbered

Times = dict[int, float]
"""Unix seconds, by version."""


class Scene:
    """An API and a worker as processes, and the records of both kinds of batches on disk before they are numbered."""

    def __init__(self, settings: Settings, **options: Any) -> None:
        """options: of the publication, beside what makes its fits tell of the target."""
        self._settings = settings
        self._database, self._files = Database(settings.database_url), SegmentFiles(settings.segment_store)
        self._api = Api(settings)
        self._worker = _server.Process(target=_publish, args=(settings,), daemon=True)
        self._worker.start()
        with self._api.client() as client:
            made = self._make(client, options)
            self.key = ok(client.post("/v1/keys", json={"name": "reader", "scopes": ["read"]}), 201)["key"]
        assert made["state"] == "running"
        with self._database.transaction() as connection:
            self._log = streams.find(connection, STREAM).log
        self._kinds = [self._write(target=target) for target in (False, True)]

    @staticmethod
    def _make(client: httpx.Client, options: dict[str, Any]) -> dict[str, Any]:
        budget = {"epsilon": 1, "delta": 0}
        task = {"kind": "classification", "classes": CLASSES}
        stream = {"name": STREAM, "features": FEATURES, "task": task, "budget": budget}
        ok(client.post("/v1/streams", json=stream), 201)
        learner = {"solver": "exact", "intercept": False, "regularization": REGULARIZATION}
        mechanism = {"kind": "independent_batches", "batch": BATCH}
        configuration = publication(STREAM, mechanism, learner=learner, **options) | {"name": PUBLICATION}
        return ok(client.post("/v1/publications", json=configuration), 201)

    def client(self) -> httpx.Client:
        """The reader's."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self._api.url, headers=headers, timeout=200)

    def number(self, *, target: bool) -> float:
        """Gives the next batch its numbers, as the sealer does; returns when it had them, by everybody's clock."""
        file, sha256 = self._kinds[target]
        with self._database.transaction() as connection:
            stream = streams.find(connection, STREAM)
            start, stop, sequence = stream.records, stream.records + BATCH, stream.sealed_sequence + 1
            lease = leases.take(connection, leases.stream(stream.id), owner="test", seconds=600)
            entry = numbering.SealedEntry(entry=f"{sequence}-1", sequence=sequence, start=start, stop=stop)
            segment = segments.Segment(start=start, stop=stop, file=file, sha256=sha256)
            numbering.seal(connection, lease, stream, segment, [entry])
            leases.release(connection, lease)
        return time.time()

    def _write(self, *, target: bool) -> tuple[str, bytes]:
        """The file of every such batch: written once, and checked by the worker once."""
        x = np.zeros((BATCH, FEATURES), dtype=np.float32)
        x[0] = float(target)
        y = np.arange(BATCH, dtype=np.int32) % CLASSES
        return self._files.write(self._log, 0, BATCH, {"x": x, "y": y})

    def close(self) -> None:
        end(self._worker)
        end(self._api.process)
        self._database.close()


def _publish(settings: Settings) -> None:
    """A worker that leaves numbering to the test."""
    from service import logs
    from service.worker import main, sealer

    logs.configure("warning")
    with suppress(PermissionError):
        os.nice(-10)  # the attack is about the records, not about what else the machine does
    sealer.Sealer.run = lambda self, stop: stop.wait()
    raise SystemExit(main.run(settings))


class Watch:
    """Follows the events and polls for the newest version, and notes when each version was shown by either."""

    def __init__(self, scene: Scene, newest: int) -> None:
        """newest: the version after which it watches."""
        self._scene, self._newest = scene, newest
        self._over = threading.Event()
        self.events: Times = {}
        self.polls: Times = {}

    def __enter__(self) -> Watch:
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._poll)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # the threads wait for a version that does not come: they end with the API

    def _follow(self) -> None:
        with self._scene.client() as client:
            while not self._over.is_set():
                headers = {"Last-Event-ID": str(max(self.events, default=self._newest))}
                try:
                    with client.stream("GET", f"/v1/publications/{PUBLICATION}/events", headers=headers) as answer:
                        for line in answer.iter_lines():
                            now = time.time()
                            if line.startswith("data: "):
                                self.events[orjson.loads(line.removeprefix("data: "))["version"]] = now
                except httpx.HTTPError:
                    continue

    def _poll(self) -> None:
        with self._scene.client() as client:
            tag = f'"{self._newest}.json"'
            while not self._over.is_set():
                headers = {"Prefer": "wait=60", "If-None-Match": tag}
                try:
                    answer = client.get(f"/v1/publications/{PUBLICATION}/releases/latest", headers=headers)
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    self.polls[answer.json()["version"]] = time.time()
                    tag = answer.headers["etag"]


def observe(scene: Scene, bits: Sequence[bool], *, pace_seconds: float, most_unseen: int) -> np.ndarray:
    """Numbers a batch for each bit, with the target or without; returns what the reader's clock says of each release.

    pace_seconds: at least, between two batches. most_unseen: batches whose releases were not shown before the next one
    is numbered. Returned: (bits, features).
    """
    numbered: dict[int, float] = {}
    with scene.client() as client:
        done = len(list(_releases(client)))
    with scene.client() as client, Watch(scene, done) as watch:
        versions = range(done + 1, done + len(bits) + 1)
        for version, bit in zip(versions, bits, strict=True):
            wait_until(lambda wanted=version - most_unseen: max(watch.events, default=done) >= wanted)
            numbered[version] = scene.number(target=bit)
            time.sleep(pace_seconds)
        wait_until(lambda: watch.events.keys() >= set(versions))
        published = {each["version"]: _seconds(each["published_at"]) for each in _releases(client)}
    rows = []
    for version, began in numbered.items():
        at, shown = published[version], watch.events[version]
        took = at - max(published.get(version - 1, began), began)  # where fits queue, one begins after the other
        rows.append((at - began, took, shown - began, watch.polls.get(version, shown) - began, shown - at))
    observed = np.array(rows)
    return np.column_stack([observed, _relative(observed[:, 1])])


def _relative(times: np.ndarray) -> np.ndarray:
    """Divides each time by the median of those around it: a machine is slower at some times than at others."""
    around = [times[max(0, at - NEIGHBOURS) : at + NEIGHBOURS + 1] for at in range(len(times))]
    return times / np.maximum(1e-3, [np.median(each) for each in around])


def _releases(client: httpx.Client) -> Iterator[dict[str, Any]]:
    before = ""
    while page := ok(client.get(f"/v1/publications/{PUBLICATION}/releases?limit=1000{before}"))["items"]:
        yield from page
        before = f"&before={page[-1]['version']}"


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def guesses(observed: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Guesses each bit after the first TRAINING from the times of its release, by what all bits before it taught.

    If times are independent of the bits, each guess is right with probability 1/2, independently of the others.
    """
    made = []
    for at in range(TRAINING, len(bits)):
        rules = [_best_rule(column, bits[:at]) for column in observed[:at].T]
        feature = max(range(len(rules)), key=lambda each: rules[each][0])
        _, threshold, longer = rules[feature]
        made.append((observed[at, feature] > threshold) == longer)
    return np.array(made)


def _best_rule(times: np.ndarray, bits: np.ndarray) -> tuple[int, float, bool]:
    """How many bits the best threshold gets right, that threshold, and whether longer times mean a target."""
    order = np.argsort(times)
    right = np.cumsum(~bits[order]) + bits.sum() - np.cumsum(bits[order])  # where longer means a target
    most, least = int(right.argmax()), int(right.argmin())
    longer = bool(right[most] >= len(bits) - right[least])
    best = most if longer else least
    threshold = times[order[best : best + 2]].mean()
    return int(right[best] if longer else len(bits) - right[best]), float(threshold), longer
