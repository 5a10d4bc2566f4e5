"""Looks whether the ledger is still what was written: before a worker first publishes on a stream, and every hour.

A finding stops its stream: nothing more is published on it, its publications say why, and a metric tells. It
goes on when a later look finds all well again, as after the right rows were restored. The invariants are cheaper, and
asked more often. One that can't be asked counts as violated, and ends no other.

A short ledger is walked by the thread that wants to publish, together with those of other streams that wait: a few
queries read the rows of all of them, and where anything is wrong, each is walked alone. A long ledger is walked in a
thread of its own, and the stream waits while others publish. A long walk that found nothing leaves a note beside the
mark. A worker that starts within an hour of it publishes on the note's word, and walks meanwhile: as one would that had
made the walk itself and gone on.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from heapq import nsmallest

import structlog

from service import metrics
from service.ledger import high_water_mark, verify
from service.ledger.invariants import INVARIANTS
from service.publishing.confirmation import Confirmer
from service.segments.files import SegmentFiles
from service.store import changes, publications, streams, visible_positions
from service.store.changes import State
from service.store.database import ONE_VIEW, Database, DatabaseUnavailable
from service.tracebacks import place_of

_log = structlog.get_logger(__name__)

SECONDS_BETWEEN_AUDITS = 3600.0
SECONDS_BETWEEN_LOOKS = 2.0  # for streams with releases that no worker has confirmed
SHARE_OF_LOOKS = 0.05  # that such looks may take of a worker's time, where many streams change
MAX_REST = 5.0  # seconds between two such looks, however long one takes
SECONDS_BETWEEN_FULL_LOOKS = 60.0  # at every stream's high-water mark; in between at those of streams that changed
SHORT_LEDGER = 1000  # charges, which take about a second; of all that are walked together
MAX_TOGETHER = 50  # streams: a transaction may be idle for five seconds, on a busy machine too
SECONDS_BETWEEN_INVARIANTS = 60.0
SHARE_OF_TIME = 0.002  # that the invariants may take of a worker's time, however large the ledger is


class Audit:
    """One worker's. Threads may ask at the same time."""

    def __init__(
        self, database: Database, files: SegmentFiles, confirmer: Confirmer, ring: Callable[[], None] = lambda: None
    ) -> None:
        """Ring: called when a stream that waited for its walk need not wait any more."""
        self._database, self._files, self._confirmer, self._ring = database, files, confirmer, ring
        self._due: dict[str, float] = {}  # by log of a stream that may be published on: when to walk again
        self._first: dict[str, tuple[float, int]] = {}  # by log of any stream: when to walk at the latest, and its id
        self._waiting: dict[int, None] = {}  # streams that wait for their first walk
        self._requests = threading.Condition()
        self._walking = False
        self._looking = threading.Lock()
        self._settled: dict[str, int] = {}  # by log: the state of a stream of which all was confirmed
        self._unsettled: set[int] = set()  # streams of which that was not so at the last look
        self._digest: tuple[int, int | None] | None = None  # of all streams at the last look
        self._full_look_at = 0.0
        self._ended: set[tuple[str, str]] = set()  # publications that had ended, with metrics, at the last look

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; what is away is waited for."""
        invariants_due = 0.0
        while not stop.is_set():
            began = time.monotonic()
            try:
                self.confirm()
                rest = min(MAX_REST, max(SECONDS_BETWEEN_LOOKS, (time.monotonic() - began) / SHARE_OF_LOOKS))
                if time.monotonic() >= invariants_due:
                    took = self.ask_invariants()
                    self.forget_ended()
                    invariants_due = time.monotonic() + max(SECONDS_BETWEEN_INVARIANTS, took / SHARE_OF_TIME)
            except DatabaseUnavailable as error:
                _log.warning("part_unavailable", part="audit", reason=str(error))
                rest = SECONDS_BETWEEN_LOOKS
            stop.wait(rest)

    def walk_on(self, stop: threading.Event) -> None:
        """Walk one stream after the other, first those that wait for it, until told to stop."""
        self._walking = True
        while not stop.is_set():
            with self._requests:
                if (stream := self._next()) is None:
                    self._requests.wait(1.0)
                    continue
                also = [] if stream in self._waiting else self._next_ones()
            try:
                if stream not in self._walk_together([stream, *also], again=True) and not self._is_walked(stream):
                    self._walk_later(stream)
            except DatabaseUnavailable as error:
                _log.warning("part_unavailable", part="audit", reason=str(error))
                stop.wait(1.0)
            self._ring()

    def _is_walked(self, stream: int) -> bool:
        """Walk a stream; return whether that could be done."""
        try:
            self.walk(stream)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one stream's trouble must not stop the others
            _log.error("not_walked", stream=stream, error=type(error).__name__, at=place_of(error))
            return False
        return True

    def _walk_later(self, stream: int) -> None:
        """A walk failed: publishing waits if it was the first, and asks again; else it is due in an hour."""
        later = time.monotonic() + SECONDS_BETWEEN_AUDITS
        self._waiting.pop(stream, None)
        for log in [log for log, (_, each) in list(self._first.items()) if each == stream]:
            self._first[log] = later, stream
            if log in self._due:
                self._due[log] = later

    def _next(self) -> int | None:
        """The stream to walk now, if there is one."""
        if self._waiting:
            return next(iter(self._waiting))
        now = time.monotonic()
        known = list(self._first.items())
        return next((each for log, (first, each) in known if self._due.get(log, first) <= now), None)

    def _next_ones(self) -> list[int]:
        """The streams whose turn is soon: walked with others they cost little."""
        soon = time.monotonic() + SECONDS_BETWEEN_AUDITS / 10
        turns = ((self._due.get(log, first), stream) for log, (first, stream) in list(self._first.items()))
        return [stream for turn, stream in nsmallest(MAX_TOGETHER, turns) if turn <= soon]

    def _never(self) -> list[int]:
        """The streams that were never walked, which each has to be within the hour."""
        return [stream for log, (_, stream) in list(self._first.items()) if log not in self._due]

    def look(self, stream: int, also: Sequence[int] = ()) -> bool:
        """Return whether the stream's ledger was walked, so that it may be published on.

        If not, a short one is walked now, a long one soon, in the thread of `walk_on`; without one, now. Later walks
        hold up nobody. A walk that fails counts as none.

        also: other streams that are to be published on soon.
        """
        log = self._confirmer.log(stream)
        if log in self._due:
            return True
        with self._database.transaction() as connection:
            charges = streams.get(connection, stream).charges
        if not self._walking or charges <= SHORT_LEDGER:
            with self._looking:
                if log not in self._due and stream not in self._walk_together([stream, *also, *self._never()]):
                    return self._is_walked(stream)
            return True
        with self._requests:
            self._waiting[stream] = None
            self._requests.notify()
        return self._vouched_for(stream)

    def _vouched_for(self, stream: int) -> bool:
        """Whether a walk less than an hour ago found nothing, and the ledger still has what that one ended with."""
        log = self._confirmer.log(stream)
        with self._database.transaction() as connection:
            row = streams.get(connection, stream)
            age = high_water_mark.walked_ago(connection, self._files.note(log), row)
        if age is None or not 0 <= age < SECONDS_BETWEEN_AUDITS:
            return False
        self._due.setdefault(log, 0.0)
        _log.info("ledger_vouched_for", stream=row.name, seconds=round(age))
        return True

    def _walk_together(self, candidates: Sequence[int], *, again: bool = False) -> set[int]:
        """Walk the short ledgers among these streams, as long as it is little; return those of which all is well.

        Any other is to be walked alone. again: those too that were walked already.
        """
        began = time.perf_counter()
        with self._database.transaction() as connection:
            but = () if again else self._due
            short = changes.short_ledgers(connection, candidates, but=but, charges=SHORT_LEDGER, most=MAX_TOGETHER)
        marks = high_water_mark.readable(self._files, short.values())  # before the streams are read
        short = {stream: log for stream, log in short.items() if log in marks}
        if len(short) < 2:
            return set()
        try:
            with self._database.transaction() as connection:
                looked = verify.look_at_each(connection, list(short))
                well = [each for each, finding in looked if finding is None and each.distrusted is None]
                well = [each for each in well if short[each.id] == each.log]
                against = high_water_mark.contradictions(connection, self._files, marks, well)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one stream's trouble must not stop the others
            _log.warning("not_walked_together", error=type(error).__name__, at=place_of(error))
            return set()
        walked = {each.log: each.id for each in well if each.log not in against}
        self._due |= dict.fromkeys(walked, time.monotonic() + SECONDS_BETWEEN_AUDITS)
        with self._requests:
            for stream in walked.values():
                self._waiting.pop(stream, None)
        _log.info("ledgers_walked", streams=len(walked), seconds=round(time.perf_counter() - began, 3))
        return set(walked.values())

    def walk(self, stream: int) -> None:
        """Look at one stream as `ledger verify` does, batches aside; say what it found where it counts."""
        began, at = time.perf_counter(), time.time()
        stored_mark = self._confirmer.high_water_mark(stream)  # before the stream: it may only have come further
        with self._database.transaction() as connection:
            row, findings = verify.look(connection, stream)
            findings += filter(None, [high_water_mark.contradicts(connection, self._files, stored_mark, row)])
            mark = high_water_mark.marks(connection, [row])[row.log]
        if not self._confirmer.belongs(row):  # the mark was another stream's, which had the id before
            self.walk(stream)
            return
        for finding in findings:
            _log.error("ledger_broken", finding=finding)
        with self._database.transaction() as connection:
            if streams.distrust(connection, row, findings[0] if findings else None):
                _log.warning("ledger_distrusted" if findings else "ledger_trusted_again", stream=row.name)
        if row.charges > SHORT_LEDGER:
            with suppress(OSError):  # who finds no note walks
                self._files.put_note(row.log, {} if findings else high_water_mark.note(mark, at))
        self._due[row.log] = time.monotonic() + SECONDS_BETWEEN_AUDITS
        with self._requests:
            self._waiting.pop(stream, None)
        seconds = round(time.perf_counter() - began, 3)
        _log.info("ledger_walked", stream=row.name, seconds=seconds, findings=len(findings))

    def confirm(self) -> None:
        """Confirm what nobody has: what was numbered or erased, and what a crash left between a commit and its mark.

        Looks at the streams that had changed at the last look already: of others the one who changed them may be at it.
        Now and then it looks at every stream.
        """
        with self._database.transaction() as connection:
            digest = changes.digest(connection)
            if digest == self._digest and not self._unsettled and time.monotonic() < self._full_look_at:
                return
            states = changes.states(connection)
        self._digest = digest
        self._remember(states)
        unsettled = {each.id: each.digest for each in states if self._settled.get(each.log) != each.digest}
        changed = {stream: digest for stream, digest in unsettled.items() if stream in self._unsettled}
        if time.monotonic() >= self._full_look_at:
            changed = {each.id: each.digest for each in states}
            self._full_look_at = time.monotonic() + SECONDS_BETWEEN_FULL_LOOKS
        self._unsettled = set(unsettled)
        if not changed:
            return
        with self._database.transaction() as connection:
            of_changed = streams.of_each(connection, list(changed))
            marks = high_water_mark.marks(connection, of_changed)
            unseen = {each.stream_id for each in visible_positions.unseen(connection, list(changed))}
        stored = high_water_mark.readable(self._files, [each.log for each in of_changed])
        unconfirmed = []
        for stream in of_changed:
            confirmed = stream.confirmed_charges, stream.confirmed_releases
            if stream.distrusted is not None or (
                stored.get(stream.log) == vars(marks[stream.log])
                and confirmed == (stream.charges, stream.releases)
                and stream.id not in unseen
            ):
                self._settled[stream.log] = changed[stream.id]
            else:
                unconfirmed.append(stream.id)
        self._confirmer.confirm_each(unconfirmed)

    def _remember(self, states: list[State]) -> None:
        """Which streams there are to walk: each within an hour, not all at once; one that is distrusted, now.

        A stream that another database had, which was put in this one's place, is there no more.
        """
        now = time.monotonic()
        for log in self._first.keys() - {each.log for each in states}:
            del self._first[log]
        for place, each in enumerate(states):
            if each.log not in self._first:
                wait = 0.0 if each.distrusted else SECONDS_BETWEEN_AUDITS * place / len(states)
                self._first[each.log] = now + wait, each.id

    def forget_ended(self) -> None:
        """Drop the metrics of publications that had ended at the last look: by now Prometheus has the last of them."""
        timed = metrics.timed_publications()
        with self._database.transaction() as connection:
            ended = timed - publications.running_names(connection)
        metrics.forget_publications(ended & self._ended)
        self._ended = ended

    def ask_invariants(self) -> float:
        """Counts what violates each, for the metric; returns how many seconds that took."""
        began = time.perf_counter()
        for name, violations in INVARIANTS.items():
            try:
                with self._database.transaction() as connection:
                    connection.execute(ONE_VIEW)  # some ask several queries, of what belongs together
                    places = violations(connection)
            except DatabaseUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a changed row makes of it
                places = [f"it can't be asked ({type(error).__name__}, at {place_of(error)})"]
            metrics.VIOLATIONS.labels(name).set(len(places))
            for each in places[:10]:
                _log.error("invariant_violated", invariant=name, where=each)
        return time.perf_counter() - began
