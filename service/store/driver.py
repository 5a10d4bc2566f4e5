"""A connection of the driver that waits no longer than it may, and asks for fewer answers."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.generators import send


class _Pipeline(psycopg.Pipeline):
    def _exit_gen(self) -> PQGen[None]:
        """As psycopg's own, but nothing is sent after the Sync, to which the server answers that the session is idle.

        A Flush would follow, which it answers with nothing, and then it counts the session as busy until more comes:
        `idle_in_transaction_session_timeout` would not end it, whatever locks it holds.
        """
        try:
            self._enqueue_sync()
            yield from self._communicate_gen()
        finally:
            yield from send(self.pgconn)  # what is left of large values
            yield from self._fetch_gen(flush=False)


class Session(psycopg.Connection[Any]):
    """Waits so long for an answer and no longer, whatever hangs: the server, the network, or something in between."""

    seconds = 300.0
    good_since: Callable[[], float] = staticmethod(lambda: -math.inf)
    """By this process's clock: a connection that is not newer may be to a server that takes no writes."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._opened = time.monotonic()

    def is_good(self) -> bool:
        """Return whether it is newer than the last refusal to write."""
        return self._opened > self.good_since()

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """As psycopg's own, of the kind above."""
        self._pipeline = self._pipeline or _Pipeline(self)
        with super().pipeline() as pipeline:
            yield pipeline

    def _start_query(self) -> PQGen[None]:
        """As psycopg's own, but in a pipeline: the answer to BEGIN comes with the others, a round trip less."""
        if self._pipeline is None:
            yield from super()._start_query()
        elif self.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE and not self.autocommit:
            yield from self._exec_command(self._get_tx_start_command())

    def wait(self, gen: PQGen[RV], interval: float = 0.5, timeout: float | None = None) -> RV:
        """As psycopg's own, which would wait for ever where nothing else is said, and look for Ctrl-C more often."""
        try:
            return super().wait(gen, interval, self.seconds if timeout is None else timeout)
        except psycopg.OperationalError:
            if timeout is None and self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()  # the answer may still come, to a later question
            raise


POOLER_ROUNDS = 8  # of a pooler that lends its servers in turn, the first rounds may show nothing


def keep_their_servers(session: Session, another: Session) -> bool:
    """Return whether a pooler leaves each of two sessions, in autocommit, its server process between transactions.

    One in transaction mode does not: LISTEN, settings and prepared statements of a session get lost there.
    """
    first = _server_process(session)
    for _ in range(POOLER_ROUNDS):
        with another.transaction():
            if _server_process(another) == first or _server_process(session) != first:
                return False
        if _server_process(session) != first:
            return False
    return True


def _server_process(session: Session) -> int:
    return int(session.execute("SELECT pg_backend_pid()").fetchall()[0][0])
