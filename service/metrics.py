"""Every metric there is: its name, its meaning, its labels. Counts, sizes, times and sums; nothing of any record.

What the API counts and what a worker times is kept here; what PostgreSQL and the log know is read when somebody asks.
"""

import asyncio
import contextlib
import socketserver
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.log import Backlog
from service.store.overview import Overview

disable_created_metrics()  # type: ignore[no-untyped-call]

API, WORKER, PROCESS = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
for _collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
    PROCESS.register(_collector)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_BYTES = 16 * 2**20
SECONDS_TO_ANSWER = 1.0
_END = b"# the worker's end\n"

ACCEPTED = Counter("perennial_accepted_records", "Records that this API accepted", ["stream"], registry=API)
HTTP = Histogram(
    "perennial_http_request_duration_seconds",
    "Time until an answer began; one with Prefer: wait=N waits",
    ["method", "route", "status"],
    registry=API,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
LABELS = Counter(
    "perennial_given_labels",
    "Labels that people gave by way of this API, and that were taken",
    ["publication"],
    registry=API,
)
LET_GO = Counter(
    "perennial_http_connections_let_go",
    "Connections that the API closed: slow to send, slow to read, malformed, large head, full",
    ["reason"],
    registry=API,
)
FIT = Histogram(
    "perennial_fit_duration_seconds",
    "Time to fit all that is due at once and draw its noise",
    ["publication"],
    registry=WORKER,
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
PUBLISH = Histogram(
    "perennial_publish_duration_seconds",
    "Time to charge and release what was fitted, in one transaction",
    ["publication"],
    registry=WORKER,
    buckets=(0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
)
FAILURES = Counter(
    "perennial_publish_failures", "Fits that failed unexpectedly and are tried again", ["publication"], registry=WORKER
)
VIOLATIONS = Gauge(
    "perennial_invariant_violations",
    "How often something is not as it must always be; anything but 0 needs a person",
    ["invariant"],
    registry=WORKER,
)


class State(Collector):
    """What the record and the log hold now. None: that one is away."""

    def __init__(self, overview: Overview | None, backlogs: Mapping[str, Backlog] | None, worker: bool | None) -> None:
        self._overview, self._backlogs, self._worker = overview, backlogs, worker

    def collect(self) -> Iterator[Metric]:
        yield _gauge("perennial_database_up", "Whether PostgreSQL answers", [], [([], self._overview is not None)])
        yield _gauge("perennial_log_up", "Whether the log answers", [], [([], self._backlogs is not None)])
        if self._worker is not None:
            yield _gauge("perennial_worker_up", "Whether the worker beside this API answers", [], [([], self._worker)])
        if self._overview is not None:
            yield from self._streams(self._overview)
            yield from self._publications(self._overview)

    def _streams(self, overview: Overview) -> Iterator[Metric]:
        streams = overview.streams
        numbered = CounterMetricFamily(
            "perennial_numbered_records", "Records that have their number", labels=["stream"]
        )
        for each in streams:
            numbered.add_metric([each.name], each.records)
        yield numbered
        halted = [([each.name], each.halted) for each in streams]
        yield _gauge(
            "perennial_stream_halted", "1: nothing more is numbered, an operator must look", ["stream"], halted
        )
        distrusted = [([each.name], each.distrusted) for each in streams]
        yield _gauge(
            "perennial_ledger_distrusted", "1: the ledger does not verify, nothing is published", ["stream"], distrusted
        )
        dead = [([each.name], each.dead_letters) for each in streams]
        yield _gauge(
            "perennial_dead_letters", "Entries of the log that could not be numbered, until dropped", ["stream"], dead
        )
        for name, what in (
            ("budget", "What all publications together may cost any one record, for ever"),
            ("reserved", "What is promised to what runs and has run, on the worst record"),
            ("spent", "What the worst record has spent"),
        ):
            for part in ("epsilon", "delta"):
                values = [([each.name], getattr(each, name)[part]) for each in streams]
                yield _gauge(f"perennial_{name}_{part}", f"{what}: {part}", ["stream"], values)
        declassified = [([each.name], each.declassified) for each in streams]
        yield _gauge(
            "perennial_declassified_records",
            "Records that are no longer protected, since they expired: what they lose is not in spent",
            ["stream"],
            declassified,
        )
        waiting = [([each.name], found) for each in streams if (found := (self._backlogs or {}).get(each.log))]
        for name, what in (
            ("backlog_batches", "Batches on disk in the log that have no numbers yet"),
            ("backlog_bytes", "Their size"),
            ("lag_seconds", "How long the oldest of them has waited"),
        ):
            values = [(labels, getattr(found, name)) for labels, found in waiting]
            yield _gauge(f"perennial_{name}", what, ["stream"], values)

    @staticmethod
    def _publications(overview: Overview) -> Iterator[Metric]:
        labels = ["publication", "stream"]
        for name, what in (
            ("running", "1: it goes on publishing"),
            ("halted", "1: it publishes nothing more, and says why"),
            ("overdue_records", "Records numbered since its next fit had all it needs"),
            ("versions", "Releases, whatever their role"),
        ):
            values = [([each.name, each.stream], getattr(each, name)) for each in overview.publications]
            yield _gauge(f"perennial_publication_{name}", what, labels, values)
        asked = [
            ([each.name, each.stream], each.label_requests.waiting)
            for each in overview.publications
            if each.label_requests is not None
        ]
        yield _gauge(
            "perennial_open_label_requests", "Labels that people are asked for and have not given", labels, asked
        )
        released = [each for each in overview.publications if each.latest is not None]
        for name, attribute, what in (
            ("version", "latest", "Version of the latest model"),
            ("age_seconds", "age_seconds", "Age of the latest model"),
        ):
            values = [([each.name, each.stream], getattr(each, attribute)) for each in released]
            yield _gauge(f"perennial_release_{name}", what, labels, values)


def _gauge(name: str, what: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for value_labels, value in values:
        family.add_metric(value_labels, value)
    return family


def exposition(*registries: Collector) -> bytes:
    """As Prometheus reads it."""
    return b"".join(generate_latest(each) for each in registries)


class _Tell(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(SECONDS_TO_ANSWER)
        with contextlib.suppress(OSError):
            self.request.sendall(exposition(WORKER) + _END)


class _Teller(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class CannotListen(Exception):
    """The address is taken, or not ours."""


@contextlib.contextmanager
def told(socket: Path | None, host: str, port: int | None) -> Iterator[None]:
    """The worker's metrics for whoever connects to this unix socket; without one, over HTTP at this port, if any."""
    try:
        if socket is not None:
            socket.unlink(missing_ok=True)
            server: socketserver.BaseServer = _Teller(str(socket), _Tell)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        elif port is not None:
            everything = CollectorRegistry()
            everything.register(WORKER)
            everything.register(PROCESS)
            server, _ = start_http_server(port, host, everything)
        else:
            yield
            return
    except OSError as error:
        raise CannotListen(f"can't tell metrics on {socket or f'{host}:{port}'} ({error.strerror})") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


async def ask(path: Path) -> bytes | None:
    """What the worker tells on its socket; None if it does not answer, or not in time, or not to the end."""
    try:
        async with asyncio.timeout(SECONDS_TO_ANSWER):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                told = b""
                while (piece := await reader.read(65536)) and len(told) < MOST_BYTES:
                    told += piece
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return told.removesuffix(_END) if told.endswith(_END) else None
