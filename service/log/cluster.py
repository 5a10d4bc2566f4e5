"""A Redis or Valkey Cluster as the primaries of the log.

The keys of a stream carry one hash tag, so they have one slot. The slot is the place of the stream, and the cluster
says which primary has it. Primaries are numbered in the order of their slots: a new address changes no number.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from redis import Connection
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import RedisError
from redis.retry import Retry

from service.log.connection import (
    SECONDS_TO_ANSWER,
    LogUnavailable,
    Position,
    entries_key,
    errors_as_unavailable,
    following,
    state_key,
)
from service.log.primaries import Primary
from service.log.reader import LONGEST_WAIT_SECONDS, Entry, Reader

SCHEMES = ("redis+cluster://", "rediss+cluster://")
_PREFIX = "perennial:"


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

    def of(self, log: str, _place: int | None, /) -> Primary:
        primary = self._by_slot.get(slot(log))
        if primary is None:
            raise LogUnavailable("no primary of the cluster that is known has this stream's slot")
        return primary

    def place(self, log: str, _streams: Mapping[int, int], /) -> int:
        """Return the slot of the stream's keys, which their random names have spread."""
        return slot(log)

    def refresh(self) -> None:
        """Ask a node which primary has which slots. LogUnavailable: none answers."""
        known = {node.netloc: node for node in (*self._nodes, *(urlsplit(each.url) for each in self._every))}
        startup = [
            ClusterNode(str(node.hostname), node.port or 6379)  # type: ignore[no-untyped-call]
            for node in known.values()
        ]
        with (
            errors_as_unavailable(),
            RedisCluster.from_url(
                f"{self._origin}{self._nodes[0].netloc}",
                startup_nodes=startup,
                require_full_coverage=False,
                socket_timeout=SECONDS_TO_ANSWER,
                socket_connect_timeout=SECONDS_TO_ANSWER,
                retry=Retry(NoBackoff(), 0),
            ) as cluster,
        ):
            slots = {each: nodes[0] for each, nodes in sorted(cluster.nodes_manager.slots_cache.items()) if nodes}
        places: dict[str, list[range]] = {}
        for owner, run in groupby(
            enumerate(slots), lambda numbered: (slots[numbered[1]].name, numbered[1] - numbered[0])
        ):
            within = [each for _, each in run]
            places.setdefault(owner[0], []).append(range(within[0], within[-1] + 1))
        self._every = [
            Primary(number=number, url=f"{self._origin}{name}", places=tuple(ranges))
            for number, (name, ranges) in enumerate(places.items(), start=1)
        ]
        self._by_slot = {each: primary for primary in self._every for part in primary.places for each in part}


class ClusterReader(Reader):
    """Reads the logs on one primary of a cluster, where no command may name the logs of several streams.

    The server says which of them change (`CLIENT TRACKING`), so a log is read only when something came.
    """

    def __init__(self, primaries: ClusterPrimaries, number: int) -> None:
        super().__init__(primaries.every()[number - 1])
        self._primaries = primaries
        self._tracking: Connection | None = None
        self._heard = 0.0
        self._watched: dict[bytes, str] = {}  # names of logs, by key
        self._changed: set[str] = set()
        self._read_to: dict[str, str] = {}  # the last entry of a log that was read to its end

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
        with errors_as_unavailable():
            connection = self._tracking or self._track()
            self._changed |= positions.keys() - set(self._watched.values())
            self._watched = {entries_key(log).encode(): log for log in positions}
            patience = 0.0 if self._changed & positions.keys() else milliseconds / 1000
            while connection.can_read(timeout=patience):
                self._note(connection.read_response(push_request=True))
                patience = 0.0
            if time.monotonic() > self._heard + LONGEST_WAIT_SECONDS:
                self._ask(connection, "PING")
        return [log for log in positions if log in self._changed]

    def read(self, log: str, position: Position, *, batches: int) -> list[Entry]:
        entries = super().read(log, position, batches=batches)
        if not entries:
            self._changed.discard(log)
        elif len(entries) < batches:
            self._read_to[log] = entries[-1].id
        return entries

    def trim(self, log: str, entry: str) -> None:
        """Delete entries as `Reader.trim` does, without hearing of that change."""
        if self._read_to.pop(log, None) == entry:
            self._changed.discard(log)  # before later changes are heard of
        if self._tracking is None:
            super().trim(log, entry)
            return
        with errors_as_unavailable():
            self._ask(self._tracking, "XTRIM", entries_key(log), "MINID", "=", following(entry))
            self._count(keys=[entries_key(log), state_key(log)])

    def close(self) -> None:
        self._stop_tracking()
        super().close()

    def _ask(self, connection: Connection, *command: Any) -> Any:
        """Send a command on the connection that changes come on, and return its answer."""
        connection.send_command(*command)  # type: ignore[no-untyped-call]
        while self._note(answer := connection.read_response(push_request=True)):
            pass
        return answer

    def _note(self, answer: object) -> bool:
        """Note which logs a message says to have changed; return whether it is such a message."""
        self._heard = time.monotonic()
        if not isinstance(answer, list):
            return False
        keys = answer[1]
        logs = self._watched
        self._changed |= set(logs.values()) if keys is None else {logs[key] for key in keys if key in logs}
        return True

    def _track(self) -> Connection:
        """Have the server say from now on which keys change. All logs count as changed until they are read."""
        pool = self._redis.connection_pool
        connection: Connection = pool.connection_class(**pool.connection_kwargs | {"protocol": 3})
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            connection._parser.set_invalidation_push_handler(lambda message: message)  # noqa: SLF001 - as the library does
            connection.send_command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", _PREFIX, "NOLOOP")  # type: ignore[no-untyped-call]
            connection.read_response()
        except (RedisError, TimeoutError):
            connection.disconnect()  # type: ignore[no-untyped-call]
            raise
        self._tracking, self._heard = connection, time.monotonic()
        self._watched, self._changed = {}, set()
        return connection

    def _stop_tracking(self) -> None:
        if self._tracking is not None:
            self._tracking.disconnect()  # type: ignore[no-untyped-call]
            self._tracking = None


def slot(log: str) -> int:
    """Return the slot of a stream's keys."""
    return key_slot(entries_key(log).encode())
