"""Parts of the service that go on from the modules that this process has loaded, instead of loading them again.

A fork copies all memory. So noise, keys and names come from the operating system at each draw, never from a generator
or a buffer in memory; and this process has one thread, no connection and no event loop when it forks.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from setproctitle import setproctitle, setthreadtitle

from service.embedded.child import accept_signals, die_with_parent
from service.embedded.directory import DataDirectory
from service.embedded.processes import Child, Program

_context = multiprocessing.get_context("fork")


class Fork(Child):
    """A child that runs a function instead of its program, under whose command line it is listed."""

    def __init__(self, program: Program, directory: DataDirectory, run: Callable[[], object]) -> None:
        super().__init__(program, directory)
        self._run = run

    def _begin(self) -> "_Forked":
        if threading.active_count() > 1:
            raise RuntimeError("another thread may hold a lock, which would stay locked in the child")
        return _Forked(partial(_become, self.program, os.getpid(), self._run), self.name)


class _Forked:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._process = _context.Process(target=run, name=name)
        # Blocked until the child has its own handlers: the parent's would ignore the signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.pid is not None  # noqa: S101 - it was started
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)


def _become(program: Program, parent: int, run: Callable[[], object]) -> None:
    """Turn the forked process into the program: own session, own environment, killed when its parent dies."""
    os.setsid()
    die_with_parent(program.signal_when_parent_dies, parent)
    setproctitle(" ".join(program.command))  # before the environment changes, in which it looks for its place
    setthreadtitle(f"perennial {program.name}")
    os.environ.clear()
    os.environ.update(program.environment)
    if callable(signal.getsignal(signal.SIGHUP)):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    accept_signals()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except Exception:  # noqa: BLE001 - what the service logs of it says nothing of records
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
