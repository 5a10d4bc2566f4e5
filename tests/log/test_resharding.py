"""A cluster that is resharded under load loses and doubles nothing, and streams of other slots go on."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count

import httpx
import pytest

from service.embedded import Servers
from service.log import read_primaries
from service.segments.files import SegmentFiles
from service.store import streams
from service.store.database import Database
from service.store.streams import slot
from tests.conftest import Service, make_world, ok, running, wait_until
from tests.faults.load import Producer, check, drained
from tests.log.primaries import PRIMARIES, Three, three_in_cluster

MOVES = 12
numbers = count()


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Iterator[Three]:
    with three_in_cluster(tmp_path_factory.mktemp("resharded")) as three:
        yield three


@pytest.fixture(scope="module")
def service(servers: Servers, three: Three, tmp_path_factory) -> Iterator[Service]:
    world = make_world(servers, tmp_path_factory.mktemp("resharding"), redis_url=three.url)
    with running(world.settings) as service:
        yield service


@pytest.fixture
def database(service: Service) -> Iterator[Database]:
    with closing(Database(service.settings.database_url)) as database:
        yield database


@pytest.fixture
def producers(service: Service, three: Three, database: Database, seed: str) -> Iterator[list[Producer]]:
    """Yield producers that append to one stream each, one for each primary, and check at the end what became of it."""
    by_primary: dict[int, str] = {}
    while len(by_primary) < PRIMARIES:
        name = service.stream()
        by_primary.setdefault(primary_of(three, log_of(database, name)), name)
    made = [
        Producer(lambda: new_client(service), by_primary[number], next(numbers), seed=seed, pause=0.01)
        for number in range(1, PRIMARIES + 1)
    ]
    for producer in made:
        producer.start()
    progress(*made)
    yield made
    for producer in made:
        producer.finish()
    for producer in made:
        wait_until(lambda of=producer: drained(service.client(), of.stream, [of]))
        assert ok(service.client().get(f"/v1/streams/{producer.stream}"))["halted"] is None
    check(database, SegmentFiles(service.settings.segment_store), made)
    assert three.refused_across_slots() == 0


def new_client(service: Service) -> httpx.Client:
    return httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {service.admin_key}"}, timeout=200)


def log_of(database: Database, name: str) -> str:
    with database.transaction() as connection:
        return streams.find(connection, name).log


def primary_of(three: Three, log: str) -> int:
    """Return the number of the server that has the slot of a log."""
    primaries = read_primaries(three.url)
    primaries.refresh()
    port = int(primaries.of(log).url.rpartition(":")[2])
    for number in range(1, PRIMARIES + 1):
        with three.redis(number) as redis:
            if redis.info("server")["tcp_port"] == port:
                return number
    raise AssertionError(port)


def progress(*producers: Producer) -> None:
    """Wait until two more batches of each producer were accepted: the first may have been under way before."""
    before = [len(producer.accepted) for producer in producers]
    wait_until(lambda: all(len(one.accepted) > most + 1 for one, most in zip(producers, before, strict=True)))


@contextmanager
def moving(three: Three, log: str, source: int, to: int) -> Iterator[Callable[..., None]]:
    """Begin to move the slot of a log, and finish that; yield what moves some of its keys meanwhile."""
    with three.redis(source) as old, three.redis(to) as new:
        names = [each.execute_command("CLUSTER MYID").decode() for each in (old, new)]
        new.execute_command("CLUSTER SETSLOT", slot(log), "IMPORTING", names[0])
        old.execute_command("CLUSTER SETSLOT", slot(log), "MIGRATING", names[1])

        def migrate(*keys: bytes) -> None:
            port = new.info("server")["tcp_port"]
            old.execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)

        yield migrate
        while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot(log), 100):
            migrate(*keys)
        for each in (new, old):
            each.execute_command("CLUSTER SETSLOT", slot(log), "NODE", names[1])


def test_slots_that_move_under_load_lose_and_double_nothing(
    three: Three, database: Database, producers: list[Producer]
):
    moved, *others = producers
    log, source = log_of(database, moved.stream), 1
    for _ in range(MOVES):
        to = source % PRIMARIES + 1
        with moving(three, log, source, to):
            pass
        progress(moved, *others)
        source = to


@pytest.mark.parametrize("first", ["entries", "state"])
def test_while_a_slot_is_between_two_primaries_only_its_streams_wait(
    service: Service, three: Three, database: Database, producers: list[Producer], first: str
):
    """As when the tool that moves it has died halfway, with one key here and the others there."""
    moved, *others = producers
    beside = service.stream()
    while primary_of(three, log_of(database, beside)) != 1:
        beside = service.stream()
    log = log_of(database, moved.stream)
    with moving(three, log, 1, 2) as migrate:
        migrate(f"perennial:{{{log}}}:{first}".encode())
        for sent in range(1, 4):
            ok(service.client().post(f"/v1/streams/{beside}/records", json={"x": [[0.1, 0.2]], "y": [0]}), 202)
            wait_until(lambda: ok(service.client().get(f"/v1/streams/{beside}"))["records"] == sent)  # noqa: B023
        progress(*others)
    progress(moved)


def test_a_primary_that_is_killed_under_load_stops_its_own_streams_alone(three: Three, producers: list[Producer]):
    _, killed, last = producers
    others = [producers[0], last]
    three.kill(2)
    try:
        progress(*others)
    finally:
        three.start(2)
    progress(killed)
