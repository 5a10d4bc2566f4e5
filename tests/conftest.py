"""Real servers and a real service for every test that needs them; nothing is imitated.

One Valkey and one PostgreSQL serve the whole run. `service` is an API and a worker on them, as `perennial up` runs
them, only as threads of the test process, for the tests of one file or folder. Tests that need a worker of their own
take `world`: a fresh database and no worker running.
"""

import gc
import os

# Fits in tests are small. Beside other processes BLAS's threads then wait for each other most of the time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nobody here speaks TLS. Each new client of httpx would take 20 ms to read the certificates that it trusts.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

import contextlib
import itertools
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
from sqlalchemy import text
from xdist.scheduler import LoadFileScheduling

from service.api.app import create_app
from service.api.http.server import Server, configuration
from service.embedded import Servers, embedded_servers
from service.ledger.verify import look
from service.settings import Settings
from service.store import streams
from service.store.database import Database
from service.worker import explorer
from service.worker.main import work
from tests.databases import compile_once, new_database, used_up
from tests.guarantees import planted
from tests.temporary import choose_folder, delete_folder

hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")
ADMIN_KEY = secrets.token_urlsafe(32)
explorer.NICENESS = 0  # behind other tests it would hardly ever run
compile_once()
_numbers = itertools.count(1)
BROWSER = "tests/browser/"
HANG_SECONDS = 200.0  # what takes so long hangs: how soon something happens is for `benchmarks` to say
vars(httpx._config.DEFAULT_TIMEOUT_CONFIG).update(vars(httpx.Timeout(HANG_SECONDS)))  # not 5 s, on a busy machine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, and no others")
    parser.addoption("--planted", action="store_true", help="plant bugs, and see that each is caught by its test")
    parser.addoption("--plant", help="run with this bug of tests/guarantees/planted")
    parser.addoption("--kills", type=int, default=3, help="how many kill -9s tests/faults/test_kill.py does")
    parser.addoption("--failovers", type=int, default=1, help="how many tests/faults/test_failover.py does")
    parser.addoption("--restores", type=int, default=1, help="how many tests/faults/test_restored_beneath.py does")
    parser.addoption("--guesses", type=int, default=60, help="how many tests/guarantees/test_timing.py makes of times")
    parser.addoption("--histories", type=int, default=10, help="how many tests/faults/test_simulator.py tries")
    parser.addoption("--mutations", type=int, default=1000, help="how many bodies tests/api/test_mutations.py spoils")
    parser.addoption("--trials", type=int, default=80, help="how many attacks test_closed_thresholds.py makes")
    parser.addoption("--screenshots", action="store_true", help="keep pictures of pages in tests/browser/screenshots")
    parser.addoption("--seed", help="repeat the random choices of tests/faults; the summary tells a run's seed")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    choose_folder(config)
    gc.disable()  # until all tests are collected: to look through what stays took a third of that time
    if name := config.getoption("--plant"):
        planted.BUGS[name].plant()


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for mark in ("planted", "long"):
        wanted = config.getoption(f"--{mark}")
        other = [item for item in items if bool(item.get_closest_marker(mark)) != wanted]
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if bool(item.get_closest_marker(mark)) == wanted]
    for case in _kept_cases(items):
        case.add_marker("kept")
    # Processes take a unit after the other: who begins a long one last ends long after the others. So slow ones come
    # first, then those of many tests, and last those of one or two. Units that only compute are spread among those that
    # wait for servers, since the processors would idle otherwise.
    unit = {item: _unit(item.nodeid) for item in items}
    tests = Counter(unit.values())
    slow = {unit[item] for item in items if item.get_closest_marker("slow")}
    serving = {unit[item] for item in items if "servers" in getattr(item, "fixturenames", ())}
    units = sorted(tests, key=lambda each: (each not in slow, -tests[each]))
    kinds = [each for each in units if each in slow | serving], [each for each in units if each not in slow | serving]
    place = {each: (number + 0.5) / len(kind) for kind in kinds for number, each in enumerate(kind)}
    items.sort(key=lambda item: place[unit[item]])


def _kept_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return, of tests marked `more`, the first case of several and those by which planted bugs are caught."""
    dear = [item for item in items if item.get_closest_marker("more")]
    named = {bug.caught_by for bug in planted.BUGS.values()}
    cases = []
    for _, (first, *others) in itertools.groupby(dear, lambda item: item.nodeid.partition("[")[0]):
        cases += [case for case in (first, *others) if case.nodeid in named or (others and case is first)]
    return cases


class Scheduling(LoadFileScheduling):
    """Tests of one unit run in one process, one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def _unit(nodeid: str) -> str:
    """The file of a test, or its folder, whose tests share what takes seconds to start: a browser."""
    file = nodeid.partition("::")[0]
    return BROWSER if file.startswith(BROWSER) else file


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK:
        delete_folder(session.config)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the random choices of tests of faults, with the seed that repeats them."""
    for report in (each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)):
        for name, line in report.user_properties:
            if name == "faults" and report.when == "call":
                terminalreporter.write_line(line)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """Return the seed of all random choices of a test of faults; it is printed when the test fails."""
    chosen = choose_seed(request.config)
    print(f"--seed {chosen}")
    return chosen


def choose_seed(config: pytest.Config) -> str:
    """Return the seed that `--seed` says, or a new one."""
    return config.getoption("--seed") or str(secrets.randbelow(2**32))


def unique(kind: str) -> str:
    """A name nobody used yet."""
    return f"{kind}-{next(_numbers)}"


def wait_until(condition: Callable[[], Any], *, seconds: float = HANG_SECONDS) -> Any:
    """Return what the condition returns, once that is true; fails when it does not become so."""
    began = looked = time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        assert now - began < seconds, "waited in vain"
        # A caller that asks all the time keeps busy what it waits for; the more so, the busier that is.
        time.sleep(max(min(0.2, 0.01 + (now - began) / 10), min(1.0, 4 * (now - looked))))
        looked = time.monotonic()
    return value


def join(thread: threading.Thread) -> None:
    """Wait until a thread ends; fail when it does not, long before the test's own limit."""
    thread.join(HANG_SECONDS)
    assert not thread.is_alive(), "the thread waits for ever"


def run_out(database: Database) -> None:
    """As if the time of all leases had passed: of the dead nobody renews them."""
    with database.transaction() as connection:
        connection.execute(text("UPDATE leases SET expires_at = clock_timestamp()"))


def blocked(database: Database) -> bool:
    """Return whether a transaction of this database waits for a lock that another holds."""
    waiting = text(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' LIMIT 1"
    )
    with database.transaction() as connection:
        return connection.execute(waiting).one_or_none() is not None


@dataclass
class Service:
    """A running service and an administrator's hands."""

    url: str
    admin_key: str
    settings: Settings
    clients: dict[str, httpx.Client] = field(default_factory=dict)

    def client(self, key: str | None = None) -> httpx.Client:
        key = key or self.admin_key
        if key not in self.clients:
            headers = {"Authorization": f"Bearer {key}"}
            limits = httpx.Limits(max_connections=None)
            self.clients[key] = httpx.Client(base_url=self.url, headers=headers, timeout=HANG_SECONDS, limits=limits)
        return self.clients[key]

    def key(self, *scopes: str, streams: list[str] | None = None) -> str:
        """A new key."""
        body = {"name": unique("key"), "scopes": list(scopes)} | ({"streams": streams} if streams else {})
        return ok(self.client().post("/v1/keys", json=body), 201)["key"]

    def stream(self, *, features: int = 2, classes: int = 2, epsilon: float = 10, delta: float = 0, **more: Any) -> str:
        """A new classification stream."""
        body = {
            "name": unique("stream"),
            "features": features,
            "task": {"kind": "classification", "classes": classes},
            "budget": {"epsilon": epsilon, "delta": delta},
        } | more
        return ok(self.client().post("/v1/streams", json=body), 201)["name"]

    def publish(self, stream: str, mechanism: dict[str, Any], *, epsilon: float = 1, **more: Any) -> str:
        """A new publication."""
        body = publication(stream, mechanism, epsilon=epsilon, **more)
        return ok(self.client().post("/v1/publications", json=body), 201)["name"]

    def post(self, stream: str, x: Any, y: Any) -> tuple[int, int]:
        """Posts records and returns their numbers, once they have them."""
        client = self.client()
        entry = ok(client.post(f"/v1/streams/{stream}/records", json={"x": x, "y": y}), 202)["entry"]

        def numbered() -> dict[str, int] | None:
            answer = client.get(f"/v1/streams/{stream}/entries/{entry}")
            return answer.json() if answer.status_code == 200 else None

        numbers = wait_until(numbered)
        return numbers["start"], numbers["end"]

    def reaches(self, name: str, *, time: int) -> None:
        """Waits for the release of `time`."""
        url = f"/v1/publications/{name}/releases?limit=1"
        wait_until(lambda: (items := ok(self.client().get(url))["items"]) and items[0]["time"] >= time)

    def first_release(self, name: str, stream: str, *, records: int) -> None:
        """Post what a publication of a new stream waits for: a worker walked its ledger, and does not soon again.

        So a test may say that this ledger is not to be trusted; the first walk would say the contrary.
        """
        self.post(stream, [[0.5, 0.5]] * records, [0] * records)
        self.reaches(name, time=records)

    def released(self, name: str, *, time: int) -> list[dict[str, Any]]:
        """Every release with its parameters, oldest first, once the one of `time` is there."""
        self.reaches(name, time=time)
        client = self.client()
        items, before = [], ""
        while page := ok(client.get(f"/v1/publications/{name}/releases?limit=1000{before}"))["items"]:
            items += page
            before = f"&before={page[-1]['version']}"
        return [ok(client.get(f"/v1/publications/{name}/releases/{item['version']}")) for item in reversed(items)]

    def verifies(self, stream: str) -> None:
        """Fails where a walk of the ledger finds anything wrong."""
        database = Database(str(self.settings.database_url))
        try:
            with database.transaction() as connection:
                identity = streams.find(connection, stream).id
            with database.transaction() as connection:
                assert look(connection, identity)[1] == []
        finally:
            database.close()


EXPIRING = {
    "kind": "online_leader",
    "batch": 3,
    "noise": "window_tree",
    "window": 2,
    "expiry": "block",
    "acknowledge_declassification": True,
}
"""A mechanism whose records expire: its learner is `noisy_gradient_descent`."""


def publication(stream: str, mechanism: dict[str, Any], *, epsilon: float = 1, **more: Any) -> dict[str, Any]:
    delta = more.pop("delta", 0)
    learner = {"kind": "output_perturbation"} | more.pop("learner", {})
    privacy = {"epsilon": epsilon, "delta": delta}
    body = {"name": unique("publication"), "stream": stream, "mechanism": mechanism, "publish_delay": 0}
    return body | {"learner": learner, "privacy": privacy} | more


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with embedded_servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@dataclass(frozen=True)
class World:
    """A fresh database, a log and a folder for segments; nothing runs yet.

    Its `database_url` is that of the service's role, `migration_url` that of the tables' owner.
    """

    settings: Settings


def make_world(servers: Servers, folder: Path, **more: Any) -> World:
    owner, service = new_database(servers)
    return World(
        Settings(
            _env_file=None,
            database_url=service,
            migration_url=owner,
            admin_key=ADMIN_KEY,
            # Services of other tests run on this machine at the same time.
            **{"redis_url": servers.redis_url, "metrics_port": 0, "segment_store": folder / "segments"} | more,
        )
    )


@pytest.fixture
def world(servers: Servers, tmp_path: Path) -> Iterator[World]:
    made = make_world(servers, tmp_path, lease_seconds=1.0)
    yield made
    used_up(servers, str(made.settings.database_url))


@pytest.fixture(scope="module")
def service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield a service of one file's tests: its threads would also do what tests of other files change or count."""
    with new_service(servers, tmp_path_factory) as service:
        yield service


@contextlib.contextmanager
def new_service(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    world = make_world(servers, tmp_path_factory.mktemp("service"), max_body_bytes=2**20)
    with running(world.settings) as service:
        yield service
    used_up(servers, str(world.settings.database_url))


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[Service]:
    """An API and a worker."""
    stop = threading.Event()
    worker = threading.Thread(target=work, args=(settings, stop))
    worker.start()
    try:
        with serving(settings) as url:
            service = Service(url, ADMIN_KEY, settings)
            yield service
            for client in service.clients.values():
                client.close()
    finally:
        stop.set()
        worker.join()


class serving:  # noqa: N801
    """An API in a thread, on a free port, and on another one for Prometheus."""

    def __init__(self, settings: Settings) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        port, metrics_port = (each.getsockname()[1] for each in self._sockets)
        self.url, self.metrics_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}"
        self.app = create_app(settings, metrics_port=metrics_port)
        self._server = Server(configuration(self.app, settings))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": self._sockets})

    def __enter__(self) -> str:
        self._thread.start()
        wait_until(lambda: self._server.started)
        return self.url

    def stop(self) -> None:
        """As SIGTERM would."""
        loop = self._server.servers[0].get_loop()
        loop.call_soon_threadsafe(self._server.handle_exit, signal.SIGTERM, None)

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()
        for each in self._sockets:
            each.close()
