"""Hears what other processes commit, on one connection, and calls whoever in this worker waits for it."""

import threading
from collections.abc import Callable, Mapping

from service.store.database import Database, DatabaseUnavailable, notifications

SECONDS_TO_RECONNECT = 0.5


class Listener:
    """One worker's listener to PostgreSQL's notifications.

    A notification is lost while the database is away, so everything that waits for one also looks now and then.
    """

    def __init__(self, database: Database, callbacks: Mapping[str, Callable[[str], None]]) -> None:
        """callbacks: by channel; each is called with the notification's payload, and must not wait."""
        self._database, self._callbacks = database, callbacks

    def run(self, stop: threading.Event) -> None:
        """Listen until `stop` is set."""
        while not stop.is_set():
            try:
                with self._database.listen(*self._callbacks) as connection:
                    for notification in notifications(connection, stop):
                        self._callbacks[notification.channel](notification.payload)
            except DatabaseUnavailable:
                stop.wait(SECONDS_TO_RECONNECT)
