"""A service of one's own for a notebook: `perennial up` on this machine, stopped with the notebook."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perennial.client import Client
from perennial.errors import LocalServiceFailed

READY_SECONDS = 200.0
STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_MISSING = (
    "There is no `perennial` command beside this Python: the client does not contain the service. Install both into "
    "one environment, from the project's folder: pip install '.[embedded]' ./client"
)

_FRAME = " ╭─╮│╰╯"  # the frame around error messages about arguments
_CLOSED = "This client is closed, and its service has stopped with it: call perennial.local() again."


def local(folder: str | Path | None = None, *, port: int | None = None, seconds: float = READY_SECONDS) -> LocalClient:
    """Start a service on this machine, wait until it is ready, and return a client with its admin key.

    The service must be installed beside this package. It stops when the client is closed, or this process ends.

    Args:
        folder: where the service keeps everything. None: a temporary folder, removed at the end with all that is in it.
        port: that it listens on, on 127.0.0.1; default a free one.
        seconds: to wait until it is ready.

    Raises LocalServiceFailed where it is not installed, ends early, or is not ready in time.
    """
    command = _command()
    temporary = tempfile.TemporaryDirectory(prefix="perennial-") if folder is None else None
    path = Path(temporary.name if temporary else folder or ".").absolute()
    path.mkdir(parents=True, exist_ok=True)
    service = _Service(command, path, port or _free_port(), temporary)
    try:
        return LocalClient(service, seconds)
    except BaseException:
        service.stop()
        raise


class LocalClient(Client):
    """A client with a service that runs while the client is open. folder: the service's data folder."""

    def __init__(self, service: _Service, seconds: float) -> None:
        key = service.await_ready(seconds)
        super().__init__(service.url, key)
        self.folder = service.data
        self._service = service
        atexit.register(self.close)

    def close(self) -> None:
        """Stop the service, and remove its folder if that is a temporary one."""
        atexit.unregister(self.close)
        self._transport.refuse(_CLOSED)
        self._service.stop()


class _Service:
    """`perennial up`, below a keeper that stops it as soon as this process is gone, however that ended."""

    def __init__(
        self, command: list[str], folder: Path, port: int, temporary: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.data = folder / "perennial-data"
        self._log_file = folder / "perennial.log"
        self._temporary = temporary
        arguments = ["up", "--data-dir", str(self.data), "--host", "127.0.0.1", "--port", str(port)]
        with self._log_file.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "perennial.keeper", *command, *arguments],
                cwd=folder,  # the service reads settings from a file .env where it runs
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the notebook interrupts a cell, not the service
            )

    def await_ready(self, seconds: float) -> str:
        """Return the admin key, once the service is ready."""
        deadline = time.monotonic() + seconds
        while not self._is_ready():
            if self._keeper.poll() is not None:
                raise LocalServiceFailed(f"The service ended before it was ready. It said: {self._last_words()}")
            if time.monotonic() > deadline:
                raise LocalServiceFailed(
                    f"The service was not ready after {seconds:g} seconds: give it more `seconds`. "
                    f"It said: {self._last_words()}"
                )
            time.sleep(_LOOK_SECONDS)
        return (self.data / "admin.key").read_text().strip()

    def stop(self) -> None:
        """Stop it, wait until it has ended, and remove a temporary folder."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _is_ready(self) -> bool:
        """Return whether the process that was started says so: another one may answer at the port."""
        return "Perennial is ready" in self._log_file.read_text(errors="replace")

    def _last_words(self) -> str:
        lines = [line.strip(_FRAME) for line in self._log_file.read_text(errors="replace").splitlines()]
        return next(filter(None, reversed(lines)), "nothing")


def _command() -> list[str]:
    beside = Path(sys.executable).with_name("perennial")
    command = str(beside) if beside.exists() else shutil.which("perennial")
    if command is None:
        raise LocalServiceFailed(_MISSING)
    return [command]


def _environment() -> dict[str, str]:
    """Return this process's environment without settings of a service, which may be another service's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    return environment | {"PERENNIAL_METRICS_PORT": "0"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
