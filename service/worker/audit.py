"""Looks whether the ledger is still what was written: before a worker first publishes on a stream, and every hour.

What doesn't verify stops its stream: nothing more is published on it, its publications say why, and a metric tells. It
goes on when a later look finds all well again, as after the right rows were restored. The invariants are cheaper, and
asked more often. One that can't be asked counts as violated, and ends no other.
"""

import threading
import time

import structlog

from service import metrics
from service.logs import place_of
from service.publishing.confirmation import Confirmer
from service.store import publications, shown, streams, verify, witness
from service.store.database import Database, DatabaseUnavailable
from service.store.invariants import INVARIANTS
from service.store.segment_files import SegmentFiles

_log = structlog.get_logger(__name__)

SECONDS_BETWEEN_AUDITS = 3600.0
SECONDS_BETWEEN_INVARIANTS = 60.0
SHARE_OF_TIME = 0.01  # that the invariants may take of a worker's time, however large the ledger is


class Audit:
    """One worker's. Threads may ask at the same time."""

    def __init__(self, database: Database, files: SegmentFiles, confirmer: Confirmer) -> None:
        self._database, self._files, self._confirmer = database, files, confirmer
        self._due: dict[str, float] = {}  # by the stream's log: when to look again
        self._looking: dict[int, threading.Lock] = {}
        self._ended: set[str] = set()  # publications that had ended, with metrics, at the last look

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; what is away is waited for."""
        invariants_due = 0.0
        while not stop.is_set():
            try:
                with self._database.transaction() as connection:
                    known = streams.known(connection)
                self.confirm()
                for stream in known:
                    if not stop.is_set():
                        self.look(stream.id)
                if time.monotonic() >= invariants_due:
                    took = self.ask_invariants()
                    self.forget_ended()
                    invariants_due = time.monotonic() + max(SECONDS_BETWEEN_INVARIANTS, took / SHARE_OF_TIME)
            except DatabaseUnavailable as error:
                _log.warning("part_unavailable", part="audit", reason=str(error))
            stop.wait(1.0)

    def look(self, stream: int) -> None:
        """Walks the stream's ledger unless this worker did within the hour; whoever asks meanwhile waits for it."""
        with self._looking.setdefault(stream, threading.Lock()):
            log = self._confirmer.log(stream)
            if time.monotonic() >= self._due.get(log, 0.0):
                self.walk(stream)
                self._due[log] = time.monotonic() + SECONDS_BETWEEN_AUDITS

    def look_once(self, stream: int) -> None:
        """Walks the stream's ledger unless this worker ever did: for who must not be held up every hour."""
        if self._confirmer.log(stream) not in self._due:
            self.look(stream)

    def walk(self, stream: int) -> None:
        """What `ledger verify` looks at of one stream, batches aside; says what it found where it counts."""
        began = time.perf_counter()
        told = self._confirmer.told(stream)  # before the stream is read: it may only have come further since
        with self._database.transaction() as connection:
            found, findings = verify.look(connection, stream)
            findings += filter(None, [witness.contradicts(connection, self._files, told, found)])
        for finding in findings:
            _log.error("ledger_broken", finding=finding)
        with self._database.transaction() as connection:
            if streams.distrust(connection, found, findings[0] if findings else None):
                _log.warning("ledger_distrusted" if findings else "ledger_trusted_again", stream=found.name)
        seconds = round(time.perf_counter() - began, 3)
        _log.info("ledger_walked", stream=found.name, seconds=seconds, findings=len(findings))

    def confirm(self) -> None:
        """Confirm what nobody has: what was numbered or erased, and what a crash left between a commit and its mark."""
        with self._database.transaction() as connection:
            known = streams.every(connection)
            marks = witness.marks(connection, known)
            unseen = {each.stream_id for each in shown.unseen(connection)}
        for stream in known:
            confirmed = stream.confirmed_charges, stream.confirmed_releases
            if stream.distrusted is None and (
                self._files.witness(stream.log) != vars(marks[stream.log])
                or confirmed != (stream.charges, stream.releases)
                or stream.id in unseen
            ):
                try:
                    self._confirmer.confirm(stream.id)
                except DatabaseUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001 - one stream's trouble must not stop the others
                    _log.error("not_confirmed", stream=stream.name, error=type(error).__name__, at=place_of(error))

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
                    found = violations(connection)
            except DatabaseUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a changed row makes of it
                found = [f"it can't be asked ({type(error).__name__}, at {place_of(error)})"]
            metrics.VIOLATIONS.labels(name).set(len(found))
            for each in found[:10]:
                _log.error("invariant_violated", invariant=name, where=each)
        return time.perf_counter() - began
