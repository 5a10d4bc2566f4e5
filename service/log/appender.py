"""The writing end of the log: the API's.

Batches that come together are sent and synced together: the busier it is, the less each one costs.
"""

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError

from service.log.commands import Commands
from service.log.connection import (
    CONNECTING,
    DURABILITY,
    SECONDS_TO_ANSWER,
    LogUnavailable,
    Position,
    answer_keys,
    dead_key,
    entries_key,
    errors_as_unavailable,
    following,
    idempotency_key,
    refusal,
    require_durability,
    state_key,
    unavailable,
)

IDEMPOTENCY_SECONDS = 24 * 3600
HALF_DAY_SECONDS = 12 * 3600
DIGEST_BYTES = 16
DURABLE_SECONDS = 10.0  # between two looks at how the server keeps what it is given

# Remembering the answer and appending the batch are one step, so that a crash leaves both or neither.
#
# Answers are in three hashes for each stream and API key. One takes answers for half a day, and lives a day longer: so
# when none takes any more, one of the three has expired. It costs less than an expiry for each answer.
_APPEND = """
local entries, state = KEYS[1], KEYS[2]
local log, payload, records, most_batches, most_bytes, newest, resumed =
  ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local key, body, body_before, most_keys, day, half_day =
  ARGV[8], ARGV[9], ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local found = redis.call('HMGET', state, 'log', 'halted', 'total', 'trimmed', 'sequence', 'closed', 'lost', 'resumed')
if found[1] ~= log or found[2] or found[6] or found[7] then return {'lost'} end
if tonumber(newest) > tonumber(found[5]) and resumed == (found[8] or '') then
  redis.call('HSET', state, 'lost', newest)
  return {'lost'}
end
if key then
  for place = 3, 5 do
    local known = redis.call('HGET', KEYS[place], key)
    if known then
      if string.sub(known, 1, #body) ~= body then return {'conflict'} end
      return {'known', string.match(known, '^(%S+) (%d+)$', #body + 1)}
    end
  end
  local known = redis.call('HMGET', KEYS[6], 'body', 'entry', 'records') -- as versions before 1.0 remember it
  if known[1] then
    if known[1] ~= body_before then return {'conflict'} end
    return {'known', known[2], known[3]}
  end
end
local total, sequence = tonumber(found[3]), string.format('%.0f', found[5] + 1)
local waiting = total - found[4]
if redis.call('XLEN', entries) >= most_batches or (waiting > 0 and waiting + #payload > most_bytes) then
  return {'full'}
end
local remembered, longest, keys, next_expiry = nil, -2, 0, math.huge
if key then
  for place = 3, 5 do
    local left = redis.call('PTTL', KEYS[place])
    if left < 0 then
      if longest < day then remembered, longest = KEYS[place], day - 1 end
    else
      keys, next_expiry = keys + redis.call('HLEN', KEYS[place]), math.min(next_expiry, left)
      if left > longest then remembered, longest = KEYS[place], left end
    end
  end
  if keys >= most_keys then return {'many', math.ceil(next_expiry / 1000)} end
end
redis.call('HSET', state, 'total', string.format('%.0f', total + #payload), 'sequence', sequence)
local entry = redis.call('XADD', entries, '*', 'sequence', sequence, 'offset', found[3], 'batch', payload)
if remembered then
  redis.call('HSET', remembered, key, body .. entry .. ' ' .. records)
  if longest < day then redis.call('PEXPIRE', remembered, day + half_day) end
end
return {'appended', entry, records, sequence, found[8] or ''}
"""


_APPEND_SHA = hashlib.sha1(_APPEND.encode(), usedforsecurity=False).hexdigest()  # Redis knows scripts by this

# Redis refuses a script that may write where it would refuse a write: on a replica, with its memory or its disk full.
_WRITES_NOTHING = """#!lua
return 1
"""

# What is not numbered yet. The entry's own id tells when it came, on the server's clock.
_BACKLOG = """
local first = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', 1)[1]
local state = redis.call('HMGET', KEYS[2], 'sequence', 'total')
local now = redis.call('TIME')
if not first or not state[1] then return {} end
local offset = first[2][3] == 'offset' and first[2][4] or state[2]
return {state[1] - ARGV[2], state[2] - offset, first[1], now[1], now[2]}
"""

# Makes a log go on after the position that it is numbered to, whatever became of it, and tells which batch is next.
# New ids must stay above that position in a log that has forgotten its own: so one is added there, and deleted.
# `resumed` is new each time: what APIs remember of the log before that counts no more.
_RESUME = """
local entries, state = KEYS[1], KEYS[2]
local log, entry, after, sequence, resumed = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
redis.call('XTRIM', entries, 'MINID', '=', after)
if type(redis.pcall('XADD', entries, entry, 'sequence', sequence)) == 'string' then
  redis.call('XDEL', entries, entry)
end
local function of_ours(found)
  for _, each in ipairs(found) do
    if each[2][1] == 'sequence' and each[2][3] == 'offset' then return each[2] end
  end
end
local first = of_ours(redis.call('XRANGE', entries, '-', '+', 'COUNT', 100))
local last = first and of_ours(redis.call('XREVRANGE', entries, '+', '-', 'COUNT', 100))
local known = redis.call('HMGET', state, 'log', 'sequence', 'lost')
local newest = known[1] == log and known[2] or nil
if not newest then
  redis.call('DEL', state)
  redis.call('HSET', state, 'log', log, 'sequence', last and last[2] or sequence,
    'total', last and string.format('%.0f', last[4] + #last[6]) or 0, 'trimmed', first and first[4] or 0)
end
redis.call('HDEL', state, 'halted', 'lost', 'closed')
redis.call('HSET', state, 'resumed', resumed)
return {first and first[2] or false, newest or false, redis.call('HGET', state, 'sequence'), known[3]}
"""


class BacklogFull(Exception):
    """More waits to be numbered than this stream may hold. Nothing was stored; try again later."""


class IdempotencyFull(Exception):
    """The stream remembers as many Idempotency-Keys of this API key as it may. Nothing was stored.

    seconds: until it forgets some. limit: the most that it remembers.
    """

    def __init__(self, seconds: int, limit: int) -> None:
        super().__init__(seconds, limit)
        self.seconds, self.limit = seconds, limit


class IdempotencyConflict(Exception):
    """An Idempotency-Key came again with another body. Nothing was stored."""


@dataclass(frozen=True, kw_only=True)
class Appended:
    """A batch that is on disk."""

    entry: str
    records: int
    new: bool  # not the answer to an earlier request with the same Idempotency-Key


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of a server of the log. `max_bytes`: when it refuses writes; 0: it has no limit of its own."""

    used_bytes: int
    max_bytes: int


class Newest(NamedTuple):
    """The newest batch that this process got an answer for: its sequence number, and since which `resume`."""

    sequence: int = 0
    resumed: str = ""


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """A log that goes on: the sequence number before the next batch's; how many batches are gone, if that is known."""

    sequence: int
    lost_batches: int | None


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The part of a log that is not numbered, and how long its oldest batch has waited."""

    backlog_batches: int = 0
    backlog_bytes: int = 0
    lag_seconds: float = 0.0


class Appender:
    """Appends batches; answers only when they are on disk.

    Each append says the newest sequence number that this process got of the log. A log whose counter is below that has
    lost batches that were accepted: it takes no more, and whoever numbers it halts the stream (`Reader.check_each`).
    """

    def __init__(
        self,
        url: str,
        *,
        max_batches: int,
        max_bytes: int,
        max_keys: int = 250_000,
        newest: dict[str, Newest] | None = None,
    ) -> None:
        """Connect when it is used.

        max_keys: most Idempotency-Keys of one API key that a stream remembers. newest: what this process knows of each
        log, by name; shared with the ends of other primaries.
        """
        # No blind retries: a repeated append after a lost answer would store a batch twice.
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=SECONDS_TO_ANSWER,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            retry=Retry(NoBackoff(), 0),
            **CONNECTING,
        )
        self._commands = Commands(url)
        self._backlog = self._redis.register_script(_BACKLOG)
        self._max_batches, self._max_bytes, self._max_keys = max_batches, max_bytes, max_keys
        self._newest = {} if newest is None else newest
        self._durable_until = 0.0
        self._checking: asyncio.Task[None] | None = None

    async def create(self, log: str) -> None:
        """Makes an empty log. Harmless when it is never used."""
        await self._check_durability()
        with errors_as_unavailable():
            empty: Any = {"log": log, "sequence": 0, "total": 0, "trimmed": 0}
            await self._redis.hset(state_key(log), mapping=empty)

    async def append(self, log: str, batch: bytes, records: int, *, idempotency: tuple[str, str] | None) -> Appended:
        """Appends one batch, or finds it already appended.

        Args:
            log: the name of the stream's log.
            batch: the packed records.
            records: how many they are.
            idempotency: ("API-KEY:DIGEST", digest of the body), where the request carried an Idempotency-Key.

        Raises:
            LogUnavailable: the log is away, lost, or cannot keep the batch. It may have been appended all the same.
            BacklogFull, IdempotencyConflict, IdempotencyFull: nothing was appended.
        """
        if time.monotonic() >= self._durable_until:
            await self._check_durability()
        keys = [entries_key(log), state_key(log)]
        arguments: list[bytes | str | int] = [log, batch, records, self._max_batches, self._max_bytes]
        arguments += self._newest.get(log, Newest())
        if idempotency is not None:
            scope, body = idempotency
            owner, _, key = scope.partition(":")
            keys += [*answer_keys(log, owner), idempotency_key(log, scope)]
            arguments += [_digest(key), _digest(body), body, self._max_keys]
            arguments += [1000 * IDEMPOTENCY_SECONDS, 1000 * HALF_DAY_SECONDS]
        answer = await self._evaluate(len(keys), *keys, *arguments)
        match answer[0]:
            case b"lost":
                raise LogUnavailable(
                    "the log of this stream is lost or halted; the stream says why shortly, and an operator has to look"
                )
            case b"conflict":
                raise IdempotencyConflict
            case b"full":
                raise BacklogFull
            case b"many":
                raise IdempotencyFull(int(answer[1]), self._max_keys)
            case b"appended":
                self._remember(log, Newest(int(answer[3]), answer[4].decode()))
        return Appended(entry=answer[1].decode(), records=int(answer[2]), new=answer[0] == b"appended")

    async def state(self, positions: Mapping[str, Position]) -> tuple[Memory, dict[str, Backlog]]:
        """Return the server's memory and, by name of the log, what follows the position that it is numbered to."""
        with errors_as_unavailable():
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.info("memory")
                for log, position in positions.items():
                    await self._backlog(
                        keys=[entries_key(log), state_key(log)], args=[position.entry, position.sequence], client=pipe
                    )
                memory, *answers = await pipe.execute()
        used = Memory(used_bytes=int(memory["used_memory"]), max_bytes=int(memory.get("maxmemory", 0)))
        return used, {log: _backlog(answer) for log, answer in zip(positions, answers, strict=True)}

    async def resume(self, log: str, position: Position) -> Resumed:
        """Makes a log that is lost, old or cut take batches again, numbered from `position` on. Repeatable.

        Entries that it holds after that stay; numbered ones do not.

        Raises:
            LogUnavailable: the log does not answer; try again.
        """
        arguments = (log, position.entry, following(position.entry), position.sequence, token_hex(8))
        await self._check_durability()
        with errors_as_unavailable():
            keys = (entries_key(log), state_key(log))
            answer = await cast("Any", self._redis.eval(_RESUME, 2, *keys, *arguments))
        first, newest, now, lost_to = answer
        due = int(first) if first else int(now) + 1
        knows = newest and due > position.sequence  # a log that has gone back can't tell what came meanwhile
        lost = due - 1 - position.sequence + max(0, int(lost_to or 0) - int(newest)) if knows else None
        return Resumed(sequence=due - 1, lost_batches=lost)

    async def drop_dead(self, log: str, entry: str) -> None:
        """Deletes what could not be numbered. Repeating it changes nothing."""
        with errors_as_unavailable():
            await self._redis.xdel(dead_key(log), entry)

    async def ready(self) -> None:
        """Raise LogUnavailable unless the log answers, takes writes and keeps what it is given."""
        with errors_as_unavailable():
            await cast("Any", self._redis.eval(_WRITES_NOTHING, 0))
        await self._check_durability()

    async def close(self) -> None:
        await self._commands.close()
        await self._redis.aclose()

    def _remember(self, log: str, newest: Newest) -> None:
        """Answers may come in another order than batches were appended in: the newest number counts."""
        known = self._newest.get(log)
        if known is None or known.resumed != newest.resumed or known.sequence < newest.sequence:
            self._newest[log] = newest

    async def _evaluate(self, *arguments: bytes | str | int) -> list[Any]:
        """Return the script's answer. Raises LogUnavailable where the server refuses it."""
        command = ("EVALSHA", _APPEND_SHA, *arguments)
        [answer] = await self._commands.send([command])
        if isinstance(answer, NoScriptError):  # a server that was restarted has forgotten it, and has done nothing
            await self._load()
            [answer] = await self._commands.send([command])
        if isinstance(answer, RedisError):
            raise unavailable(answer)
        return cast("list[Any]", answer)

    async def _load(self) -> None:
        with errors_as_unavailable():
            await self._redis.script_load(_APPEND)

    async def _check_durability(self) -> None:
        """Raise LogUnavailable unless the server answers a write only after it is on disk, and keeps it there.

        It is asked again now and then: an operator can change it while it runs.

        WAITAOF is no way round `appendfsync always`: under `everysec` the Valkey that was tried confirms too early.
        """
        if self._checking is None or self._checking.done():  # all requests of a moment share one look
            self._checking = asyncio.create_task(self._look_at_durability())
            self._checking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._checking)

    async def _look_at_durability(self) -> None:
        with errors_as_unavailable():
            try:
                configuration = await self._redis.config_get(*DURABILITY)
            except ResponseError as error:
                if not isinstance(error, NoPermissionError) and refusal(error):
                    raise
                raise LogUnavailable(
                    "the Redis server must allow `CONFIG GET *append* maxmemory*`, to know when data is safe"
                ) from error
        require_durability(configuration)
        self._durable_until = time.monotonic() + DURABLE_SECONDS


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES]


def _backlog(answer: list[Any]) -> Backlog:
    if not answer:
        return Backlog()
    batches, size, oldest, seconds, microseconds = answer
    waited = int(seconds) + int(microseconds) / 1e6 - int(oldest.split(b"-")[0]) / 1e3
    return Backlog(backlog_batches=max(0, batches), backlog_bytes=size, lag_seconds=max(0.0, waited))
