"""`perennial up` as a user runs it, killed with -9: what got a 202 is numbered once, in order; nothing is unpaid."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ok, publication, wait_until

ROOT = Path(__file__).parents[2]


class Up:
    """One data folder, started and killed as often as a test likes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, **settings: str) -> None:
        command = [sys.executable, "-m", "service", "up", "--data-dir", str(self.folder), "--port", str(self.port)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
        environment |= {f"PERENNIAL_{name.upper()}": value for name, value in settings.items()}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        wait_until(self.ready, seconds=30)

    def ready(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.url}/readyz", timeout=1).status == 200
        except OSError:
            return False

    def descendants(self) -> dict[int, str]:
        """Every process under the supervisor, by its command."""
        parents, commands = {}, {}
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                try:
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    commands[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    parents[int(path.name)] = int(fields[1])
                except OSError:
                    continue
        found, grew = {self.process.pid}, True
        while grew:
            grew = False
            for pid, parent in parents.items():
                if parent in found and pid not in found:
                    found.add(pid)
                    grew = True
        return {pid: commands[pid] for pid in found - {self.process.pid}}

    def children(self) -> list[int]:
        """The supervisor's own: valkey, postgres, api, worker."""
        return [
            pid
            for pid in self.descendants()
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == self.process.pid
        ]

    def kill(self) -> None:
        """The parent alone; its children must follow by themselves."""
        left = self.descendants()
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))

    def client(self) -> httpx.Client:
        key = (self.folder / "admin.key").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=5)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data of a user")
    running.start()
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(10) == 0


class Producer(threading.Thread):
    """Posts numbered records, repeating what got no answer, and keeps what got a 202."""

    def __init__(self, up: Up, stream: str) -> None:
        super().__init__()
        self.up, self.stream = up, stream
        self.accepted: list[tuple[int, str]] = []
        self.over = threading.Event()

    def run(self) -> None:
        number = 0
        with self.up.client() as client:
            while not self.over.is_set():
                body = {"x": [[number], [number + 0.5]], "y": [0, 1]}
                try:
                    answer = client.post(
                        f"/v1/streams/{self.stream}/records", json=body, headers={"Idempotency-Key": str(number)}
                    )
                except httpx.HTTPError:
                    time.sleep(0.05)
                    continue
                if answer.status_code == 202:
                    self.accepted.append((number, answer.json()["entry"]))
                    number += 1
                else:
                    assert answer.status_code in (409, 503), answer.text
                    time.sleep(0.05)


def check(up: Up, stream: str, names: list[str], accepted: list[tuple[int, str]]) -> None:
    """Every accepted batch has its place, in order, once; every release is paid."""
    with up.client() as client:

        def numbered() -> bool:
            return ok(client.get(f"/v1/streams/{stream}"))["records"] >= 2 * len(accepted)

        wait_until(numbered, seconds=30)
        ranges = [ok(client.get(f"/v1/streams/{stream}/entries/{entry}")) for _, entry in accepted]
        assert ranges == [{"start": 2 * place, "end": 2 * place + 2} for place in range(len(accepted))]
        assert ok(client.get(f"/v1/streams/{stream}"))["records"] == 2 * len(accepted)
        charges = ok(client.get(f"/v1/streams/{stream}/ledger/charges?limit=1000"))["items"]
        paid = {(charge["publication"], charge["version"]) for charge in charges}
        assert len(paid) == len(charges)
        made = {
            (name, release["version"])
            for name in names
            for release in ok(client.get(f"/v1/publications/{name}/releases?limit=1000"))["items"]
        }
        assert made == paid


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_of_anything_loses_doubles_and_forgets_nothing(up: Up):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    with up.client() as client:
        stream = ok(
            client.post(
                "/v1/streams",
                json={
                    "name": "s",
                    "features": 1,
                    "task": {"kind": "classification", "classes": 2},
                    "budget": {"epsilon": 2, "delta": 1e-6},
                },
            ),
            201,
        )["name"]
        mechanisms = [
            ({"kind": "sliding_window", "block": 50, "blocks": 3}, 0),
            ({"kind": "continual", "base": 100, "update_every": 50}, 1e-6),
        ]
        names = [
            ok(client.post("/v1/publications", json=publication(stream, mechanism, delta=delta)), 201)["name"]
            for mechanism, delta in mechanisms
        ]
    producer = Producer(up, stream)
    producer.start()
    try:
        for _ in range(6):  # each child in some order, then some again
            time.sleep(choose.uniform(0.2, 1.0))
            os.kill(choose.choice(up.children()), signal.SIGKILL)
            wait_until(up.ready, seconds=30)
        for _ in range(2):
            time.sleep(choose.uniform(0.2, 1.0))
            up.kill()
            up.start()
        time.sleep(0.5)
    finally:
        producer.over.set()
        producer.join()
    assert len(producer.accepted) > 20
    check(up, stream, names, producer.accepted)
    with up.client() as client:  # and it still publishes
        wait_until(lambda: client.get(f"/v1/publications/{names[0]}/releases/latest").status_code == 200)


@pytest.mark.slow
def test_each_part_alone_comes_back_and_numbering_with_it(up: Up):
    with up.client() as client:
        asked = {"name": "s", "features": 1, "task": {"kind": "classification", "classes": 2}}
        ok(client.post("/v1/streams", json=asked | {"budget": {"epsilon": 1, "delta": 0}}), 201)

    def posted() -> bool:
        with up.client() as client:
            return client.post("/v1/streams/s/records", json={"x": [[1]], "y": [0]}).status_code == 202

    def records() -> int:
        with up.client() as client:
            answer = client.get("/v1/streams/s")
            return answer.json()["records"] if answer.status_code == 200 else -1

    for place in range(4):
        os.kill(min(up.children()), signal.SIGKILL)  # the oldest child: each one has its turn
        wait_until(up.ready, seconds=30)
        wait_until(posted)
        wait_until(lambda wanted=place + 1: records() >= wanted)


@pytest.mark.slow
def test_everything_goes_on_after_an_orderly_stop(up: Up):
    with up.client() as client:
        asked = {"name": "s", "features": 1, "task": {"kind": "classification", "classes": 2}}
        ok(client.post("/v1/streams", json=asked | {"budget": {"epsilon": 1, "delta": 0}}), 201)
        entry = ok(client.post("/v1/streams/s/records", json={"x": [[1]], "y": [0]}), 202)["entry"]
    left = up.descendants()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(10) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    up.start()
    with up.client() as client:
        wait_until(lambda: client.get(f"/v1/streams/s/entries/{entry}").status_code == 200)
