"""Wakes the publishers of one worker."""

import threading

from service.store.database import NEW_LABELS, NEW_PUBLICATION, NEW_RECORDS, Database, DatabaseUnavailable, heard

LOOK_ANYWAY_SECONDS = 2.0  # a notification can be lost while the database is away


class Bell:
    """Rung when records, publications or labels are committed by anybody; several publishers wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rung = threading.Condition()
        self._count = 0
        self._left = False
        self._first_waits = False
        self._closed = False

    @property
    def count(self) -> int:
        return self._count

    def wait_past(self, count: int, *, first: bool = False) -> None:
        """Wait for something to do: the first one for a ring since `count`, the others for what somebody leaves.

        So of all who wait a ring wakes one. The first one looks after a while anyway.
        """
        with self._rung:
            if first:
                self._first_waits = True
                self._rung.wait_for(lambda: self._count > count or self._closed, LOOK_ANYWAY_SECONDS)
                self._first_waits = False
            else:
                self._rung.wait_for(lambda: self._left or self._closed)
                self._left = False

    def leave(self) -> None:
        """Wake another one, for what the caller does not take, or not at once."""
        with self._rung:
            self._left = True
            self._rung.notify_all()

    def ring(self) -> None:
        """Wake the first one; where that one is at work, another."""
        with self._rung:
            self._count += 1
            self._left |= not self._first_waits
            self._rung.notify_all()

    def close(self) -> None:
        """Wake everybody, now and whenever they wait."""
        with self._rung:
            self._closed = True
            self._rung.notify_all()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self._database.listen(NEW_RECORDS, NEW_PUBLICATION, NEW_LABELS) as connection:
                    for _ in heard(connection, stop):
                        self.ring()
            except DatabaseUnavailable:
                stop.wait(0.5)
