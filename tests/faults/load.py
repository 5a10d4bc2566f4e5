"""Producers that know what they were promised, readers that remember what they were shown, and what must hold of both.

A batch is told by its records: x is (producer, number of the record). Each record is sent in one batch only.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
from sqlalchemy import select

from service.ledger import verify
from service.ledger.invariants import INVARIANTS
from service.segments.locating import read_records
from service.store import segments, streams, tables
from service.store.due_steps import due_steps
from tests.conftest import HANG_SECONDS, ok

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.segments.files import SegmentFiles
    from service.store.database import Database

PAUSE_SECONDS = 0.1  # between two batches of a producer: this is about faults, not about load
RESTS = 8  # times as long as the work before it: on a busy machine load from here does not pile up
LONGEST_REST_SECONDS = 2.0
SAID_LATER = (409, 429, 503)


def rest_seconds(least: float, began: float) -> float:
    """Return how long to rest after work that began at that moment of `time.monotonic`."""
    return min(LONGEST_REST_SECONDS, max(least, RESTS * (time.monotonic() - began)))


class Batch(NamedTuple):
    producer: int
    first: int
    stop: int


class Producer(threading.Thread):
    """Posts batches until told to stop, and knows of each whether it was accepted, and as which entry.

    With `repeats` a batch that got no answer is sent again with its Idempotency-Key until it has one: all of it must be
    there once. Without, it is given up: it may be there once or not at all.
    """

    def __init__(
        self,
        client: Callable[[], httpx.Client],
        stream: str,
        number: int,
        *,
        repeats: bool = True,
        seed: str = "",
        pause: float = PAUSE_SECONDS,
    ) -> None:
        super().__init__(name=f"producer {number}", daemon=True)
        self.stream = stream
        self.accepted: dict[str, Batch] = {}  # by entry
        self.unanswered: set[Batch] = set()
        self.out_of_turn: set[Batch] = set()  # sent again after others; a producer waits for the answer first
        self._client, self.number, self._repeats, self._pause = client, number, repeats, pause
        self._choose = random.Random(f"{seed} {number}")
        self._over = threading.Event()
        self.wrong: list[str] = []

    def finish(self) -> None:
        """Stops after the batch at hand, which gets its answer first."""
        self._over.set()
        self.join(HANG_SECONDS)
        assert not self.is_alive(), f"{self.name} still waits for an answer"
        assert not self.wrong, self.wrong

    def run(self) -> None:
        batch = Batch(self.number, 0, 1)
        with self._client() as client:
            while not self._over.is_set() or (self._repeats and self.unanswered):
                began = time.monotonic()
                if self._post(client, batch) or not self._repeats:
                    batch = Batch(self.number, batch.stop, batch.stop + self._choose.randint(1, 5))
                time.sleep(rest_seconds(self._pause, began))

    def _post(self, client: httpx.Client, batch: Batch) -> bool:
        """Whether it was accepted."""
        numbers = range(batch.first, batch.stop)
        body = {"x": [[batch.producer, number] for number in numbers], "y": [number % 2 for number in numbers]}
        key = {"Idempotency-Key": f"{batch.producer} {batch.first}"} if self._repeats else {}
        try:
            answer = client.post(f"/v1/streams/{self.stream}/records", json=body, headers=key)
        except httpx.HTTPError:
            self.unanswered.add(batch)
            return False
        if answer.status_code == 202:
            self.accepted[answer.json()["entry"]] = batch
            self.unanswered.discard(batch)
            return True
        if answer.status_code not in SAID_LATER:
            self.wrong.append(answer.text)
        if answer.status_code == 503:  # it may be on disk all the same
            self.unanswered.add(batch)
        return False


class Watcher(threading.Thread):
    """Asks for the latest model of each publication all the time, and remembers what it was shown."""

    def __init__(self, client: Callable[[], httpx.Client], publications: list[str]) -> None:
        super().__init__(name="watcher", daemon=True)
        self.seen: dict[tuple[str, int], str] = {}
        self.wrong: list[str] = []
        self._client, self._publications = client, publications
        self._over = threading.Event()

    def finish(self) -> None:
        self._over.set()
        self.join(HANG_SECONDS)
        assert not self.is_alive()

    def run(self) -> None:
        newest, began = dict.fromkeys(self._publications, 0), time.monotonic()
        with self._client() as client:
            while not self._over.wait(rest_seconds(2 * PAUSE_SECONDS, began)):
                began = time.monotonic()
                for name in self._publications:
                    try:
                        answer = client.get(f"/v1/publications/{name}/releases/latest")
                    except httpx.HTTPError:
                        continue
                    if answer.status_code != 200:
                        continue
                    version = answer.json()["version"]
                    if version < newest[name]:
                        self.wrong.append(f"{name}: version {version} after {newest[name]}")
                    newest[name] = max(newest[name], version)
                    self._remember(name, version, answer.content)

    def _remember(self, name: str, version: int, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        if self.seen.setdefault((name, version), digest) != digest:
            self.wrong.append(f"{name}: version {version} changed")

    def check(self, client: httpx.Client) -> None:
        """Check that every version it was shown is still there, and the same."""
        for name, version in list(self.seen):
            answer = client.get(f"/v1/publications/{name}/releases/{version}")
            assert answer.status_code == 200, answer.text
            self._remember(name, version, answer.content)
        assert not self.wrong, self.wrong


def drained(client: httpx.Client, stream: str, producers: list[Producer]) -> bool:
    """Whether all that was accepted has its numbers: a log is numbered in its order."""
    last = max(
        (entry for producer in producers if producer.stream == stream for entry in producer.accepted),
        key=_place,
        default=None,
    )
    return last is None or client.get(f"/v1/streams/{stream}/entries/{last}").status_code == 200


def due(database: Database) -> list[str]:
    """Return what is still to be published of the records that are numbered."""
    with database.transaction() as connection:
        return [publication.name for publication in due_steps(connection)] + waiting(database)


def waiting(database: Database) -> list[str]:
    """The publications with steps that wait for their tick."""
    with database.transaction() as connection:
        query = select(tables.publications.c.name).where(
            tables.publications.c.id.in_(select(tables.parked.c.publication_id))
        )
        return list(connection.execute(query).scalars())


def numbered(database: Database, files: SegmentFiles, name: str) -> dict[str, Batch | None]:
    """Return what is numbered, batch by batch in the order of the numbers, by entry; they cover all numbers, each once.

    None where nothing of a batch is left to tell which it was, because all of it was erased.
    """
    with database.transaction() as connection:
        stream = streams.find(connection, name)
        assert stream is not None
        ranges = connection.exec_driver_sql(
            "SELECT entry, start, stop FROM entries WHERE stream_id = %s ORDER BY start", (stream.id,)
        ).all()
        first = segments.kept_from(connection, stream.id)
        left = set(range(first, stream.records))
        for start, stop in segments.erased(connection, stream.id, first, stream.records):
            left -= set(range(start, stop))
    stored = _records(database, files, stream, first) if left else {}
    assert set(stored) == left
    by_entry: dict[str, Batch | None] = {}
    position = 0
    for entry, start, stop in ranges:
        assert start == position
        batches = {
            Batch(stored[at][0], stored[at][1] - (at - start), stored[at][1] + stop - at)
            for at in range(start, stop)
            if at in stored
        }
        assert len(batches) <= 1
        by_entry[entry], position = next(iter(batches), None), stop
    assert position == stream.records
    return by_entry


def _records(database: Database, files: SegmentFiles, stream: streams.Stream, start: int) -> dict[int, list[int]]:
    """Return x of every record from `start` on, of either kind of slot, by its number."""
    kinds = (False,) if stream.evaluation_slots is None else (False, True)
    each = [read_records(database, files, stream, 0, start, stream.records, evaluates=kind) for kind in kinds]
    return {
        slot: x
        for some in each
        for slot, x in zip(some.in_slots(start, stream.records).tolist(), some.x.astype(int).tolist(), strict=True)
    }


def check(database: Database, files: SegmentFiles, producers: list[Producer]) -> None:
    """Every accepted batch has its place, once, in the log's order; nothing else has one but what got no answer.

    And every release is paid for once, no record more than it may be, and every hash and bound holds.
    """
    for name in {producer.stream for producer in producers}:
        mine = [producer for producer in producers if producer.stream == name]
        by_entry = numbered(database, files, name)
        assert list(by_entry) == sorted(by_entry, key=_place)
        accepted = {entry: batch for producer in mine for entry, batch in producer.accepted.items()}
        assert set(accepted) <= set(by_entry)
        by_entry = {entry: batch or accepted.get(entry) for entry, batch in by_entry.items()}
        assert {entry: by_entry[entry] for entry in accepted} == accepted
        assert not [batch for batch, times in Counter(by_entry.values()).items() if batch and times > 1]
        others = [batch for entry, batch in by_entry.items() if entry not in accepted]
        unanswered = {batch for producer in mine for batch in producer.unanswered}
        assert {batch for batch in others if batch} <= unanswered
        assert len(others) <= len(unanswered)  # of one that was erased, nothing tells which it was
        for producer in mine:
            in_turn = [batch for batch in by_entry.values() if batch and batch not in producer.out_of_turn]
            order = [batch.first for batch in in_turn if batch.producer == producer.number]
            assert order == sorted(order)
    check_ledger(database, files)


def check_ledger(database: Database, files: SegmentFiles) -> None:
    """Check all that `perennial ledger verify` looks at, and the invariants that the worker counts every minute."""
    with database.transaction() as connection:
        report = verify.verify(connection)
    assert report.findings == []
    assert list(verify.verify_segments(database, files)) == []
    with database.transaction() as connection:
        assert {name: violations for name, ask in INVARIANTS.items() if (violations := ask(connection))} == {}


def set_up(client: httpx.Client, names: list[str], asked_for: dict[str, dict], **more: Any) -> None:
    """Makes streams for producers, and publications by their names."""
    task = {"kind": "classification", "classes": 2}
    for name in names:
        configuration = {"name": name, "features": 2, "task": task, "budget": {"epsilon": 100, "delta": 1e-4}}
        ok(client.post("/v1/streams", json=configuration | more), 201)
    for name, configuration in asked_for.items():
        ok(client.post("/v1/publications", json=configuration | {"name": name}), 201)


def evaluation(stream: str, of: list[str], block: int) -> dict[str, Any]:
    """Return a publication that counts others of a stream."""
    mechanism = {"kind": "evaluation", "of": of, "block": block}
    return {"stream": stream, "mechanism": mechanism, "privacy": {"epsilon": 1, "delta": 0}, "publish_delay": 0}


def _place(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))
