"""Every metric there is: its name, its meaning, its labels. Counts, sizes, times and sums; nothing of any record.

Counts of the API and times of a worker are in this process; numbers of PostgreSQL and of the log are read on demand.
How long a fit takes depends on its records, so times of fits are rounded up to a few steps, and no count tells how
many labels people were asked for.
"""

import asyncio
import contextlib
import errno
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import structlog
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

from service.addresses import cannot_listen
from service.figures.drift_alarms import EvaluatedPublication
from service.ledger.high_water_mark import lost_commits
from service.ledger.overview import Overview
from service.log import LogState
from service.settings import WORKER_METRICS_PORT, Settings

_log = structlog.get_logger(__name__)

T = TypeVar("T")

disable_created_metrics()  # type: ignore[no-untyped-call]

API, WORKER, PROCESS = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
for _collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
    PROCESS.register(_collector)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_BYTES = 16 * 2**20
SECONDS_TO_ANSWER = 1.0
_END = b"# the worker's end\n"

STEPS_SECONDS = (1.0, 10.0, 60.0, 600.0)
BEYOND_STEPS_SECONDS = 3600.0


class SteppedHistogram(Histogram):
    """A histogram of times that are rounded up to `STEPS_SECONDS` first, so that its sum is no finer than its buckets.

    A time above the last step counts as `BEYOND_STEPS_SECONDS`.
    """

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        super().observe(next((step for step in STEPS_SECONDS if amount <= step), BEYOND_STEPS_SECONDS), exemplar)


ACCEPTED = Counter("perennial_accepted_records", "Records that this API accepted", ["stream"], registry=API)
HTTP = Histogram(
    "perennial_http_request_duration_seconds",
    "Time until an answer began; one with Prefer: wait=N waits",
    ["method", "route", "status"],
    registry=API,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
LET_GO = Counter(
    "perennial_http_connections_let_go",
    "Connections that the API closed: slow to send, slow to read, malformed, large head, full",
    ["reason"],
    registry=API,
)
OVER_BOUND = Counter(
    "perennial_over_bound_records",
    "Records that came empty into their slots, since their unit had as many as count, or one too near",
    ["stream"],
    registry=WORKER,
)
FIT = SteppedHistogram(
    "perennial_fit_duration_seconds",
    "Time to fit all that is due at once and draw its noise, rounded up to the next bucket",
    ["publication", "stream"],
    registry=WORKER,
    buckets=STEPS_SECONDS,
)
PUBLISH = SteppedHistogram(
    "perennial_publish_duration_seconds",
    "Time to charge and release what was fitted, in one transaction, rounded up to the next bucket",
    ["publication", "stream"],
    registry=WORKER,
    buckets=STEPS_SECONDS,
)
FAILURES = Counter(
    "perennial_publish_failures",
    "Fits that failed unexpectedly and are tried again",
    ["publication", "stream"],
    registry=WORKER,
)
DEATHS = Counter(
    "perennial_fit_deaths",
    "Processes of fits that were killed or failed; after the second one at a step its publication halts",
    ["publication", "stream"],
    registry=WORKER,
)
TICKS_TAKEN_ANEW = Counter(
    "perennial_ticks_taken_anew",
    "Ticks of finished steps that were too far ahead, since PostgreSQL's clock had been ahead, and were taken anew",
    registry=WORKER,
)
VIOLATIONS = Gauge(
    "perennial_invariant_violations",
    "How often something is not as it must always be; anything but 0 needs a person",
    ["invariant"],
    registry=WORKER,
)


_BY_PUBLICATION = (FIT, PUBLISH, FAILURES, DEATHS)


def begin(publication: str, stream: str) -> None:
    """Create the failure counters of a publication, at 0, before any other metric of it.

    Prometheus sees no increase of a counter that begins above 0.
    """
    FAILURES.labels(publication, stream)
    DEATHS.labels(publication, stream)


def timed_publications() -> set[tuple[str, str]]:
    """Return the publications that this worker has metrics of, each by its name and its stream's."""
    samples = (sample.labels for family in FAILURES.collect() for sample in family.samples)
    return {(labels["publication"], labels["stream"]) for labels in samples}


def forget_publications(ended: Iterable[tuple[str, str]]) -> None:
    """Drop this worker's metrics of publications that ended; it would export them for as long as it runs."""
    for publication, stream in ended:
        for gauge in _BY_PUBLICATION:
            gauge.remove(publication, stream)


class ServiceState(Collector):
    """The present state of PostgreSQL and of the log; None where a server is unreachable."""

    def __init__(
        self,
        overview: Overview | None,
        log: LogState,
        worker: bool | None,
        judged: Sequence[EvaluatedPublication] = (),
        *,
        database: bool,
    ) -> None:
        self._overview, self._log, self._worker, self._judged = overview, log, worker, judged
        self._database = database

    def collect(self) -> Iterator[Metric]:
        yield _gauge("perennial_database_up", "Whether PostgreSQL answers and takes writes", [], [([], self._database)])
        up = self._log.up
        yield _gauge(
            "perennial_log_up",
            "Whether every primary of the log answers and takes writes",
            [],
            [([], all(up.values()) and bool(up))],
        )
        each_up = [([str(number)], answers) for number, answers in up.items()]
        yield _gauge(
            "perennial_log_primary_up", "Whether this primary of the log answers and takes writes", ["primary"], each_up
        )
        used = [([str(number)], memory.used_bytes) for number, memory in self._log.memory.items()]
        yield _gauge("perennial_log_memory_bytes", "Memory that this primary of the log uses", ["primary"], used)
        bounded = [([str(number)], memory.max_bytes) for number, memory in self._log.memory.items() if memory.max_bytes]
        yield _gauge(
            "perennial_log_memory_limit_bytes",
            "Its `maxmemory`, at which it refuses all records; none: it has no such limit",
            ["primary"],
            bounded,
        )
        if self._worker is not None:
            yield _gauge("perennial_worker_up", "Whether the worker beside this API answers", [], [([], self._worker)])
        if self._overview is not None:
            yield from self._streams(self._overview)
            yield from self._publications(self._overview)
            yield from self._evaluations(self._judged)

    def _streams(self, overview: Overview) -> Iterator[Metric]:
        totals = overview.streams
        numbered = CounterMetricFamily(
            "perennial_numbered_records", "Records that have their number", labels=["stream"]
        )
        for total in totals:
            numbered.add_metric([total.stream.name], total.stream.records)
        yield numbered
        halted = [([total.stream.name], total.stream.halted is not None) for total in totals]
        yield _gauge(
            "perennial_stream_halted", "1: nothing more is numbered, an operator must look", ["stream"], halted
        )
        distrusted = [([total.stream.name], total.stream.distrusted is not None) for total in totals]
        yield _gauge(
            "perennial_ledger_distrusted", "1: the ledger does not verify, nothing is published", ["stream"], distrusted
        )
        lost = [([total.stream.name], lost_commits(total.stream.distrusted)) for total in totals]
        yield _gauge("perennial_commits_lost", "1: PostgreSQL lacks commits that were published", ["stream"], lost)
        dead = [([total.stream.name], total.dead_letters) for total in totals]
        yield _gauge(
            "perennial_dead_letters", "Entries of the log that could not be numbered, until dropped", ["stream"], dead
        )
        sums = [(total.stream.name, total.sums) for total in totals]
        for name, what in (
            ("budget", "The most that all publications together may cost any one record, for ever"),
            ("reserved", "The most that publications, running or ended, reserve on any record"),
            ("spent", "The most spent by any record or unit"),
        ):
            for part in ("epsilon", "delta", "rho"):
                values = [([stream], shown[name][part]) for stream, shown in sums if part in shown[name]]
                yield _gauge(f"perennial_{name}_{part}", f"{what}: {part}", ["stream"], values)
        declassified = [([total.stream.name], total.declassified) for total in totals]
        yield _gauge(
            "perennial_declassified_records",
            "Records that are no longer protected, since they expired: what they lose is not in spent",
            ["stream"],
            declassified,
        )
        primaries = self._log.primaries
        placed = [
            ([total.stream.name], primaries[total.stream.log]) for total in totals if total.stream.log in primaries
        ]
        yield _gauge("perennial_stream_primary", "Number of the primary that holds its log", ["stream"], placed)
        backlogs = self._log.backlogs
        waiting = [([total.stream.name], backlog) for total in totals if (backlog := backlogs.get(total.stream.log))]
        for name, what in (
            ("backlog_batches", "Batches on disk in the log that have no numbers yet"),
            ("backlog_bytes", "Their size"),
            ("lag_seconds", "How long the oldest of them has waited"),
        ):
            values = [(labels, getattr(backlog, name)) for labels, backlog in waiting]
            yield _gauge(f"perennial_{name}", what, ["stream"], values)

    @staticmethod
    def _publications(overview: Overview) -> Iterator[Metric]:
        """Yield metrics of publications; for ended ones only whether they halted, since their number keeps growing."""
        labels = ["publication", "stream"]
        running = [publication for publication in overview.publications if publication.running]
        released = [publication for publication in running if publication.latest is not None]
        fitting = [publication for publication in running if publication.fitting_seconds is not None]
        waiting = [publication for publication in running if publication.waiting_seconds is not None]
        for name, attribute, what, of_which in (
            ("publication_running", "running", "1: it goes on publishing", overview.publications),
            ("publication_halted", "halted", "1: it publishes nothing more, and says why", overview.publications),
            (
                "publication_overdue_records",
                "overdue_records",
                "Records numbered since its next fit had all it needs and its tick has come",
                running,
            ),
            ("fit_running_seconds", "fitting_seconds", "How long a worker has been at the next fit", fitting),
            (
                "fit_waiting_seconds",
                "waiting_seconds",
                "How long the next fit, whose records are all there, has waited for a free worker",
                waiting,
            ),
            ("publication_versions", "versions", "Releases, whatever their role, while it runs", running),
            ("release_version", "latest", "Version of the latest model, while it runs", released),
            ("release_age_seconds", "age_seconds", "Age of the latest model, while it runs", released),
        ):
            values = [
                ([publication.name, publication.stream], getattr(publication, attribute)) for publication in of_which
            ]
            yield _gauge(f"perennial_{name}", what, labels, values)

    @staticmethod
    def _evaluations(judged: Sequence[EvaluatedPublication]) -> Iterator[Metric]:
        """Yield the figures of evaluated publications, which an evaluation has released, so that they are public."""
        for name, what in (
            ("accuracy", "Share of records whose class it predicts right, in the newest block of a running evaluation"),
            ("absolute_error", "Mean absolute error of a regression, likewise"),
            ("low", "Lower end of that figure's interval of 95 %"),
            ("high", "Upper end of that interval"),
            ("baseline", "Accuracy of always saying the commonest class"),
            ("drift", "1: the newest block is worse than the blocks before it"),
            ("worse", "1: the newest version is worse than the version before it"),
        ):
            values = [
                ([publication.publication, publication.evaluation, publication.stream], value)
                for publication in judged
                if (value := getattr(publication, name)) is not None
            ]
            yield _gauge(f"perennial_evaluation_{name}", what, ["publication", "evaluation", "stream"], values)


def _gauge(name: str, what: str, labels: list[str], values: Iterable[tuple[list[str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for value_labels, value in values:
        family.add_metric(value_labels, value)
    return family


def exposition(*registries: Collector) -> bytes:
    """Return the metrics of the registries in Prometheus's text format."""
    return b"".join(generate_latest(registry) for registry in registries)


class _Tell(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.settimeout(SECONDS_TO_ANSWER)
        with contextlib.suppress(OSError):
            self.request.sendall(exposition(WORKER) + _END)


class _Teller(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class CannotListen(Exception):
    """Raised where the address is in use, or not of this machine."""


def open_port(settings: Settings, default: int, listen: Callable[[str, int], T]) -> T | None:
    """Return what `listen(host, port)` returns; None if metrics have no port.

    If another process has the default port, the service runs without one and logs a warning.

    Args:
        default: the port if `metrics_port` is not set.
        listen: starts to listen.

    Raises:
        CannotListen: `listen` failed for any other reason.
    """
    host, port = settings.metrics_host, default if settings.metrics_port is None else settings.metrics_port
    if port == 0:
        return None
    try:
        return listen(host, port)
    except OSError as error:
        if settings.metrics_port is None and error.errno == errno.EADDRINUSE:
            _log.warning("metrics_port_in_use", host=host, port=port, setting="PERENNIAL_METRICS_PORT")
            return None
        raise CannotListen(
            cannot_listen(host, port, error, "PERENNIAL_METRICS_HOST", "PERENNIAL_METRICS_PORT")
        ) from None


@contextlib.contextmanager
def worker_serving(settings: Settings) -> Iterator[None]:
    """Serve the worker's metrics: on the unix socket `worker_metrics` if that is set, else over HTTP."""
    server = (
        open_port(settings, WORKER_METRICS_PORT, _listen_http)
        if settings.worker_metrics is None
        else _listen_unix(settings.worker_metrics)
    )
    try:
        yield
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
        if settings.worker_metrics is not None:
            settings.worker_metrics.unlink(missing_ok=True)


def _listen_unix(path: Path) -> socketserver.BaseServer:
    try:
        path.unlink(missing_ok=True)
        server = _Teller(str(path), _Tell)
    except OSError as error:
        raise CannotListen(f"can't listen on {path} ({error.strerror})") from None
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()
    return server


def _listen_http(host: str, port: int) -> socketserver.BaseServer:
    everything = CollectorRegistry()
    everything.register(WORKER)
    everything.register(_WorkerProcess())
    server, _ = start_http_server(port, host, everything)
    return server


class _WorkerProcess(Collector):
    """Metrics of the worker's process, without its processor time, from which the time of fits could be read.

    The garbage collector's counters are left out, too: they grow with the work that a fit does.
    """

    def collect(self) -> Iterator[Metric]:
        yield from PLATFORM_COLLECTOR.collect()
        yield from (family for family in PROCESS_COLLECTOR.collect() if family.name != "process_cpu_seconds")


async def ask(path: Path) -> bytes | None:
    """Return the worker's metrics from its socket; None if it does not answer completely and in time."""
    try:
        async with asyncio.timeout(SECONDS_TO_ANSWER):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                text = b""
                while (piece := await reader.read(65536)) and len(text) < MOST_BYTES:
                    text += piece
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    return text.removesuffix(_END) if text.endswith(_END) else None
