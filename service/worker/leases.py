"""Keeps this worker's leases alive, from a thread of its own, so that a long fit does not lose its publication."""

import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import structlog
from sqlalchemy import Select

from service.store import leases, schema_version
from service.store.database import Database, DatabaseUnavailable
from service.store.leases import Lease

_log = structlog.get_logger(__name__)


class LeaseKeeper:
    """Takes, renews and gives back leases in the name of one worker process."""

    def __init__(self, database: Database, *, seconds: float) -> None:
        self._database, self.seconds = database, seconds
        self._owner = f"{socket.gethostname()}:{secrets.token_hex(4)}"
        self._held: dict[str, Lease] = {}
        self.narrowed = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease keeper", daemon=True)

    def start(self, *, end: threading.Event | None = None) -> None:
        """Renew from now on; set `end`, and `narrowed`, when a migration left the schema to newer versions."""
        self._end = end or threading.Event()
        self._thread.start()

    def stop(self) -> None:
        """Gives back what is still held, so that others need not wait."""
        self._stop.set()
        self._thread.join()
        self.drop(*list(self._held.values()))

    def take(self, resource: str, *, among: leases.Among | None = None) -> Lease | None:
        """Take a lease; return None if another worker holds it, or if the query `among` does not name it."""
        with self._database.transaction() as connection:
            lease = leases.take(connection, resource, owner=self._owner, seconds=self.seconds, among=among)
        if lease is not None:
            with self._lock:
                self._held[resource] = lease
        return lease

    def take_several(self, wanted: Select[str], *, most: int, since: float = 0.0) -> list[Lease]:
        """Take at most `most` leases of the wanted resources that nobody has held for `since` seconds."""
        with self._database.transaction() as connection:
            taken = leases.take_several(
                connection, wanted, owner=self._owner, seconds=self.seconds, most=most, since=since
            )
        with self._lock:
            self._held |= {lease.resource: lease for lease in taken}
        return taken

    def appear(self, primary: int) -> Lease:
        """Take the lease by which other workers know that this one numbers streams of a primary."""
        with self._database.transaction() as connection:
            lease = leases.appear(connection, self._owner, primary=primary, seconds=self.seconds)
        with self._lock:
            self._held[lease.resource] = lease
        return lease

    def holds(self, lease: Lease) -> bool:
        """As far as we know; only a commit knows for sure."""
        return self._held.get(lease.resource) is lease

    def drop(self, *given: Lease) -> None:
        """Renews them no more: they are given back if PostgreSQL answers, or run out."""
        self._forget(given)
        if given:
            with suppress(DatabaseUnavailable), self._database.transaction() as connection:
                leases.release_several(connection, given)

    def abandon(self, lease: Lease, abandoned: float) -> None:
        """Give up a lease as if its owner had died, so that its next owner notes the attempt (`store.attempts`).

        abandoned: as of a lease, for its next owner.
        """
        self._forget([lease])
        with suppress(DatabaseUnavailable), self._database.transaction() as connection:
            leases.abandon(connection, lease, abandoned=abandoned, seconds=self.seconds)

    def _forget(self, given: Iterable[Lease]) -> None:
        with self._lock:
            for lease in given:
                if self._held.get(lease.resource) is lease:
                    del self._held[lease.resource]

    @contextmanager
    def taking(self, resource: str) -> Iterator[Lease | None]:
        """The lease for as long as the block runs, or None."""
        lease = self.take(resource)
        try:
            yield lease
        finally:
            if lease is not None:
                self.drop(lease)

    def _renew(self) -> None:
        while not self._stop.wait(self.seconds / 3):
            with self._lock:
                held = list(self._held.values())
            if not held:
                continue
            try:
                with self._database.transaction() as connection:
                    lost = leases.renew(connection, held, seconds=self.seconds)
                    served = schema_version.serves(connection)
            except Exception as error:  # noqa: BLE001 - this thread must outlive whatever the database says
                _log.warning("leases_not_renewed", error=type(error).__name__)
                continue
            with self._lock:
                for lease in lost:
                    if self._held.get(lease.resource) is lease:
                        _log.warning("lease_lost", resource=lease.resource)
                        del self._held[lease.resource]
            if not served:
                self.narrowed = True
                self._end.set()
