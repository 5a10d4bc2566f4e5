"""Answers linear queries: from a public histogram, compared with the records where an instance is open.

One process at a time compares the queries of a publication: the one that holds the lease. It holds it while queries
come, and gives it back soon after. All other processes answer from the histogram.

A request has its turn under the publication's lock. In the turn, before anything is compared, one transaction renews
the lease, which shows that the database takes writes, and looks the publication up: the instance must be the newest
one and confirmed. Comparisons are then made with fresh noise in memory, and an easy answer writes nothing. A hard query
is one transaction: measure, charge, release, open the next instance or freeze. The answer waits until that is
confirmed.

A threshold that has answered yes is closed. The yes may not get committed: the database is away, or the lease is lost.
More comparisons with that threshold would take a measurable time, which tells of each whether it was a yes too, and
nobody paid for these (`noise.sparse_vector`). So the yes is kept, and nothing is compared until it is committed and
confirmed, or another process has closed the instance, and that is confirmed: what is committed and not confirmed may be
lost with its database, and is then committed again. Meanwhile all answers come from the histogram, and nobody knows how
far off they are. A process that dies may take a yes with it: where a lease was not given back, the next owner closes
the open instance before it compares anything, by measuring a query that asks for nothing, charged as always. A process
that ends in order gives its lease back, unless a yes is kept.

A query's time is the publication's position: the slots that have paid for the open instance. Counts are of the records
among them that are still there: they are built once from the segments, added to as the position moves, and built anew
when something was erased.
"""

import math
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from numpy.typing import NDArray
from sqlalchemy import Connection

from service.ledger.errors import LedgerBroken
from service.mechanisms.histogram import LinearQuery, error_bound
from service.publishing import confirmation
from service.queries import instances
from service.queries.instances import Closing, State
from service.segments.files import SegmentFiles
from service.segments.locating import read_records
from service.store import leases, publications
from service.store.database import Database, DatabaseUnavailable
from service.store.leases import Lease, LeaseLost
from service.store.publications import Publication
from service.store.releases import Release
from service.tracebacks import place_of

_log = structlog.get_logger(__name__)

MAX_CELLS = 2**23  # of all publications whose counts are kept
RECORDS_AT_ONCE = 2**20
SECONDS_TO_CONFIRM = 10.0  # then a hard query is answered from the histogram
SECONDS_BETWEEN_CALLS = 0.5  # for a worker that confirms
SECONDS_TO_FINISH = 2.0  # a turn that is under way when the process is told to end


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`measured`: the records had a say in it. `frozen`: they have none any more. `time`: how many slots it is about.

    `error_bound`: how far off it is at most, but for the publication's failure probability; None: nobody knows.
    """

    answer: float
    measured: bool
    frozen: bool
    time: int
    error_bound: float | None


@dataclass(kw_only=True)
class _Held:
    """The state of one publication in this process. Its lock lets one request at a time have its turn.

    `promise`: of the publication. Its id may be another one's in a database that was put back. `closing`: an instance
    that is closed or to be closed, until that is confirmed; nothing is compared meanwhile.
    `until`: when the lease may have run out, by this process's clock. `abandoned`: the owner before did not give the
    lease back, and the instance is still to be closed. `patient`: whether to wait for a confirmation that is missing.
    """

    identity: int
    promise: str
    cells: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    lease: Lease | None = None
    until: float = 0.0
    used: float = 0.0
    abandoned: bool = False
    closing: Closing | None = None
    patient: bool = True
    state: State | None = None
    erasures: int = -1  # the newest one that is left out of the counts
    newest_erasure: int = 0
    time: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def seen(self) -> State:
        """Return the state that the last look found."""
        assert self.state is not None  # noqa: S101 - every turn begins with a look
        return self.state

    def forget_records(self) -> None:
        """Free what can be read again: not the lease, nor what is to be closed."""
        self.state, self.erasures, self.time, self.counts = None, -1, 0, np.zeros(0, dtype=np.int64)


class Answerer:
    """Answers for one process. Threads may ask at the same time."""

    def __init__(self, database: Database, files: SegmentFiles, *, lease_seconds: float) -> None:
        self._database, self._files, self._seconds = database, files, lease_seconds
        self._owner = f"{socket.gethostname()}:{secrets.token_hex(4)}"
        self._held: OrderedDict[str, _Held] = OrderedDict()  # by promises
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._end = math.inf  # by this process's clock; then nothing is waited for any more
        self._thread = threading.Thread(target=self._keep_leases, name="query leases", daemon=True)

    def start(self) -> None:
        """Begin to renew leases during long turns, and to give back those that are not used."""
        self._thread.start()

    def close(self) -> None:
        """End in order: give all leases back, but where a close is not confirmed. Nothing is compared after.

        A turn under way has a moment to end; the lease of one that takes longer runs out.
        """
        self._end = time.monotonic() + SECONDS_TO_FINISH
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        for held in list(self._held.values()):
            if not held.lock.acquire(timeout=SECONDS_TO_FINISH):
                continue
            try:
                self._settle_idle(held)
                self._give_back(held)
            except Exception as error:  # noqa: BLE001 - the leases of the others are to be given back too
                _log_unsettled(held, error)
            finally:
                held.lock.release()

    def answers(self, publication: Publication, queries: Sequence[LinearQuery]) -> list[Answer]:
        """Answer queries of the categories of a publication's stream, one after the other.

        publication: of linear queries. Only what never changes of it is used: the rest is looked up in the turn.
        """
        held = self._keep(publication)
        with held.lock:
            held.used = time.monotonic()
            self._look(held)
            comparing = self._ready(held)
            answers = []
            for query in queries:
                if comparing:
                    answer, comparing = self._compare(held, query)
                else:
                    answer = _from_histogram(held.seen(), query)
                answers.append(answer)
            return answers

    def _keep(self, publication: Publication) -> _Held:
        """Return what is kept of a publication; forget the records of those that nobody asked for longest."""
        with self._lock:
            cells = publication.owes.cells or 0
            new = _Held(identity=publication.id, promise=publication.promise, cells=cells)
            held = self._held.setdefault(publication.promise, new)
            self._held.move_to_end(publication.promise)
            held_cells = sum(other.cells for other in self._held.values() if other.state is not None or other is held)
            for other in list(self._held.values()):
                if held_cells > MAX_CELLS and other is not held and other.state and other.lock.acquire(blocking=False):
                    other.forget_records()
                    other.lock.release()
                    held_cells -= other.cells
            return held

    def _look(self, held: _Held) -> None:
        """See the publication as it is now; where an instance is open, in a transaction that renews the lease.

        Raises:
            DatabaseUnavailable: also where the database is another one, in which the publication is not.
        """
        while True:
            known = held.state
            began = time.monotonic()
            with self._database.transaction() as connection:
                if known is not None and known.open is not None:
                    self._hold(connection, held)
                publication, confirmed, newest_erasure = publications.see(connection, held.identity)
                if publication.promise != held.promise:
                    held.state = held.lease = None
                    raise DatabaseUnavailable("it was put back, and the publication is not in it")
                if known is not None:
                    known = instances.still(connection, self._files, known, publication, confirmed=confirmed)
            held.until, held.newest_erasure = began + self._seconds, newest_erasure
            held.patient = held.patient or confirmed
            if known is not None:
                break
            held.state = instances.read(self._database, self._files, held.identity, held.state)
        held.state = known
        if held.closing is not None and known.is_closed(held.closing.instance):
            held.closing = None

    def _hold(self, connection: Connection, held: _Held) -> None:
        """Renew the lease, or take it if nobody holds it."""
        if held.lease is not None and leases.keep(connection, held.lease, seconds=self._seconds):
            return
        held.lease = None
        if self._ending.is_set():
            return
        resource = leases.queries(held.identity)
        held.lease = leases.take(connection, resource, owner=self._owner, seconds=self._seconds)
        if held.lease is not None and held.lease.abandoned is not None:
            held.abandoned = True

    def _ready(self, held: _Held) -> bool:
        """Settle what is to be settled; return whether queries may be compared. Then all records are counted."""
        if not self._settle(held):
            return False
        self._count(held)
        return True

    def _settle(self, held: _Held) -> bool:
        """Close what is to be closed and wait for what is to be confirmed; return whether an instance is open then."""
        while held.lease is not None:
            state = held.seen()
            if not state.confirmed:
                if not self._confirmed(held):
                    return False
            elif state.open is None:
                return False
            elif held.closing is None and not held.abandoned:
                return True
            elif not self._close(held):
                return False
            self._look(held)
        return False

    def _settle_idle(self, held: _Held) -> None:
        """Do so outside of a turn, where the lease could not be given back otherwise."""
        if held.lease is not None and (held.closing is not None or held.abandoned):
            self._look(held)
            self._settle(held)

    def _confirmed(self, held: _Held) -> bool:
        """Wait until all of the publication is confirmed; return whether it is. Waiting in vain is not repeated."""
        deadline = time.monotonic() + SECONDS_TO_CONFIRM
        while held.patient:
            if confirmation.wait(self._database, held.identity, seconds=SECONDS_BETWEEN_CALLS):
                return True
            with self._database.transaction() as connection:
                confirmation.ask(connection, held.seen().stream.id)
            held.patient = time.monotonic() < min(deadline, self._end)
        return False

    def _close(self, held: _Held) -> bool:
        """Close the open instance by what is kept for that, or by asking for nothing; return whether that is committed.

        The state stays until a look has found the close confirmed: the database may lose it until then.
        """
        state = held.seen()
        assert held.lease is not None  # noqa: S101 - the caller has checked
        if held.closing is None:
            assert state.open is not None  # noqa: S101 - the caller has checked
            held.closing = Closing(instance=state.open)
        closing = held.closing
        try:
            committed = instances.close(self._database, self._files, held.lease, state, closing)
        except LeaseLost:
            held.lease = None
            return False
        except Exception as error:  # noqa: BLE001 - an error may tell no more than the histogram does
            _log_failure(state, error)
            return False
        if committed:
            held.abandoned = False
            _log.info("released", publication=state.publication.name, version=closing.version)
        return True

    def _count(self, held: _Held) -> None:
        """Count the records among the slots that have paid, as far as they are not counted yet."""
        state = held.seen()
        stop, start = state.publication.position, state.publication.start
        if held.erasures != held.newest_erasure or held.time > stop:
            held.counts, held.time = np.zeros(state.mechanism.cardinality, dtype=np.int64), 0
        for low in range(held.time, stop, RECORDS_AT_ONCE):
            high = min(stop, low + RECORDS_AT_ONCE)
            records = read_records(self._database, self._files, state.stream, start, low, high)
            held.counts += np.bincount(records.y.astype(np.int64), minlength=state.mechanism.cardinality)
            held.time = high
        held.erasures = held.newest_erasure

    def _compare(self, held: _Held, query: LinearQuery) -> tuple[Answer, bool]:
        """Compare one query with the records; return its answer, and whether the next one may be compared."""
        state = held.seen()
        now, mechanism, slots = state.open, state.mechanism, state.publication.position
        if now is None or time.monotonic() >= held.until:
            return _from_histogram(state, query), False
        guess, absolute = query.of(state.histogram.shares), state.publication.start + slots
        value = now.instance.value(query.count(held.counts), slots, guess)
        if not now.instance.is_above(value, mechanism.height, now.noise):
            bound = mechanism.error_of_easy(now.instance)
            return Answer(answer=guess, measured=True, frozen=False, time=absolute, error_bound=bound), True
        closing = held.closing = Closing(instance=now)  # from here on nothing is compared with this threshold
        try:
            closing.measurement = mechanism.measure(now, query, held.counts, state.histogram)
            comparing = self._ready(held)
        except Exception as error:  # noqa: BLE001 - the queries before this one have their answers
            _log_failure(state, error)
            comparing = False
        if closing.measurement is None or not held.seen().shows(closing):  # another process may have been first
            return _from_histogram(held.seen(), query), comparing
        answer, bound = closing.measurement.answer, mechanism.error_of_measured(now.instance, slots)
        return Answer(answer=answer, measured=True, frozen=False, time=absolute, error_bound=bound), comparing

    def _keep_leases(self) -> None:
        """Renew the leases that are needed and give back the others, until the process ends."""
        while not self._ending.wait(self._seconds / 4):
            with self._lock:
                every = list(self._held.values())
            for held in every:
                try:
                    self._keep_lease(held)
                except Exception as error:  # noqa: BLE001 - this thread must outlive whatever the database says
                    _log_unsettled(held, error)

    def _keep_lease(self, held: _Held) -> None:
        """Give a lease back that no turn used lately, after closing what is to be closed; renew any other."""
        if held.lease is not None and held.lock.acquire(blocking=False):
            try:
                idle = time.monotonic() - held.used > self._seconds / 4
                if idle:
                    self._settle_idle(held)
                if idle or held.state is None or held.state.open is None:
                    self._give_back(held)
            finally:
                held.lock.release()
        lease, began = held.lease, time.monotonic()
        if lease is None:
            return
        with self._database.transaction() as connection:
            renewed = leases.keep(connection, lease, seconds=self._seconds)
        if renewed and held.lease is lease:
            held.until = began + self._seconds

    def _give_back(self, held: _Held) -> None:
        """Give a lease back, for another process to compare; not before what is to be closed is, and confirmed."""
        if held.lease is None or held.closing is not None or held.abandoned:
            return
        with self._database.transaction() as connection:
            leases.release(connection, held.lease)
        held.lease = None


def from_release(release: Release, queries: Sequence[LinearQuery]) -> list[Answer]:
    """Answers from a released histogram, as anybody could compute them who reads it."""
    (shares,) = release.parameters
    return [
        Answer(
            answer=query.of(shares),
            measured=False,
            frozen=False,
            time=release.time,
            error_bound=error_bound(release.model, release.noise, query),
        )
        for query in queries
    ]


def _from_histogram(state: State, query: LinearQuery) -> Answer:
    """Answer a query that is not compared with the records."""
    answer, time = query.of(state.histogram.shares), state.publication.start + state.publication.position
    return Answer(answer=answer, measured=False, frozen=state.frozen, time=time, error_bound=None)


def _log_failure(state: State, error: Exception) -> None:
    """Log why an instance could not be closed, without the text of an error that nobody foresaw."""
    if isinstance(error, DatabaseUnavailable):
        _log.warning("part_unavailable", part="queries", reason=str(error))
    elif isinstance(error, LedgerBroken):  # a worker finds it too, and then nothing more is compared
        _log.error("ledger_broken", finding=str(error))
    else:
        name, where = type(error).__name__, place_of(error)
        _log.error("publishing_failed", publication=state.publication.name, error=name, at=where)


def _log_unsettled(held: _Held, error: Exception) -> None:
    """Log that a lease could be neither renewed nor given back, without the text of an error that nobody foresaw."""
    _log.warning("lease_not_renewed", resource=leases.queries(held.identity), error=type(error).__name__)
