"""Both servers, or PostgreSQL alone, for as long as a `with` block lasts."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from service.embedded.directory import LOCK_WAIT_SECONDS, log_tail, open_data_directory, read_holder
from service.embedded.errors import EmbeddedError
from service.embedded.postgres import Postgres, answers, database_url
from service.embedded.processes import Child, stop_together
from service.embedded.valkey import Valkey
from service.embedded.waiting import POLL_SECONDS, StopRequest, wait_for

READY_SECONDS = 120.0
"""Long enough to load a large log or to recover after a crash; a server that dies meanwhile is noticed at once."""


@dataclass(frozen=True)
class Servers:
    """URLs of running servers: `database_url` with the owner's role, `service_url` with the API's and workers' role."""

    redis_url: str
    database_url: str
    service_url: str
    valkey: Child
    postgres: Child


@contextlib.contextmanager
def embedded_servers(data_dir: str | os.PathLike[str]) -> Iterator[Servers]:
    """Run Valkey and PostgreSQL on the folder; call it from the main thread. Their data stays there."""
    stop = StopRequest()
    with open_data_directory(Path(data_dir), stop) as directory:
        valkey, postgres = Valkey(directory), Postgres(directory)
        try:
            valkey.start()
            postgres.start(stop)
            await_ready(valkey.child, valkey.ready, stop)
            await_ready(postgres.child, postgres.ready, stop)
            yield Servers(valkey.url, postgres.url, postgres.service_url, valkey.child, postgres.child)
        finally:
            stop_together([valkey.child, postgres.child])


@contextlib.contextmanager
def embedded_database(data_dir: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the URL of the folder's database: of the running server, or of one started for this block."""
    path = Path(data_dir)
    if not (path / "postgres").is_dir():
        raise EmbeddedError(f"{path.resolve()} holds no database: give --data-dir the folder of `perennial up`")
    stop = StopRequest()
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            sockets = _served_elsewhere(path)
            if sockets is not None:
                yield database_url(sockets)
                return
            try:
                directory = stack.enter_context(open_data_directory(path, stop, wait_seconds=0))
                break
            except EmbeddedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
        postgres = Postgres(directory)
        try:
            postgres.start(stop)
            await_ready(postgres.child, postgres.ready, stop)
            yield postgres.url
        finally:
            stop_together([postgres.child])


def _served_elsewhere(path: Path) -> Path | None:
    """Return the URL of the server run by the process that holds the lock; None if it does not answer."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        _, sockets = read_holder(lock)
    finally:
        os.close(lock)
    return sockets if sockets is not None and answers(sockets) else None


def await_ready(child: Child, ready: Callable[[], bool], stop: StopRequest) -> None:
    in_time = wait_for(lambda: not child.running or ready(), READY_SECONDS, stop)
    if child.running and in_time:
        return
    problem = "does not answer" if child.running else child.how_it_died()
    tail = "" if child.program.log is None else f"; the end of {child.program.log}:\n{log_tail(child.program.log)}"
    raise EmbeddedError(f"{child.name} {problem}{tail}")
