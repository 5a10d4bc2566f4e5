"""Confirms what was committed: writes it into the high-water mark beside the segments, then makes it visible.

A commit that PostgreSQL forgets after somebody saw it would mean a second noise for one version. So nothing is visible
before the mark holds it: commit, then the mark, with the file and its folder synced, then the stream's row says up to
which charge and release it is confirmed. A database that lacks what the mark holds is an old one, and found out before
anything is drawn; what the mark lacks was never seen.

The writer of the mark holds the file's lock from reading what is committed until it is synced, and never writes less
than it says. Hashes are compared, not numbers: an old primary may hold another charge 7.
"""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal

import structlog
from sqlalchemy import ARRAY, BigInteger, Connection, and_, bindparam, func, or_, select

from service.ledger import ending, high_water_mark, open_free_ledgers, open_ledger, summaries
from service.ledger.high_water_mark import Mark
from service.privacy.accounting.composition import Slots
from service.segments.files import SegmentFiles
from service.store import changes, publications, streams, visible_positions
from service.store.database import (
    CONFIRM,
    DURABILITY,
    NEW_RELEASE,
    ONE_VIEW,
    Database,
    DatabaseUnavailable,
    notify,
    pipelined,
    read_together,
    require_durability,
    within,
    write,
)
from service.store.streams import Confirmed, Stream
from service.store.tables import charges, releases
from service.store.tables import publications as published
from service.store.visible_positions import PendingVisibility
from service.tracebacks import place_of

_log = structlog.get_logger(__name__)

SECONDS_BETWEEN_LOOKS = 0.005
SECONDS_BETWEEN_STOPS = 0.5  # looks whether to stop
SECONDS_TO_SHOW = 20.0  # after which a transaction is ended whose worker hangs: as long as it waits for a lock, and 5
MAX_TOGETHER = 50  # streams whose files are locked at the same time
_LEFT_OTHERWISE = "its newest charge or release is not the one that it was left with"


@dataclass(frozen=True)
class Committed:
    """The state committed on a stream, and what is to be seen of it once its mark holds that."""

    stream: Stream
    mark: Mark
    unseen: list[PendingVisibility]
    worst: tuple[Decimal, Decimal, Decimal]
    evaluated: tuple[Decimal, Decimal, Decimal]
    """The worst evaluation slot's."""

    @property
    def is_news(self) -> bool:
        """Whether any of it is not visible yet."""
        before = self.stream.confirmed_charges, self.stream.confirmed_releases, self.stream.marked
        return bool(self.unseen) or before != (self.mark.charges, self.mark.releases, True)

    def advances(self, now: Stream) -> bool:
        """Return whether the mark holds more than the stream's row shows."""
        return (
            now.confirmed_charges < self.mark.charges or now.confirmed_releases < self.mark.releases or not now.marked
        )


class Confirmer:
    """Confirms for one process that may write to the segment folder. Threads may confirm at the same time."""

    def __init__(self, database: Database, files: SegmentFiles) -> None:
        self._database, self.files = database, files
        self._logs: dict[int, str] = {}
        self._requests = threading.Condition()
        self._waiting: set[int] = set()
        self._running = False
        self._failing: set[int] = set()

    def log(self, stream: int) -> str:
        """Return the name of a stream's log, which never changes."""
        self._learn_logs([stream])
        return self._logs[stream]

    def _learn_logs(self, streams: Iterable[int]) -> None:
        if unknown := [each for each in streams if each not in self._logs]:
            with self._database.transaction() as connection:
                self._logs |= changes.logs(connection, unknown)

    def soon(self, *streams: int) -> None:
        """Confirm streams in the thread of `run`; without one, now. One mark confirms all that came meanwhile."""
        if not self._running:
            for stream in streams:
                self.confirm(stream)
            return
        with self._requests:
            self._waiting.update(streams)
            self._requests.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Confirm what is asked for, until told to stop. It waits for servers that are away."""
        self._running = True
        while not stop.is_set():
            with self._requests:
                self._requests.wait_for(lambda: self._waiting, SECONDS_BETWEEN_STOPS)
            self._confirm_waiting()
        self._running = False
        self._confirm_waiting()

    def _confirm_waiting(self) -> None:
        with self._requests:
            waiting, self._waiting = self._waiting, set()
        try:
            self.confirm_each(waiting)
        except DatabaseUnavailable as error:  # the audit, which looks every two seconds, finds them unconfirmed
            _log.warning("part_unavailable", part="confirmation", reason=str(error))

    def confirm_each(self, streams: Iterable[int]) -> None:
        """Confirm streams, many of them with a few transactions; the trouble of one stops no other."""
        waiting = sorted(streams)
        while waiting:
            together, waiting = waiting[:MAX_TOGETHER], waiting[MAX_TOGETHER:]
            try:
                self._confirm(together)
            except DatabaseUnavailable:
                raise
            except Exception:  # noqa: BLE001 - of which stream, shows when each is confirmed alone
                for stream in together:
                    self._confirm_alone(stream)

    def _confirm_alone(self, stream: int) -> None:
        try:
            self.confirm(stream)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one stream's trouble must not stop the others
            _log.error("not_confirmed", stream=stream, error=type(error).__name__, at=place_of(error))

    def confirm(self, stream: int) -> None:
        """Confirm all that is committed on a stream; distrust the stream if the mark holds something else.

        Where the mark can't be written, nothing is confirmed: the next call tries again.
        """
        self._confirm([stream])

    def _confirm(self, identities: Sequence[int]) -> None:
        """Confirm streams together, in the order of their ids: so nobody waits for each other's locks for ever."""
        self._learn_logs(identities)
        with ExitStack() as stack:
            stored_marks = {}
            for stream in identities:
                log = self.log(stream)
                try:
                    stack.enter_context(self.files.high_water_mark_lock(log))
                    stored_marks[log] = self.files.high_water_mark(log)
                except OSError as error:
                    self._fail(stream, error)
            committed, against = self._committed(identities, stored_marks)
            for each in against:
                self._distrust(*each)
            held = [each for each in committed if self._holds(each, stored_marks)]
        if news := [each for each in held if each.is_news]:
            self._show(news)

    def _committed(
        self, identities: Sequence[int], stored_marks: Mapping[str, dict[str, object] | None]
    ) -> tuple[list[Committed], list[tuple[Stream, str]]]:
        """Return what is committed on streams, read in one view of the database; and streams to distrust, and why."""
        with self._database.transaction() as connection:
            limit = within(connection, SECONDS_TO_SHOW)
            *_, rows, durability = read_together(
                connection, (ONE_VIEW, {}), *limit, streams.needed(identities), (DURABILITY, {})
            )
            require_durability(*durability)
            confirmable = [
                each for each in map(streams.of_row, rows) if self.belongs(each) and each.log in stored_marks
            ]
            unseen: dict[int, list[PendingVisibility]] = {each.id: [] for each in confirmable}
            counts, newest, left, *spent, clocks = read_together(
                connection,
                *high_water_mark.needed(stored_marks, confirmable),
                high_water_mark.left(confirmable),
                *(summaries.worst_needed(list(unseen), slots) for slots in (None, Slots.EVALUATION)),
                visible_positions.needed(list(unseen)),
            )
        marks, against = high_water_mark.compare(self.files, stored_marks, confirmable, counts, newest)
        otherwise = high_water_mark.left_otherwise(confirmable, left)
        against = {each.log: _LEFT_OTHERWISE for each in confirmable if each.id in otherwise} | against
        worst, evaluated = (summaries.worst_of_rows(list(unseen), rows) for rows in spent)
        for each in visible_positions.of_rows(clocks):
            unseen[each.stream_id].append(each)
        whole = [each for each in confirmable if each.log not in against]
        return (
            [Committed(each, marks[each.log], unseen[each.id], worst[each.id], evaluated[each.id]) for each in whole],
            [(each, against[each.log]) for each in confirmable if each.log in against],
        )

    def _holds(self, committed: Committed, stored_marks: Mapping[str, dict[str, object] | None]) -> bool:
        """Have the mark hold what is committed; return whether it does. The caller holds the file's lock."""
        stream, mark = committed.stream, committed.mark
        try:
            # A mark that holds it all may not be on disk yet: its writer may have died before it synced the folder.
            if stored_marks[stream.log] != vars(mark) or committed.advances(stream):
                high_water_mark.write(self.files, stream.log, mark)
        except OSError as error:
            self._fail(stream.id, error)
            return False
        self._failing.discard(stream.id)
        return True

    def _fail(self, stream: int, error: OSError) -> None:
        self._failing.add(stream)
        _log.error("high_water_mark_not_written", stream=stream, error=error.strerror)

    def _show(self, held: list[Committed]) -> None:
        """Make visible what marks hold. A stream that somebody has locked is waited for, and holds up no other."""
        shown_already: set[int] = set()
        if len(held) > 1:
            with self._database.transaction() as connection:
                read_together(connection, *within(connection, SECONDS_TO_SHOW))
                free = open_free_ledgers(connection, [each.stream.id for each in held])
                _make_visible(connection, held, [each.stream for each in free])
            shown_already = {each.stream.id for each in free}
        for each in held:
            if each.stream.id not in shown_already:
                with self._database.transaction() as connection:
                    ledger = open_ledger(connection, each.stream.id, seconds=SECONDS_TO_SHOW)
                    _make_visible(connection, [each], [ledger.stream])

    def can_confirm(self, stream: int) -> bool:
        """Return whether a stream's mark can be written: while it can't, nothing more may be committed unseen."""
        if stream in self._failing:
            self.confirm(stream)
        return stream not in self._failing

    def belongs(self, stream: Stream) -> bool:
        """Return whether `high_water_mark` reads this stream's mark: ids come again where a database was put back."""
        known = self._logs.get(stream.id)
        self._logs[stream.id] = stream.log
        return known == stream.log

    def high_water_mark(self, stream: int) -> dict[str, object] | None:
        """Return what a stream's mark says; to be read before the stream is."""
        return self.files.high_water_mark(self.log(stream))

    def _distrust(self, stream: Stream, reason: str) -> None:
        reason = f"stream {stream.name}: {reason}"
        _log.error("ledger_broken", finding=reason)
        with self._database.transaction() as connection:
            streams.distrust(connection, stream, reason)


def _make_visible(connection: Connection, held: Sequence[Committed], now: Sequence[Stream]) -> None:
    """Say on the streams' rows what the marks hold, if this database holds the same, and notify who waits for it.

    now: the streams, locked; they may be on another server than before. Others stay as they are.
    """
    by_id = {each.stream.id: each for each in held}
    whole = high_water_mark.hold(connection, {each.id: by_id[each.id].mark for each in now})
    there = [(by_id[each.id], each) for each in now if each.id in whole]
    if not there:
        return
    confirmed = [
        Confirmed(now.id, each.mark.charges, each.mark.releases, *each.worst, *each.evaluated) for each, now in there
    ]
    news = [(each.stream, now) for each, now in there if each.advances(now)]
    bound = {
        "streams": [now.id for _, now in news],
        "charges": [min(now.confirmed_charges, before.confirmed_charges) for before, now in news],
        "releases": [min(now.confirmed_releases, before.confirmed_releases) for before, now in news],
    }
    with pipelined(connection):
        visible_positions.show(connection, [unseen for each, _ in there for unseen in each.unseen])
        streams.confirm(connection, confirmed)
        write(connection, _TELL, bound)
    ending.settle_shown(connection, [unseen for each, _ in there for unseen in each.unseen])


# Of publications of which more is visible than before.
_seen = (
    func.unnest(*(bindparam(name, type_=ARRAY(BigInteger)) for name in ("streams", "charges", "releases")))
    .table_valued("stream", "charges", "releases")
    .render_derived()
)
_TELL = select(func.pg_notify(NEW_RELEASE, published.c.name)).where(
    or_(
        published.c.id.in_(
            select(charges.c.publication_id).join(
                _seen, and_(charges.c.stream_id == _seen.c.stream, charges.c.id > _seen.c.charges)
            )
        ),
        published.c.id.in_(
            select(releases.c.publication_id).join(
                _seen, and_(releases.c.stream_id == _seen.c.stream, releases.c.number > _seen.c.releases)
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
