"""Publishes what is parked, at its tick; and confirms what APIs have committed."""

import threading
import time
from collections.abc import Mapping, Sequence

import structlog

from service import metrics
from service.ledger import high_water_mark, open_free_ledgers, open_ledger
from service.ledger.errors import LedgerBroken
from service.logs import Outage
from service.publishing import ticks
from service.publishing.confirmation import Confirmer
from service.store import parked
from service.store.database import Database, DatabaseUnavailable
from service.store.parked import NextTick
from service.store.publications import Publication
from service.tracebacks import place_of
from service.worker.audit import Audit

_log = structlog.get_logger(__name__)

MAX_TOGETHER = 16  # streams whose steps one transaction publishes
LOOK_ANYWAY_SECONDS = 2.0  # for steps that another worker parked before it died
MAX_FITS = 10_000  # times of fits to remember: another worker may publish the step, and nobody asks for its time


class Ticker:
    """The ticker of one worker. The first of several workers publishes a step; the others see that it is gone."""

    def __init__(self, database: Database, confirmer: Confirmer, audit: Audit) -> None:
        self._database, self._confirmer, self._audit = database, confirmer, audit
        self._fits: dict[tuple[str, int, int], float] = {}
        self._parked = threading.Condition()
        self._count = 0

    def park(self, publication: Publication, fit_seconds: float | None = None) -> None:
        """Look again: a step was parked, which leaves a publication so. How long its fit took is told at its tick."""
        if fit_seconds is not None:
            self._fits[publication.promise, publication.position, publication.version] = fit_seconds
            if len(self._fits) > MAX_FITS:
                del self._fits[next(iter(self._fits))]
        self.ring()

    def ring(self) -> None:
        """Look again."""
        with self._parked:
            self._count += 1
            self._parked.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Publish until told to stop; what is away is waited for."""
        outage = Outage("ticker")
        while not stop.is_set():
            heard = self._count
            try:
                left = self.step()
                outage.end()
            except DatabaseUnavailable as error:
                outage.begin(str(error))
                left = 0.5
            with self._parked:
                self._parked.wait_for(lambda: self._count > heard, left)  # noqa: B023

    def step(self) -> float:
        """Publish what is due on each stream; return in how many seconds to look again."""
        with self._database.transaction() as connection:
            waiting = parked.next_ticks(connection)
        moved = [self._take_ticks_anew(stream) for stream in waiting if stream.ahead is not None]
        if any(moved):
            return 0.0
        due = [each.stream_id for each in waiting if each.seconds <= 0]
        for first in range(0, len(due), MAX_TOGETHER):
            self._publish_each(due[first : first + MAX_TOGETHER], due)
        return min([LOOK_ANYWAY_SECONDS, *(each.seconds for each in waiting if each.seconds > 0)])

    def _take_ticks_anew(self, waiting: NextTick) -> int:
        """Take the ticks of a stream anew that PostgreSQL's clock gave while it was ahead; return how many."""
        with self._database.transaction() as connection:
            free = open_free_ledgers(connection, [waiting.stream_id])  # who holds it up holds up no other stream
            ticks_moved = sum(parked.take_ticks_anew(connection, ledger.stream.id) for ledger in free)
        if ticks_moved:
            metrics.TICKS_TAKEN_ANEW.inc(ticks_moved)
            seconds = round(waiting.ahead or 0)
            _log.error("clock_was_ahead", stream=waiting.stream_id, ticks_taken_anew=ticks_moved, seconds=seconds)
        return ticks_moved

    def _publish_each(self, streams: Sequence[int], also: Sequence[int]) -> None:
        """Publish what is due on streams: together, as far as that goes, then alone on those that are left."""
        left = set(streams)
        if len(streams) > 1:
            try:
                ready = [each for each in streams if self._is_ready(each, also)]
                left = self._publish(ready)[1] if ready else set()
            except DatabaseUnavailable:
                raise
            except Exception:  # noqa: BLE001, S110 - of which stream, shows when each is published alone
                pass
        for stream in streams:
            if stream in left:
                self._guard(stream, also)

    def _guard(self, stream: int, also: Sequence[int]) -> None:
        """Publish what is due on one stream, whose trouble must not stop the others."""
        try:
            self.publish(stream, also)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is
            _log.error("publishing_failed", stream=stream, error=type(error).__name__, at=place_of(error))

    def _is_ready(self, stream: int, also: Sequence[int]) -> bool:
        return self._confirmer.can_confirm(stream) and self._audit.look(stream, also)

    def publish(self, stream: int, also: Sequence[int] = ()) -> None:
        """Publish all that is due on a stream, and confirm it; `also`: others on which something is due."""
        more = self._is_ready(stream, also)
        try:
            while more:
                done, left = self._publish([stream])
                more = bool(done and left)
        except LedgerBroken as broken:
            self._distrust(stream, str(broken))

    def _publish(self, streams: Sequence[int]) -> tuple[list[Publication], set[int]]:
        """Publish steps that are due on streams; return their publications, and the streams on which more is due.

        Raises:
            LedgerBroken: one of their ledgers is not as it was left; nothing is published.
        """
        began = time.perf_counter()
        stored_marks = {self._confirmer.log(each): self._confirmer.high_water_mark(each) for each in streams}
        done: list[Publication] = []
        with self._database.transaction() as connection:
            opened = ticks.open_ticks(connection, streams)
            ours = [ledger.stream for ledger, _ in opened]
            if not all(map(self._confirmer.belongs, ours)):
                return [], set(streams)
            high_water_mark.check_each(connection, self._confirmer.files, stored_marks, ours)
            for ledger, waiting in opened:
                done += ticks.publish(ledger, waiting)
            left = parked.with_due(connection, streams)
        if done:
            self._confirmer.soon(*{each.stream_id for each in done})
        names = {ledger.stream.id: ledger.stream.name for ledger, _ in opened}
        self._tell(done, names, time.perf_counter() - began)
        return done, left

    def _tell(self, done: Sequence[Publication], streams: Mapping[int, str], seconds: float) -> None:
        """Say what was published. streams: their names by their ids."""
        for publication in done:
            names = publication.name, streams[publication.stream_id]
            metrics.begin(*names)
            metrics.PUBLISH.labels(*names).observe(seconds / len(done))
            at = publication.promise, publication.position, publication.version
            if (took := self._fits.pop(at, None)) is not None:
                metrics.FIT.labels(*names).observe(took)
            _log.info(
                "released",
                publication=publication.name,
                version=publication.version,
                time=publication.start + publication.position,
            )

    def _distrust(self, stream: int, reason: str) -> None:
        with self._database.transaction() as connection:
            news = open_ledger(connection, stream).distrust(reason)
        if news:
            _log.error("ledger_distrusted", stream=stream, reason=reason)
