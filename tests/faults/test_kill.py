"""`perennial up` killed with -9: what got a 202 is numbered once, in order; no version changes; nothing is unpaid.

By default three kills, at other moments each time. `pytest tests/faults/test_kill.py --kills 200` does more, in
rounds that each begin with an empty folder; `--seed` repeats the choices of a run, whose seed the summary tells.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select

from service.embedded import embedded_database
from service.segments.files import SegmentFiles
from service.segments.places import open_place
from service.store import tables
from service.store.database import Database
from service.worker.publisher import ENDED_TWICE
from tests.conftest import ok, publication, wait_until
from tests.faults.load import Producer, Watcher, check, drained, due, evaluation, set_up
from tests.faults.up import PARTS, ROOT, Up
from tests.log.primaries import PRIMARIES, Three, three_in_cluster
from tests.segments.objects.server import BUCKET, serving

KILLS_IN_A_ROUND = 20
DEATHS_OF_ONE_PART = 4  # `up` takes the fifth within a minute for something that restarting won't mend, and stops


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kills" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--kills")
        rounds = [min(KILLS_IN_A_ROUND, wanted - done) for done in range(0, wanted, KILLS_IN_A_ROUND)]
        metafunc.parametrize(("round_", "kills"), list(enumerate(rounds)))


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data of a user")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def far_apart(tmp_path: Path) -> Iterator[tuple[Up, Three]]:
    """`perennial up` with its log on a cluster of three primaries, and its segments in an object store."""
    with three_in_cluster(tmp_path / "log") as three, serving():
        running = Up(tmp_path / "data of a user", redis_url=three.url, segment_store=f"s3://{BUCKET}/kills")
        running.start()
        yield running, three
        running.stop()


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_of_anything_loses_doubles_and_forgets_nothing(up: Up, round_, kills, seed, record_property):
    files = SegmentFiles(up.folder / "segments")
    kill_and_check(up, None, files, round_, kills, seed, record_property)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_kill_9_with_a_cluster_and_an_object_store_loses_nothing(
    far_apart, tmp_path: Path, round_, kills, seed, record_property
):
    up, three = far_apart
    files = open_place(f"s3://{BUCKET}/kills", tmp_path / "copies", most_bytes=2**20)
    kill_and_check(up, three, files, round_, kills, seed, record_property)
    assert three.refused_across_slots() == 0


def kill_and_check(up: Up, three: Three | None, files: SegmentFiles, round_, kills, seed, record_property) -> None:
    choose = random.Random(f"{seed} {round_}")
    gaussian = {"kind": "continual", "base": 100, "update_every": 50}
    publications = {
        "windows": publication("one", {"kind": "sliding_window", "block": 20, "blocks": 3}),
        "batches": publication("one", {"kind": "independent_batches", "batch": 50}, learner={"solver": "psgd"}),
        "everything": publication("two", gaussian, delta=1e-6),
        "figures": evaluation("two", ["everything"], block=10),
    }
    with up.client() as client:
        set_up(client, ["one"], {})
        set_up(client, ["two"], publications, evaluation={"every": 5})
    producers = [
        Producer(up.client, stream, number, repeats=number < 3, seed=seed)
        for number, stream in enumerate(["one", "two", "one", "two"])
    ]
    watcher = Watcher(up.client, list(publications))
    for thread in (*producers, watcher):
        thread.start()
    killed = _kill(up, three, choose, kills)
    up.await_ready(again=True)
    with up.client() as client:
        for stream in ("one", "two"):  # enough for a model of each publication, however soon the kills were over
            wait_until(lambda of=stream: ok(client.get(f"/v1/streams/{of}"))["records"] >= 100)
    for producer in producers:
        producer.finish()
    with up.client() as client:
        for stream in ("one", "two"):
            wait_until(lambda of=stream: drained(client, of, producers))
        for name in publications:
            wait_until(lambda of=name: publishes(client, of))
        watcher.finish()
        watcher.check(client)
    with embedded_database(up.folder) as url:
        database = Database(url)
        wait_until(lambda: not due(database))
        check(database, files, producers)
        with database.transaction() as connection:
            versions = connection.execute(select(func.count()).select_from(tables.releases)).scalar_one()
        database.close()
    verified = subprocess.run(
        [sys.executable, "-m", "service", "ledger", "verify", "--data-dir", str(up.folder)],
        check=False, cwd=ROOT, env=up.environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout
    accepted = sum(len(producer.accepted) for producer in producers)
    records = sum(batch.stop - batch.first for producer in producers for batch in producer.accepted.values())
    assert accepted > kills
    counts = ", ".join(f"{name} {times}" for name, times in sorted(killed.items()))
    record_property(
        "faults",
        f"{kills} kill -9s (seed {seed}, round {round_}: {counts}): {accepted} batches of {records} records got a 202 "
        f"and are numbered once, {versions} versions, {len(watcher.seen)} of them seen and seen again unchanged; "
        f"ledger verify: {verified.stdout.strip()}",
    )


def publishes(client: httpx.Client, name: str) -> bool:
    """Return whether it still does; or was killed twice at one step, after which it rightly never does again."""
    described = ok(client.get(f"/v1/publications/{name}"))
    return described["latest"] is not None or ENDED_TWICE in (described["reason"] or "")


def _kill(up: Up, three: Three | None, choose: random.Random, kills: int) -> Counter[str]:
    """Kills one part or the supervisor at random moments, recoveries from earlier ones included.

    three: the primaries of the log, where `up` does not run the log itself.
    """
    done: Counter[str] = Counter()
    since_start: Counter[str] = Counter()
    while done.total() < kills:
        if choose.random() < 0.4:
            up.await_ready(again=True)
        time.sleep(choose.uniform(0.0, 0.8))
        up.go_on()
        victim = choose.choice([*PARTS, "supervisor"])
        # The API and the worker end themselves when they are starting as PostgreSQL goes.
        if victim == "valkey" and three is not None:
            number = choose.randint(1, PRIMARIES)
            three.kill(number)
            time.sleep(choose.uniform(0.0, 0.8))
            three.start(number)
        elif victim == "supervisor" or since_start[victim] + since_start["postgres"] >= DEATHS_OF_ONE_PART:
            up.kill()
            up.begin()
            since_start.clear()
            victim = "supervisor"
        elif (pid := up.children().get(victim)) is not None:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has just ended
                continue
            since_start[victim] += 1
        else:  # it is down already
            continue
        done[victim] += 1
    return done


@pytest.mark.more
@pytest.mark.slow
def test_each_part_alone_comes_back_and_everything_goes_on_after_an_orderly_stop(up: Up):
    with up.client() as client:
        set_up(client, ["s"], {})

    def posted() -> str | None:
        with up.client() as client:
            answer = client.post("/v1/streams/s/records", json={"x": [[1, 1]], "y": [0]})
        return answer.json()["entry"] if answer.status_code == 202 else None

    def numbered(entry: str) -> bool:
        with up.client() as client:
            return client.get(f"/v1/streams/s/entries/{entry}").status_code == 200

    for part in PARTS:
        os.kill(up.children()[part], signal.SIGKILL)
        up.await_ready()
        entry = wait_until(posted)
        wait_until(lambda of=entry: numbered(of))
    entry, left = wait_until(posted), up.descendants()
    up.stop()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    up.start()
    wait_until(lambda: numbered(entry))
