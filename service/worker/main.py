"""One worker process: a sealer for each primary, publishers, what keeps them informed, audits, an explorer."""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from service import metrics
from service.log import LogUnavailable, LogUnsuitable, open_readers, probe, read_primaries
from service.logs import Outage
from service.segments.files import StoreUnsuitable
from service.segments.places import open_segments
from service.settings import Settings
from service.store.database import (
    CONFIRM,
    FREE_STREAM,
    NEW_LABELS,
    NEW_PUBLICATION,
    NEW_RECORDS,
    Database,
    DatabaseUnavailable,
)
from service.store.schema_version import SchemaNarrowed
from service.tracebacks import place_of
from service.worker.context import WorkerContext
from service.worker.explorer import Explorer
from service.worker.leases import LeaseKeeper
from service.worker.listener import Listener
from service.worker.publisher import Publisher
from service.worker.sealer import Sealer

CONFIGURATION_ERROR = 78  # sysexits.h: EX_CONFIG; whoever supervises need not try again
M_ARENA_MAX = -8  # malloc.h
SECONDS_TO_FINISH = 4.0  # then a fit that still runs is dropped; nothing of it was shown

_log = structlog.get_logger(__name__)


def work(settings: Settings, stop: threading.Event) -> None:
    """Seals and publishes until `stop` is set.

    Args:
        settings: with both server URLs set.
        stop: what is under way when it is set and not committed within seconds is dropped; nothing is lost by that.

    Raises:
        SchemaNarrowed: a migration left the schema to newer versions of the service.
    """
    assert settings.database_url is not None  # noqa: S101 - `perennial worker` checked
    assert settings.redis_url is not None  # noqa: S101
    primaries = read_primaries(settings.redis_url)
    _await("log", primaries.refresh, stop)
    if stop.is_set():
        return
    readers = open_readers(primaries)
    connections = settings.publishers + settings.explorations + 7 + 2 * len(readers)
    database = Database(settings.database_url, connections=connections)
    files = open_segments(settings)
    _await("segment store", files.probe, stop)
    keeper = LeaseKeeper(database, seconds=settings.lease_seconds)
    context = WorkerContext(database, files, keeper, settings.dask_scheduler)
    keeper.start(end=stop)
    sealers = [Sealer(database, reader, files, keeper) for reader in readers]

    def look_for_streams(_: str) -> None:
        for sealer in sealers:
            sealer.look_soon()

    listener = Listener(
        database,
        {
            **dict.fromkeys((NEW_RECORDS, NEW_PUBLICATION, NEW_LABELS), lambda _: context.dispatcher.wake()),
            CONFIRM: lambda stream: context.confirmer.soon(int(stream)),
            FREE_STREAM: look_for_streams,
        },
    )
    jobs = [sealer.run for sealer in sealers]
    jobs += [listener.run, context.dispatcher.run, context.audit.run, context.audit.walk_on]
    jobs += [context.confirmer.run, context.ticker.run]
    jobs += [Publisher(context).run for _ in range(settings.publishers)]
    jobs += [Publisher(context, short=True).run]
    jobs += [Explorer(database, keeper).run for _ in range(settings.explorations)]
    threads = [threading.Thread(target=_until_stopped, args=(job, stop), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    stop.wait()
    context.dispatcher.close()
    context.ticker.ring()
    deadline = time.monotonic() + SECONDS_TO_FINISH
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    keeper.stop()
    for reader in readers:
        reader.close()
    database.close()
    if keeper.narrowed:
        raise SchemaNarrowed


def run(settings: Settings) -> int:
    """Works until SIGINT or SIGTERM; returns the exit status."""
    _share_arenas()
    stop = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stop.set())
    try:
        probe(read_primaries(str(settings.redis_url)))
        with metrics.worker_serving(settings):
            work(settings, stop)
    except (metrics.CannotListen, StoreUnsuitable, LogUnsuitable, SchemaNarrowed) as error:
        print(f"perennial: {error}", file=sys.stderr)  # noqa: T201
        return CONFIGURATION_ERROR
    return 0


def _share_arenas() -> None:
    """Let all threads share two of glibc's arenas; else each reserves 64 MiB of addresses, which `ulimit -v` counts."""
    with suppress(AttributeError, OSError):  # another C library has none
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def _await(part: str, ask: Callable[[], None], stop: threading.Event) -> None:
    """Ask a part until it answers, or `stop` is set."""
    outage = Outage(part)
    while not stop.is_set():
        try:
            ask()
        except (OSError, LogUnavailable, DatabaseUnavailable) as error:
            outage.begin(str((error.strerror if isinstance(error, OSError) else None) or error))
            stop.wait(1.0)
        else:
            outage.end()
            return


def _until_stopped(job: Callable[[threading.Event], None], stop: threading.Event) -> None:
    """A job that fails in a way nobody foresaw is logged, without the values it failed on, and starts again."""
    while not stop.is_set():
        try:
            job(stop)
        except Exception as error:  # noqa: BLE001
            _log.error("job_failed", error=type(error).__name__, at=place_of(error))
            stop.wait(1.0)
