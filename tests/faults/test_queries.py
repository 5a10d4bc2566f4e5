"""Hard queries and kill -9: never an answer that nobody paid for, never two from one threshold."""

import threading
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from service.mechanisms.linear_queries import opened
from service.publishing.answering import _chain
from service.settings import Settings
from service.store import ledger, parts, publications
from service.store.database import Database
from service.store.segment_files import SegmentFiles
from tests.conftest import ok, wait_until
from tests.faults.load import check_ledger
from tests.faults.processes import Api, died, end, start_worker

pytestmark = pytest.mark.slow

CATEGORIES = 6
HARD = {"categories": [0]}
EASY = {"categories": [1]}


@pytest.fixture
def database(world):
    database = Database(world.settings.database_url)
    yield database
    database.close()


@contextmanager
def counted(settings: Settings, api: Api, *, hits: int):
    """A stream of 120 records of category 0, counted in; a worker goes on. `epsilon` is such that noise is small."""
    worker = start_worker(settings)
    with api.client() as client:
        budget = {"epsilon": 1000, "delta": 0}
        task = {"kind": "categorical", "cardinality": CATEGORIES}
        ok(client.post("/v1/streams", json={"name": "s", "task": task, "budget": budget}), 201)
        mechanism = {"kind": "linear_queries", "first": 100, "hits": hits, "accuracy": 0.3}
        asked = {"name": "p", "stream": "s", "mechanism": mechanism, "privacy": budget}
        ok(client.post("/v1/publications", json=asked), 201)
        ok(client.post("/v1/streams/s/records", json={"y": [0] * 120}), 202)
        wait_until(lambda: ask(client, EASY)["time"] == 120)
    yield
    end(worker)


def ask(client: httpx.Client, query):
    return ok(client.post("/v1/publications/p/queries", json=query))


def threshold(database: Database) -> int:
    with database.transaction() as connection:
        return opened(_chain(parts.load(connection, 1))).noise


def written(database: Database) -> tuple[int, int]:
    """How many releases and charges there are."""
    with database.transaction() as connection:
        found = publications.get(connection, 1)
        return found.version, len(list(ledger.walk(connection, found.stream_id)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_charge_and_answer(world, database, when):
    """Before the commit nothing has happened; after it all has, and whoever asks again is told what was released."""
    api = Api(world.settings, ("Answerer._published: commit", when))
    with counted(world.settings, api, hits=5):
        before, noise = written(database), threshold(database)
        api.now()
        with api.client() as client, pytest.raises(httpx.HTTPError):
            ask(client, HARD)
        died(api.process)
        committed = when == "after"
        assert written(database) == (before[0] + committed, before[1] + 2 * committed)
        assert (threshold(database) == noise) is not committed
        again = Api(world.settings)
        with again.client() as client:
            assert ask(client, HARD)["answer"] == pytest.approx(1, abs=0.3)
            assert written(database)[0] == 1, "it was measured once"
        end(again.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))


def test_processes_that_find_a_query_hard_at_the_same_time_measure_it_once(world, database):
    """While records keep coming, too. Each hit is one release, and closes an instance of its own."""
    hits = 24
    apis = [Api(world.settings) for _ in range(2)]
    with counted(world.settings, apis[0], hits=hits):
        told: list[dict] = []
        over = threading.Event()
        start = threading.Barrier(4)
        problems: list[BaseException] = []

        def hammer(api: Api, seed: int) -> None:
            choose = np.random.default_rng(seed)
            try:
                with api.client() as client:
                    start.wait()
                    while not over.is_set():
                        weights = choose.integers(0, 2, CATEGORIES).tolist()
                        told.append(ask(client, {"weights": weights}))
            except BaseException as problem:
                problems.append(problem)
                raise

        threads = [threading.Thread(target=hammer, args=(api, number)) for number, api in enumerate(apis * 2)]
        for thread in threads:
            thread.start()
        with apis[0].client() as client:
            for number in range(15):
                ok(client.post("/v1/streams/s/records", json={"y": [number % CATEGORIES] * 40}), 202)
                wait_until(lambda upto=160 + 40 * number: ask(client, EASY)["time"] >= upto * 0.99)
            over.set()
            for thread in threads:
                thread.join()
            assert problems == []
            with database.transaction() as connection:
                charges = list(ledger.walk(connection, 1))
            versions = [each["version"] for each in charges if each["version"] is not None]
            assert versions == list(range(1, len(versions) + 1))
            assert 2 <= len(versions) <= hits
            measured = [each for each in told if each["error_bound"] is not None and each["error_bound"] < 0.1]
            assert len(measured) <= len(versions), "nobody was told a number that was not released"
    for api in apis:
        end(api.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))
