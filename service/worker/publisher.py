"""Publishes: for each publication whose next fit has all its records, fit, and park or commit the step.

Noise exists only in memory until a transaction commits it: parked until its tick, or, without a tick, charged and
released at once. A crash before that has published nothing and charged nothing; after it nothing is computed again. The
lease's epoch, the publication's position and the unique version are all checked inside, so that of two workers that
believe they publish the same model one fails.

A step that is drawn again after its first result was lost is rejection sampling. So a result whose commit failed is
committed again, with the same bytes, for as long as its process lives; an attempt that ended without a public reason is
noted before anything is tried again; and after a second one at the same step the publication halts (`store.attempts`).
"""

import threading
import time
from contextlib import suppress
from functools import partial

import psycopg
import structlog
from sqlalchemy.exc import DBAPIError

from service import metrics
from service.learning.optimization.solvers import Inaccurate
from service.ledger import high_water_mark, open_leased_entry, open_ledger
from service.ledger.errors import LedgerBroken, OverBudget
from service.logs import Outage
from service.mechanisms.mechanism import StateLost
from service.privacy import randomness
from service.privacy.noise.additive import Unaffordable
from service.publishing import ticks
from service.publishing.commit import (
    charges_otherwise,
    check,
    commit,
    halt,
    of_another_guarantee,
    remembers,
    seconds_to_write,
)
from service.publishing.evaluated import with_models
from service.publishing.prepared import PendingStep, halting
from service.segments.files import SegmentDamaged
from service.segments.records import SegmentsMissing
from service.store import attempts, leases, lineage, parked, publications, waits
from service.store.database import ONE_VIEW, DatabaseUnavailable
from service.store.due_steps import DueStep, untaken
from service.store.leases import Lease, LeaseLost
from service.store.publications import Publication
from service.tracebacks import place_of
from service.worker import fits
from service.worker.context import WorkerContext
from service.worker.fits import FitDied, FitTooLarge, NotWanted
from service.worker.publication_state import PublicationState

_log = structlog.get_logger(__name__)

AFTER_AN_ERROR_SECONDS = 5.0  # before the same publication is tried again by this worker
TURN_SECONDS = 0.5  # of one publication, which has always something due while records come: then others have theirs
_FORESEEN = (Inaccurate, Unaffordable, StateLost, SegmentDamaged, SegmentsMissing, DatabaseUnavailable, NotWanted)
WALK_SECONDS = 1.0  # before a publication is tried again that waits: for a walk, its mark, or others' releases
ENDED_TWICE = (
    "two attempts at its next step ended without a foreseen reason (a crash, a kill, out of memory, an unexpected "
    "error): a third would draw its noise anew. The log tells when and where"
)


class TickFirst(Exception):
    """A step that waits on the stream, and whose tick has come, is to be published before anything else."""


class Publisher:
    """Publishes whatever is due; as many threads may run one as fits should run at the same time.

    With `short`, it takes only steps that are short by their public estimate: so they never wait for long ones.
    """

    def __init__(self, context: WorkerContext, *, short: bool = False) -> None:
        self._short, self._context = short, context
        self._database, self._files, self._keeper = context.database, context.files, context.keeper
        self._audit, self._confirmer, self._ticker = context.audit, context.confirmer, context.ticker
        self._dispatcher = context.dispatcher
        # Seconds since an attempt ended that is not in the database yet.
        self._unrecorded_crash_age: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Publish until the dispatcher is closed; wait while the database or the log is away."""
        outage = Outage("publisher")
        while (step := self._dispatcher.take(short=self._short)) is not None:
            look_again = True
            try:
                look_again = self.publish(step, stop)
                outage.end()
            except DatabaseUnavailable as error:
                outage.begin(str(error))
                stop.wait(0.5)
            finally:
                self._dispatcher.finish(step, look_again=look_again)

    def publish(self, due: DueStep, stop: threading.Event) -> bool:
        """Publish what is due of one publication; return whether this worker got its lease.

        due: as the dispatcher handed it out.
        """
        if not self._audit.look(due.stream_id, self._dispatcher.waiting_streams()):  # before the lease, for drawing
            self._dispatcher.retry_later(due.id, WALK_SECONDS)
            return False
        lease = self._keeper.take(leases.publication(due.id), among=untaken(due))
        if lease is None:
            return False
        self._unrecorded_crash_age = lease.abandoned
        try:
            self._guard(lease, due, stop)
        finally:
            if self._unrecorded_crash_age is None:
                self._keeper.drop(lease)
            else:
                self._keeper.abandon(lease, self._unrecorded_crash_age)
        return True

    def _guard(self, lease: Lease, publication: DueStep, stop: threading.Event) -> None:
        """Publish what is due of one publication, whose trouble must not stop the others."""
        metrics.begin(publication.name, publication.stream)
        try:
            self._publish_due(lease, publication, stop)
        except LeaseLost:
            _log.warning("lease_lost", publication=publication.name)
        except LedgerBroken as broken:
            self._distrust(publication, str(broken))
        except NotWanted:
            _log.info("fit_given_up", publication=publication.name)
        except DatabaseUnavailable:
            raise
        except FitTooLarge as error:
            _log.error("fit_too_large", publication=publication.name, reason=str(error))
            self._again_later(publication)
        except (SegmentDamaged, SegmentsMissing) as error:
            _log.error("records_unfit", publication=publication.name, reason=str(error))
            self._again_later(publication)
        except Exception as error:  # noqa: BLE001 - whatever it is
            _log.error(
                "publishing_failed",
                publication=publication.name,
                error=type(error).__name__,
                at=place_of(error),
            )
            self._again_later(publication)

    def _again_later(self, publication: DueStep) -> None:
        metrics.FAILURES.labels(publication.name, publication.stream).inc()
        self._dispatcher.retry_later(publication.id, AFTER_AN_ERROR_SECONDS)

    def _publish_due(self, lease: Lease, publication: DueStep, stop: threading.Event) -> None:
        if not self._confirmer.can_confirm(publication.stream_id):
            self._dispatcher.retry_later(publication.id, WALK_SECONDS)
            return
        stored_mark = self._confirmer.high_water_mark(publication.stream_id)
        with self._database.transaction() as connection:
            connection.execute(ONE_VIEW)  # where a query is hard, an API publishes too
            state = PublicationState.begin(connection, publication.id)
            against = high_water_mark.contradicts(connection, self._confirmer.files, stored_mark, state.stream)
        if not self._confirmer.belongs(state.stream):
            return
        if against is not None:  # before anything is drawn
            self._distrust(publication, f"stream {publication.stream}: {against}")
            return
        state.mechanism = with_models(state.mechanism, self._database, state.stream)
        if (
            not self._is_consistent(lease, state)
            or not self._record_abandoned_attempt(lease, state)
            or self._waits(state)
        ):
            return
        turn_ends = time.monotonic() + TURN_SECONDS
        while not stop.is_set() and state.is_due():
            seconds = fits.next_cost(state).seconds
            if not self._dispatcher.begin_step(publication, seconds, short=self._short):
                return
            if not self._step(lease, state, stop) or time.monotonic() > turn_ends:
                return

    def _waits(self, state: PublicationState) -> bool:
        """Return whether its next step waits for others' releases; then it is left alone for a while."""
        if waits := state.waits():
            self._dispatcher.retry_later(state.publication.id, WALK_SECONDS)
        return waits

    def _is_consistent(self, lease: Lease, state: PublicationState) -> bool:
        """Check stored settings, mechanism and saved state against what was reserved; halt where they differ."""
        publication = state.publication
        if of_another_guarantee(publication, state.mechanism):
            self._halt(lease, state, "its configuration is of another guarantee than was reserved for it")
        elif not publications.matches_promise(publication):
            self._distrust(publication, f"publication {publication.name}: it is not what was promised")
        elif not state.has_promised_features():
            self._distrust(publication, f"publication {publication.name}: its features are not what was promised")
        elif charges_otherwise(publication, state.mechanism):
            self._halt(lease, state, "its mechanism charges records at another moment than its obligations say")
        elif not remembers(publication, state.mechanism, state.memory):
            self._halt(
                lease,
                state,
                "what its earlier steps left is not there as they left it, and can't be made again, or this version of "
                "the service would go on with other noise",
            )
        elif state.source is not None and state.source.lost:
            self._halt(
                lease,
                state,
                f"its features come from {state.source.publication.name}, which has ended before it released them",
            )
        else:
            return True
        return False

    def _record_abandoned_attempt(self, lease: Lease, state: PublicationState) -> bool:
        """Note an attempt at the next step that ended without a public reason, if there was one; or halt.

        Such an end is one of this process that it could not note at once, or of an owner that kept the lease,
        unless the database was away meanwhile: then nobody could have.
        """
        at = state.publication.position, state.publication.version
        abandoned = lease.abandoned is not None and not self._database.was_away(lease.abandoned)
        owed = self._context.owed.get(state.publication.promise) == at
        if (abandoned or owed) and state.is_due() and not self._note(lease, state, at):
            return False
        self._context.owed.pop(state.publication.promise, None)
        self._unrecorded_crash_age = None
        return True

    def _note(self, lease: Lease, state: PublicationState, at: tuple[int, int], how: str = "") -> bool:
        """Note an attempt that ended without a public reason, but `how`; return whether there may be another."""
        with self._database.transaction() as connection:
            leases.check(connection, lease)
            again = attempts.note(connection, state.publication.id, *at)
        if again:
            self._halt(lease, state, ENDED_TWICE + how)
        else:
            _log.warning("attempt_noted", publication=state.publication.name, position=at[0], version=at[1])
        self._unrecorded_crash_age = None
        return not again

    def _step(self, lease: Lease, state: PublicationState, stop: threading.Event) -> bool:
        """Take one step of a publication; return whether another may follow at once."""
        publication, began = state.publication, time.perf_counter()
        try:
            step = self._drawn(lease, state, stop)
            fitted = time.perf_counter()
            moved = self._commit(lease, state, step)
        except (OverBudget, Inaccurate, Unaffordable, StateLost) as refusal:
            self._context.drawn.pop(publication.promise, None)
            self._halt(lease, state, str(refusal))
            return False
        del self._context.drawn[publication.promise]
        if moved is None:
            return False
        state.go_on(moved, step)
        done = time.perf_counter()
        if publication.publish_delay:
            what = "parked"
            self._ticker.park(moved, fitted - began)
        else:
            metrics.FIT.labels(publication.name, state.stream.name).observe(fitted - began)
            what = "labels_awaited" if step.awaits else "released" if step.releases else "counted_in"
            metrics.PUBLISH.labels(publication.name, state.stream.name).observe(done - fitted)
            self._confirmer.soon(publication.stream_id)
        _log.info(
            what,
            publication=moved.name,
            version=moved.version,
            time=moved.start + moved.position,
            fit_seconds=round(fitted - began, 4),
            commit_seconds=round(done - fitted, 4),
        )
        return not step.awaits and self._confirmer.can_confirm(publication.stream_id)

    def _drawn(self, lease: Lease, state: PublicationState, stop: threading.Event) -> PendingStep:
        """Return the next step: as it was drawn already, where its commit failed; else drawn now."""
        publication, context = state.publication, self._context
        at, follows = (publication.position, publication.version), state.lineage
        known, step = context.drawn.get(publication.promise, (None, None))
        if step is not None and known == follows:
            return step
        began = randomness.mark()
        try:
            wanted = partial(self._wants, lease, state, stop)
            step = fits.draw(self._database, self._files, state, wanted, context.dask_scheduler)
        except FitTooLarge as error:
            with self._database.transaction() as connection:
                leases.check(connection, lease)
                shown_at = (
                    parked.tick_of(connection, publication, publication.due)[0] if publication.publish_delay else None
                )
                waits.note(connection, publication.id, publication.due, str(error), shown_at=shown_at)
            raise
        except _FORESEEN:
            raise  # of public reasons alone
        except Exception as error:
            if isinstance(error, psycopg.Error | DBAPIError) and not randomness.drawn_since(began):
                raise  # the database refuses to say where records are: there is no result yet that could be chosen
            how = ""
            if isinstance(error, FitDied):
                how = f". The last one: {error}"
                metrics.DEATHS.labels(publication.name, state.stream.name).inc()
            context.owed[publication.promise], self._unrecorded_crash_age = at, 0.0
            self._note(lease, state, at, how)  # before anything is tried again; if it can't be, it stays owed
            del context.owed[publication.promise]
            raise
        context.drawn[publication.promise] = follows, step
        return step

    def _wants(self, lease: Lease, state: PublicationState, stop: threading.Event) -> bool:
        """Return whether a step that is being drawn can still be published."""
        with suppress(DatabaseUnavailable), self._database.transaction() as connection:
            if not publications.runs(connection, state.publication.id):
                return False
        return self._keeper.holds(lease) and not stop.is_set()

    def _commit(self, lease: Lease, state: PublicationState, step: PendingStep) -> Publication | None:
        """Park a step, or charge and release it at once; None: the publication was stopped or went on meanwhile.

        The state goes on with the stream as it was then: its records may have become more.
        """
        try:
            return self._committed(lease, state, step)
        except TickFirst:
            self._ticker.publish(state.stream.id)
        return self._committed(lease, state, step)  # if that could not be published, the same bytes are tried later

    def _committed(self, lease: Lease, state: PublicationState, step: PendingStep) -> Publication | None:
        publication = state.publication
        with self._database.transaction() as connection:
            seconds = seconds_to_write(step.size)
            entry = open_leased_entry(connection, publication.id, lease, seconds=seconds)
            current = entry.publication
            if current.state != "running":
                return None
            if lineage.stored(connection, current) != state.lineage:
                return None
            check(entry)
            if publication.publish_delay:
                ticks.park(connection, publication, step, state.after(step).lineage, state.memory.parts)
                state.stream = entry.stream
                return step.following(publication)
            if parked.any_due(connection, current.stream_id):  # of other publications, whose times are earlier
                raise TickFirst
            moved, state.stream = commit(entry, step)
            return moved

    def _halt(self, lease: Lease, state: PublicationState, reason: str) -> None:
        """End a publication: at its tick, if it has one."""
        publication = state.publication
        if publication.publish_delay:
            if (moved := self._commit(lease, state, halting(publication, reason))) is not None:
                self._ticker.park(moved)
            return
        with self._database.transaction() as connection:
            halt(open_leased_entry(connection, publication.id, lease), reason)
        self._confirmer.soon(publication.stream_id)  # the end is shown with all that was charged before it

    def _distrust(self, publication: Publication | DueStep, reason: str) -> None:
        _log.error("ledger_distrusted", stream=publication.stream, reason=reason)
        with self._database.transaction() as connection:
            open_ledger(connection, publication.stream_id).distrust(reason)
