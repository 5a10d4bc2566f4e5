"""The reading end of the log: the sealer's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from service.log.connection import (
    CONNECTING,
    SECONDS_TO_ANSWER,
    LogMoves,
    Position,
    dead_key,
    entries_key,
    errors_as_unavailable,
    following,
    state_key,
    unavailable,
)
from service.log.primaries import OnePrimary, Primary

# Trims what is numbered, and tells whether anything is left: what waits is counted from there. Repeating it changes
# nothing.
TRIM = """
redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[1])
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local trimmed = first and first[2][3] == 'offset' and first[2][4] or redis.call('HGET', KEYS[2], 'total')
if trimmed then redis.call('HSET', KEYS[2], 'trimmed', trimmed) end
return first and 1 or 0
"""

LONGEST_WAIT_SECONDS = 5.0
_CLOSED = (
    "a `perennial move-stream` of 0.1.0 closed the log and was not finished: "
    "resume the stream, unless its log on the other primary has taken batches since"
)
_KEPT_ALREADY = "equal or smaller"  # what the server says of an id that is there: ids only grow


class LogLost(Exception):
    """The log is not the one that was read before: flushed, restored from a backup, or cut. Never number from it."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One batch as the log holds it. `sequence` None: none of ours, whatever it holds."""

    id: str
    sequence: int | None
    batch: bytes
    fields: dict[bytes, bytes]


class Reader:
    """Reads what is not numbered yet, in the log's own order, and trims what is."""

    def __init__(self, log: str | Primary) -> None:
        """Connects when it is used; `log`: the primary, or the URL of the only one."""
        self._primary = OnePrimary(log).every()[0] if isinstance(log, str) else log
        self._waited: tuple[dict[str, Position], int] | None = None  # what `wait` was called with last
        self._packed: Any = None  # the command that it sent
        self._logs: dict[bytes, str] = {}  # by key
        self._connect(self._primary.url)

    def _connect(self, url: str) -> None:
        # Longer than any blocking read, so that a connection on which nothing comes any more is noticed.
        self._redis: Redis = Redis.from_url(
            url,
            socket_timeout=LONGEST_WAIT_SECONDS + SECONDS_TO_ANSWER,
            socket_connect_timeout=SECONDS_TO_ANSWER,
            retry=Retry(NoBackoff(), 0),
            **CONNECTING,
        )
        self._trim = self._redis.register_script(TRIM)

    @property
    def primary(self) -> Primary:
        """The primary that holds the logs."""
        return self._primary

    def refresh(self) -> None:
        """Look whether the primary is at another address now; after each LogUnavailable."""

    def wait(self, positions: Mapping[str, Position], *, milliseconds: int) -> list[str]:
        """Which of the logs have something after their positions; waits a while when none has.

        Args:
            positions: by name of the log.
            milliseconds: how long to wait, at most LONGEST_WAIT_SECONDS; 0: not at all.

        The packed command is used again while the positions are the same: to wait for 1,000 idle logs takes 0.2 ms of
        processor time, before 1.7.

        Raises:
            LogUnavailable: the log does not answer.
        """
        if (positions, milliseconds) != self._waited:
            self._waited = dict(positions), milliseconds
            self._logs = {entries_key(log).encode(): log for log in positions}
            self._packed = None
        with errors_as_unavailable():
            pool = self._redis.connection_pool
            connection: Any = pool.get_connection()
            try:
                self._packed = self._packed or connection.pack_command(*_xread(positions, milliseconds))
                connection.send_packed_command(self._packed)
                answer = connection.read_response() or []
            finally:
                pool.release(connection)
        return [self._logs[key] for key, _ in answer]

    def read(self, log: str, position: Position, *, batches: int) -> list[Entry]:
        """The next entries of one log after its position, in order; at most so many batches.

        Raises:
            LogUnavailable: the log does not answer.
        """
        with errors_as_unavailable():
            answer: Any = self._redis.xrange(entries_key(log), min=f"({position.entry}", count=batches)
        return [_entry(raw) for raw in answer]

    def check(self, log: str, position: Position) -> None:
        """Check that this is the log that was numbered up to `position`, and that nothing was lost from it since.

        Raises:
            LogLost: it is not, or something was.
            LogUnavailable: the log does not answer.
        """
        if (lost := self.check_each({log: position}).get(log)) is not None:
            raise lost

    def check_each(self, positions: Mapping[str, Position]) -> dict[str, LogLost | LogMoves]:
        """Return, by name of the log, what `check` would raise; all logs are asked together.

        Raises:
            LogUnavailable: the log does not answer.
        """
        pipe = self._redis.pipeline(transaction=False)
        for log, position in positions.items():
            pipe.hmget(state_key(log), "log", "sequence", "closed", "lost")
            pipe.xrange(entries_key(log), min=f"({position.entry}", count=1)
        with errors_as_unavailable():
            answers = pipe.execute(raise_on_error=False)
        lost: dict[str, LogLost | LogMoves] = {}
        for (log, position), state, after in zip(positions.items(), answers[::2], answers[1::2], strict=True):
            if error := next((answer for answer in (state, after) if isinstance(answer, RedisError)), None):
                moves = unavailable(error)
                if not isinstance(moves, LogMoves):
                    raise moves
                lost[log] = moves
                continue
            of_log, newest, closed, lost_to = state
            reason = _lost(position, None if of_log != log.encode() else int(newest), after, int(lost_to or 0))
            if reason is None and closed is not None:
                reason = _CLOSED
            if reason is not None:
                lost[log] = LogLost(reason)
        return lost

    def trim(self, log: str, entry: str) -> None:
        """Deletes the entries up to and with `entry`, which must be numbered for good."""
        with errors_as_unavailable():
            self._trim(keys=[entries_key(log), state_key(log)], args=[following(entry)])

    def bury(self, log: str, entries: Iterable[Entry]) -> None:
        """Keeps what can't be numbered beside the log, until an operator drops it. Repeating it changes nothing."""
        with errors_as_unavailable():
            for entry in entries:
                try:
                    self._redis.xadd(dead_key(log), cast("Any", entry.fields), id=entry.id)
                except ResponseError as error:
                    if _KEPT_ALREADY not in str(error):
                        raise

    def go_on(self, positions: Mapping[str, Position]) -> None:
        """Takes back `halt`, where the record knows nothing of it (any more), and trims what is numbered.

        positions: by name of the log; all are asked together.
        """
        pipe = self._redis.pipeline(transaction=False)
        for log, position in positions.items():
            pipe.hdel(state_key(log), "halted")
            if position.sequence:
                self._trim(keys=[entries_key(log), state_key(log)], args=[following(position.entry)], client=pipe)
        with errors_as_unavailable():
            pipe.execute()

    def halt(self, log: str) -> None:
        """Nothing more is appended to this log until an operator has looked at it: it could not be numbered."""
        with errors_as_unavailable():
            self._redis.hset(state_key(log), "halted", "1")

    def forget(self) -> bool:
        """Asks the server to write its file anew, without what was trimmed; whether it begins that.

        It does not while it is at it already, from an older state, and servers may forbid it: those do it in time.
        """
        with errors_as_unavailable():
            try:
                self._redis.bgrewriteaof()
            except ResponseError as error:
                return "in progress" not in str(error)
        return True

    def close(self) -> None:
        self._redis.close()


def _xread(positions: Mapping[str, Position], milliseconds: int) -> list[Any]:
    block = ["BLOCK", milliseconds] if milliseconds else []
    keys, entries = map(entries_key, positions), (position.entry for position in positions.values())
    return ["XREAD", "COUNT", 1, *block, "STREAMS", *keys, *entries]


def _lost(position: Position, newest: int | None, after: Any, lost_to: int) -> str | None:
    """Return why this can't be the log that was numbered up to a position.

    newest: the number of its last batch, None if it is another log. after: its first entry after the position, if any.
    lost_to: the number of the last batch that an API had accepted when it found `newest` below that; 0: none did.
    """
    if newest is None:
        return "the log holds nothing of this stream any more"
    if newest < position.sequence:
        return f"the log is older than what is numbered: batch {newest}, numbered to {position.sequence}"
    if lost_to:
        return f"the log lost batches {newest + 1} to {lost_to}, which were accepted"
    due = position.sequence + 1
    if newest >= due and not after:
        return f"the log lost batches {due} to {newest} before they were numbered"
    if after and (came := _entry(after[0]).sequence) not in (None, due):
        return f"batch {came} came where {due} was due"
    return None


def _entry(raw: Any) -> Entry:
    entry, fields = raw
    sequence = fields.get(b"sequence", b"")
    ours = sequence.isdigit() and len(sequence) < 19 and b"batch" in fields
    return Entry(
        id=entry.decode(),
        sequence=int(sequence) if ours else None,
        batch=fields.get(b"batch", b""),
        fields=fields,
    )
