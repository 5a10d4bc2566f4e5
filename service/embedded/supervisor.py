"""`perennial up`: everything on one machine, in the foreground, restarted when it dies, stopped in order."""

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from signal import SIGTERM
from types import FrameType
from typing import TextIO

import structlog

from service.addresses import cannot_listen
from service.embedded.admin_key import ensure_admin_key
from service.embedded.directory import LOCK_WAIT_SECONDS, DataDirectory, open_data_directory
from service.embedded.errors import EmbeddedError, Stopped
from service.embedded.forks import Fork
from service.embedded.postgres import Postgres, answers
from service.embedded.processes import Child, Program, stop_together
from service.embedded.servers import await_ready
from service.embedded.valkey import Valkey
from service.embedded.waiting import POLL_SECONDS, StopRequest, wait_for

EXIT_CONFIGURATION = 78
"""EX_CONFIG: a child that exits so could never run as configured, and starting it again would not help."""
DEATHS_TOO_MANY = 5
DEATHS_WITHIN_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 10.0
"""Seconds before an optional part is restarted."""
FIRST_PAUSE_SECONDS = 0.1
ROOM_BYTES = 2**25
"""Free bytes on the disk before a server is restarted: PostgreSQL writes files of 16 MiB."""
MIGRATION_SECONDS = 600.0
SECONDS_TO_FINISH = 6.0
"""Seconds for the API and the worker to stop; the servers need the rest of ten seconds."""

_log = structlog.get_logger(__name__)


def up(
    data_dir: Path,
    *,
    host: str,
    port: int,
    redis_url: str | None,
    database_url: str | None,
    admin_key: str | None,
    segment_store: str | None,
    run: Callable[[str], object],
    load: Callable[[], object],
    lock_wait_seconds: float = LOCK_WAIT_SECONDS,
) -> int:
    """Run until a signal or a failure that restarting can't mend; returns the exit status.

    For the main thread of a process that ends afterwards, and has no other thread: parts of the service are forked from
    it. It takes SIGINT, SIGTERM and SIGHUP over for good.

    Args:
        run: runs a part, `migrate`, `api` or `worker`, as the command of that name would.
        load: imports what several parts need, while the servers start.
    """
    with _stop_on_signals() as stop:
        try:
            with open_data_directory(data_dir, stop, wait_seconds=lock_wait_seconds) as directory:
                _check_port(host, port)  # only now, since processes of an earlier run may have held the port
                service = _Service(directory, run, load, host, port, stop)
                try:
                    return service.run(redis_url, database_url, admin_key, segment_store)
                finally:
                    service.stop()
        except Stopped:
            return 0
        except EmbeddedError as error:
            _say(f"perennial: {error}")
            return error.exit_status


def _check_port(host: str, port: int) -> None:
    """Check that the port is free, before anything is started: the API would only find out at the end."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        reason = cannot_listen(host, port, error, "--host", "--port")
        raise EmbeddedError(reason, EXIT_CONFIGURATION) from None


class _Watched:
    """A child that is restarted when it dies, after a delay that grows, and not before its needs are met.

    If it is `needed`, too many deaths within a minute end everything.
    """

    def __init__(self, child: Child, can_run: Callable[[], bool], *, needed: bool = True) -> None:
        self.child = child
        self._needed = needed
        self._can_run = can_run
        self._deaths: deque[float] = deque()
        self._start_at: float | None = None

    def look(self) -> None:
        now = time.monotonic()
        if self._start_at is None:
            if not self.child.running:
                self._died(now)
        elif now >= self._start_at and self._can_run():
            self._start_at = None
            self.child.start()

    def _died(self, now: float) -> None:
        self._deaths.append(now)
        while self._deaths[0] < now - DEATHS_WITHIN_SECONDS:
            self._deaths.popleft()
        if (reason := self._gives_up()) is not None:
            self._log_death()
            raise reason
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (len(self._deaths) - 1), LONGEST_PAUSE_SECONDS)
        self._start_at = now + pause
        self._log_death(again_in_seconds=pause)

    def _gives_up(self) -> EmbeddedError | None:
        """Return why the whole service must stop with this child; None if the child is restarted instead."""
        child = self.child
        how = f"{child.name} (pid {child.pid}) {child.how_it_died()}"
        if child.poll() == EXIT_CONFIGURATION:
            return EmbeddedError(f"{how}: it can't run as configured", EXIT_CONFIGURATION)
        if self._needed and len(self._deaths) >= DEATHS_TOO_MANY:
            log = f"; see {child.program.log}" if child.program.log else ""
            return EmbeddedError(f"{how}, death {DEATHS_TOO_MANY} within {DEATHS_WITHIN_SECONDS:g} s: stopping{log}")
        return None

    def _log_death(self, **more: float) -> None:
        child = self.child
        file = {"log": str(child.program.log)} if child.program.log else {}
        with contextlib.suppress(OSError):  # a closed terminal must not keep the supervisor from restarting the child
            _log.error("part_died", part=child.name, pid=child.pid, how=child.how_it_died(), **more, **file)


class _Service:
    def __init__(
        self,
        directory: DataDirectory,
        run: Callable[[str], object],
        load: Callable[[], object],
        host: str,
        port: int,
        stop: StopRequest,
    ) -> None:
        self._directory = directory
        self._run = run
        self._load = load
        self._host = host
        self._port = port
        self._stop = stop
        self._servers: list[Child] = []
        self._parts: list[Child] = []

    def run(
        self, redis_url: str | None, database_url: str | None, admin_key: str | None, segment_store: str | None
    ) -> int:
        own_database = database_url is None
        redis_url, database_url, migration_url = self._start_servers(redis_url, database_url)
        key_file = None
        if admin_key is None:
            admin_key, key_file = ensure_admin_key(self._directory)
        environment = {
            "PERENNIAL_SEGMENT_COPIES": str(self._directory.path / "copies"),
            **os.environ,
            "PERENNIAL_REDIS_URL": redis_url,
            "PERENNIAL_DATABASE_URL": database_url,
            "PERENNIAL_ADMIN_KEY": admin_key,
            "PERENNIAL_HOST": self._host,
            "PERENNIAL_PORT": str(self._port),
            "PERENNIAL_WORKER_METRICS": str(self._directory.sockets / "worker.sock"),
            "PERENNIAL_SEGMENT_STORE": segment_store or str(self._directory.subfolder("segments")),
        }
        self._migrate(environment | ({"PERENNIAL_MIGRATION_URL": migration_url} if migration_url else {}))
        api, worker = self._part("api", environment), self._part("worker", environment)
        announcer = self._fork("announcer", os.environ, partial(self._announce, key_file))
        self._parts = [api, worker, announcer]
        for part in self._parts:
            part.start()
        # A server that can't write ends itself, and so does a part that finds no database: until there is room, and
        # while that recovers, five such deaths would end everything.
        recorded = partial(answers, self._directory.sockets) if own_database else lambda: True
        watched = [_Watched(server, self._has_room) for server in self._servers]
        watched += [_Watched(api, recorded), _Watched(worker, recorded, needed=False)]
        while not self._stop.requested:
            for child in watched:
                child.look()
            time.sleep(POLL_SECONDS)
        return 0

    def _has_room(self) -> bool:
        return shutil.disk_usage(self._directory.path).free >= ROOM_BYTES

    def stop(self) -> None:
        """Stop the parts, then the servers, which the parts need to finish their work."""
        stop_together(self._parts)
        stop_together(self._servers)

    def _start_servers(self, redis_url: str | None, database_url: str | None) -> tuple[str, str, str | None]:
        """Return the URLs of the log and of the record, and the one for migrations if the record is served here."""
        valkey = Valkey(self._directory) if redis_url is None else None
        postgres = Postgres(self._directory) if database_url is None else None
        if valkey is not None:
            self._servers.append(valkey.child)
            valkey.start()
        if postgres is not None:
            self._servers.append(postgres.child)
            postgres.start(self._stop)
        self._load()
        if valkey is not None:
            await_ready(valkey.child, valkey.ready, self._stop)
            redis_url = valkey.url
        if postgres is not None:
            await_ready(postgres.child, postgres.ready, self._stop)
            database_url = postgres.service_url
        if redis_url is None or database_url is None:
            raise AssertionError("each URL is given or comes from its own server")
        return redis_url, database_url, None if postgres is None else postgres.url

    def _part(self, name: str, environment: Mapping[str, str]) -> Child:
        return self._fork(name, environment, partial(self._run, name))

    def _fork(self, name: str, environment: Mapping[str, str], run: Callable[[], object]) -> Child:
        program = Program(
            name=name,
            command=(sys.executable, "-m", "service", name),
            environment=environment,
            stop_signals=((SIGTERM, SECONDS_TO_FINISH),),
        )
        return Fork(program, self._directory, run)

    def _migrate(self, environment: Mapping[str, str]) -> None:
        migration = self._part("migrate", environment)
        try:
            migration.start()
            if not wait_for(lambda: not migration.running, MIGRATION_SECONDS, self._stop):
                raise EmbeddedError(f"the migrations took longer than {MIGRATION_SECONDS:g} s")
        finally:
            stop_together([migration])
        status = migration.poll()
        if status != 0:
            failed = f"the migrations failed: {migration.name} {migration.how_it_died()}"
            raise EmbeddedError(failed, EXIT_CONFIGURATION if status == EXIT_CONFIGURATION else 1)

    def _announce(self, key_file: Path | None) -> None:
        """Print once that all is ready; from another process, so that a slow answer delays no restart."""
        address = _address(self._host, self._port)
        while not _answers(f"{address}/readyz"):
            time.sleep(0.1)
        lines = [f"Perennial is ready on {address}", f"Its data is in {self._directory.path}"]
        if key_file is not None:
            lines.append(f"The admin key is in {key_file}")
        _say("\n".join([*lines, "Ctrl-C stops it."]), sys.stdout)


def _address(host: str, port: int) -> str:
    """Return the address by which this machine reaches a server that listens on `host`."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - only compared
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _answers(url: str) -> bool:
    # No proxy of the environment between the supervisor and its own child.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[StopRequest]:
    """Turn signals into a stop request, so that a second signal changes nothing while everything stops.

    Afterwards they are ignored: the process is about to end, and how it ended is known.
    """
    stop = StopRequest()

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        stop.requested = True

    # Under nohup a hang-up is ignored, and stays so.
    wanted = [signal.SIGINT, signal.SIGTERM]
    wanted += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    for number in wanted:
        signal.signal(number, request_stop)
    try:
        yield stop
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_IGN)


def _say(text: str, stream: TextIO = sys.stderr) -> None:
    with contextlib.suppress(OSError):  # a closed terminal must not keep the supervisor from stopping
        stream.write(text + "\n")
        stream.flush()
