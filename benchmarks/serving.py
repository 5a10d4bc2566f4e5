"""The service and the bare handler as processes of their own, on loopback, and clients that cost little themselves."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx
from matplotlib.figure import Figure

from benchmarks import results
from service.embedded import embedded_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

COLOURS = ("#0072B2", "#999999")  # Okabe and Ito's, which the colour-blind can tell apart
READY_SECONDS = 30.0
ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Service:
    """A running API, perhaps a worker, and the bare handler, all on the same Valkey."""

    port: int
    bare_port: int
    key: str
    redis_url: str
    database_url: str
    worker_log: Path
    client: httpx.Client = field(repr=False)
    worker: Callable[[], contextlib.AbstractContextManager[subprocess.Popen[bytes]]] = field(repr=False)
    """Start one more worker, which ends with the block."""

    def make(self, kind: str, settings: Mapping[str, Any]) -> str:
        """Make a stream or publication; return its name."""
        answer = self.client.post(f"/v1/{kind}", json={"name": f"{kind}-{secrets.token_hex(4)}", **settings})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["name"])

    def stream(self, features: int, *, retention: str = "keep") -> str:
        """Make a stream of two classes; return its name."""
        return self.make(
            "streams",
            {
                "features": features,
                "task": {"kind": "classification", "classes": 2},
                "retention": retention,
                "budget": {"epsilon": 10, "delta": 0},
            },
        )

    def publish(self, stream: str, *, block: int, regularization: float, publish_delay: float = 0) -> str:
        """Make a publication that releases a model of every block of records; return its name."""
        return self.make(
            "publications",
            {
                "stream": stream,
                "mechanism": {"kind": "sliding_window", "block": block, "blocks": 1},
                "learner": {"kind": "output_perturbation", "regularization": regularization},
                "privacy": {"epsilon": 1, "delta": 0},
                "publish_delay": publish_delay,
            },
        )

    def await_release(self, publication: str) -> None:
        """Wait until the publication has a release."""
        _await_answer(self.client, f"/v1/publications/{publication}/releases/latest")

    def metric(self, name: str) -> float:
        """Return the sum of all series of a metric."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Return a whole request as it is sent, with the key."""
        return request(method, path, body, authorization=f"Bearer {self.key}", **headers)


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Return a whole request as it is sent."""
    if body:
        headers["content-length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def service(*, worker: bool, **settings: object) -> Iterator[Service]:
    """Yield a running service on a fresh folder; `settings` are the service's."""
    folder = Path(tempfile.mkdtemp(prefix="perennial-benchmark-"))
    port, bare_port, key = _free_port(), _free_port(), secrets.token_urlsafe(32)
    try:
        with embedded_servers(folder / "data") as servers, contextlib.ExitStack() as stack:
            wanted = {
                "redis_url": servers.redis_url,
                "database_url": servers.database_url,
                "admin_key": key,
                "port": port,
                "metrics_port": 0,
                "segment_store": folder / "segments",
            }
            environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
            environment |= {f"PERENNIAL_{name.upper()}": str(value) for name, value in (wanted | settings).items()}
            program = [sys.executable, "-m", "service"]
            subprocess.run([*program, "migrate"], env=environment, check=True)
            stack.enter_context(_process([*program, "api"], environment, folder / "api.log"))
            stack.enter_context(
                _process([sys.executable, "-m", "benchmarks.bare", str(bare_port), servers.redis_url], environment)
            )
            log = folder / "worker.log"
            if worker:
                stack.enter_context(_process([*program, "worker"], environment, log))
            client = stack.enter_context(
                httpx.Client(
                    base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}, trust_env=False
                )
            )
            _await_answer(client, "/readyz")
            _await_answer(client, f"http://127.0.0.1:{bare_port}/")
            start = partial(_process, [*program, "worker"], environment, log)
            yield Service(port, bare_port, key, servers.redis_url, servers.database_url, log, client, start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _process(
    command: list[str], environment: Mapping[str, str], log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("ab")) if log else None
        process = subprocess.Popen(command, env=environment, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_answer(client: httpx.Client, url: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        with contextlib.suppress(httpx.TransportError):
            if client.get(url).status_code == 200:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} does not answer")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Connection:
    """Sends bytes that were made before and reads whole answers, with as little in between as Python allows."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, sent: bytes, status: int) -> bytes:
        """Return the answer's head and body; its status must be the expected one."""
        answer = self.answer(sent)
        if status_of(answer) != status:
            raise RuntimeError(f"{status} was expected: {answer[:500]!r}")
        return answer

    def answer(self, sent: bytes) -> bytes:
        """Return the answer's head and body."""
        self._socket.sendall(sent)
        answer = self._socket.recv(65536)
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._more()
        if (length := answer[:end].lower().find(b"content-length:")) >= 0:
            whole = end + 4 + int(answer[length + 15 : answer.index(b"\r", length)])
            while len(answer) < whole:
                answer += self._more()
        return answer

    def _more(self) -> bytes:
        if piece := self._socket.recv(65536):
            return piece
        raise RuntimeError("the connection was closed")


def status_of(answer: bytes) -> int:
    """Return the status in the head of an answer."""
    return int(answer[9:12])


def picture(file: str, title: str, axis: str, groups: Sequence[str], heights: Mapping[str, Sequence[float]]) -> None:
    """Save grouped bars as a small SVG beside the scripts: a group per place, a colour per series."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(heights)
    for index, (series, values) in enumerate(heights.items()):
        places = [group + (index - (len(heights) - 1) / 2) * width for group in range(len(groups))]
        axes.bar(places, values, width, label=series, color=COLOURS[index])
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(axis)
    axes.set_title(title)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    results.save(figure, Path(__file__).with_name(file), "perennial")


@dataclass(frozen=True)
class Turn:
    """The measures of one turn."""

    rate: float  # answers per second
    client: float  # part of one core that the client took
    requests: int


def turn(port: int, sent: bytes, status: int, *, seconds: float, connections: int) -> Turn:
    """Send the same request again and again over several connections, each waiting for its answer."""
    counts = [0] * connections
    barrier = threading.Barrier(connections + 1)

    def repeat(index: int) -> None:
        with Connection(port) as connection:
            connection.ask(sent, status)
            barrier.wait(ANSWER_SECONDS)
            while time.perf_counter() < until:
                connection.ask(sent, status)
                counts[index] += 1

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(connections)]
    for thread in threads:
        thread.start()
    until = 0.0  # nobody looks before all have passed the barrier
    busy, began = time.process_time(), time.perf_counter()
    until = began + seconds
    barrier.wait(ANSWER_SECONDS)
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    return Turn(sum(counts) / took, (time.process_time() - busy) / took, sum(counts) + connections)
