"""Measure the cost of a worker where there are many streams: beside one stream, in the same run.

Each stream has two publications. Measured with one worker and one stream, then with many streams and two workers:
seconds from the answer 202 until the batch is numbered; processor time until every publication has its first model; a
worker's and PostgreSQL's part of a core, and transactions a second, while nothing comes; and how long the streams of a
worker that is killed wait for the other one.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson
import psycopg
from redis import Redis

from benchmarks.serving import Connection, Service, service
from benchmarks.soak import processor_seconds
from service.ledger import open_ledger
from service.log.connection import state_key
from service.store import publications, streams
from service.store.database import Database
from service.store.publications import NewPublication

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

FEATURES = 2
BLOCK = 10
PROBES = 200
MADE_TOGETHER = 50
IDLE_SECONDS = 30.0
HANG_SECONDS = 1800.0
LOOK_SECONDS = 0.05
SETTLING_SECONDS = 10.0
BODY = orjson.dumps({"x": [[0.1, 0.2]] * BLOCK, "y": [0, 1] * (BLOCK // 2)})
MECHANISM = {"kind": "sliding_window", "block": BLOCK, "blocks": 1}
LEARNER = {"kind": "output_perturbation", "regularization": 0.1}

_RELEASED = "SELECT count(DISTINCT publication_id) FROM releases"
_SEALED_BY = """
SELECT count(*) FROM leases JOIN streams ON resource = 'stream:' || streams.id
WHERE expires_at > clock_timestamp() AND owner IS NOT NULL AND NOT owner = ANY(%s)
"""
_OWNERS = "SELECT DISTINCT owner FROM leases WHERE resource LIKE 'stream:%' AND expires_at > clock_timestamp()"
_SHARES = """
SELECT count(*) FROM leases WHERE resource LIKE 'stream:%' AND owner IS NOT NULL AND expires_at > clock_timestamp()
GROUP BY owner ORDER BY 1
"""
_UNSETTLED = """
SELECT (SELECT count(*) FROM publications JOIN streams ON streams.id = stream_id WHERE due <= records)
+ (SELECT count(*) FROM parked)
+ (SELECT count(*) FROM streams WHERE (confirmed_charges, confirmed_releases) <> (charges, releases))
"""
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


@dataclass
class Measured:
    """The measures of one scene; seconds unless said otherwise."""

    streams: int
    workers: int
    numbered: list[float] = field(default_factory=list)
    first_models: float = 0.0
    first_models_processor: float = 0.0
    idle: float = 0.0
    """Part of a core of one worker and PostgreSQL."""
    transactions: float = 0.0
    """A second, by one worker."""
    shares: Sequence[int] = ()
    """How many streams each worker numbers."""
    taken_over: float | None = None
    numbered_again: float | None = None

    @property
    def median(self) -> float:
        """Return the median seconds from 202 until a batch is numbered."""
        return statistics.median(self.numbered)


class Scene:
    """Streams with two publications each, and workers."""

    def __init__(self, running: Service, count: int) -> None:
        self.running = running
        self.database = psycopg.connect(running.database_url.replace("+psycopg", ""), autocommit=True)
        first = running.stream(FEATURES)
        privacy = {"epsilon": 1, "delta": 0}
        for _ in range(2):
            running.make(
                "publications", {"stream": first, "mechanism": MECHANISM, "learner": LEARNER, "privacy": privacy}
            )
        self.names = [first, *_more_like(running, first, count - 1)]

    def number(self, query: str, *bound: object) -> float:
        """Return the number that a query answers."""
        row = self.database.execute(query, bound or None).fetchone()
        assert row is not None
        return float(row[0])

    def post(self, name: str) -> None:
        """Send one batch."""
        with Connection(self.running.port) as connection:
            sent = self.running.request("POST", f"/v1/streams/{name}/records", BODY, content_type="application/json")
            connection.ask(sent, 202)

    def seconds_to_number(self, name: str) -> float:
        """Send one batch; return how long after its answer it was numbered."""
        self.database.execute("LISTEN perennial_records")
        try:
            self.post(name)
            began = time.perf_counter()
            for notice in self.database.notifies(timeout=HANG_SECONDS):
                if notice.payload == name:
                    return time.perf_counter() - began
            raise TimeoutError(name)
        finally:
            self.database.execute("UNLISTEN *")

    def all_held(self, *, but: Sequence[str] = ()) -> bool:
        """Return whether each stream has a sealer that is none of these."""
        return self.number(_SEALED_BY, list(but)) == len(self.names)

    def owners(self) -> list[str]:
        """Return the workers that hold sealers' leases."""
        return [row[0] for row in self.database.execute(_OWNERS)]

    def settle(self) -> None:
        """Wait until all that is due is published and confirmed, and a little longer."""
        began = time.perf_counter()
        while self.number(_UNSETTLED):
            _within(began)
            time.sleep(1.0)
        time.sleep(SETTLING_SECONDS)

    def wait(self, condition: str, number: float) -> float:
        """Wait until the query gives the expected answer; return the seconds."""
        began = time.perf_counter()
        while self.number(condition) < number:
            _within(began)
            time.sleep(LOOK_SECONDS)
        return time.perf_counter() - began


def _more_like(running: Service, first: str, count: int) -> list[str]:
    """Make streams with publications like those of the first one; the API would take minutes for a thousand."""
    database, log = Database(running.database_url), Redis.from_url(running.redis_url)
    names = [f"{first}-{number}" for number in range(count)]
    for start in range(0, count, MADE_TOGETHER):
        with database.transaction() as connection:
            model = streams.find(connection, first)
            assert model is not None
            of_first = publications.of_stream(connection, model.id)
            for name in names[start : start + MADE_TOGETHER]:
                log_name = secrets.token_hex(16)
                log.hset(state_key(log_name), mapping={"log": log_name, "sequence": 0, "total": 0, "trimmed": 0})
                alike = {field: getattr(model, field) for field in ("schema", "retention", "epsilon", "delta", "place")}
                stream = streams.create(connection, name=name, log=log_name, **alike)
                for publication in of_first:
                    ledger = open_ledger(connection, stream.id)
                    settings = {field: getattr(publication, field) for field in _ALIKE}
                    ledger.admit(
                        NewPublication(name=f"{name}-{publication.name}", obligations=publication.owes, **settings)
                    )
    database.close()
    log.close()
    return names


_ALIKE = ("start", "configuration", "plan", "kind", "epsilon", "delta", "due", "publish_delay")


def measured(count: int, workers: int) -> Measured:
    """Return the measures of a scene with that many streams."""
    measures = Measured(count, workers)
    with service(worker=False, max_key_requests=1e9) as running, contextlib.ExitStack() as stack:
        scene = Scene(running, count)
        for name in scene.names:
            scene.post(name)
        before = _busy()
        killed = [stack.enter_context(running.worker()) for _ in range(workers)]
        measures.first_models = scene.wait(_RELEASED, 2 * count)
        measures.first_models_processor = _busy() - before
        measures.shares = [row[0] for row in scene.database.execute(_SHARES)]
        scene.settle()
        step = max(1, count // PROBES)
        measures.numbered = [scene.seconds_to_number(scene.names[(probe * step) % count]) for probe in range(PROBES)]
        if workers > 1:
            _take_over(scene, killed[0], measures)
        scene.settle()
        before, transactions, began = _busy(), scene.number(_TRANSACTIONS), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        took = time.perf_counter() - began
        measures.idle = (_busy() - before) / took
        measures.transactions = (scene.number(_TRANSACTIONS) - transactions) / took
        scene.database.close()
    return measures


def _take_over(scene: Scene, killed: subprocess.Popen[bytes], measures: Measured) -> None:
    """Kill one of two workers, as `kill -9` does, and wait for the other one."""
    lines = scene.database.execute(_OWNERS).fetchall()
    before = {row[0] for row in lines}
    killed.kill()
    killed.wait()
    began = time.perf_counter()
    numbered = scene.number("SELECT sum(records) FROM streams")
    for name in scene.names[:: max(1, len(scene.names) // 100)]:
        scene.post(name)
    posts = len(scene.names[:: max(1, len(scene.names) // 100)])
    while not (len(scene.owners()) == 1 and scene.all_held()):
        _within(began)
        time.sleep(LOOK_SECONDS)
    measures.taken_over = time.perf_counter() - began
    scene.wait("SELECT sum(records) FROM streams", numbered + posts * BLOCK)
    measures.numbered_again = time.perf_counter() - began
    assert len(before) == 2, "both workers numbered streams"


def _busy() -> float:
    spent = processor_seconds()
    return spent["worker"] + spent["PostgreSQL"]


def _within(began: float) -> None:
    if time.perf_counter() - began > HANG_SECONDS:
        raise TimeoutError


def report(streams: int) -> Iterator[str]:
    """Return the lines of the table, in Markdown."""
    one = measured(1, 1)
    many = measured(streams, 2)
    yield f"| | 1 stream, 1 worker | {streams:,} streams, 2 workers | ratio |\n|---|---|---|---|"
    yield (
        f"| 202 → numbered, median | {1e3 * one.median:.1f} ms | {1e3 * many.median:.1f} ms "
        f"| {many.median / one.median:.2f} |"
    )
    yield (
        f"| all first models | {one.first_models:.1f} s | {many.first_models:.1f} s "
        f"| {many.first_models / one.first_models:.1f} |"
    )
    yield (
        f"| … processor time of workers and PostgreSQL | {one.first_models_processor:.1f} s "
        f"| {many.first_models_processor:.1f} s | |"
    )
    yield f"| streams of each worker | {one.shares} | {many.shares} | |"
    yield f"| takeover after `kill -9`: every lease | | {many.taken_over:.1f} s | |"
    yield f"| … a batch on each of a hundred streams numbered | | {many.numbered_again:.1f} s | |"
    yield (
        f"| idle: one worker and PostgreSQL | {100 * one.idle:.2f} % of a core | {100 * many.idle:.2f} % "
        f"| {many.idle / one.idle:.1f} |"
    )
    yield f"| idle: transactions a second | {one.transactions:.1f} | {many.transactions:.1f} | |"
