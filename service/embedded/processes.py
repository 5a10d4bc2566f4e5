"""Programs and the children that run them. Through `child.py` or `forks.py`, so that none outlives this process."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, Signals
from typing import IO, Protocol

from service.embedded import child as wrapper
from service.embedded.directory import DataDirectory, rotate_log
from service.embedded.errors import EmbeddedError
from service.embedded.waiting import POLL_SECONDS

SECONDS_TO_DIE = 30.0
"""After SIGKILL. Only the kernel can take longer, for instance on a hanging disk; a busy machine takes seconds."""


@dataclass(frozen=True)
class Identity:
    """The user as which a program runs; see `child.py`."""

    kind: str = "self"
    uid: int = 0
    gid: int = 0

    def arguments(self) -> list[str]:
        return ["--identity", self.kind, "--uid", str(self.uid), "--gid", str(self.gid)]


@dataclass(frozen=True, kw_only=True)
class Program:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    signal_when_parent_dies: Signals = SIGKILL
    stop_signals: tuple[tuple[Signals, float], ...]
    """Signals, each with the seconds to wait before the next one; SIGKILL follows the last."""
    log: Path | None = None
    """None: this process's own output."""
    folder: Path | None = None
    exclusive: Path | None = None
    """A lock file that the program and all its descendants hold."""
    stale: tuple[Path, ...] = ()
    """Files of an earlier run to remove once the exclusive lock is held."""
    identity: Identity = Identity()
    needs: Path | None = None
    """A folder the program must be able to write, or it is not started."""


def server_environment() -> dict[str, str]:
    """Return a server's environment: neither our secrets nor variables such as PGDATA, which would change it."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "TMPDIR") if name in os.environ
    }
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}


class Running(Protocol):
    """A process that was started, as `subprocess.Popen` shows it."""

    pid: int

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int, /) -> None: ...


class Child:
    """One run of a program at a time."""

    def __init__(self, program: Program, directory: DataDirectory) -> None:
        self.program = program
        self._directory = directory
        self._process: Running | None = None

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self._process.pid

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            # Linux sends the parent-death signal when the thread that made the child ends.
            raise RuntimeError("children must be started from the main thread")
        self._process = self._begin()

    def _begin(self) -> Running:
        program = self.program
        wrapped = [sys.executable, "-I", "-S", wrapper.__file__, "--parent", str(os.getpid())]
        wrapped += ["--signal", str(int(program.signal_when_parent_dies)), *program.identity.arguments()]
        if program.exclusive is not None:
            wrapped += ["--exclusive", str(program.exclusive)]
        for path in program.stale:
            wrapped += ["--stale", str(path)]
        if program.needs is not None:
            wrapped += ["--reach", str(program.needs)]
        log = None if program.log is None else _open_log(program.log)
        try:
            return subprocess.Popen(
                [*wrapped, "--", *program.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=program.environment,
                cwd=program.folder,
                pass_fds=(self._directory.lock,),
                # Ctrl-C in a terminal reaches its whole process group; the order of stopping is ours to decide.
                start_new_session=True,
                umask=0o077 if program.log is not None else -1,
            )
        finally:
            if log is not None:
                log.close()

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def send(self, signal: Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal)

    def how_it_died(self) -> str:
        status = self.poll()
        if status is None:
            return "still running"
        if status >= 0:
            return f"exited with status {status}"
        try:
            return f"killed by {Signals(-status).name}"
        except ValueError:  # real-time signals have no name
            return f"killed by signal {-status}"


def _open_log(log: Path) -> IO[bytes]:
    rotate_log(log)
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0)


def stop_together(children: Iterable[Child]) -> None:
    """Send every child its first signal at once, then its further ones after the seconds of its program."""
    waiting = {child: [*child.program.stop_signals, (SIGKILL, SECONDS_TO_DIE)] for child in children if child.running}
    due = dict.fromkeys(waiting, time.monotonic())
    while waiting:
        for child, signals in list(waiting.items()):
            if not child.running:
                del waiting[child]
            elif time.monotonic() >= due[child]:
                if not signals:
                    raise EmbeddedError(f"{child.name}, pid {child.pid}, does not die")
                signal, seconds = signals.pop(0)
                child.send(signal)
                due[child] = time.monotonic() + seconds
        time.sleep(POLL_SECONDS)
