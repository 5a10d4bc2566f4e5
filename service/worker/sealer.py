"""Turns the log's batches into numbered, immutable segments: in the log's order, each batch once.

One sealer per stream at a time, by lease. For each piece of the log: write the file and sync it, commit the segment
together with the position it was read to, then trim the log below that. A crash before the commit leaves a file that
nothing names, which the next holder of the lease sweeps; a crash after it leaves entries that are trimmed then.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import structlog

from service.learning import feature_maps
from service.learning.feature_maps import FeatureMap
from service.log import Entry, LogLost, LogUnavailable, Position, Reader
from service.logs import place_of
from service.mechanisms.building import needs
from service.store import leases, publications, segments, streams, witness
from service.store.database import Database, DatabaseUnavailable
from service.store.leases import Lease, LeaseLost
from service.store.segment_files import Columns, FilesReplaced, SegmentFiles, unpack
from service.store.segments import Segment
from service.store.streams import Known, SealedEntry, Stream, StreamHalted, Unreadable
from service.worker.leases import LeaseKeeper

_log = structlog.get_logger(__name__)

BATCHES_AT_ONCE = 256
AFTER_AN_ERROR_SECONDS = 5.0  # before a stream that failed in a way nobody foresaw is tried again
MERGED_AT_ONCE = 16
MERGED_VALUES = 2**26  # most numbers of one merged segment: 256 MiB as float32
LARGE_ENOUGH = 4  # the size class of 65,536 records and more: such segments are left alone
TIDY_SECONDS = 5.0  # between two looks at whether the log is still whole, and at what is needed no more
WAIT_MILLISECONDS = 500  # also how soon a new stream, or one whose sealer died, is looked for


class Sealer:
    """Seals every stream whose lease it gets."""

    def __init__(self, database: Database, reader: Reader, files: SegmentFiles, keeper: LeaseKeeper) -> None:
        self._database, self._reader, self._files, self._keeper = database, reader, files, keeper
        self._tidy_again: dict[str, float] = {}  # by name of the log
        self._not_before: dict[str, float] = {}
        self._held: dict[str, tuple[Lease, Stream]] = {}  # by name of the log
        self._forget_again = False

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; whatever is away is waited for."""
        while not stop.is_set():
            try:
                self.step(wait_milliseconds=WAIT_MILLISECONDS)
                if not self._held:
                    stop.wait(WAIT_MILLISECONDS / 1000)
            except (DatabaseUnavailable, LogUnavailable) as error:
                _log.warning("part_unavailable", part="sealer", reason=str(error))
                self._let_go(*self._held)  # positions are read again, from the record
                stop.wait(0.5)
        self._let_go(*self._held)

    def step(self, *, wait_milliseconds: int) -> None:
        """Seals once what the log holds of each stream, after waiting for it if there is nothing."""
        self._take_leases()
        if not self._held:
            return
        positions = {log: _position(stream) for log, (_, stream) in self._held.items()}
        for log in self._reader.wait(positions, milliseconds=wait_milliseconds):
            self._guard(log, partial(self._seal, log))

    def _take_leases(self) -> None:
        """Of every stream that nobody seals; what a dead one left behind is put in order first."""
        with self._database.transaction() as connection:
            known = streams.known(connection)
            erased = segments.streams_with_undeleted_erasures(connection)
        for stream in known:
            held = self._held.get(stream.log)
            if held is not None and self._keeper.holds(held[0]) and not stream.halted:
                self._guard(stream.log, partial(self._tidy, held[1], erased=stream.id in erased))
                continue
            self._let_go(stream.log)
            if time.monotonic() < self._not_before.get(stream.log, 0.0):
                continue
            if stream.halted:
                if stream.id in erased and self._take(stream):
                    self._guard(stream.log, partial(self._delete_erased, self._held[stream.log][1]))
                    self._let_go(stream.log)
                    self._not_before[stream.log] = time.monotonic() + TIDY_SECONDS
            elif self._take(stream):
                self._guard(stream.log, partial(self._take_over, self._held[stream.log][1]))

    def _take(self, stream: Known) -> bool:
        """The lease, if nobody has it, and then the stream as it is: it may have moved before we had the lease."""
        lease = self._keeper.take(leases.stream(stream.id))
        if lease is None:
            return False
        try:
            self._held[stream.log] = lease, self._again(stream)
        finally:
            if stream.log not in self._held:
                self._keeper.drop(lease)
        return True

    def _let_go(self, *logs: str) -> None:
        """Of streams, so that anybody can take them, this sealer too: a lease that is only forgotten is renewed on."""
        for log in list(logs):
            if log in self._held:
                self._keeper.drop(self._held.pop(log)[0])

    def _tidy(self, stream: Stream, *, erased: bool) -> None:
        if erased:
            self._delete_erased(stream)
        if self._forget_again:
            self._forget_again = not self._reader.forget()
        if time.monotonic() >= self._tidy_again.get(stream.log, 0.0):
            self._tidy_again[stream.log] = time.monotonic() + TIDY_SECONDS
            self._reader.check(stream.log, _position(self._held[stream.log][1]))
            self._drop_unneeded(stream)

    def _take_over(self, stream: Stream) -> None:
        told = self._files.witness(stream.log)
        with self._database.transaction() as connection:
            older = witness.behind(connection, told, streams.get(connection, stream.id))
        if older is not None:  # the log may be all right, but what is numbered is not: nothing is swept or added
            raise LogLost(older)
        self._reader.check(stream.log, _position(stream))
        self._reader.go_on(stream.log)
        if stream.sealed_sequence:
            self._reader.trim(stream.log, stream.sealed_entry)
        self._sweep(stream)

    def _seal(self, log: str) -> None:
        lease, stream = self._held[log]
        batch: list[Entry] = self._reader.read(log, _position(stream), batches=BATCHES_AT_ONCE)
        if not batch:
            return
        feature_map = feature_maps.of_stream(stream.schema)
        sealed: list[SealedEntry] = []
        columns: list[Columns] = []
        dead: list[Entry] = []
        due, stop = stream.sealed_sequence + 1, stream.records
        for entry in batch:
            if entry.sequence not in (None, due):
                raise LogLost(f"batch {entry.sequence} came where {due} was due")
            each = None if entry.sequence is None else _readable(entry.batch, stream.schema, feature_map)
            if each is None:
                dead.append(entry)
            else:
                records = len(next(iter(each.values())))
                if (
                    columns and stop + records - stream.records > feature_map.most_records
                ):  # the rest is another segment
                    break
                start, stop = stop, stop + records
                columns.append(each)
                sealed.append(SealedEntry(entry=entry.id, sequence=due, start=start, stop=stop))
            due += entry.sequence is not None
        segment = self._write(stream, stop, columns, feature_map) if columns else None
        self._reader.bury(log, dead)
        letters = [_letter(entry) for entry in dead]
        with self._database.transaction() as connection:
            streams.seal(connection, lease, stream, segment, sealed, letters)
        for letter in letters:
            _log.error("dead_letter", stream=stream.name, entry=letter.entry, reason=letter.reason)
        self._held[log] = (lease, self._again(stream))
        self._reader.trim(log, self._held[log][1].sealed_entry)
        self._merge(log)

    def _write(self, stream: Stream, stop: int, columns: list[Columns], feature_map: FeatureMap) -> Segment:
        joined = _joined(columns)
        if not feature_map.reads_text and "x" in joined:  # texts were mapped before they came into the log
            joined["x"] = feature_map(joined["x"])
        file, sha256 = self._files.write(stream.log, stream.records, stop, joined)
        return Segment(start=stream.records, stop=stop, file=file, sha256=sha256)

    def _again(self, stream: Known | Stream) -> Stream:
        with self._database.transaction() as connection:
            return streams.get(connection, stream.id)

    def _merge(self, log: str) -> None:
        """Puts many small neighbours into one segment, so that a fit opens few files however records trickled in.

        Sixteen neighbours of at most one size class, half of them of just that class, become one, like the digits of
        a counter: each record is rewritten about once per class, and a few dozen segments at most stay small. What
        would be larger than memory should hold stays in parts.
        """
        lease, stream = self._held[log]
        most = MERGED_VALUES // max(1, feature_maps.of_stream(stream.schema).features)
        with self._database.transaction() as connection:
            newest = segments.newest(connection, stream.id, MERGED_AT_ONCE * LARGE_ENOUGH)
        for size_class in range(LARGE_ENOUGH):
            run = list(takewhile(lambda each: _size_class(each) <= size_class, reversed(newest)))[::-1]  # noqa: B023
            alike = sum(_size_class(each) == size_class for each in run)
            if run and run[-1].stop - run[0].start > most:
                return
            if len(run) >= MERGED_AT_ONCE and 2 * alike >= MERGED_AT_ONCE:
                parts = [self._files.read(log, each.file, each.sha256, 0, each.stop - each.start) for each in run]
                self._replace(lease, stream, run, _joined(parts))
                return

    def _replace(self, lease: Lease, stream: Stream, old: list[Segment], columns: Columns) -> None:
        """One segment in the place of neighbours; their files go when nothing names them any more."""
        start, stop = old[0].start, old[-1].stop
        file, sha256 = self._files.write(stream.log, start, stop, columns)
        with self._database.transaction() as connection:
            new = Segment(start=start, stop=stop, file=file, sha256=sha256)
            segments.replace(connection, lease, stream, old, [new])
        for each in old:
            self._files.delete(stream.log, each.file)

    def _drop_unneeded(self, stream: Stream) -> None:
        """With retention `needed`: segments that no running publication can want again."""
        if stream.retention != "needed":
            return
        lease, _ = self._held[stream.log]
        with self._database.transaction() as connection:
            leases.check(connection, lease)
            records = streams.lock(connection, stream.id).records  # no publication starts meanwhile
            needed = {
                each.name: each.start + needs(stream.schema, each.configuration, each.position)
                for each in publications.of_stream(connection, stream.id)
                if each.state == "running"
            }
            floor = min(needed.values(), default=records)
            gone = [each for each in segments.holding(connection, stream.id, 0, floor) if each.stop <= floor]
            if gone:
                segments.replace(connection, lease, stream, gone, [])
        for each in gone:
            self._files.delete(stream.log, each.file)
        if gone:
            _log.info("dropped_unneeded", stream=stream.name, start=gone[0].start, end=gone[-1].stop, needed=needed)

    def _delete_erased(self, stream: Stream) -> None:
        """Writes segments with erased records anew, without their bytes; each once, however much of it is erased.

        A crash on the way leaves what was erased before it, and the rest to whoever comes next: it is all done again.
        """
        with self._database.transaction() as connection:
            waiting = segments.undeleted_erasures(connection, stream.id)
        if not waiting:  # another was quicker, between our look and our lease
            return
        lease, _ = self._held[stream.log]
        touched: dict[int, Segment] = {}
        with self._database.transaction() as connection:
            for _, start, stop in waiting:
                touched |= {each.start: each for each in segments.holding(connection, stream.id, start, stop)}
        for old in touched.values():
            columns = self._files.read(stream.log, old.file, old.sha256, 0, old.stop - old.start)
            for _, start, stop in waiting:
                low, high = max(start, old.start) - old.start, min(stop, old.stop) - old.start
                for column in columns.values():
                    column[low : max(low, high)] = 0
            self._replace(lease, stream, [old], columns)
        # A file that an earlier holder of the lease wrote too late may hold the bytes too.
        if stream.halted is not None and self._orphans(stream):
            # But who knows what a stream's files are if its log is not what was numbered: the record may be an old one.
            _log.warning("erased_but_for_orphans", stream=stream.name, files=self._orphans(stream))
            return
        self._sweep(stream)
        self._forget_again = not self._reader.forget()
        with self._database.transaction() as connection:
            segments.mark_deleted(connection, lease, [erasure for erasure, _, _ in waiting])
        _log.info("erased", stream=stream.name, erasures=len(waiting))

    def _orphans(self, stream: Stream) -> list[str]:
        with self._database.transaction() as connection:
            known = segments.files_of(connection, stream.id)
        return self._files.orphans(stream.log, known)

    def _sweep(self, stream: Stream) -> None:
        with self._database.transaction() as connection:
            known = segments.files_of(connection, stream.id)
        try:
            swept = self._files.sweep(stream.log, known)
        except FilesReplaced as replaced:
            raise LogLost(f"the database is older than the segment folder: {replaced}; no file is deleted") from None
        for orphan in swept:
            _log.info("orphan_swept", stream=stream.name, file=orphan)

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
                    streams.halt(connection, stream.id, str(lost))
                _log.error("stream_halted", stream=stream.name, reason=str(lost))
                self._let_go(log)
                self._reader.halt(log)
        except (LeaseLost, StreamHalted):
            self._let_go(log)
        except (DatabaseUnavailable, LogUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - a bad file of one stream must not stop the others
            _log.error("sealing_failed", stream=stream.name, error=type(error).__name__, at=place_of(error))
            self._not_before[log] = time.monotonic() + AFTER_AN_ERROR_SECONDS
            self._let_go(log)


def _readable(batch: bytes, schema: dict[str, Any], feature_map: FeatureMap) -> Columns | None:
    """What a batch of the log holds, if it is what a stream of this schema can hold."""
    try:
        columns = unpack(batch)
    except Exception:  # noqa: BLE001 - whatever is in it
        return None
    task = schema["task"]["kind"]
    width = feature_map.features if feature_map.reads_text else schema.get("features")
    wanted: dict[str, tuple[str, tuple[int | None, ...]]] = {}
    if task != "categorical":
        wanted["x"] = "float32", (width,)
    if task != "unlabelled":
        wanted["y"] = "float32" if task == "regression" else "int32", ()
    records = {len(column) for column in columns.values() if column.ndim}
    found = {name: (column.dtype.name, column.shape[1:]) for name, column in columns.items() if column.ndim}
    return columns if found == wanted and len(records) == 1 and 0 not in records else None


def _letter(entry: Entry) -> Unreadable:
    size = sum(len(name) + len(value) for name, value in entry.fields.items())
    reason = "it is none of ours" if entry.sequence is None else "its content can't be read: these records are lost"
    return Unreadable(entry=entry.id, sequence=entry.sequence, reason=reason, size=size)


def _size_class(segment: Segment) -> int:
    """0 for a few records, one more for each factor of sixteen, until it is large enough."""
    return min(LARGE_ENOUGH, ((segment.stop - segment.start).bit_length() - 1) // 4)


def _position(stream: Stream) -> Position:
    return Position(entry=stream.sealed_entry, sequence=stream.sealed_sequence)


def _joined(columns: list[Columns]) -> Columns:
    return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
