"""Turns the log's batches into numbered, immutable segments: in the log's order, each batch once.

One sealer per stream at a time, by lease; several sealers share the streams (`worker.share`). For each piece of the
log: write the file and sync it, commit the segment together with the position it was read to, then trim the log below
that. A crash before the commit leaves a file that nothing names, which the next holder of the lease sweeps; a crash
after it leaves entries that are trimmed then.
"""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from heapq import nsmallest

import structlog

from service import metrics
from service.ledger import high_water_mark
from service.log import Entry, LogLost, LogMoves, LogUnavailable, Position, Reader
from service.logs import Outage
from service.segments.files import SegmentFiles
from service.store import changes, leases, numbering, retention, segments, streams
from service.store.database import Database, DatabaseUnavailable
from service.store.leases import Lease, LeaseLost
from service.store.numbering import SealedEntry, UnitErased, Unreadable
from service.store.segments import Segment
from service.store.streams import Stream, StreamHalted
from service.store.units import UnitCounts
from service.streams.codec import Columns
from service.streams.layout import RecordLayout, UnreadableBatch
from service.tracebacks import place_of
from service.worker import counting
from service.worker.dropper import Dropper
from service.worker.eraser import Eraser
from service.worker.leases import LeaseKeeper
from service.worker.merger import NEWEST, Merger, joined
from service.worker.share import TAKEN_AT_ONCE, Share
from service.worker.sweeper import Sweeper

_log = structlog.get_logger(__name__)

BATCHES_AT_ONCE = 256
AFTER_AN_ERROR_SECONDS = 5.0  # before a stream that failed in a way nobody foresaw is tried again
TIDY_SECONDS = 5.0  # between two looks at whether a log is still whole, and at what is needed no more
TIDIED_AT_ONCE = 25  # streams; so with many of them it takes longer until each has its turn
FORGET_SECONDS = 600.0  # in which the log's file is written anew without records that are over their units' bounds
LOOK_SECONDS = 2.0  # between two looks for streams whose sealer died; free ones are notified
WAIT_MILLISECONDS = 1000  # for records, before it hears of free streams


class Sealer:
    """Seals its share of the streams of one primary, the reader's: those whose lease it gets."""

    def __init__(self, database: Database, reader: Reader, files: SegmentFiles, keeper: LeaseKeeper) -> None:
        self._database, self._reader, self._files, self._keeper = database, reader, files, keeper
        self._share = Share(keeper)
        self._merger, self._sweeper = Merger(database, files), Sweeper(database, files)
        self._dropper = Dropper(database, files)
        self._eraser = Eraser(database, files, reader, self._merger, self._sweeper, self._forget)
        self._held: dict[str, tuple[Lease, Stream]] = {}  # by name of the log
        self._positions: tuple[dict[str, tuple[Lease, Stream]], dict[str, Position]] = {}, {}  # of what was held
        self._tidy_again: dict[str, float] = {}
        self._not_before: dict[int, float] = {}  # by id of the stream
        self._moved: dict[str, object] = {}  # how far its publications were when unneeded records were dropped
        self._forget_at = math.inf  # when the log's server writes its file anew
        self._look_at = 0.0
        self._rung = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Seal until `stop` is set; wait while the database or the log is away."""
        outage = Outage("sealer")
        while not stop.is_set():
            try:
                if self._rung.is_set() or time.monotonic() >= self._look_at:
                    self._look()
                self._seal_waiting(WAIT_MILLISECONDS)
                outage.end()
            except (DatabaseUnavailable, LogUnavailable) as error:
                outage.begin(str(error))
                self._reader.refresh()
                self._let_go(*self._held)  # positions are read again, from the record
                self._look_at = 0.0
                stop.wait(0.5)
        self._share.leave()
        self._let_go(*self._held)

    def look_soon(self) -> None:
        """Look for streams that nobody numbers: one is free."""
        self._rung.set()

    def step(self, *, wait_milliseconds: int) -> None:
        """Seals once what the log holds of each stream, after waiting for it if there is nothing."""
        self._look()
        self._seal_waiting(wait_milliseconds)

    def _seal_waiting(self, wait_milliseconds: int) -> None:
        if not self._held:
            self._rung.wait(wait_milliseconds / 1000)
            return
        if self._held != self._positions[0]:
            self._positions = dict(self._held), {log: position_of(stream) for log, (_, stream) in self._held.items()}
        for log in self._reader.wait(self._positions[1], milliseconds=wait_milliseconds):
            self._guard(log, partial(self._seal, log))

    def _look(self) -> None:
        """Take free streams up to this worker's share, and look after the streams that it holds."""
        self._rung.clear()
        self._look_at = time.monotonic() + LOOK_SECONDS
        seconds, primary = self._keeper.seconds, self._reader.primary
        self._share.heartbeat(primary.number)
        with self._database.transaction() as connection:
            look = changes.for_sealers(connection, seconds=seconds, primary=primary.number, slots=primary.slots)
        (there, erased, halted), held = look, self._held.items()
        self._let_go(*[log for log, (mine, of) in held if of.id in halted or not self._keeper.holds(mine)])
        self._let_go(*list(self._held)[: self._share.excess(there, len(self._held))])
        now = time.monotonic()
        self._not_before = {stream: until for stream, until in self._not_before.items() if until > now}
        taken = self._share.take(there, len(self._held), but=list(self._not_before), slots=primary.slots)
        if len(taken) == TAKEN_AT_ONCE:
            self._look_at = 0.0
        self._take_over(taken)
        self._tidy(erased)

    def _let_go(self, *logs: str) -> None:
        """Give up the leases of streams, for any sealer to take. A lease that is only forgotten is renewed."""
        self._keeper.drop(*[self._held.pop(log)[0] for log in list(logs) if log in self._held])

    def _take_over(self, taken: list[Lease]) -> None:
        """Puts in order what was left behind on streams that somebody else sealed, however many there are."""
        if not taken:
            return
        current_streams, older, files = self._read(taken)
        sealing = {each.log: position_of(each) for each in current_streams if each.halted is None}
        lost: dict[str, LogLost | LogMoves] = {log: LogLost(older[log]) for log in sealing.keys() & older.keys()}
        lost |= self._reader.check_each({log: sealing[log] for log in sealing.keys() - lost.keys()})
        self._reader.go_on({log: sealing[log] for log in sealing.keys() - lost.keys()})
        if any(stream.layout.units for stream in current_streams):
            self._forget_soon()  # the sealer before may have died after it numbered records over their bounds
        for stream in current_streams:
            if stream.halted is None:
                self._guard(stream.log, partial(self._go_on, stream, lost.get(stream.log), files[stream.id]))
            else:
                self._guard(stream.log, partial(self._eraser.delete_erased, self._held[stream.log][0], stream))
                self._let_go(stream.log)
                self._not_before[stream.id] = time.monotonic() + TIDY_SECONDS

    def _read(self, taken: list[Lease]) -> tuple[list[Stream], dict[str, str], dict[int, set[str]]]:
        """Return the streams as they are; by log, why some are older than their marks; by id, their segments' files."""
        mine = {leases.stream_id(lease): lease for lease in taken}
        try:
            with self._database.transaction() as connection:
                logs = changes.logs(connection, list(mine))
            stored_marks = high_water_mark.readable(self._files, logs.values())
            marked = [each for each, log in logs.items() if log in stored_marks]
            self._not_before |= dict.fromkeys(mine.keys() - marked, time.monotonic() + AFTER_AN_ERROR_SECONDS)
            with self._database.transaction() as connection:
                current_streams = streams.of_each(connection, marked)
                older = high_water_mark.behind_of_each(connection, stored_marks, current_streams)
                files = segments.files_of_each(connection, list(mine))
        except BaseException:
            self._keeper.drop(*taken)
            raise
        self._held |= {stream.log: (mine.pop(stream.id), stream) for stream in current_streams}
        self._keeper.drop(*mine.values())  # of streams whose marks can't be read
        return current_streams, older, files

    def _go_on(self, stream: Stream, lost: LogLost | LogMoves | None, known: set[str]) -> None:
        if lost is not None:  # of an older record the log may be all right: nothing is swept or added
            raise lost
        self._sweeper.sweep(self._held[stream.log][0], stream, known)

    def _tidy(self, erased: set[int]) -> None:
        """Looks after the streams that it has: whose records were erased, and some of them for all the rest."""
        if time.monotonic() >= self._forget_at:
            self._forget()
        for log, (lease, stream) in list(self._held.items()):
            if stream.id in erased:
                self._guard(log, partial(self._eraser.delete_erased, lease, stream))
        now = time.monotonic()
        due_since = {log: self._tidy_again.get(log, 0.0) for log in self._held}
        due = nsmallest(TIDIED_AT_ONCE, (log for log in due_since if due_since[log] <= now), key=due_since.__getitem__)
        self._tidy_again = due_since | dict.fromkeys(due, now + TIDY_SECONDS)
        lost = self._reader.check_each({log: position_of(self._held[log][1]) for log in due})
        with self._database.transaction() as connection:
            moved = retention.progress_of_each(connection, [self._held[log][1].id for log in due])
        for log in due:
            self._guard(log, partial(self._tidy_one, self._held[log][1], lost.get(log), moved))

    def _tidy_one(self, stream: Stream, lost: LogLost | LogMoves | None, moved: dict[int, object]) -> None:
        if lost is not None:
            raise lost
        lease, _ = self._held[stream.log]
        self._dropper.forget_entries(lease, stream)
        if stream.id in moved and self._moved.get(stream.log) != moved[stream.id]:
            self._dropper.drop_unneeded(lease, stream)
            self._moved[stream.log] = moved[stream.id]

    def _seal(self, log: str) -> None:
        lease, stream = self._held[log]
        batch: list[Entry] = self._reader.read(log, position_of(stream), batches=BATCHES_AT_ONCE)
        if not batch:
            return
        sealed: list[SealedEntry] = []
        columns: list[Columns] = []
        dead: list[Entry] = []
        due, stop = stream.sealed_sequence + 1, stream.records
        for entry in batch:
            if entry.sequence not in (None, due):
                if sealed or dead:
                    break  # what came before a gap is numbered first: else nobody who resumes gets past the gap
                raise LogLost(f"batch {entry.sequence} came where {due} was due")
            each = _decoded(entry, stream.layout)
            if each is None:
                dead.append(entry)
            else:
                records = len(next(iter(each.values())))
                if columns and stop + records - stream.records > counting.most_records(stream.layout):
                    break  # the rest is another segment
                start, stop = stop, stop + records
                columns.append(each)
                sealed.append(SealedEntry(entry=entry.id, sequence=due, start=start, stop=stop))
            due += entry.sequence is not None
        segment, counts = self._write(stream, stop, columns) if columns else (None, None)
        self._reader.bury(log, dead)
        letters = [_letter(entry) for entry in dead]
        file = None if segment is None else segment.file
        with self._files.gone_if(LeaseLost, log, file), self._database.transaction() as connection:
            numbering.seal(connection, lease, stream, segment, sealed, letters, counts)
            after, newest = numbering.left(connection, stream.id, NEWEST)
        if counts is not None and counts.over:
            metrics.OVER_BOUND.labels(stream.name).inc(counts.over)
            self._forget_soon()
        for letter in letters:
            _log.error("dead_letter", stream=stream.name, entry=letter.entry, reason=letter.reason)
        self._held[log] = (lease, after)
        self._reader.trim(log, after.sealed_entry)
        self._merger.merge(lease, after, newest)

    def _write(self, stream: Stream, stop: int, columns: list[Columns]) -> tuple[Segment, UnitCounts | None]:
        mapped, counts = counting.counted(self._database, stream, stream.layout.mapped(joined(columns)))
        file, sha256 = self._files.write(stream.log, stream.records, stop, mapped)
        return Segment(start=stream.records, stop=stop, file=file, sha256=sha256), counts

    def _forget(self) -> None:
        """Have the log's server write its file anew, without what was trimmed; again if it was at that already."""
        self._forget_at = math.inf if self._reader.forget() else 0.0

    def _forget_soon(self) -> None:
        """Do so in a while, for all records together that are over their units' bounds until then."""
        self._forget_at = min(self._forget_at, time.monotonic() + FORGET_SECONDS)

    def _guard(self, log: str, work: Callable[[], None]) -> None:
        """One stream's trouble is its own: another's lease is dropped, a broken log halts the stream loudly."""
        lease, stream = self._held[log]
        try:
            try:
                work()
            except LogLost as lost:
                # Whoever lost the lease misses what its successor trimmed; only the holder can tell that a log is lost.
                with self._database.transaction() as connection:
                    leases.check(connection, lease)
                    self._reader.halt(log)  # before another has the lease; if the rest fails, that one looks again
                    streams.halt(connection, stream.id, str(lost))
                _log.error("stream_halted", stream=stream.name, reason=str(lost))
                self._let_go(log)
        except (LeaseLost, StreamHalted):
            self._let_go(log)
        except UnitErased:  # the log holds the batches still; in the file that was written the unit's records count
            self._guard(log, partial(self._sweeper.sweep, lease, stream, set()))
        except LogMoves:
            self._not_before[stream.id] = time.monotonic() + LOOK_SECONDS
            self._let_go(log)
        except (DatabaseUnavailable, LogUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a bad file of one stream must not stop the others
            _log.error("sealing_failed", stream=stream.name, error=type(error).__name__, at=place_of(error))
            self._not_before[stream.id] = time.monotonic() + AFTER_AN_ERROR_SECONDS
            self._let_go(log)


def position_of(stream: Stream) -> Position:
    """Return how far the log of a stream is numbered."""
    return Position(entry=stream.sealed_entry, sequence=stream.sealed_sequence)


def _decoded(entry: Entry, layout: RecordLayout) -> Columns | None:
    """Return the records of an entry; None where it is not a batch of this stream."""
    if entry.sequence is None:
        return None
    try:
        return layout.decode(entry.batch)
    except UnreadableBatch:
        return None


def _letter(entry: Entry) -> Unreadable:
    size = sum(len(name) + len(value) for name, value in entry.fields.items())
    reason = "it is none of ours" if entry.sequence is None else "its content can't be read: these records are lost"
    return Unreadable(entry=entry.id, sequence=entry.sequence, reason=reason, size=size)
