"""Workers and APIs as processes of their own on the servers of a `World`, forked from one that has loaded everything.

`perennial up` and its processes are in up.py; these start in a hundredth of the time, and can be told where to die.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.conftest import wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess
    from multiprocessing.sharedctypes import Synchronized

    from service.settings import Settings
    from tests.faults.steps import When

Moment = tuple[str, "When"]
"""A step and on which side of it."""

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["__main__", "service.worker.main", "service.api.http.server", "tests.faults.processes", "tests.faults.steps"]
)


def start_worker(
    settings: Settings,
    at: Moment | None = None,
    send: signal.Signals = signal.SIGKILL,
    *,
    since: Moment | None = None,
) -> BaseProcess:
    """A worker, which sends itself the signal when it first comes to the moment, or first after the moment `since`."""
    process = _server.Process(target=_work, args=(settings, at, send, since), daemon=True)
    process.start()
    return process


@contextmanager
def working(settings: Settings) -> Iterator[BaseProcess]:
    """A worker that nothing happens to, for as long as the block runs."""
    process = start_worker(settings)
    yield process
    end(process)


class Api:
    """An API, which sends itself a signal when it first comes to the moment after it was told that now is the time.

    send: that signal. plant: a bug of tests/guarantees/planted for this process. It counts its transactions and the
    queries that it compares with records.
    """

    def __init__(
        self,
        settings: Settings,
        at: Moment | None = None,
        *,
        send: signal.Signals = signal.SIGKILL,
        plant: str | None = None,
    ) -> None:
        settings = settings.model_copy(update={"port": free_port()})
        self.url = f"http://127.0.0.1:{settings.port}"
        self._now = _server.Event()
        self._key = settings.admin_key.get_secret_value()
        self._transactions, self._comparisons = _server.Value("Q"), _server.Value("Q")
        counters = self._transactions, self._comparisons
        self.process = _server.Process(
            target=_serve, args=(settings, at, send, self._now, counters, plant), daemon=True
        )
        self.process.start()
        wait_until(self._ready)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self._key}"}, timeout=200)

    def now(self) -> None:
        self._now.set()

    @property
    def transactions(self) -> int:
        """How many transactions it has begun."""
        return self._transactions.value

    @property
    def comparisons(self) -> int:
        """How many queries it has compared."""
        return self._comparisons.value

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.HTTPError:
            return False


def end(process: BaseProcess) -> None:
    """As SIGTERM does, and it does not take long."""
    process.terminate()
    process.join(200)
    assert process.exitcode in (0, -signal.SIGTERM)  # uvicorn ends as what told it to end would have ended it


def died(process: BaseProcess) -> None:
    """Waits until it killed itself."""
    process.join(200)
    assert process.exitcode == -signal.SIGKILL, "it never came there"


def has_stopped(pid: int) -> bool:
    """Whether a process has been stopped by a signal and not gone on since; one that has ended has not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _work(settings: Settings, at: Moment | None, send: signal.Signals, since: Moment | None) -> None:
    from service import logs
    from service.publishing import commit
    from service.store import numbering
    from service.worker import main, sealer

    logs.configure("warning")
    if at is not None:
        sealer.BATCHES_AT_ONCE = 1  # so that few batches make many segments, which are merged
        if send == signal.SIGSTOP:  # PostgreSQL ends its transaction sooner than after a minute
            numbering.SECONDS_TO_SEAL = commit.SECONDS_TO_COMMIT
        _arm(at, send, since=since)
    raise SystemExit(main.run(settings))


def _serve(
    settings: Settings,
    at: Moment | None,
    send: signal.Signals,
    now: multiprocessing.synchronize.Event,
    counters: tuple[Synchronized[int], Synchronized[int]],
    plant: str | None,
) -> None:
    from service import logs
    from service.api.http import server
    from service.privacy.noise.sparse_vector import Instance
    from service.store.database import Database
    from tests.guarantees import planted

    logs.configure("warning")
    if plant is not None:
        planted.BUGS[plant].plant()
    for counter, owner, name in zip(counters, (Database, Instance), ("transaction", "is_above"), strict=True):
        _count(counter, owner, name)
    if at is not None:
        _arm(at, send, now)
    raise SystemExit(server.serve(settings))


def _count(counter: Synchronized[int], owner: Any, name: str) -> None:
    """From now on count the calls of a method."""
    true = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        with counter:
            counter.value += 1
        return true(*args, **options)

    setattr(owner, name, counted)


def _gate_of_marks() -> threading.RLock:
    """Hold what a thread holds while it writes a mark: to be stopped there has a test of its own."""
    from service.segments.files import SegmentFiles

    gate, real = threading.RLock(), SegmentFiles.high_water_mark_lock

    @contextmanager
    def lock(self: SegmentFiles, log: str) -> Iterator[None]:
        with gate, real(self, log):
            yield

    SegmentFiles.high_water_mark_lock = lock  # type: ignore[method-assign]
    return gate


def _arm(
    at: Moment,
    send: signal.Signals,
    now: multiprocessing.synchronize.Event | None = None,
    since: Moment | None = None,
) -> None:
    from tests.faults.steps import instrument

    left, awaited = [at], [] if since is None else [since]
    while_no_other_writes_a_mark = _gate_of_marks()

    def reach(step: str, when: When) -> None:
        if (step, when) in awaited:
            awaited.clear()
        if left and not awaited and (step, when) == at and (now is None or now.is_set()):
            left.clear()
            if send == signal.SIGSTOP:  # another thread could take one that is for the process, while this one goes on
                with while_no_other_writes_a_mark:
                    signal.pthread_kill(threading.get_ident(), send)
            else:
                os.kill(os.getpid(), send)

    instrument(reach)
