"""PostgreSQL with standbys and copies of its data folder, on the binaries that `perennial up` runs."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from service.embedded import postgres
from service.embedded.directory import open_data_directory
from service.embedded.processes import Child, server_environment, stop_together
from service.embedded.servers import await_ready
from service.embedded.waiting import StopRequest
from tests.conftest import wait_until

if TYPE_CHECKING:
    from pathlib import Path

BACKUP_SECONDS = 200


class Progress(NamedTuple):
    """How far a database has come with one stream."""

    records: int
    charges: dict[int, str]  # hashes, by number
    versions: frozenset[tuple[str, int]]  # with the publication's name
    files: frozenset[str]  # of its segments

    def newest(self, publication: str) -> int:
        return max((version for name, version in self.versions if name == publication), default=0)


class Cluster:
    """One PostgreSQL and its data folder. It runs until `stop`, and can be started again on other data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open = ExitStack()

    def start(self) -> Cluster:
        """Starts it, on new data if there is none, and waits until it answers."""
        stop = StopRequest()
        directory = self._open.enter_context(open_data_directory(self.folder, stop))
        self._server = postgres.Postgres(directory)
        self._sockets = directory.sockets
        self._start(stop)
        return self

    def _start(self, stop: StopRequest) -> None:
        self._server.start(stop)
        await_ready(self.child, self._server.ready, stop)

    @property
    def child(self) -> Child:
        return self._server.child

    @property
    def socket(self) -> Path:
        return self._sockets / f".s.PGSQL.{postgres.PORT}"

    @property
    def urls(self) -> tuple[str, str]:
        """The owner's and the service's."""
        return self._server.url, self._server.service_url

    def kill(self) -> None:
        """Stops it as `pg_ctl stop -m immediate` does: it recovers from its log when it is started again."""
        self.child.send(signal.SIGQUIT)
        wait_until(lambda: not self.child.running)

    def close(self) -> None:
        """Stops it for good, and deletes its data."""
        stop_together([self.child])
        self._open.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def back_up(self, folder: Path) -> None:
        """Copies the running cluster's data into `folder`, which does not exist yet."""
        command = [str(postgres._executables() / "pg_basebackup"), "--pgdata", str(folder), "--no-sync"]
        command += ["--checkpoint", "fast", "--wal-method", "stream", "--host", str(self._sockets)]
        command += ["--port", str(postgres.PORT), "--username", postgres.SUPERUSER]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=BACKUP_SECONDS, env=server_environment()
        )
        assert done.returncode == 0, done.stderr
        _configure(folder, recovery_init_sync_method="syncfs")  # file by file takes seconds before it starts

    def restore(self, copy: Path) -> None:
        """Puts a copy in the place of the data of the cluster, which was killed, and starts it at the same address."""
        data = self.folder / "postgres"
        shutil.rmtree(data)
        copy.rename(data)
        self._start(StopRequest())

    def standby(self, folder: Path, port: int) -> Cluster:
        """Starts an asynchronous standby in a folder of its own, which streams from the primary at `port`."""
        folder.mkdir(mode=0o700)
        data = folder / "postgres"
        self.back_up(data)
        conninfo = f"host=127.0.0.1 port={port} user={postgres.SUPERUSER} sslmode=disable"
        _configure(data, primary_conninfo=conninfo, wal_retrieve_retry_interval="50ms")
        (data / "standby.signal").touch()
        return Cluster(folder).start()

    def promote(self) -> None:
        """Makes a standby the primary, and waits until it can be written."""
        with self.connect(postgres.SUPERUSER) as connection:
            connection.execute("SELECT pg_promote(wait => true, wait_seconds => 30)")
            wait_until(lambda: not self._ask(connection, "SELECT pg_is_in_recovery()")[0][0])

    def connect(self, database: str = postgres.DATABASE) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=str(self._sockets), port=postgres.PORT, user=postgres.SUPERUSER, dbname=database, autocommit=True
        )

    def progress(self, stream: str) -> Progress | None:
        """Return what is committed here of a stream; None: the stream is not there."""
        with self.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            rows = self._ask(connection, "SELECT id, records FROM streams WHERE name = %s", stream)
            if not rows:
                return None
            ((identity, records),) = rows
            charges = self._ask(connection, "SELECT id, hash FROM charges WHERE stream_id = %s", identity)
            versions = self._ask(
                connection,
                "SELECT name, releases.version FROM releases JOIN publications ON publications.id = publication_id "
                "WHERE publications.stream_id = %s",
                identity,
            )
            files = self._ask(connection, "SELECT file FROM segments WHERE stream_id = %s", identity)
        return Progress(records, dict(charges), frozenset(versions), frozenset(name for (name,) in files))

    @staticmethod
    def _ask(connection: psycopg.Connection[Any], question: str, *values: Any) -> list[tuple[Any, ...]]:
        return connection.execute(question, values).fetchall()


def _configure(data: Path, **settings: str) -> None:
    with (data / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
