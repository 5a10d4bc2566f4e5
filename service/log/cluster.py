"""A Redis or Valkey Cluster as the primaries of the log.

The keys of a stream carry one hash tag, so they have one slot, and the cluster says which primary has it. Primaries are
numbered in the order of their slots: a new address changes no number.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from random import sample
from typing import Any
from urllib.parse import urlsplit

from hiredis import PushNotification
from redis import Connection, Redis
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import NoScriptError
from redis.retry import Retry

from service.log.connection import (
    CONNECTING,
    SECONDS_TO_ANSWER,
    LogUnavailable,
    Position,
    entries_key,
    errors_as_unavailable,
    following,
    state_key,
)
from service.log.primaries import OnePrimary, Primaries, Primary
from service.log.reader import LONGEST_WAIT_SECONDS, TRIM, Entry, Reader
from service.store.streams import slot

_SCHEMES = ("redis+cluster://", "rediss+cluster://")


class ClusterPrimaries:
    """The primaries of a cluster, as one of its nodes knew them at the last `refresh`."""

    def __init__(self, url: str) -> None:
        """`url`: redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…], with some of the nodes."""
        scheme, _, rest = url.partition("+cluster://")
        user, at, nodes = rest.rpartition("@")
        self._origin = f"{scheme}://{user}{at}"
        self._nodes = [urlsplit(f"//{node}") for node in nodes.split(",")]
        self._every: list[Primary] = []
        self._by_slot: dict[int, Primary] = {}

    def every(self) -> Sequence[Primary]:
        if not self._every:
            raise LogUnavailable("no node of the cluster has answered yet")
        return self._every

    def of(self, log: str, /) -> Primary:
        primary = self._by_slot.get(slot(log))
        if primary is None:
            raise LogUnavailable("no primary of the cluster that is known has this stream's slot")
        return primary

    def refresh(self) -> None:
        """Ask nodes which primary has which slots, until one knows that of all slots. LogUnavailable: none knows any.

        The library's own client would send one more command, to a primary that may be away: then it knows nothing.
        """
        known = {
            (node.hostname, node.port): node for node in (*self._nodes, *(urlsplit(each.url) for each in self._every))
        }
        slots: dict[int, str] = {}
        reason = LogUnavailable("no node of the cluster knows which primary has which slots")
        for node in sample(list(known.values()), len(known)):  # one that is cut off from the others is not always first
            try:
                heard = self._known_to(str(node.hostname), node.port or 6379)
            except LogUnavailable as error:
                reason = error
                continue
            slots = max(slots, heard, key=len)
            if len(slots) == REDIS_CLUSTER_HASH_SLOTS:
                break
        if not slots:
            raise reason
        ranges: dict[str, list[range]] = {}
        for owner, run in groupby(
            enumerate(sorted(slots)), lambda numbered: (slots[numbered[1]], numbered[1] - numbered[0])
        ):
            within = [number for _, number in run]
            ranges.setdefault(owner[0], []).append(range(within[0], within[-1] + 1))
        self._every = [
            Primary(number=number, url=f"{self._origin}{name}", slots=tuple(parts))
            for number, (name, parts) in enumerate(ranges.items(), start=1)
        ]
        self._by_slot = {slot: primary for primary in self._every for part in primary.slots for slot in part}

    def _known_to(self, host: str, port: int) -> dict[int, str]:
        """Return the address of the primary of each slot that has one, as this node knows it."""
        patience = {"socket_timeout": SECONDS_TO_ANSWER, "socket_connect_timeout": SECONDS_TO_ANSWER}
        url = f"{self._origin}{_address(host, port)}"
        with (
            errors_as_unavailable(),
            Redis.from_url(url, retry=Retry(NoBackoff(), 0), **patience, **CONNECTING) as redis,
        ):
            answer: Any = redis.execute_command("CLUSTER", "SLOTS")
        slots: dict[int, str] = {}
        for first, last, (there, its_port, *_), *_ in answer:
            address = _address(there.decode() if there else host, its_port)  # none: it is that of whoever answers
            slots |= dict.fromkeys(range(first, last + 1), address)
        return slots


class ClusterReader(Reader):
    """Reads the logs on one primary of a cluster, where no command may name the logs of several streams.

    The server says which of them change (`CLIENT TRACKING`), so a log is read only when something came.

    Statement. `wait` names each log that has something after its position, as soon as the server has said so.

    Proof. A log counts as unchanged only after the server has said, on the connection that changes come on, that
    nothing is left of it: in the answer to the script of `trim`, or to a read that found nothing. Both read the log
    there, so the server remembers that, and tells this connection of the next change of that log, or that it remembers
    it no longer. It sends that and its answers in the order in which they happened: what is heard before such an answer
    was there when the server looked, and what is heard after it counts. A new connection, and each log that the last
    `wait` did not watch, begin as changed. An error on this connection ends it.

    Other reads are on another connection: else the server would tell this one of its own trimming. It could be asked
    not to (`NOLOOP`), but then it does not tell either what it remembers no longer.
    """

    def __init__(self, primaries: ClusterPrimaries, number: int) -> None:
        super().__init__(primaries.every()[number - 1])
        self._primaries = primaries
        self._tracking: Connection | None = None
        self._heard = 0.0
        self._watched: dict[bytes, str] = {}  # names of logs, by key
        self._changed: set[str] = set()

    @property
    def primary(self) -> Primary:
        every = self._primaries.every()
        if self._primary.number > len(every):
            raise LogUnavailable("the cluster has fewer primaries than when this worker started: start it again")
        return every[self._primary.number - 1]

    def refresh(self) -> None:
        self._stop_tracking()
        self._redis.close()
        with suppress(LogUnavailable):
            self._primaries.refresh()
            self._connect(self.primary.url)

    def wait(self, positions: Mapping[str, Position], *, milliseconds: int) -> list[str]:
        """Return which of the logs changed since they were last read to their end; wait a while when none has."""
        with errors_as_unavailable(), self._listening() as connection:
            self._changed |= positions.keys() - set(self._watched.values())
            self._watched = {entries_key(log).encode(): log for log in positions}
            patience = 0.0 if self._changed & positions.keys() else milliseconds / 1000
            while connection.can_read(timeout=patience):
                self._next(connection)
                patience = 0.0
            if time.monotonic() > self._heard + LONGEST_WAIT_SECONDS:
                self._ask("PING")
        return [log for log in positions if log in self._changed]

    def read(self, log: str, position: Position, *, batches: int) -> list[Entry]:
        if entries := super().read(log, position, batches=batches):
            return entries
        with errors_as_unavailable():
            answer = self._ask("XRANGE", entries_key(log), f"({position.entry}", "+", "COUNT", 1)
        self._note(log, changed=bool(answer))
        return []

    def trim(self, log: str, entry: str) -> None:
        """Delete entries as `Reader.trim` does; a log of which nothing is left is unchanged until something comes."""
        arguments = (2, entries_key(log), state_key(log), following(entry))
        with errors_as_unavailable():
            try:
                left = self._ask("EVALSHA", self._trim.sha, *arguments)
            except NoScriptError:
                left = self._ask("EVAL", TRIM, *arguments)
        self._note(log, changed=bool(left))

    def close(self) -> None:
        self._stop_tracking()
        super().close()

    def _note(self, log: str, *, changed: bool) -> None:
        (self._changed.add if changed else self._changed.discard)(log)

    def _ask(self, *command: Any) -> Any:
        """Send a command on the connection that changes come on, and return its answer."""
        with self._listening() as connection:
            connection.send_command(*command)  # type: ignore[no-untyped-call]
            while (answer := self._next(connection)) is None:
                pass
            return answer

    def _next(self, connection: Connection) -> Any:
        """Read what the server sends next. Return an answer, which is never nil; note a change, and return None."""
        answer = connection.read_response(push_request=True)
        self._heard = time.monotonic()
        if not isinstance(answer, PushNotification):
            return answer
        if answer[0] == b"invalidate":
            logs = self._watched
            keys = logs if answer[1] is None else answer[1]
            self._changed |= {logs[key] for key in keys if key in logs}
        return None

    @contextmanager
    def _listening(self) -> Iterator[Connection]:
        """Yield the connection that changes come on; it ends with an error."""
        try:
            yield self._tracking or self._track()
        except NoScriptError:
            raise
        except BaseException:
            self._stop_tracking()
            raise

    def _track(self) -> Connection:
        """Have the server say from now on which keys change. All logs count as changed until they are read."""
        pool = self._redis.connection_pool
        connection: Connection = pool.connection_class(**pool.connection_kwargs | {"protocol": 3})
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            connection._parser.set_invalidation_push_handler(lambda message: message)  # noqa: SLF001 - as the library does
            connection.send_command("CLIENT", "TRACKING", "ON")  # type: ignore[no-untyped-call]
            connection.read_response()
        except BaseException:
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        self._tracking, self._heard = connection, time.monotonic()
        self._watched, self._changed = {}, set()
        return connection

    def _stop_tracking(self) -> None:
        if self._tracking is not None:
            self._tracking.disconnect()  # type: ignore[no-untyped-call]
            self._tracking = None


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_primaries(url: str) -> Primaries:
    """Return the primaries that the setting `redis_url` names: one server, or those of a cluster."""
    return ClusterPrimaries(url) if url.startswith(_SCHEMES) else OnePrimary(url)


def open_readers(primaries: Primaries) -> Sequence[Reader]:
    """Return a reader for each primary. LogUnavailable: nobody says which there are."""
    if isinstance(primaries, ClusterPrimaries):
        return [ClusterReader(primaries, primary.number) for primary in primaries.every()]
    return [Reader(primary) for primary in primaries.every()]
