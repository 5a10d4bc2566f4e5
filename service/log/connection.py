"""Settings, names of keys and errors that both ends of the log share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

SECONDS_TO_ANSWER = 5.0
CONNECTING: dict[str, Any] = {"protocol": 2, "driver_info": None}
"""For each connection the library would look for its own version in a file, and tell the server: it takes 5 ms."""

DURABILITY = ("*append*", "maxmemory*")
"""The settings of a server by which it keeps, or loses, what it has answered."""


class LogUnavailable(Exception):
    """The log is away, or would not keep what it is given. Nothing was promised; try again later."""


class LogMoves(LogUnavailable):
    """A cluster moves the slot of this log, and no other, to another primary. Nothing was done; try again later."""


@contextmanager
def errors_as_unavailable() -> Iterator[None]:
    """Raise LogUnavailable where the server refuses a command, is away or does not answer in time."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
    except RuntimeError as error:  # uvloop's where the server has closed the connection that is to be written to
        if "closed" not in str(error):
            raise
        raise unavailable(error) from error


def unavailable(error: Exception) -> LogUnavailable:
    """Return the error that says in a sentence what is wrong, without the text of the library's error."""
    if isinstance(error, AskError | TryAgainError) and not isinstance(error, MovedError):  # which is an AskError
        return LogMoves("the slot of this stream is on its way to another primary of the cluster")
    if reason := refusal(error):
        return LogUnavailable(f"the log takes no writes: {reason}")
    if "close" in str(error):
        return LogUnavailable(f"the log does not answer: its server closed the connection ({type(error).__name__})")
    return LogUnavailable(f"the log does not answer ({type(error).__name__})")


_REFUSALS: tuple[tuple[type[Exception] | str, str], ...] = (
    (OutOfMemoryError, "its memory is full: raise maxmemory there, or see why batches are not numbered"),
    (ReadOnlyError, "its server is a replica: PERENNIAL_REDIS_URL must name the primary"),
    (BusyLoadingError, "its server still loads its data: wait for it"),
    (AuthenticationError, "its server refuses the user or the password of PERENNIAL_REDIS_URL: correct them"),
    (NoPermissionError, "the user of PERENNIAL_REDIS_URL lacks a right there: grant it"),
    ("MISCONF", "its server can't write to its disk: make room there"),
    ("NOREPLICAS", "it has fewer replicas than min-replicas-to-write says: start them"),
    ("DENIED", "its server is in protected mode: set a password there, or bind it to an address"),
)


def refusal(error: Exception) -> str | None:
    """Return why the server answers, but does not do what it is asked; None: it is not known."""
    code = str(error).partition(" ")[0] if isinstance(error, ResponseError) else None
    for kind, reason in _REFUSALS:
        if kind == code if isinstance(kind, str) else isinstance(error, kind):
            return reason
    return None


class Position(NamedTuple):
    """The last entry of a log that is numbered: its id and its sequence number."""

    entry: str
    sequence: int


def entries_key(log: str) -> str:
    return f"perennial:{{{log}}}:entries"


def state_key(log: str) -> str:
    return f"perennial:{{{log}}}:state"


def dead_key(log: str) -> str:
    """Return the key of the entries that could not be numbered."""
    return f"perennial:{{{log}}}:dead"


def answer_keys(log: str, owner: str) -> list[str]:
    """Return the keys of the answers that a stream remembers of one API key, `owner`."""
    return [f"perennial:{{{log}}}:idempotency:{owner}:{part}" for part in range(3)]


def idempotency_key(log: str, scope: str) -> str:
    """Return the key of one answer as versions before 1.0 remember it."""
    return f"perennial:{{{log}}}:idempotency:{scope}"


def following(entry: str) -> str:
    """Return the least id that is greater."""
    milliseconds, sequence = map(int, entry.split("-"))
    return f"{milliseconds}-{sequence + 1}" if sequence < 2**64 - 1 else f"{milliseconds + 1}-0"


def decode(fields: dict[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in fields.items()}


def require_durability(configuration: dict[Any, Any]) -> None:
    """Check that the server answers a write only after it is on disk, and deletes nothing when its memory is full.

    configuration: the server's settings, of the patterns `DURABILITY`.

    Raises:
        LogUnavailable: it does not, so a 202 would promise too much; or it would forget requests, and store them twice.
    """
    settings = {_text(name): _text(value) for name, value in configuration.items()}
    if (settings.get("appendonly"), settings.get("appendfsync")) != ("yes", "always"):
        raise LogUnavailable(
            "the Redis server could lose what it has answered: set `appendonly yes` and `appendfsync always` there"
        )
    if settings.get("no-appendfsync-on-rewrite", "no") != "no":
        raise LogUnavailable(
            "the Redis server could lose what it has answered while it writes its file anew: "
            "set `no-appendfsync-on-rewrite no` there"
        )
    if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
        raise LogUnavailable(
            "the Redis server could delete what it has answered: set `maxmemory-policy noeviction` there"
        )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
