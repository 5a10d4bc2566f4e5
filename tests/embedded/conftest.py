import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import sqlalchemy

from service.embedded import Servers, embedded_servers
from tests import ports
from tests.conftest import HANG_SECONDS, unique, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Folders:
    """Data directories that go from test to test: few of them need the second that initdb takes, or a copy of 40 MB."""

    def __init__(self) -> None:
        self._spare: list[Path] = []

    def take(self, path: Path) -> Path:
        """Make `path` a data directory as a first start leaves it; its database may hold tables of earlier tests."""
        if self._spare:
            return self._spare.pop().rename(path)
        with embedded_servers(path):
            pass
        return path

    def give_back(self, path: Path) -> None:
        if used_by(path):
            return
        for each in path.rglob("*"):
            if not each.is_dir() and each.relative_to(path).parts[0] not in ("postgres", "lock"):
                each.unlink()
        self._spare.append(path)

    def remove(self) -> None:
        """Delete them: pytest would keep 40 MB of each."""
        for path in self._spare:
            shutil.rmtree(path)


@pytest.fixture(scope="session")
def folders() -> Iterator[Folders]:
    folders = Folders()
    yield folders
    folders.remove()


@pytest.fixture
def new_data_dir(folders: Folders) -> Iterator[Callable[[Path], Path]]:
    made: list[Path] = []

    def make(path: Path) -> Path:
        made.append(folders.take(path))
        return path

    yield make
    for path in made:
        folders.give_back(path)


@pytest.fixture
def data_dir(new_data_dir: Callable[[Path], Path], tmp_path: Path) -> Path:
    return new_data_dir(tmp_path / "data")


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that 'nobody' owns and can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="perennial-test-"))
    os.chown(folder, 65534, 65534)
    yield folder
    shutil.rmtree(folder)


@dataclass
class Contents:
    """The content of a pair of servers, seen through the URLs that the API and the worker get."""

    redis_url: str
    database_url: str
    table: str

    def write(self, text: str) -> None:
        with redis.from_url(self.redis_url) as client:
            client.xadd(self.table, {"text": text})
        with self._database() as connection:
            connection.execute(sqlalchemy.text(f"create table {self.table} (text text)"))
            connection.execute(sqlalchemy.text(f"insert into {self.table} values (:text)"), {"text": text})

    def read(self) -> tuple[list[str], list[str]]:
        with redis.from_url(self.redis_url, decode_responses=True) as client:
            log = [entry["text"] for _, entry in client.xrange(self.table)]
        with self._database() as connection:
            return log, list(connection.scalars(sqlalchemy.text(f"select text from {self.table}")))

    def _database(self):
        engine = sqlalchemy.create_engine(self.database_url, poolclass=sqlalchemy.NullPool)
        return engine.begin()


@pytest.fixture
def table() -> str:
    """The name of a table that no other test uses."""
    return unique("texts").replace("-", "_")


@pytest.fixture
def contents(table: str) -> Callable[[Servers], Contents]:
    return lambda servers: Contents(servers.redis_url, servers.database_url, table)


def _uses(process: str, folder: str) -> bool:
    """Whether a process works in the folder or has a file of it open. A process we may not look into isn't ours."""
    try:
        with os.scandir(f"{process}/fd") as files:
            links = [f"{process}/cwd", *(each.path for each in files)]
        return any(f"{os.readlink(link)}/".startswith(folder) for link in links)  # noqa: PTH115 - a tenth of Path's time
    except OSError:
        return False


def used_by(data_dir: Path) -> set[int]:
    """The ids of all processes on a data directory, found without its lock."""
    folder = f"{data_dir.resolve()}/"
    with os.scandir("/proc") as entries:
        others = {int(entry.name) for entry in entries if entry.name.isdigit()} - {os.getpid()}
    return {process for process in others if _uses(f"/proc/{process}", folder)}


@pytest.fixture
def processes_on() -> Callable[[Path], set[int]]:
    return used_by


@dataclass
class Up:
    """A supervisor in a process of its own, with stand-ins for the API and the worker."""

    process: subprocess.Popen[str]
    data_dir: Path
    port: int
    output: Path
    printed: Callable[[str], bool] = field(init=False)

    def __post_init__(self) -> None:
        self.printed = lambda text: text in self.output.read_text()

    def deaths(self) -> list[dict[str, Any]]:
        """Return each line that the supervisor has logged of a child that died."""
        written = self.output.read_text().rpartition("\n")[0].splitlines()
        lines = [json.loads(line) for line in written if line.startswith("{")]
        return [line for line in lines if line["event"] == "part_died"]

    def pid_of(self, name: str) -> int | None:
        """The process id of the child that runs now. The stand-ins say theirs; the servers' are asked for."""
        try:
            if name == "postgres":
                return int((self.data_dir / "postgres" / "postmaster.pid").read_text().split()[0])
            if name == "valkey":
                with redis.Redis(unix_socket_path=str(self.data_dir / "run" / "valkey.sock")) as client:
                    return client.info("server")["process_id"]
            return int((self.data_dir / f"{name}.pid").read_text())
        except (OSError, ValueError, IndexError, redis.ConnectionError):
            return None

    def serves(self) -> bool:
        """Whether every part is there: both servers answer and both stand-ins run."""
        sockets = str(self.data_dir / "run")
        try:
            psycopg.connect(host=sockets, user="perennial", dbname="perennial").close()
        except psycopg.OperationalError:
            return False
        return all(self.pid_of(name) for name in ("valkey", "api", "worker"))

    def ready(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()
        return self.printed("Perennial is ready")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=HANG_SECONDS)


@pytest.fixture
def free_port() -> int:
    return ports.free_port()


@contextlib.contextmanager
def _starting(data_dir: Path, port: int) -> Iterator[Callable[..., Up]]:
    """Start supervisors on one folder. They wait less than usual: before a restart, and for stubborn parts."""
    started: list[Up] = []

    def start(**settings: str | float) -> Up:
        """Settings in capitals tell the stand-ins how to misbehave, others go to `up`."""
        given = {"redis_url": None, "database_url": None, "admin_key": None, "segment_store": None}
        given |= {name: value for name, value in settings.items() if name.islower()}
        misbehave = {f"STAND_IN_{name}": value for name, value in settings.items() if name.isupper()}
        to_finish = 1.0 if "stubborn" in misbehave.values() else HANG_SECONDS
        call = (
            "import sys\nfrom pathlib import Path\nfrom service.process import loading\nwith loading():\n"
            " from service import logs; from service.embedded import supervisor; from tests.embedded import stand_in\n"
            "logs.configure('info')\n"
            f"supervisor.FIRST_PAUSE_SECONDS, supervisor.SECONDS_TO_FINISH = 0.01, {to_finish}\n"
            f"sys.exit(supervisor.up(Path({str(data_dir)!r}), host='127.0.0.1', port={port}, "
            f"run=lambda part: sys.exit(stand_in.main(part)), load=lambda: None, **{given!r}))"
        )
        output = data_dir.with_name(f"output-{len(started)}")
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", call],
                cwd=ROOT,
                env=os.environ | misbehave | {"STAND_IN_PIDS": str(data_dir)},
                stdout=file,
                stderr=file,
                text=True,
            )
        started.append(Up(process, data_dir, port, output))
        return started[-1]

    yield start
    for up in started:
        up.process.kill()
        up.process.wait()
    wait_until(lambda: not used_by(data_dir))


@pytest.fixture
def start_up(data_dir: Path, free_port: int) -> Iterator[Callable[..., Up]]:
    with _starting(data_dir, free_port) as start:
        yield start


@pytest.fixture(scope="module")
def start_beside(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Up]]:
    """Start a supervisor on the folder of `running`."""
    data_dir = folders.take(tmp_path_factory.mktemp("shared") / "data")
    with _starting(data_dir, ports.free_port()) as start:
        yield start
    folders.give_back(data_dir)


@pytest.fixture(scope="module")
def _shared(start_beside: Callable[..., Up]) -> Up:
    return start_beside()


@pytest.fixture
def running(_shared: Up) -> Up:
    """A supervisor that tests share: they look at it, or at what it does when one of its parts dies."""
    wait_until(lambda: _shared.ready() and _shared.serves())
    return _shared
