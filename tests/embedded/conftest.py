import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import redis
import sqlalchemy

from service.embedded import Servers, embedded_servers
from tests.conftest import HANG_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture(scope="session")
def _pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory as a first start leaves it. Copies save each test the second that initdb takes."""
    folder = tmp_path_factory.mktemp("pristine") / "data"
    with embedded_servers(folder):
        pass
    return folder


@pytest.fixture
def new_data_dir(_pristine: Path) -> Iterator[Callable[[Path], Path]]:
    """Makes copies, and removes them after the test: pytest would keep 40 MB of each."""
    made: list[Path] = []

    def make(path: Path) -> Path:
        made.append(path)
        return shutil.copytree(_pristine, path)

    yield make
    for path in made:
        shutil.rmtree(path)


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
    """What a pair of servers holds, seen through the URLs that the API and the worker get."""

    redis_url: str
    database_url: str

    def write(self, text: str) -> None:
        with redis.from_url(self.redis_url) as client:
            client.xadd("texts", {"text": text})
        with self._database() as connection:
            connection.execute(sqlalchemy.text("create table if not exists texts (text text)"))
            connection.execute(sqlalchemy.text("insert into texts values (:text)"), {"text": text})

    def read(self) -> tuple[list[str], list[str]]:
        with redis.from_url(self.redis_url, decode_responses=True) as client:
            log = [entry["text"] for _, entry in client.xrange("texts")]
        with self._database() as connection:
            return log, list(connection.scalars(sqlalchemy.text("select text from texts")))

    def _database(self):
        engine = sqlalchemy.create_engine(self.database_url, poolclass=sqlalchemy.NullPool)
        return engine.begin()


@pytest.fixture
def contents() -> Callable[[Servers], Contents]:
    return lambda servers: Contents(servers.redis_url, servers.database_url)


def _uses(process: Path, folder: Path) -> bool:
    """Whether a process works in the folder or has a file of it open. A process we may not look into isn't ours."""
    try:
        return any(link.readlink().is_relative_to(folder) for link in (process / "cwd", *(process / "fd").iterdir()))
    except OSError:
        return False


@pytest.fixture
def processes_on() -> Callable[[Path], set[int]]:
    """The ids of all processes on a data directory, found without its lock."""

    def find(data_dir: Path) -> set[int]:
        others = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid())
        return {int(process.name) for process in others if _uses(process, data_dir.resolve())}

    return find


@dataclass
class Up:
    """A supervisor in a process of its own, with stand-ins for the API and the worker."""

    process: subprocess.Popen[str]
    data_dir: Path
    port: int
    output: Path
    said: Callable[[str], bool] = field(init=False)

    def __post_init__(self) -> None:
        self.said = lambda text: text in self.output.read_text()

    def pid_of(self, name: str) -> int | None:
        """Of the child that runs now. The stand-ins say theirs; the servers' are asked for."""
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
        return self.said("Perennial is ready")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=HANG_SECONDS)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def start_up(
    data_dir: Path, free_port: int, tmp_path: Path, processes_on: Callable[[Path], set[int]]
) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(**settings: str | float) -> Up:
        """Settings in capitals tell the stand-ins how to misbehave, others go to `up`."""
        given = {"redis_url": None, "database_url": None, "admin_key": None, "segment_store": None}
        given |= {name: value for name, value in settings.items() if name.islower()}
        misbehave = {f"STAND_IN_{name}": value for name, value in settings.items() if name.isupper()}
        call = (
            "import sys; from pathlib import Path; from service.embedded import up; "
            f"sys.exit(up(Path({str(data_dir)!r}), host='127.0.0.1', port={free_port}, "
            f"program=(sys.executable, {str(STAND_IN)!r}), **{given!r}))"
        )
        output = tmp_path / f"output-{len(started)}"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", call],
                cwd=ROOT,
                env=os.environ | misbehave | {"STAND_IN_PIDS": str(data_dir)},
                stdout=file,
                stderr=file,
                text=True,
            )
        started.append(Up(process, data_dir, free_port, output))
        return started[-1]

    yield start
    for up in started:
        up.process.kill()
        up.process.wait()
    wait_until(lambda: not processes_on(data_dir))
