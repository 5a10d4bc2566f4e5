"""Two versions at the same time, as in a rolling upgrade: APIs and workers of both on one database, log and folder.

A balancer sends each request to any API, as a Kubernetes service does.
"""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from service.embedded import Servers
from service.segments.files import SegmentFiles
from service.store.database import Database
from tests.conftest import ADMIN_KEY, publication, wait_until
from tests.databases import unmigrated_database
from tests.faults.load import Producer, Watcher, check, drained, due, evaluation, set_up
from tests.faults.up import ROOT
from tests.ports import free_port
from tests.upgrades.versions import landed_version, next_version

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

APIS, WORKERS = 2, 3
STREAMS = ["one", "two"]
MENDED_BY_A_RETRY = {409, 429, 503}
PUBLICATIONS = {
    "windows": publication("one", {"kind": "sliding_window", "block": 10, "blocks": 2}),
    "batches": publication("one", {"kind": "independent_batches", "batch": 10}, publish_delay=1),
    "everything": publication("two", {"kind": "continual", "base": 20, "update_every": 10}, delta=1e-6),
    "remembered": publication("two", {"kind": "window_statistics", "block": 10, "blocks": 16}, epsilon=10),
    "figures": evaluation("two", ["everything"], block=5),
}


class Balancer(httpx.BaseTransport):
    """Sends each request to one of the APIs, at random, and counts their answers."""

    def __init__(self, ports: list[int]) -> None:
        self.ports, self.answers = ports, Counter()
        self._transport = httpx.HTTPTransport()

    def hang_up(self) -> None:
        """Close all connections. `close` would be called by the first of many clients that ends."""
        self._transport.close()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(port=random.choice(self.ports))
        answer = self._transport.handle_request(request)
        self.answers[answer.status_code] += 1
        return answer


class Part:
    """A running API or worker of some version."""

    def __init__(self, version: Path, kind: str, environment: dict[str, str], output: Path) -> None:
        self.port = free_port()
        environment = environment | {"PYTHONPATH": str(version), "PERENNIAL_PORT": str(self.port)}
        command = [sys.executable, "-m", "service", kind]
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, cwd=version, env=environment, stderr=file)

    def state(self) -> int:
        """Return the status of `/readyz`; 0 for no answer."""
        assert self.process.poll() is None, "it ended"
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz").status_code
        except httpx.HTTPError:
            return 0

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(200)


class Cluster:
    """Parts of several versions, and what producers and readers do to them."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        owner, service = unmigrated_database(servers)
        self.folder, self.segments = folder, folder / "segments"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")} | {
            "PERENNIAL_REDIS_URL": servers.redis_url,
            "PERENNIAL_DATABASE_URL": service,
            "PERENNIAL_MIGRATION_URL": owner,
            "PERENNIAL_SEGMENT_STORE": str(self.segments),
            "PERENNIAL_ADMIN_KEY": ADMIN_KEY,
            "PERENNIAL_METRICS_PORT": "0",
            "PERENNIAL_LEASE_SECONDS": "20",  # on a busy machine none is lost
            "PERENNIAL_LOG_LEVEL": "warning",
        }
        self.parts: list[Part] = []
        self.ports: list[int] = []
        self.balancer = Balancer(self.ports)
        self.database = Database(service)
        self.producers = [Producer(self.client, of, number, pause=0.4) for number, of in enumerate(STREAMS)]
        self.watcher = Watcher(self.client, list(PUBLICATIONS))

    def client(self) -> httpx.Client:
        key = {"Authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.Client(base_url="http://127.0.0.1", headers=key, transport=self.balancer)

    def migrate(self, version: Path) -> None:
        environment = self.environment | {"PYTHONPATH": str(version)}
        subprocess.run([sys.executable, "-m", "service", "migrate"], cwd=version, env=environment, check=True)

    def start(self, version: Path, kind: str, number: int) -> list[Part]:
        """Start so many parts, and wait until APIs are ready to be sent requests."""
        started = []
        for _ in range(number):
            output = self.folder / f"{kind}-{len(self.parts)}.log"
            started.append(Part(version, kind, self.environment, output))
            self.parts.append(started[-1])
        if kind == "api":
            for part in started:
                wait_until(lambda of=part: of.state() == 200, seconds=600)
                self.ports.append(part.port)
        return started

    def retire(self, *parts: Part) -> None:
        """End parts one after the other, as a rolling upgrade does."""
        for part in parts:
            if part.port in self.ports:
                self.ports.remove(part.port)
            assert part.end() in (0, -signal.SIGTERM)

    def begin(self) -> None:
        with self.client() as client:
            set_up(client, STREAMS[:1], {})
            set_up(client, STREAMS[1:], PUBLICATIONS, evaluation={"every": 5})
        for thread in (*self.producers, self.watcher):
            thread.start()
        self.all_publish()

    def all_publish(self) -> None:
        """Wait until each publication has a release more than now."""
        before = self.versions()
        wait_until(lambda: all(version > before[name] for name, version in self.versions().items()))

    def versions(self) -> dict[str, int]:
        with self.database.transaction() as connection:
            rows = connection.execute(text("SELECT name, version, state FROM publications")).all()
        assert {row.state for row in rows} == {"running"}, rows
        return {row.name: row.version for row in rows}

    def finish(self) -> None:
        """See that nothing was lost, doubled, changed, left unpaid or refused for good."""
        for producer in self.producers:
            producer.finish()
        with self.client() as client:
            for stream in STREAMS:
                wait_until(lambda of=stream: drained(client, of, self.producers))
            wait_until(lambda: not due(self.database))
            self.watcher.finish()
            self.watcher.check(client)
        check(self.database, SegmentFiles(self.segments), self.producers)
        failed = {status for status in self.balancer.answers if status >= 500}
        assert failed <= MENDED_BY_A_RETRY, self.balancer.answers


@pytest.fixture
def cluster(servers: Servers, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(servers, tmp_path)
    yield made
    for part in made.parts:
        if part.process.poll() is None:
            part.end(signal.SIGKILL)
    made.balancer.hang_up()
    made.database.close()


@pytest.mark.parametrize("upgrade", ["from the landed one", "to the next one"])
def test_two_versions_run_side_by_side_until_the_older_one_is_gone(cluster: Cluster, tmp_path: Path, upgrade: str):
    before, after = ROOT, ROOT
    if upgrade == "from the landed one":
        before = landed_version(tmp_path / "before")
    else:
        after = next_version(tmp_path / "after", widens=True)
    cluster.migrate(before)
    older = cluster.start(before, "api", APIS) + cluster.start(before, "worker", WORKERS)
    cluster.begin()
    cluster.migrate(after)
    cluster.all_publish()
    newer = cluster.start(after, "api", APIS) + cluster.start(after, "worker", WORKERS)
    cluster.all_publish()
    older.pop().end(signal.SIGKILL)
    if upgrade == "to the next one":
        older += cluster.start(before, "worker", 1)
    cluster.all_publish()
    newer.pop().end(signal.SIGKILL)
    cluster.all_publish()
    cluster.retire(*older)
    cluster.all_publish()
    cluster.finish()


def test_a_version_that_can_not_run_beside_the_next_one_ends_when_the_schema_is_migrated(
    cluster: Cluster, tmp_path: Path
):
    after = next_version(tmp_path / "after", widens=False)
    cluster.migrate(ROOT)
    apis, workers = cluster.start(ROOT, "api", APIS), cluster.start(ROOT, "worker", WORKERS)
    cluster.begin()
    cluster.migrate(after)
    assert [worker.process.wait(200) for worker in workers] == [78] * WORKERS
    wait_until(lambda: [api.state() for api in apis] == [503] * APIS)
    (restarted,) = cluster.start(ROOT, "worker", 1)
    assert restarted.process.wait(200) == 78
    cluster.start(after, "api", APIS)
    cluster.start(after, "worker", WORKERS)
    cluster.all_publish()
    cluster.retire(*apis)
    cluster.finish()
