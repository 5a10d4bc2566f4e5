"""Promised batches are on disk, remembered answers are forgotten in time, and no more waits than may."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from service.embedded.directory import open_data_directory
from service.embedded.processes import stop_together
from service.embedded.servers import await_ready
from service.embedded.valkey import Valkey
from service.embedded.waiting import StopRequest
from service.log import (
    Appended,
    Appender,
    BacklogFull,
    IdempotencyConflict,
    IdempotencyFull,
    LogLost,
    LogUnavailable,
    Position,
    Reader,
    Resumed,
    appender,
)
from service.log import reader as readers

BEGIN = Position(entry="0-0", sequence=0)
Work = Callable[[Appender], Awaitable[Any]]


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    """A log on a server of its own, whose settings may be changed."""
    stop = StopRequest()
    with open_data_directory(tmp_path_factory.mktemp("log"), stop) as directory:
        server = Valkey(directory)
        server.start()
        await_ready(server.child, server.ready, stop)
        yield server.url
        stop_together([server.child])


@pytest.fixture
def redis(url: str) -> Iterator[Redis]:
    with Redis.from_url(url) as client:
        yield client
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "always")
        client.config_set("no-appendfsync-on-rewrite", "no")
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


@pytest.fixture
def log(url: str) -> str:
    name = token_hex(16)
    doing(url, lambda appender: appender.create(name))
    return name


def doing(url: str, *work: Work, most_bytes: int = 10**6, most_keys: int = 10**6) -> list[Any]:
    """Let one process do this, one after the other."""

    async def do() -> list[Any]:
        appender = Appender(url, max_batches=1000, max_bytes=most_bytes, max_keys=most_keys)
        try:
            return [await each(appender) for each in work]
        finally:
            await appender.close()

    return asyncio.run(do())


def appending(log: str, size: int = 1, idempotency: tuple[str, str] | None = None) -> Work:
    return lambda appender: appender.append(log, b"x" * size, 1, idempotency=idempotency)


def test_a_halted_log_takes_nothing(url: str, log: str):
    reader = Reader(url)
    reader.halt(log)
    with pytest.raises(LogUnavailable, match="halted"):
        doing(url, appending(log))
    reader.go_on({log: BEGIN})
    doing(url, appending(log))
    reader.close()


def test_so_many_bytes_wait_and_no_more(url: str, log: str):
    (first,) = doing(url, appending(log, 200), most_bytes=100)  # one batch may always wait
    with pytest.raises(BacklogFull):
        doing(url, appending(log, 1), most_bytes=100)
    reader = Reader(url)
    reader.trim(log, first.entry)
    doing(url, appending(log, 60), appending(log, 40), most_bytes=100)
    with pytest.raises(BacklogFull):
        doing(url, appending(log, 1), most_bytes=100)
    reader.close()


def test_an_answer_is_remembered_for_a_day(url: str, log: str, redis: Redis):
    (first, again) = doing(url, *[appending(log, idempotency=("scope", "body"))] * 2)
    assert (first.entry, first.new, again.new) == (again.entry, True, False)
    (key,) = redis.keys(f"*{log}*idempotency*")
    redis.pexpire(key, 1000 * (12 * 3600 + 5))  # it is as old as a day less these seconds
    (known,) = doing(url, appending(log, idempotency=("scope", "body")))
    assert (known.entry, known.new) == (first.entry, False)


def test_many_appends_at_once_share_one_look_at_how_the_server_keeps_them(url: str, log: str):
    """Each on a connection of its own, they would find none."""

    async def append_at_once(appender: Appender) -> None:
        await asyncio.gather(*(appending(log)(appender) for _ in range(300)))

    doing(url, append_at_once)


def of_key(number: int) -> tuple[str, str]:
    return f"key:{number}", f"body {number}"


def test_an_answer_lives_for_a_day_or_longer_whenever_it_came_and_the_next_half_day_finds_room(
    url: str, log: str, redis: Redis
):
    """In four days of half-days, each answer is found for a day after it came, and none for two."""
    half_day, found = appender.HALF_DAY_SECONDS, []
    for now in range(8):
        for key in redis.keys(f"*{log}*idempotency*"):  # half a day goes by
            redis.pexpire(key, redis.pttl(key) - 1000 * half_day - 1)
        first, *again = doing(url, *[appending(log, idempotency=of_key(number)) for number in range(now, -1, -1)][:4])
        assert first.new
        found.append([not appended.new for appended in again])
        for number, appended in zip(range(now - 1, -1, -1), again, strict=False):
            if appended.new:  # it was sent anew by this look alone
                for key in redis.keys(f"*{log}*idempotency*"):
                    redis.hdel(key, appender._digest(str(number)))
    assert found[:3] == [[], [True], [True, True]]
    assert all(answers[:2] == [True, True] and answers[2:] == [False] for answers in found[3:])


def test_of_one_api_key_so_many_idempotency_keys_are_remembered_and_no_more(url: str, log: str, redis: Redis):
    """Others go on, what was answered is answered again, and none is forgotten before its time."""

    async def fill(appender: Appender) -> IdempotencyFull:
        first = [await appending(log, idempotency=of_key(number))(appender) for number in range(3)]
        with pytest.raises(IdempotencyFull) as refused:
            await appending(log, idempotency=of_key(3))(appender)
        again = [await appending(log, idempotency=of_key(number))(appender) for number in range(3)]
        assert [answer.entry for answer in again] == [answer.entry for answer in first]
        with pytest.raises(IdempotencyConflict):
            await appending(log, idempotency=("key:0", "another body"))(appender)
        await appending(log, idempotency=("another:3", "body 3"))(appender)
        await appending(log)(appender)
        return refused.value

    (refused,) = doing(url, fill, most_keys=3)
    assert (refused.limit, 24 * 3600 < refused.seconds <= 36 * 3600) == (3, True)
    redis.delete(
        f"perennial:{{{log}}}:idempotency:key:0", *[f"perennial:{{{log}}}:idempotency:key:{n}" for n in (1, 2)]
    )
    doing(url, appending(log, idempotency=of_key(3)), most_keys=3)


def test_what_a_version_before_remembered_is_answered_again(url: str, log: str, redis: Redis):
    before = {"body": "body", "entry": "1-2", "records": 7}
    redis.hset(f"perennial:{{{log}}}:idempotency:key:digest", mapping=before)
    (known,) = doing(url, appending(log, idempotency=("key:digest", "body")))
    assert (known.entry, known.records, known.new) == ("1-2", 7, False)
    with pytest.raises(IdempotencyConflict):
        doing(url, appending(log, idempotency=("key:digest", "another body")))


def test_a_remembered_key_takes_at_most_150_bytes(url: str, log: str, redis: Redis):
    """`docs/scale.md` sums up with that number."""
    keys = 3000

    async def remember(appender: Appender) -> None:
        for first in range(0, keys, 300):
            numbers = range(first, first + 300)
            await asyncio.gather(*(appending(log, idempotency=of_key(number))(appender) for number in numbers))
            reader.trim(log, f"{2**48}-0")

    reader = Reader(url)
    doing(url, remember)
    reader.close()
    used = sum(redis.memory_usage(key, samples=0) for key in redis.keys(f"*{log}*idempotency*"))
    print(f"{used / keys:.0f} bytes for each remembered key")
    assert used <= 150 * keys


@pytest.mark.parametrize(
    ("name", "value"), [("appendfsync", "everysec"), ("appendonly", "no"), ("no-appendfsync-on-rewrite", "yes")]
)
def test_a_server_that_syncs_late_is_given_nothing(url: str, log: str, redis: Redis, name, value):
    redis.config_set(name, value)
    for work in (appending(log), lambda appender: appender.create(log), lambda appender: appender.ready()):
        with pytest.raises(LogUnavailable, match="could lose what it has answered"):
            doing(url, work)
    assert redis.xlen(f"perennial:{{{log}}}:entries") == 0


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "allkeys-lru"])
def test_a_server_that_deletes_keys_when_its_memory_is_full_is_given_nothing(url: str, log: str, redis: Redis, policy):
    """It would forget remembered answers, so a request that is sent again would be stored twice."""
    redis.config_set("maxmemory-policy", policy)
    doing(url, appending(log))  # its memory has no limit
    redis.config_set("maxmemory", 2**30)
    for work in (appending(log), lambda appender: appender.create(log), lambda appender: appender.ready()):
        with pytest.raises(LogUnavailable, match="could delete what it has answered"):
            doing(url, work)
    redis.config_set("maxmemory-policy", "noeviction")
    doing(url, appending(log))
    assert redis.xlen(f"perennial:{{{log}}}:entries") == 2


def test_a_setting_that_is_changed_is_noticed_again(url: str, log: str, redis: Redis, monkeypatch):
    async def changed(_: Appender) -> None:
        redis.config_set("appendfsync", "everysec")
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
        monkeypatch.setattr(appender, "time", later)

    with pytest.raises(LogUnavailable, match="could lose what it has answered"):
        doing(url, appending(log), changed, appending(log))
    assert redis.xlen(f"perennial:{{{log}}}:entries") == 1


def test_what_is_numbered_is_trimmed_and_nothing_else(url: str, log: str):
    first, *others = doing(url, *[appending(log, size) for size in (10, 20, 30)])
    reader = Reader(url)
    reader.trim(log, first.entry)
    assert [each.id for each in reader.read(log, BEGIN, batches=9)] == [each.entry for each in others]
    position = Position(entry=first.entry, sequence=1)
    (((_, backlogs),)) = doing(url, lambda appender: appender.state({log: position}))
    backlog = backlogs[log]
    assert (backlog.backlog_batches, backlog.backlog_bytes) == (2, 50)
    reader.check(log, position)
    reader.close()


def test_a_log_goes_on_with_the_first_batch_that_is_not_numbered(url: str, log: str, redis: Redis):
    """However much of what is numbered it still holds: its worker may have died before it trimmed."""
    first, second = doing(url, appending(log, 10), appending(log, 20))
    numbered, entries = Position(entry=first.entry, sequence=1), f"perennial:{{{log}}}:entries"
    assert doing(url, lambda appender: appender.resume(log, numbered)) == [Resumed(sequence=1, lost_batches=0)]
    assert [entry for entry, _ in redis.xrange(entries)] == [second.entry.encode()]


def test_a_log_that_lost_its_state_goes_on_behind_what_it_holds(url: str, log: str, redis: Redis):
    first, *_ = doing(url, *[appending(log, size) for size in (10, 20, 30)])
    entries, state = (f"perennial:{{{log}}}:{part}" for part in ("entries", "state"))
    redis.delete(state)
    numbered = Position(entry=first.entry, sequence=1)
    resumed, _, (memory, backlogs) = doing(
        url,
        lambda appender: appender.resume(log, numbered),
        appending(log, 5),
        lambda appender: appender.state({log: numbered}),
    )
    assert resumed == Resumed(sequence=1, lost_batches=None)
    assert [fields[b"sequence"] for _, fields in redis.xrange(entries)] == [b"2", b"3", b"4"]
    assert redis.hmget(state, "total", "trimmed") == [b"65", b"10"]
    assert (backlogs[log].backlog_batches, backlogs[log].backlog_bytes) == (3, 55)
    assert memory.used_bytes > 55


class Backup:
    """A log as it was, to be put in the place of what it became."""

    def __init__(self, redis: Redis, log: str) -> None:
        self._redis, self._keys = redis, [f"perennial:{{{log}}}:{part}" for part in ("entries", "state")]
        self._contents = [redis.dump(key) for key in self._keys]

    def restore(self) -> None:
        for key, content in zip(self._keys, self._contents, strict=True):
            if content is None:
                self._redis.delete(key)
            else:
                self._redis.restore(key, 0, content, replace=True)


def test_a_log_that_lost_accepted_batches_takes_none_and_says_which(url: str, log: str, redis: Redis):
    """Whoever appended them knows their numbers; a process that does not know them takes none of the numbers either."""
    reader = Reader(url)

    async def lose(appender: Appender) -> None:
        backup = Backup(redis, log)
        for _ in range(3):
            await appending(log)(appender)
        backup.restore()
        await appending(log)(appender)  # takes the number 2 once more

    doing(url, appending(log))
    with pytest.raises(LogUnavailable, match="lost"):
        doing(url, lose)
    with pytest.raises(LogUnavailable, match="lost"):
        doing(url, appending(log))
    with pytest.raises(LogLost, match="lost batches 2 to 4, which were accepted"):
        reader.check(log, BEGIN)
    assert doing(url, lambda appender: appender.resume(log, BEGIN)) == [Resumed(sequence=0, lost_batches=3)]
    reader.check(log, BEGIN)
    doing(url, appending(log))
    reader.close()


@pytest.mark.parametrize("found", [False, True], ids=["flushed", "older"])
def test_what_was_appended_before_a_log_was_resumed_is_not_missed_again(url: str, log: str, redis: Redis, found: bool):
    """No process needs to be started anew, whoever found that the log was lost."""

    async def append_resume_append(appender: Appender) -> list[int]:
        backup, other = Backup(redis, log), Appender(url, max_batches=100, max_bytes=10**6)
        for _ in range(3):
            await appending(log)(appender)
        backup.restore()
        if found:
            with pytest.raises(LogUnavailable, match="lost"):
                await appending(log)(appender)
        else:
            redis.delete(f"perennial:{{{log}}}:state")
        await other.resume(log, BEGIN)
        await other.close()
        for _ in range(2):
            await appending(log)(appender)
        return [int(fields[b"sequence"]) for _, fields in redis.xrange(f"perennial:{{{log}}}:entries")]

    assert doing(url, append_resume_append) == [[1, 2]]


def test_batches_that_come_at_the_same_time_or_without_an_answer_are_never_missed(url: str, log: str):
    async def append_much(appender: Appender) -> None:
        other = Appender(url, max_batches=1000, max_bytes=10**6)
        for _ in range(5):
            waiting = [asyncio.create_task(appending(log)(one)) for _ in range(40) for one in (appender, other)]
            await asyncio.sleep(0)
            for task in waiting[::7]:
                task.cancel()  # its answer comes all the same, to nobody
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(answer, Appended | asyncio.CancelledError) for answer in answers)
            reader.trim(log, max(answer.entry for answer in answers if isinstance(answer, Appended)))
        await other.close()

    reader = Reader(url)
    doing(url, append_much)
    reader.close()


@pytest.mark.parametrize("way", ["flushed", "made anew", "older", "emptied", "cut"])
def test_a_log_that_is_not_the_one_that_was_numbered_is_told(url: str, log: str, redis: Redis, way):
    first, second, _ = doing(url, *[appending(log)] * 3)
    entries, state = (f"perennial:{{{log}}}:{part}" for part in ("entries", "state"))
    numbered, reader = Position(entry=first.entry, sequence=1), Reader(url)
    reader.check(log, BEGIN)
    reader.check(log, numbered)
    match way:
        case "flushed":
            redis.delete(entries, state)
        case "made anew":
            redis.hset(state, "log", "another")
        case "older":
            redis.hset(state, "sequence", 0)
            redis.delete(entries)
        case "emptied":
            redis.delete(entries)
        case "cut":
            redis.xdel(entries, second.entry)
    with pytest.raises(LogLost):
        reader.check(log, numbered)
    reader.close()


def test_a_log_that_an_unfinished_move_closed_halts_its_stream_until_it_is_resumed(url: str, log: str, redis: Redis):
    """0.1.0 moved streams between servers; a command that died left the log closed."""
    doing(url, appending(log))
    redis.hset(f"perennial:{{{log}}}:state", "closed", 2)
    with pytest.raises(LogUnavailable, match="lost or halted"):
        doing(url, appending(log))
    with closing(Reader(url)) as reader:
        with pytest.raises(LogLost, match=r"`perennial move-stream` of .* closed the log"):
            reader.check(log, BEGIN)
        assert doing(url, lambda appender: appender.resume(log, BEGIN)) == [Resumed(sequence=0, lost_batches=0)]
        reader.check(log, BEGIN)
        doing(url, appending(log))
        assert [entry.sequence for entry in reader.read(log, BEGIN, batches=9)] == [1, 2]


def test_how_long_the_oldest_batch_has_waited_is_told_in_seconds():
    """An entry's id has milliseconds; the server's clock has seconds and microseconds."""
    assert appender._backlog([]) == appender.Backlog()
    waits = appender._backlog([2, 30, b"1000500-3", b"1003", b"250000"])
    assert (waits.backlog_batches, waits.backlog_bytes, waits.lag_seconds) == (2, 30, 2.75)
    numbered_since = appender._backlog([-1, 0, b"1000500-3", b"1000", b"0"])
    assert (numbered_since.backlog_batches, numbered_since.lag_seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("fields", "sequence"),
    [
        ({b"sequence": b"12", b"batch": b"x"}, 12),
        ({b"sequence": b"12"}, None),
        ({b"sequence": b"1" * 19, b"batch": b"x"}, None),
        ({b"sequence": b"-1", b"batch": b"x"}, None),
        ({b"batch": b"x"}, None),
    ],
)
def test_an_entry_that_nobody_of_ours_wrote_has_no_number(fields: dict[bytes, bytes], sequence: int | None):
    assert readers._entry((b"1-1", fields)).sequence == sequence
