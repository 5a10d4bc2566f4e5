"""Two workers on many streams and publications: of one that dies or hangs the other takes over, for good."""

import os
import re
import signal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service.segments.files import SegmentFiles
from service.store import tables
from service.store.database import Database
from tests.conftest import make_world, publication, wait_until
from tests.faults.load import Producer, Watcher, check, drained, due, set_up
from tests.faults.processes import Api, Moment, end, has_stopped, start_worker

pytestmark = pytest.mark.slow

STREAMS = ["one", "two", "three"]


class Scene:
    """Producers on three streams with two publications each, and whatever workers a test starts."""

    def __init__(self, world) -> None:
        self.settings = world.settings
        self.database = Database(world.settings.database_url)
        self.api = Api(world.settings)
        configurations = {
            "windows": {"kind": "sliding_window", "block": 10, "blocks": 2},
            "batches": {"kind": "independent_batches", "batch": 10},
        }
        self.publications = {
            f"{kind}-of-{of}": publication(of, configurations[kind]) for of in STREAMS for kind in configurations
        }
        with self.api.client() as client:
            set_up(client, STREAMS, self.publications)
        self.producers = [Producer(self.api.client, of, number, pause=0.2) for number, of in enumerate(STREAMS)]
        self.workers: list[BaseProcess] = []
        self.watcher = Watcher(self.api.client, list(self.publications))

    def worker(self, *arguments: Any) -> BaseProcess:
        self.workers.append(start_worker(self.settings, *arguments))
        return self.workers[-1]

    def versions(self) -> dict[str, int]:
        table = tables.publications
        with self.database.transaction() as connection:
            return dict(connection.execute(select(table.c.name, table.c.version)).all())

    def all_publish(self) -> None:
        """Waits until each publication has a version more than now."""
        before = self.versions()
        wait_until(lambda: all(version > before[name] for name, version in self.versions().items()))

    def finish(self) -> None:
        """The rest is published, and everything is as it must be."""
        for producer in self.producers:
            producer.finish()
        with self.api.client() as client:
            for stream in STREAMS:
                wait_until(lambda of=stream: drained(client, of, self.producers))
            wait_until(lambda: not due(self.database))
            self.watcher.finish()
            self.watcher.check(client)
        check(self.database, SegmentFiles(self.settings.segment_store), self.producers)
        with self.database.transaction() as connection:
            both = connection.execute(select(func.count()).select_from(tables.releases)).scalar_one()
            assert both == sum(self.versions().values())


@pytest.fixture
def scene(servers, tmp_path):
    made = Scene(make_world(servers, tmp_path, lease_seconds=4.0))
    for thread in (*made.producers, made.watcher):
        thread.start()
    yield made
    for process in made.workers:
        process.kill()  # those that a failed test left; one that is stopped would not hear SIGTERM
    end(made.api.process)
    made.database.close()


@pytest.mark.more
def test_of_a_worker_that_hangs_or_is_killed_another_takes_over_and_it_can_commit_nothing_when_it_wakes(scene):
    """A first one hangs while it publishes, a second one is killed, and a third one hangs while it numbers."""
    first = _hangs(scene, ("Publisher._committed: commit", "before"))
    second = scene.worker()
    scene.all_publish()
    os.kill(first.pid, signal.SIGCONT)
    scene.all_publish()  # both are at work
    second.kill()
    scene.all_publish()
    third = _hangs(scene, ("Sealer._seal: commit", "before"))
    scene.all_publish()
    os.kill(third.pid, signal.SIGCONT)
    scene.all_publish()
    scene.finish()
    end(first)
    end(third)


def test_who_hangs_while_it_writes_a_mark_holds_up_that_stream_alone_until_it_is_killed(scene):
    first = _hangs(scene, ("SegmentFiles.put_high_water_mark: sync", "before"), locks=True)
    second = scene.worker()
    before = scene.versions()
    of_stream = [{name for name in before if name.endswith(f"-of-{stream}")} for stream in STREAMS]

    def goes_on(names: set[str]) -> bool:
        now = scene.versions()
        return all(now[name] > before[name] + 1 for name in names)

    wait_until(lambda: sum(map(goes_on, of_stream)) >= len(STREAMS) - 1)
    first.kill()
    scene.all_publish()
    scene.finish()
    end(second)


def _hangs(scene: Scene, at: Moment, *, locks: bool = False) -> BaseProcess:
    """Return a new worker once it has stopped itself there; one of its other threads locks a mark, or none does.

    As long as a mark is locked its stream stands still, however many workers there are.
    """
    while True:
        worker = scene.worker(at, signal.SIGSTOP)
        wait_until(lambda: has_stopped(worker.pid))  # noqa: B023
        if locks or not re.search(rf"\bFLOCK\b.* {worker.pid} ", Path("/proc/locks").read_text()):
            return worker
        worker.kill()
