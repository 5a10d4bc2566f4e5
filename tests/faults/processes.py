"""Workers and APIs as processes of their own on the servers of a `World`, forked from one that has loaded everything.

`perennial up` and its processes are in up.py; these start in a hundredth of the time, and can be told where to die.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from tests.conftest import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.process import BaseProcess

    from service.settings import Settings
    from tests.faults.steps import When

Moment = tuple[str, "When"]
"""A step and on which side of it."""

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["__main__", "service.worker.main", "service.api.server", "tests.faults.steps"])


def start_worker(settings: Settings, at: Moment | None = None, send: signal.Signals = signal.SIGKILL) -> BaseProcess:
    """A worker, which sends itself the signal when it first comes to the moment."""
    process = _server.Process(target=_work, args=(settings, at, send), daemon=True)
    process.start()
    return process


@contextmanager
def working(settings: Settings) -> Iterator[BaseProcess]:
    """A worker that nothing happens to, for as long as the block runs."""
    process = start_worker(settings)
    yield process
    end(process)


class Api:
    """An API, which kills itself when it first comes to the moment after it was told that now is the time."""

    def __init__(self, settings: Settings, at: Moment | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            settings = settings.model_copy(update={"port": free.getsockname()[1]})
        self.url = f"http://127.0.0.1:{settings.port}"
        self._now = _server.Event()
        self._key = settings.admin_key.get_secret_value()
        self.process = _server.Process(target=_serve, args=(settings, at, self._now), daemon=True)
        self.process.start()
        wait_until(self._ready)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self._key}"}, timeout=10)

    def now(self) -> None:
        self._now.set()

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.HTTPError:
            return False


def end(process: BaseProcess) -> None:
    """As SIGTERM does, and it does not take long."""
    process.terminate()
    process.join(10)
    assert process.exitcode in (0, -signal.SIGTERM)  # uvicorn ends as what told it to end would have ended it


def died(process: BaseProcess) -> None:
    """Waits until it killed itself."""
    process.join(20)
    assert process.exitcode == -signal.SIGKILL, "it never came there"


def _work(settings: Settings, at: Moment | None, send: signal.Signals) -> None:
    from service import logs
    from service.worker import main, sealer

    logs.configure("warning")
    if at is not None:
        sealer.BATCHES_AT_ONCE = 1  # so that few batches make many segments, which are merged
        _arm(at, send)
    raise SystemExit(main.run(settings))


def _serve(settings: Settings, at: Moment | None, now: multiprocessing.synchronize.Event) -> None:
    from service import logs
    from service.api import server

    logs.configure("warning")
    if at is not None:
        _arm(at, signal.SIGKILL, now)
    raise SystemExit(server.serve(settings))


def _arm(at: Moment, send: signal.Signals, now: multiprocessing.synchronize.Event | None = None) -> None:
    from tests.faults.steps import instrument

    left = [at]

    def reach(step: str, when: When) -> None:
        if left and (step, when) == at and (now is None or now.is_set()):
            left.clear()
            os.kill(os.getpid(), send)

    instrument(reach)
