"""Wakes the publishers of one worker."""

import threading

from service.store.database import NEW_LABELS, NEW_PUBLICATION, NEW_RECORDS, Database, DatabaseUnavailable

LOOK_ANYWAY_SECONDS = 2.0  # a notification can be lost while the database is away


class Bell:
    """Rung when records, publications or labels are committed by anybody; several publishers wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rung = threading.Condition()
        self._count = 0
        self._looking = False

    @property
    def count(self) -> int:
        return self._count

    def wait_past(self, count: int, *, alone: bool = False) -> None:
        """Until it was rung more often than `count`; one of those who wait looks after a while anyway.

        alone: nobody else looks for what this one looks for.
        """
        with self._rung:
            if alone:
                self._rung.wait_for(lambda: self._count > count, LOOK_ANYWAY_SECONDS)
                return
            while self._looking and self._count <= count:
                self._rung.wait()
            if self._count <= count:
                self._looking = True
                try:
                    self._rung.wait_for(lambda: self._count > count, LOOK_ANYWAY_SECONDS)
                finally:
                    self._looking = False
                    self._rung.notify()  # another takes its place

    def ring(self) -> None:
        with self._rung:
            self._count += 1
            self._rung.notify_all()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self._database.listen(NEW_RECORDS, NEW_PUBLICATION, NEW_LABELS) as connection:
                    while not stop.is_set():
                        for _ in connection.notifies(timeout=0.5, stop_after=1):
                            self.ring()
            except DatabaseUnavailable:
                stop.wait(0.5)
