"""Confirms what was committed: writes it into the high-water mark beside the segments, then makes it visible.

A commit that PostgreSQL forgets after somebody saw it would mean a second noise for one version. So nothing is visible
before the mark holds it: commit, then the mark, with the file and its folder synced, then the stream's row says up to
which charge and release it is confirmed. A database that lacks what the mark holds is an old one, and found out before
anything is drawn; what the mark lacks was never seen.

Whoever writes the mark holds the file's lock from reading what is committed until it is synced, and never writes less
than it says. Hashes are compared, not numbers: an old primary may hold another charge 7.
"""

import threading
import time
from collections.abc import Sequence
from decimal import Decimal

import structlog
from sqlalchemy import Connection, bindparam, func, or_, select

from service.ledger import high_water_mark, open_ledger, spending
from service.ledger.high_water_mark import Mark
from service.store import publications, shown, streams
from service.store.database import (
    CONFIRM,
    NEW_RELEASE,
    ONE_VIEW,
    Database,
    DatabaseUnavailable,
    notify,
    require_durability,
)
from service.store.segment_files import SegmentFiles
from service.store.shown import Unseen
from service.store.streams import Stream
from service.store.tables import charges, releases
from service.store.tables import publications as published

_log = structlog.get_logger(__name__)

SECONDS_BETWEEN_LOOKS = 0.005
SECONDS_BETWEEN_STOPS = 0.5  # looks whether to stop


class Confirmer:
    """Of one process that may write to the segment folder. Threads may confirm at the same time."""

    def __init__(self, database: Database, files: SegmentFiles) -> None:
        self._database, self.files = database, files
        self._logs: dict[int, str] = {}
        self._asked = threading.Condition()
        self._waiting: set[int] = set()
        self._running = False
        self._failing: set[int] = set()

    def log(self, stream: int) -> str:
        """Return the name of a stream's log, which never changes."""
        if stream not in self._logs:
            with self._database.transaction() as connection:
                self._logs[stream] = streams.get(connection, stream).log
        return self._logs[stream]

    def soon(self, stream: int) -> None:
        """Confirm a stream in the thread of `run`; without one, now. One mark confirms all that came meanwhile."""
        if not self._running:
            self.confirm(stream)
            return
        with self._asked:
            self._waiting.add(stream)
            self._asked.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Confirm what is asked for, until told to stop. What is away is waited for."""
        self._running = True
        while not stop.is_set():
            with self._asked:
                self._asked.wait_for(lambda: self._waiting, SECONDS_BETWEEN_STOPS)
            self._confirm_waiting()
        self._running = False
        self._confirm_waiting()

    def _confirm_waiting(self) -> None:
        with self._asked:
            streams, self._waiting = self._waiting, set()
        for stream in streams:
            try:
                self.confirm(stream)
            except DatabaseUnavailable as error:  # the audit, which looks every second, finds it unconfirmed
                _log.warning("part_unavailable", part="confirmation", reason=str(error))

    def confirm(self, stream: int) -> None:
        """Confirm all that is committed on a stream; distrust the stream if the mark holds something else.

        Where the mark can't be written, nothing is confirmed: the next call tries again.
        """
        log = self.log(stream)
        try:
            with self.files.high_water_mark_lock(log):
                told = self.files.high_water_mark(log)
                with self._database.transaction() as connection:
                    connection.execute(ONE_VIEW)
                    found = streams.get(connection, stream)
                    if not self.belongs(found):
                        return
                    require_durability(connection)
                    mark = high_water_mark.marks(connection, [found])[log]
                    unseen = shown.unseen(connection, [stream])
                    worst = spending.worst(connection, stream)
                    against = high_water_mark.contradicts(connection, self.files, told, found)
                    if against is None and not high_water_mark.holds(connection, mark, found):
                        against = "its newest charge or release is not the one that it was left with"
                if against is not None:
                    self._distrust(found, against)
                    return
                if told != vars(mark):
                    high_water_mark.write(self.files, log, mark)
        except OSError as error:
            self._failing.add(stream)
            _log.error("high_water_mark_not_written", stream=stream, error=error.strerror)
            return
        self._failing.discard(stream)
        before = found.confirmed_charges, found.confirmed_releases, found.marked
        if unseen or before != (mark.charges, mark.releases, True):
            with self._database.transaction() as connection:
                _make_visible(connection, found, mark, unseen, worst)

    def can_confirm(self, stream: int) -> bool:
        """Return whether a stream's mark can be written: while it can't, nothing more may be committed unseen."""
        if stream in self._failing:
            self.confirm(stream)
        return stream not in self._failing

    def belongs(self, stream: Stream) -> bool:
        """Return whether this is the stream whose mark `told` reads: ids come again where a database was put back."""
        known = self._logs.get(stream.id)
        self._logs[stream.id] = stream.log
        return known == stream.log

    def told(self, stream: int) -> dict[str, object] | None:
        """Return what a stream's mark says; to be read before the stream is."""
        return self.files.high_water_mark(self.log(stream))

    def _distrust(self, stream: Stream, reason: str) -> None:
        reason = f"stream {stream.name}: {reason}"
        _log.error("ledger_broken", finding=reason)
        with self._database.transaction() as connection:
            streams.distrust(connection, stream, reason)


def _make_visible(
    connection: Connection, before: Stream, mark: Mark, unseen: list[Unseen], worst: Sequence[Decimal]
) -> None:
    """Say on the stream's row what the mark holds, if this database holds the same, and notify who waits for it.

    unseen, worst: what is to be shown with it, read in one view with what the mark says.
    """
    now = open_ledger(connection, before.id).stream  # on another server than before, perhaps
    if not high_water_mark.holds(connection, mark, now):
        return
    shown.show(connection, unseen)
    if streams.confirm(connection, now.id, charges=mark.charges, releases=mark.releases, worst=worst):
        connection.execute(
            _TELL,
            {
                "stream": now.id,
                "charges": min(now.confirmed_charges, before.confirmed_charges),
                "releases": min(now.confirmed_releases, before.confirmed_releases),
            },
        )


# Of publications of which more is visible than before.
_TELL = select(func.pg_notify(NEW_RELEASE, published.c.name)).where(
    or_(
        published.c.id.in_(
            select(charges.c.publication_id).where(
                charges.c.stream_id == bindparam("stream"), charges.c.id > bindparam("charges")
            )
        ),
        published.c.id.in_(
            select(releases.c.publication_id).where(
                releases.c.stream_id == bindparam("stream"), releases.c.number > bindparam("releases")
            )
        ),
    )
)


def ask(connection: Connection, stream: int) -> None:
    """Ask a worker, once the transaction is committed, to confirm a stream: for who can't write the mark."""
    notify(connection, CONFIRM, str(stream))


def wait(database: Database, publication: int, *, seconds: float) -> bool:
    """Wait until all that a publication has charged and released is confirmed; return whether it is, in time."""
    deadline = time.monotonic() + seconds
    while True:
        with database.transaction() as connection:
            if publications.see(connection, publication).confirmed:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(SECONDS_BETWEEN_LOOKS)
