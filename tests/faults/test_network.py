"""Late, broken and lost answers of the log and of the record: a 202 is on disk, and nothing is done twice."""

import random
import time
from pathlib import Path
from urllib.parse import unquote

import pytest
from sqlalchemy.engine import make_url

from service.segments.files import SegmentFiles
from service.store.database import Database
from tests.conftest import publication, wait_until
from tests.faults.load import Producer, Watcher, check, drained, due, set_up
from tests.faults.processes import Api, end, start_worker
from tests.faults.proxy import Proxy, Trouble

pytestmark = pytest.mark.slow

ROUNDS = 12


@pytest.fixture
def log(world):
    with Proxy(Path(unquote(world.settings.redis_url.removeprefix("unix://")))) as proxy:
        yield proxy


@pytest.fixture
def record(world):
    url = make_url(world.settings.database_url)
    with Proxy(Path(url.query["host"]) / f".s.PGSQL.{url.query['port']}") as proxy:
        yield proxy


@pytest.fixture
def settings(world, log, record):
    """Return the settings of a service that reaches both servers through proxies."""
    url = make_url(world.settings.database_url).set(host="127.0.0.1", port=record.port, query={"sslmode": "disable"})
    through = {"redis_url": f"redis://127.0.0.1:{log.port}", "database_url": url.render_as_string(False)}
    return world.settings.model_copy(update=through)


def test_answers_late_broken_or_lost_at_random(world, settings, log, record, seed):
    choose = random.Random(seed)
    api, worker = Api(settings), start_worker(settings)
    publications = {
        "windows": publication("s", {"kind": "sliding_window", "block": 10, "blocks": 2}),
        "batches": publication("s", {"kind": "independent_batches", "batch": 15}),
    }
    with api.client() as client:
        set_up(client, ["s"], publications)
    producers = [Producer(api.client, "s", number, repeats=number < 2, seed=seed) for number in range(3)]
    watcher = Watcher(api.client, list(publications))
    for thread in (*producers, watcher):
        thread.start()
    for _ in range(ROUNDS):
        log.trouble = choose.choice([Trouble(), Trouble(delay=0.1), Trouble(lose_after=b"EVALSHA")])
        record.trouble = choose.choice([Trouble(), Trouble(delay=0.02), Trouble(lose_after=b"COMMIT")])
        time.sleep(choose.uniform(0.2, 0.6))
        choose.choice([log, record]).reset()
    log.trouble = record.trouble = Trouble()
    wait_until(lambda: sum(len(producer.accepted) for producer in producers) > ROUNDS)
    for producer in producers:
        producer.finish()
    database = Database(world.settings.database_url)
    with api.client() as client:
        wait_until(lambda: drained(client, "s", producers))
        wait_until(lambda: not due(database))
        watcher.finish()
        watcher.check(client)
    check(database, SegmentFiles(world.settings.segment_store), producers)
    database.close()
    end(worker)
    end(api.process)


def test_a_batch_whose_answer_was_lost_is_not_promised_and_not_stored_again(world, settings, log):
    api = Api(settings)
    with api.client() as client:
        set_up(client, ["s"], {})
        request = {
            "url": "/v1/streams/s/records",
            "json": {"x": [[0, 0]], "y": [0]},
            "headers": {"Idempotency-Key": "k"},
        }
        log.trouble = Trouble(lose_after=b"EVALSHA")
        assert client.post(**request).status_code == 503
        wait_until(lambda: log.lost)
        assert log.lost == 1
        log.trouble = Trouble()
        first, second = client.post(**request), client.post(**request)
        assert first.status_code == second.status_code == 202
        assert first.json() == second.json()
        worker = start_worker(world.settings)
        wait_until(lambda: client.get("/v1/streams/s").json()["records"])
        assert client.get("/v1/streams/s").json()["records"] == 1
    end(worker)
    end(api.process)


def test_of_a_commit_whose_answer_was_lost_nothing_is_done_again(world, settings, record):
    """Every commit of numbering and of publishing takes place, and the worker hears of none, for a while."""
    api, database = Api(world.settings), Database(world.settings.database_url)
    producer = Producer(api.client, "s", 0)
    with api.client() as client:
        set_up(client, ["s"], {"windows": publication("s", {"kind": "sliding_window", "block": 4, "blocks": 2})})
        worker = start_worker(settings)
        wait_until(lambda: client.get("/v1/streams/s").status_code == 200)
        record.trouble = Trouble(lose_after=b"COMMIT")
        producer.start()
        wait_until(lambda: record.lost > 5)
        record.trouble = Trouble()
        wait_until(lambda: client.get("/v1/publications/windows/releases/latest").status_code == 200)
        producer.finish()
        wait_until(lambda: drained(client, "s", [producer]))
        wait_until(lambda: not due(database))
    check(database, SegmentFiles(world.settings.segment_store), [producer])
    database.close()
    end(worker)
    end(api.process)
