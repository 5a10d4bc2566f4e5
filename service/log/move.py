"""Both ends of a move: the log that a stream leaves, and the one that it goes to.

A move has a number, the epoch of its lease. Each log remembers the highest number that it has seen, and refuses what an
earlier move wants: so a command that hung and goes on changes nothing behind the back of a later one. A closed log
takes no batch, and says to which primary its stream goes. A log that a stream has left stays closed for ever.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import ResponseError, WatchError
from redis.retry import Retry

from service.log.connection import (
    CONNECTING,
    DURABILITY,
    SECONDS_TO_ANSWER,
    Position,
    dead_key,
    entries_key,
    errors_as_unavailable,
    idempotency_key,
    require_durability,
    state_key,
)
from service.log.primaries import Primary

T = TypeVar("T")

COPIED_AT_ONCE = 500  # remembered answers
LETTERS_AT_ONCE = 8  # dead letters, each as large as a batch

_FENCED = """
local state, log, move = KEYS[1], ARGV[1], tonumber(ARGV[2])
local known = redis.call('HMGET', state, 'log', 'move', 'closed')
if move < tonumber(known[2] or 0) then return 'overtaken' end
"""
_CLOSE = f"""{_FENCED}
if known[1] ~= log then return known[3] and 'left' or 'lost' end
redis.call('HSET', state, 'move', move, 'closed', ARGV[3])
return 'closed'
"""
_OPEN = f"""{_FENCED}
if known[1] ~= log then return 'lost' end
redis.call('HSET', state, 'move', move)
redis.call('HDEL', state, 'closed')
return 'opened'
"""
# New ids must stay above that of the last numbered entry, so one is added with it, and deleted.
_PREPARE = f"""{_FENCED}
local entries, dead, closed, entry, sequence = KEYS[2], KEYS[3], ARGV[3], ARGV[4], ARGV[5]
if known[1] == log and not known[3] then return 'open' end
redis.call('DEL', state, entries, dead)
if entry ~= '0-0' then
  redis.call('XADD', entries, entry, 'sequence', sequence)
  redis.call('XDEL', entries, entry)
end
redis.call('HSET', state, 'log', log, 'sequence', sequence, 'total', 0, 'trimmed', 0, 'move', move, 'closed', closed)
return 'prepared'
"""
_LEAVE = f"""{_FENCED}
if known[1] == log and not known[3] then return 'open' end
if known[1] ~= log and not known[3] then return 'lost' end
redis.call('DEL', state, KEYS[2], KEYS[3])
redis.call('HSET', state, 'move', move, 'closed', ARGV[3])
return 'left'
"""


class Overtaken(Exception):
    """A later move of the same stream has begun."""


class MovedLog:
    """The log of one stream on one primary, for one move."""

    def __init__(self, primary: Primary, log: str, move: int) -> None:
        self.primary, self.move, self._log = primary, move, log
        self._keys = [state_key(log), entries_key(log), dead_key(log)]
        self._redis: Redis = Redis.from_url(
            primary.url,
            socket_timeout=SECONDS_TO_ANSWER,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            retry=Retry(NoBackoff(), 0),
            **CONNECTING,
        )

    def state(self) -> tuple[str, int]:
        """Return whether the log is `open`, `closed`, `lost`, or `left` by its stream; and its last sequence number."""
        with errors_as_unavailable():
            log, closed, batches = cast("Any", self._redis.hmget(self._keys[0], "log", "closed", "sequence"))
        if log == self._log.encode():
            return "open" if closed is None else "closed", int(batches)
        return "lost" if closed is None else "left", 0

    def goes_to(self) -> int | None:
        """Return the number of the primary where the stream of this closed log goes; None: the log is not closed."""
        with errors_as_unavailable():
            number = cast("Any", self._redis.hget(self._keys[0], "closed"))
        return None if number is None else int(number)

    def goes_on_after(self, other: "MovedLog") -> bool:
        """Return whether this log takes batches, all of them later than those of another one, which takes none.

        A log that took batches when the stream was here before, and came back with a backup, ends before the other one.
        """
        (mine, end), (others, start) = self.state(), other.state()
        return mine == "open" and others in ("closed", "left") and start <= end

    def close_for_appends(self, to: int) -> str:
        """Take no batch from now on. Return `closed`, `left` (the stream is not here any more) or `lost`.

        to: the number of the primary where the stream goes.
        """
        return self._run(_CLOSE, to)

    def open_for_appends(self) -> str:
        """Take batches again. Return `opened` or `lost`."""
        return self._run(_OPEN)

    def is_numbered(self, position: Position) -> bool:
        """Return whether nothing follows a position."""
        with errors_as_unavailable():
            sequence = self._redis.hget(self._keys[0], "sequence")
            after: Any = self._redis.xrange(self._keys[1], min=f"({position.entry}", count=1)
        return sequence is not None and int(cast("bytes", sequence)) == position.sequence and not after

    def prepare(self, position: Position) -> str:
        """Make an empty, closed log that goes on after a position. Return `prepared`, or `open`: it takes batches.

        Raises:
            LogUnavailable: the server does not answer, or could lose what it has answered.
        """
        with errors_as_unavailable():
            configuration = cast("dict[Any, Any]", self._redis.config_get(*DURABILITY))
        require_durability(configuration)
        return self._run(_PREPARE, self.primary.number, position.entry, position.sequence)

    def copy_from(self, source: "MovedLog") -> None:
        """Copy remembered answers, with the time that they are remembered for, and dead letters."""
        for keys in _some_at_once(source.remembered()):
            self._remember(source.answers(keys))
        for letters in source.letters():
            self._bury(letters)

    def remembered(self) -> Iterator[bytes]:
        """Yield the keys of the answers that the log remembers, some perhaps twice."""
        with errors_as_unavailable():
            yield from self._redis.scan_iter(match=idempotency_key(self._log, "*"), count=1000)

    def answers(self, keys: Sequence[bytes]) -> list[tuple[bytes, dict[bytes, bytes], int]]:
        """Return remembered answers by key, and for how many milliseconds more they are."""
        with errors_as_unavailable(), self._redis.pipeline(transaction=True) as pipe:
            for key in keys:
                pipe.hgetall(key)
                pipe.pttl(key)
            values = pipe.execute()
        return [each for each in zip(keys, values[::2], values[1::2], strict=True) if each[1] and each[2] > 0]

    def letters(self) -> Iterator[list[tuple[bytes, dict[bytes, bytes]]]]:
        """Yield the dead letters, some at once."""
        after = "-"
        while True:
            with errors_as_unavailable():
                some: Any = self._redis.xrange(self._keys[2], min=after, count=LETTERS_AT_ONCE)
            if not some:
                return
            yield some
            after = f"({some[-1][0].decode()}"

    def drop_letters(self, entries: Iterable[str]) -> None:
        """Delete what dead letters hold that an operator has dropped."""
        if names := list(entries):
            with errors_as_unavailable():
                self._redis.xdel(self._keys[2], *names)

    def leave(self) -> bool:
        """Delete all that is left of the log, and keep it closed. Return whether there is such a log.

        A log that takes batches stays as it is.
        """
        if self._run(_LEAVE, self.primary.number) != "left":
            return False
        for keys in _some_at_once(self.remembered()):
            self._transact(lambda pipe: pipe.delete(*keys))  # noqa: B023 - it is called at once
        return True

    def forget(self) -> bool:
        """Ask the server to write its file anew, as `Reader.forget` does."""
        with errors_as_unavailable():
            try:
                self._redis.bgrewriteaof()
            except ResponseError as error:
                return "in progress" not in str(error)
        return True

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def _remember(self, answers: Iterable[tuple[bytes, dict[bytes, bytes], int]]) -> None:
        def remember(pipe: Pipeline) -> None:
            for key, answer, milliseconds in answers:
                pipe.delete(key)
                pipe.hset(key, mapping=cast("Any", answer))
                pipe.pexpire(key, milliseconds)

        self._transact(remember)

    def _bury(self, letters: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> None:
        def bury(pipe: Pipeline) -> None:
            for entry, fields in letters:
                pipe.xadd(self._keys[2], cast("Any", fields), id=entry)

        self._transact(bury)

    def _transact(self, fill: Callable[[Pipeline], Any]) -> None:
        """Do some commands together, unless a later move has begun or the log takes batches."""
        with errors_as_unavailable():
            while True:
                with self._redis.pipeline(transaction=True) as pipe:
                    pipe.watch(self._keys[0])  # type: ignore[no-untyped-call]
                    move, closed = cast("Any", pipe.hmget(self._keys[0], "move", "closed"))
                    if move is None or int(move) != self.move or closed is None:
                        raise Overtaken
                    pipe.multi()
                    fill(pipe)
                    try:
                        pipe.execute()
                    except WatchError:
                        continue
                return

    def _run(self, script: str, *arguments: Any) -> str:
        with errors_as_unavailable():
            keys = self._keys if "KEYS[2]" in script else self._keys[:1]
            answer: Any = self._redis.eval(script, len(keys), *keys, self._log, self.move, *arguments)
        if answer == b"overtaken":
            raise Overtaken
        return str(answer.decode())


def _some_at_once(every: Iterable[T]) -> Iterator[list[T]]:
    left = iter(every)
    while some := list(islice(left, COPIED_AT_ONCE)):
        yield some
