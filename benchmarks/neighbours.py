"""Measure how a flood, a too large fit and two long fits slow everybody else: one `perennial up`, as users start it.

    python -m benchmarks.neighbours [flood] [memory] [fits]

flood: 250 clients at once send 16 KB of gzip that unpack to 16 MB. memory: the worker may have 400 MB (root of a Linux
with control groups), and a publication fits 4·10^6 records of 32 features, which are 512 MB. fits: two fits that take
minutes hold both places of the worker; on another stream a model of window statistics is due every 100 records; then
one of the long publications is stopped, and the next one begins.

The latencies of `/livez` and `GET latest` are compared with those at rest, in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from benchmarks.serving import Connection, _await_answer, _free_port, request, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTS = ("flood", "memory", "fits")
AT_REST_SECONDS = 5.0
BETWEEN_PROBES_SECONDS = 0.01
HANG_SECONDS = 900.0
FLOOD_CLIENTS, FLOOD_BYTES, FLOOD_RECORDS = 250, 16 * 10**6, 10**5
LIMIT_BYTES = 400 * 2**20
MANY, WIDE = 4 * 10**6, 32
BATCH = 50_000
LONG_RECORDS, LONG_STEPS = 100_000, 10_000
MODELS = 30


@dataclass(frozen=True)
class Up:
    """A running service."""

    process: subprocess.Popen[bytes]
    port: int
    key: str
    client: httpx.Client

    def make(self, kind: str, **settings: Any) -> str:
        """Make a stream or a publication; return its name."""
        self.client.post(f"/v1/{kind}", json=settings).raise_for_status()
        return str(settings["name"])

    def stream(self, name: str, features: int) -> str:
        """Make a stream of two classes."""
        task = {"kind": "classification", "classes": 2}
        return self.make("streams", name=name, features=features, task=task, budget={"epsilon": 9, "delta": 1e-5})

    def statistics(self, stream: str) -> str:
        """Make a publication of window statistics, due every 100 records."""
        return self.make(
            "publications",
            name=f"{stream}-models",
            stream=stream,
            mechanism={"kind": "window_statistics", "block": 100, "blocks": 5},
            learner={"kind": "output_perturbation"},
            privacy={"epsilon": 1, "delta": 1e-6},
            publish_delay=0,
        )

    def append(self, stream: str, records: int, features: int) -> None:
        """Append so many records."""
        generator = np.random.default_rng()
        while records > 0:
            size = min(records, BATCH * 32 // features)
            x = generator.normal(size=(size, features)).round(2)
            body = {"x": x.tolist(), "y": (x[:, 0] > 0).astype(int).tolist()}
            answer = self.client.post(f"/v1/streams/{stream}/records", json=body)
            if answer.status_code == 429:
                time.sleep(1.0)
                continue
            answer.raise_for_status()
            records -= size

    def publication(self, name: str) -> dict[str, Any]:
        """Return a publication's JSON."""
        answer = self.client.get(f"/v1/publications/{name}")
        answer.raise_for_status()
        return dict(answer.json())

    def worker(self) -> int:
        """Return the worker's process id."""
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ")
                if parent == self.process.pid and b"service worker" in command:
                    return int(path.name)
        raise LookupError("there is no worker")


@contextlib.contextmanager
def up(folder: Path) -> Iterator[Up]:
    """Start everything on a fresh folder."""
    port, key = _free_port(), "k" * 43
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    command = [sys.executable, "-m", "service", "up", "--port", str(port), "--data-dir", str(folder / "data")]
    environment |= {"PERENNIAL_ADMIN_KEY": key, "PERENNIAL_METRICS_PORT": "0"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
    try:
        headers = {"Authorization": f"Bearer {key}"}
        address = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=address, headers=headers, trust_env=False, timeout=60.0) as client:
            _await_answer(client, "/readyz")
            yield Up(process, port, key, client)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def probing(running: Up, path: str) -> Iterator[list[float]]:
    """Send a request again and again during the block; append each answer's milliseconds to the yielded list."""
    took: list[float] = []
    stop = threading.Event()
    sent = request("GET", path, authorization=f"Bearer {running.key}")

    def probe() -> None:
        with Connection(running.port) as connection:
            while not stop.wait(BETWEEN_PROBES_SECONDS):
                began = time.perf_counter()
                connection.ask(sent, 200)
                took.append(1000 * (time.perf_counter() - began))

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield took
    finally:
        stop.set()
        thread.join()


def beside(running: Up, latest: str, what: Callable[[], None]) -> str:
    """Run the function; return the 99th percentiles of the times of `/livez` and `latest` meanwhile."""
    with probing(running, "/livez") as lives, probing(running, latest) as models:
        what()
    return f"/livez {_summary(lives)}, latest {_summary(models)}"


def _summary(took: list[float]) -> str:
    return f"median {statistics.median(took):.1f} ms, p99 {statistics.quantiles(took, n=100)[-1]:.1f} ms of {len(took)}"


def until(condition: Callable[[], bool]) -> float:
    """Wait for something; return how many seconds that took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + HANG_SECONDS:
            raise TimeoutError
        time.sleep(0.02)
    return time.monotonic() - began


def flood(running: Up) -> None:
    """Send many bodies at once that unpack to a thousand times their size; from a process of its own."""
    stream = running.stream("flooded", 2)
    command = [sys.executable, "-c", "from benchmarks.neighbours import send_flood; send_flood()"]
    subprocess.run([*command, str(running.port), f"/v1/streams/{stream}/records", running.key], check=True)


def send_flood() -> None:
    """Send it to the port, path and with the key that the command names; print how often which status came back.

    A client library would take more of the processors than the service: 20 ms for each of its connections.
    """
    port, path, key = sys.argv[1:]
    line = b'{"x": [0, 0], "y": 0}'.ljust(FLOOD_BYTES // FLOOD_RECORDS - 1) + b"\n"
    packed = gzip.compress(line * FLOOD_RECORDS, 9)
    headers = {"content_type": "application/x-ndjson", "content_encoding": "gzip", "authorization": f"Bearer {key}"}
    sent = request("POST", path, packed, **headers)
    counts: Counter[int] = Counter()

    def send() -> None:
        with Connection(int(port)) as connection:
            counts[status_of(connection.answer(sent))] += 1

    threads = [threading.Thread(target=send) for _ in range(FLOOD_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"flood: {FLOOD_CLIENTS} bodies of {len(packed)} bytes answered {dict(counts)}")


def large(running: Up) -> None:
    """Append the records of a too large fit, which keeps this process too busy to measure anything."""
    stream = running.stream("large", WIDE)
    running.append(stream, MANY, WIDE)
    until(lambda: running.client.get(f"/v1/streams/{stream}").json()["records"] == MANY)


def memory(running: Up) -> None:
    """Fit more than the worker may hold."""
    worker = running.worker()
    group = Path("/sys/fs/cgroup/memory/perennial-benchmark")
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
    (group / "cgroup.procs").write_text(str(worker))
    running.make(
        "publications",
        name="large",
        stream="large",
        start=0,
        mechanism={"kind": "continual", "base": MANY, "update_every": 10**6},
        learner={"kind": "output_perturbation"},
        privacy={"epsilon": 1, "delta": 0},
    )

    def ended() -> bool:
        seen = running.publication("large")
        return seen["state"] == "halted" or seen["latest"] is not None

    seconds = until(ended)
    seen = running.publication("large")
    print(f"memory: after {seconds:.0f} s {seen['state']}, newest version {seen['latest']}: {seen['reason']}")
    print(f"memory: the same worker lives: {running.worker() == worker}")


def fits(running: Up) -> None:
    """Release models beside two fits that take minutes; stop one of them."""
    stream = running.stream("long", WIDE)
    running.append(stream, LONG_RECORDS, WIDE)
    until(lambda: running.client.get(f"/v1/streams/{stream}").json()["records"] == LONG_RECORDS)
    for name in ("long-1", "long-2", "long-3"):
        running.make(
            "publications",
            name=name,
            stream=stream,
            start=0,
            mechanism={"kind": "independent_batches", "batch": LONG_RECORDS},
            learner={"kind": "output_perturbation", "solver": "gradient_descent", "steps": LONG_STEPS},
            privacy={"epsilon": 1, "delta": 0},
        )
    names = ("long-1", "long-2", "long-3")

    def states() -> list[str]:
        return [(running.publication(name)["fit"] or {}).get("state", "none") for name in names]

    until(lambda: sorted(states()) == ["fitting", "fitting", "waiting"])
    other = running.stream("other", 4)
    models = running.statistics(other)
    seconds = []
    for number in range(MODELS):
        running.append(other, 100, 4)
        seconds.append(until(lambda: (running.publication(models)["latest"] or 0) > number))  # noqa: B023
    print(f"fits: {MODELS} models beside two long fits, from POST to GET: worst {max(seconds):.2f} s")
    first = names[states().index("fitting")]
    running.client.delete(f"/v1/publications/{first}").raise_for_status()
    freed = until(lambda: states().count("fitting") == 2)
    print(f"fits: after a stop the next long fit began within {freed:.2f} s; {states()}")


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=PARTS, default=PARTS)
    with tempfile.TemporaryDirectory() as folder, up(Path(folder)) as running:
        probed = running.stream("probed", 4)
        models = running.statistics(probed)
        running.append(probed, 100, 4)
        until(lambda: running.publication(models)["latest"] is not None)
        latest = f"/v1/publications/{models}/releases/latest"
        print(f"at rest: {beside(running, latest, lambda: time.sleep(AT_REST_SECONDS))}")
        parts = parser.parse_args().parts
        if "memory" in parts:
            large(running)
        for part in parts:
            print(f"{part}: {beside(running, latest, lambda: globals()[part](running))}", flush=True)  # noqa: B023


if __name__ == "__main__":
    main()
