"""Hard queries and kill -9: never an answer that nobody paid for, never two from one threshold.

And no comparison with a threshold that has answered yes, whatever came of the yes.
"""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from service.mechanisms.interactive import opened
from service.queries.instances import _chain
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store import charges, parts, publications
from service.store.database import Database
from service.store.rows import Rows
from tests.conftest import HANG_SECONDS, join, make_world, ok, run_out, wait_until
from tests.faults.load import check_ledger
from tests.faults.processes import Api, died, end, has_stopped, start_worker

pytestmark = pytest.mark.slow

CATEGORIES = 6
HARD = {"categories": [0]}
EASY = {"categories": [1]}


@pytest.fixture
def world(servers, tmp_path):
    """Return one whose leases run out when a test says so: an API that stalls does not lose what it compares with."""
    return make_world(servers, tmp_path, lease_seconds=HANG_SECONDS)


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
        configuration = {"name": "p", "stream": "s", "mechanism": mechanism, "privacy": budget}
        ok(client.post("/v1/publications", json=configuration), 201)
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
        publication = publications.get(connection, 1)
        return publication.version, len(list(charges.walk(Rows(connection), publication.stream_id)))


def measured(api: Api, query=EASY) -> dict:
    """The first answer of an API that is compared with the records: once it has the lease."""
    with api.client() as client:
        return wait_until(lambda: (answer := ask(client, query))["measured"] and answer)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_charge_and_answer(world, database, when):
    """Before the commit nothing has happened; after it all has. The next API closes what is open, for a charge."""
    api = Api(world.settings, ("close: commit", when))
    with counted(world.settings, api, hits=5):
        measured(api)
        before, noise = written(database), threshold(database)
        api.now()
        with api.client() as client, pytest.raises(httpx.HTTPError):
            ask(client, HARD)
        died(api.process)
        run_out(database)
        committed = when == "after"
        assert written(database) == (before[0] + committed, before[1] + 2 * committed)
        assert (threshold(database) == noise) is not committed
        left, noise = written(database), threshold(database)
        again = Api(world.settings)
        assert again.comparisons == 0
        assert measured(again, HARD)["answer"] == pytest.approx(1, abs=0.3)
        assert written(database) == (2, 6), "closed once for the crash, and measured once"
        assert left[0] < 2
        assert threshold(database) != noise
        end(again.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))


def test_who_ends_in_order_leaves_the_instance_to_the_next(world, database):
    api = Api(world.settings)
    with counted(world.settings, api, hits=5):
        measured(api)
        before, noise = written(database), threshold(database)
        end(api.process)
        following = Api(world.settings)
        with following.client() as client:
            assert ask(client, EASY)["measured"], "at once"
        assert (written(database), threshold(database)) == (before, noise)
        end(following.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))


def test_after_a_yes_that_another_process_made_void_nothing_is_compared(world, database):
    """An API hangs in the middle of publishing; the other one takes over, and the first one awakes."""
    hangs, other = Api(world.settings, ("close: commit", "before"), send=signal.SIGSTOP), Api(world.settings)
    with counted(world.settings, hangs, hits=5), ThreadPoolExecutor() as threads:
        measured(hangs)
        noise = threshold(database)
        hangs.now()

        def ask_on() -> list[dict]:
            with httpx.Client(base_url=hangs.url, headers=hangs.client().headers, timeout=200) as client:
                return ask(client, [HARD, *[HARD, EASY] * 500])

        waiting = threads.submit(ask_on)
        wait_until(lambda: has_stopped(hangs.process.pid))
        run_out(database)
        compared, transactions = hangs.comparisons, hangs.transactions
        assert measured(other)["error_bound"] is not None
        closed = written(database)[0], threshold(database) != noise
        os.kill(hangs.process.pid, signal.SIGCONT)
        answers = waiting.result()
        assert closed == (1, True), "it has closed the instance"
        assert {(each["measured"], each["error_bound"]) for each in answers} == {(False, None)}
        assert hangs.comparisons == compared
        assert hangs.transactions - transactions < 100, "of a thousand queries after the yes none needed one"
        end(other.process)
        assert measured(hangs)["time"] == 120, "with the instance that is open now"
        assert written(database)[0] == 1
    end(hangs.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))


def test_processes_that_find_a_query_hard_at_the_same_time_measure_it_once(world, database):
    """While records keep coming, too. Each hit is one release, and closes an instance of its own."""
    hits = 24
    apis = [Api(world.settings) for _ in range(2)]
    with counted(world.settings, apis[0], hits=hits):
        bodies: list[dict] = []
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
                        bodies.append(ask(client, {"weights": weights}))
            except BaseException as problem:
                problems.append(problem)
                raise

        threads = [threading.Thread(target=hammer, args=(api, number)) for number, api in enumerate(apis * 2)]
        for thread in threads:
            thread.start()
        with apis[0].client() as client:
            for number in range(3):
                ok(client.post("/v1/streams/s/records", json={"y": [number % CATEGORIES] * 40}), 202)
                wait_until(lambda upto=160 + 40 * number: ask(client, EASY)["time"] >= upto * 0.99)
            over.set()
            for thread in threads:
                join(thread)
            assert problems == []
            with database.transaction() as connection:
                ledger = list(charges.walk(Rows(connection), 1))
            versions = [each["version"] for each in ledger if each["version"] is not None]
            assert versions == list(range(1, len(versions) + 1))
            assert 2 <= len(versions) <= hits
            measured = [each for each in bodies if each["error_bound"] is not None and each["error_bound"] < 0.1]
            assert len(measured) <= len(versions), "nobody was told a number that was not released"
    for api in apis:
        end(api.process)
    check_ledger(database, SegmentFiles(world.settings.segment_store))
