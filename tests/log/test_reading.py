"""A reader is told of everything that comes, whatever happens in between, and is not told twice."""

import random
from collections.abc import Iterator
from secrets import token_hex

import pytest
from redis import Redis
from redis.connection import AbstractConnection

from service.embedded.servers import Servers
from service.log import LogUnavailable, Position, Reader, open_readers, read_primaries
from service.log.connection import entries_key, state_key
from service.store.streams import slot
from tests.conftest import wait_until
from tests.log.primaries import Three, three_in_cluster

NUMBER = 2  # of the primary whose logs are read
START = Position(entry="0-0", sequence=0)


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Iterator[Three]:
    with three_in_cluster(tmp_path_factory.mktemp("three")) as three:
        yield three


class Desk:
    """One reader, some logs of its primary, and how far each of them is numbered."""

    def __init__(self, three: Three, logs: int = 1) -> None:
        self.three, self.redis = three, three.redis(NUMBER)
        self.primaries = read_primaries(three.url)
        self.primaries.refresh()
        self.reader: Reader = open_readers(self.primaries)[NUMBER - 1]
        self.logs = [self.name() for _ in range(logs)]
        self.positions = dict.fromkeys(self.logs, START)
        self.came = dict.fromkeys(self.logs, 0)
        self.numbered: dict[str, list[int]] = {log: [] for log in self.logs}
        self.untrimmed: dict[str, str] = {}

    def name(self) -> str:
        while True:
            log = token_hex(16)
            if self.primaries.of(log).number == NUMBER:
                return log

    def append(self, log: str) -> None:
        self.came[log] += 1
        self.redis.xadd(entries_key(log), {"sequence": self.came[log], "offset": 0, "batch": "x"})
        self.redis.hset(state_key(log), mapping={"log": log, "total": self.came[log], "sequence": self.came[log]})

    def read(self, log: str, batches: int = 256) -> None:
        for entry in self.reader.read(log, self.positions[log], batches=batches):
            self.numbered[log].append(entry.sequence)
            self.positions[log] = Position(entry=entry.id, sequence=entry.sequence)
            self.untrimmed[log] = entry.id

    def trim(self, log: str) -> None:
        if log in self.untrimmed:
            self.reader.trim(log, self.untrimmed.pop(log))

    def named(self, milliseconds: int = 0) -> list[str]:
        return self.reader.wait(self.positions, milliseconds=milliseconds)

    def number_all(self) -> None:
        wait_until(self.number)
        self.number()

    def number(self) -> bool:
        logs = self.named()
        for log in logs:
            self.read(log)
        for log in logs:
            self.trim(log)
        return all(self.positions[log].sequence == self.came[log] for log in self.logs)

    def number_all_after_errors(self) -> None:
        while True:
            try:
                return self.number_all()
            except LogUnavailable:
                self.reader.refresh()

    def close(self) -> None:
        self.reader.close()
        self.redis.close()


@pytest.fixture
def desk(three: Three) -> Iterator[Desk]:
    made = Desk(three, logs=3)
    yield made
    made.close()


def test_a_batch_that_comes_between_reading_and_trimming_is_named(desk: Desk):
    log = desk.logs[0]
    desk.append(log)
    desk.number_all()
    assert desk.named() == []
    desk.append(log)
    wait_until(lambda: desk.named() == [log])
    desk.read(log)
    desk.append(log)
    desk.trim(log)
    assert desk.named(5000) == [log]
    desk.number_all()
    assert desk.numbered[log] == [1, 2, 3]
    assert desk.named() == []


def test_a_batch_that_was_read_and_not_numbered_is_named_again(desk: Desk):
    log = desk.logs[0]
    desk.number_all()
    desk.append(log)
    for _ in range(3):
        wait_until(lambda: desk.named() == [log])
        assert [entry.sequence for entry in desk.reader.read(log, START, batches=256)] == [1]


def test_a_log_is_not_read_while_nothing_comes_to_it(desk: Desk):
    quiet, busy = desk.logs[0], Desk(desk.three)
    for log in desk.logs:
        desk.append(log)
    desk.number_all()
    for _ in range(5):
        busy.append(busy.logs[0])
        busy.number_all()
        desk.redis.hset(state_key(quiet), "halted", "1")
        assert desk.named() == []
    busy.close()


def test_a_wait_for_the_same_positions_packs_no_command_anew(servers: Servers, monkeypatch):
    reader, positions, packed = Reader(servers.redis_url), {token_hex(16): START, token_hex(16): START}, []
    real = AbstractConnection.pack_command

    def pack_command(connection, *words):
        packed.append(words[0])
        return real(connection, *words)

    monkeypatch.setattr(AbstractConnection, "pack_command", pack_command)
    log = next(iter(positions))
    with Redis.from_url(servers.redis_url) as redis:
        assert [reader.wait(positions, milliseconds=1) for _ in range(3)] == [[], [], []]
        entry = redis.xadd(entries_key(log), {"sequence": 1, "offset": 0, "batch": "x"}).decode()
        assert reader.wait(positions, milliseconds=1) == [log]
        assert packed.count("XREAD") == 1
        positions[log] = Position(entry=entry, sequence=1)
        assert reader.wait(positions, milliseconds=1) == []
    assert packed.count("XREAD") == 2
    reader.close()


def test_after_a_lost_connection_all_that_came_is_named(desk: Desk):
    for log in desk.logs:
        desk.append(log)
    desk.number_all()
    for log in desk.logs:
        desk.redis.client_kill_filter(_type="normal", skipme=True)
        desk.append(log)
        desk.number_all_after_errors()
    assert list(desk.numbered.values()) == [[1, 2]] * len(desk.logs)


def test_a_server_that_remembers_fewer_logs_than_are_read_hides_nothing(desk: Desk):
    desk.redis.config_set("tracking-table-max-keys", 1)
    for _ in range(2):
        for log in desk.logs:
            desk.append(log)
        desk.number_all()
    desk.redis.config_set("tracking-table-max-keys", 0)
    assert list(desk.numbered.values()) == [[1, 2]] * len(desk.logs)


@pytest.mark.more
def test_whatever_happens_between_a_reader_is_told_of_each_batch(desk: Desk, seed: str):
    choose = random.Random(seed)
    desk.redis.config_set("tracking-table-max-keys", 1)
    happenings = {
        lambda: desk.append(choose.choice(desk.logs)): 8,
        lambda: desk.read(choose.choice(desk.logs), batches=choose.choice([1, 2, 256])): 6,
        lambda: desk.trim(choose.choice(desk.logs)): 6,
        desk.named: 6,
        desk.number_all: 2,
        desk.redis.script_flush: 1,
        lambda: desk.redis.client_kill_filter(_type="normal", skipme=True): 1,
    }
    for happening in choose.choices(list(happenings), happenings.values(), k=200):
        try:
            happening()
        except LogUnavailable:
            desk.reader.refresh()
    desk.redis.config_set("tracking-table-max-keys", 0)
    desk.number_all_after_errors()
    assert desk.numbered == {log: list(range(1, desk.came[log] + 1)) for log in desk.logs}


def test_a_log_whose_slot_moved_is_read_where_it_is_now(desk: Desk):
    log = desk.logs[0]
    for each in desk.logs:
        desk.append(each)
    desk.number_all()
    to = NUMBER + 1
    move_slot(desk.three, log, NUMBER, to)
    with desk.three.redis(to) as redis:
        redis.xadd(entries_key(log), {"sequence": 2, "offset": 0, "batch": "x"})
    with pytest.raises(LogUnavailable, match="MovedError"):
        wait_until(lambda: desk.named() and desk.read(log))
    desk.reader.refresh()
    del desk.positions[log]
    desk.append(desk.logs[1])
    wait_until(lambda: desk.logs[1] in desk.named())
    there = open_readers(desk.primaries)[desk.primaries.of(log).number - 1]
    position = Position(entry="0-1", sequence=1)
    assert there.wait({log: position}, milliseconds=0) == [log]
    assert [entry.sequence for entry in there.read(log, position, batches=9)] == [2]
    there.close()
    move_slot(desk.three, log, to, NUMBER)


def move_slot(three: Three, log: str, source: int, to: int) -> None:
    """Move the slot of a log, as an operator does."""
    with three.redis(source) as old, three.redis(to) as new:
        names = [each.execute_command("CLUSTER MYID").decode() for each in (old, new)]
        new.execute_command("CLUSTER SETSLOT", slot(log), "IMPORTING", names[0])
        old.execute_command("CLUSTER SETSLOT", slot(log), "MIGRATING", names[1])
        keys = old.execute_command("CLUSTER GETKEYSINSLOT", slot(log), 100)
        old.execute_command("MIGRATE", "127.0.0.1", new.info("server")["tcp_port"], "", 0, 5000, "KEYS", *keys)
        for each in (new, old):
            each.execute_command("CLUSTER SETSLOT", slot(log), "NODE", names[1])
