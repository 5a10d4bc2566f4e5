"""Runs `perennial up` as a user would, on a fresh temporary folder and a free port, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_READY_SECONDS = 200.0
_STOP_SECONDS = 15.0
_TRIES = 3  # another program can take the free port before the service does


class DemoError(Exception):
    """Raised where the demo can't go on; its text is for the person at the screen."""


class _PortTaken(Exception):
    pass


@dataclass(frozen=True)
class Service:
    """A running service: where it answers, and the key that may do everything."""

    address: str
    admin_key: str
    key_file: Path
    process: subprocess.Popen[bytes]
    log: Path

    async def watch(self) -> None:
        """Raise as soon as the service ends by itself."""
        while self.process.poll() is None:  # noqa: ASYNC110 - a process has no event to wait for
            await asyncio.sleep(0.2)
        raise DemoError(f"the service stopped by itself, with status {self.process.poll()}:\n{_tail(self.log)}")


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[Service]:
    """Run the service while the block lasts. However the block ends, stop it and remove its folder."""
    with _temporary_folder() as folder:
        for attempt in range(1, _TRIES + 1):
            try:
                with _started(folder / str(attempt)) as service:
                    await _await_ready(service)
                    yield _with_key(service)
                    return
            except _PortTaken:
                continue
        raise DemoError(f"{_TRIES} times in a row another program took the port that was free a moment before")


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="perennial-demo-"))
    try:
        yield folder
    finally:
        deadline = time.monotonic() + _STOP_SECONDS
        while folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)  # after a kill -9 its servers can still be ending, and writing
            time.sleep(0.0 if not folder.exists() else 0.1)


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[Service]:
    folder.mkdir()
    port, log = _free_port(), folder / "log"
    program = Path(sys.executable).with_name("perennial")
    # Settings meant for another service must not steer this one, neither from here nor from a .env file.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    environment["PERENNIAL_METRICS_PORT"] = "0"  # nobody watches a demo
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                [program, "up", "--data-dir", folder / "data", "--port", str(port)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us; we stop it in our own order
            )
        except OSError as error:
            raise DemoError(f"can't start {program}: {error.strerror}; run `make demo`, which installs it") from error
    try:
        yield Service(f"http://127.0.0.1:{port}", "", folder / "data" / "admin.key", process, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()  # its children ask the kernel to end with it
        process.wait()


async def _await_ready(service: Service) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        while True:
            if service.process.poll() is not None:
                tail = _tail(service.log)
                if "address already in use" in tail.lower():
                    raise _PortTaken
                raise DemoError(f"the service did not start; it said:\n{tail}")
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{service.address}/readyz")).status_code == 200:
                    return
            if time.monotonic() > deadline:
                raise DemoError(f"the service was not ready after {_READY_SECONDS:g} s; it said:\n{_tail(service.log)}")
            await asyncio.sleep(0.1)


def _with_key(service: Service) -> Service:
    # Another service that answers on this port is ready before ours has made its key, or does not know it.
    try:
        key = service.key_file.read_text().strip()
    except FileNotFoundError:
        raise _PortTaken from None
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.get(f"{service.address}/v1/streams", headers=headers, trust_env=False, timeout=_READY_SECONDS)
    if answer.status_code == 401:
        raise _PortTaken
    return replace(service, admin_key=key)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:])
