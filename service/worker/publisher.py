"""Publishes: for each publication whose next fit has all its records, fit, charge and release in one transaction.

Noise exists only in memory until that transaction commits. A crash before it has published nothing and charged
nothing; after it nothing is computed again. The lease's epoch, the publication's position and the unique version are
all checked inside, so that of two workers that believe they publish the same model one fails.
"""

import threading
import time
from functools import partial

import structlog

from service import metrics
from service.learning.solvers import Inaccurate
from service.logs import place_of
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.mechanism import Forgotten, Kept, Mechanism, Model, Part, Step
from service.mechanisms.stream_schema import StreamSchema
from service.privacy.noise import Unaffordable
from service.publishing.commit import check, commit, of_another_guarantee, remembers, seconds_to_write, written
from service.publishing.records import SegmentsMissing, read_records
from service.store import leases, parts, publications, releases, spending, streams
from service.store.database import NEW_LABELS, NEW_PUBLICATION, NEW_RECORDS, ONE_VIEW, Database, DatabaseUnavailable
from service.store.leases import Lease, LeaseLost
from service.store.ledger import LedgerBroken
from service.store.parts import Memory
from service.store.publications import Publication
from service.store.segment_files import SegmentDamaged, SegmentFiles
from service.store.spending import OverBudget
from service.worker.audit import Audit
from service.worker.leases import LeaseKeeper

_log = structlog.get_logger(__name__)

AFTER_AN_ERROR_SECONDS = 5.0  # before the same publication is tried again by the same thread
TURN_SECONDS = 0.5  # then others have their turn: where records keep coming, there is always something due
LOOK_ANYWAY_SECONDS = 1.0  # a notification can be lost while the database is away


class Bell:
    """Rung when records, publications or labels are committed by anybody; several publishers wait for it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rung = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def wait_past(self, count: int) -> None:
        """Until it was rung more often than `count`, or for a second."""
        with self._rung:
            self._rung.wait_for(lambda: self._count > count, LOOK_ANYWAY_SECONDS)

    def ring(self) -> None:
        with self._rung:
            self._count += 1
            self._rung.notify_all()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with self._database.listen(NEW_RECORDS, NEW_PUBLICATION, NEW_LABELS) as connection:
                    while not stop.is_set():
                        for _ in connection.notifies(timeout=0.5, stop_after=1):
                            self.ring()
            except DatabaseUnavailable:
                stop.wait(0.5)


class Publisher:
    """One of a worker's publishing threads."""

    def __init__(self, database: Database, files: SegmentFiles, keeper: LeaseKeeper, bell: Bell, audit: Audit) -> None:
        self._database, self._files, self._keeper, self._bell, self._audit = database, files, keeper, bell, audit
        self._not_before: dict[int, float] = {}  # publications that failed in a way nobody foresaw

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; whatever is away is waited for."""
        while not stop.is_set():
            heard = self._bell.count
            try:
                if not self.step(stop):
                    self._bell.wait_past(heard)
            except DatabaseUnavailable as error:
                _log.warning("part_unavailable", part="publisher", reason=str(error))
                stop.wait(0.5)

    def step(self, stop: threading.Event) -> bool:
        """Publishes what is due of the first due publication that nobody works on; whether there was one."""
        with self._database.transaction() as connection:
            waiting = publications.due(connection)
        for publication in waiting:
            if time.monotonic() < self._not_before.get(publication.id, 0.0):
                continue
            with self._keeper.taking(leases.publication(publication.id)) as lease:
                if lease is None:
                    continue
                try:
                    self._publish_due(lease, publication.id, publication.stream_id, stop)
                except LeaseLost:
                    _log.warning("lease_lost", publication=publication.name)
                except DatabaseUnavailable:
                    raise
                except (SegmentDamaged, SegmentsMissing) as error:
                    _log.error("records_unfit", publication=publication.name, reason=str(error))
                    self._again_later(publication)
                except Exception as error:  # noqa: BLE001 - one publication's trouble must not stop the others
                    _log.error(
                        "publishing_failed",
                        publication=publication.name,
                        error=type(error).__name__,
                        at=place_of(error),
                    )
                    self._again_later(publication)
                return True
        return False

    def _again_later(self, publication: Publication) -> None:
        metrics.FAILURES.labels(publication.name).inc()
        self._not_before[publication.id] = time.monotonic() + AFTER_AN_ERROR_SECONDS

    def _publish_due(self, lease: Lease, identity: int, stream_identity: int, stop: threading.Event) -> None:
        self._audit.look(stream_identity)
        with self._database.transaction() as connection:
            connection.execute(ONE_VIEW)  # where a query is hard, an API publishes too
            publication = publications.get(connection, identity)
            stream = streams.get(connection, publication.stream_id)
            chain: list[Kept] = [
                Model(version=version, parameters=releases.parameters(connection, identity, version))
                for version in publication.chain
            ]
            memory = parts.load(connection, identity)
        chain += [Part(number=number, values=values) for number, values in memory.parts.items()]
        configuration = PublicationConfiguration.model_validate(publication.configuration)
        mechanism = build(StreamSchema.model_validate(stream.schema), configuration)
        if not self._as_reckoned(lease, publication, mechanism, memory):
            return
        turn_ends = time.monotonic() + TURN_SECONDS
        while (
            not stop.is_set()
            and publication.state == "running"
            and publication.due <= stream.records
            and stream.distrusted is None
        ):
            began = time.perf_counter()
            time_due = mechanism.taken_at(publication.due - publication.start, stream.records - publication.start)
            try:
                step = mechanism.step(
                    time_due,
                    chain,
                    publication.version + 1,
                    partial(read_records, self._database, self._files, stream, publication.start, labels_of=identity),
                )
                fitted = time.perf_counter()
                committed = self._commit(lease, publication, mechanism, time_due, step)
            except (OverBudget, Inaccurate, Unaffordable, Forgotten) as refusal:
                self._halt(lease, publication, str(refusal))
                return
            except LedgerBroken as broken:
                self._distrust(publication, str(broken))
                return
            if committed is None:
                return
            if step.awaits:
                _log.info("labels_awaited", publication=publication.name, time=committed.start + committed.position)
                return
            publication, done = committed, time.perf_counter()
            chain = list(step.chain)
            metrics.FIT.labels(publication.name).observe(fitted - began)
            metrics.PUBLISH.labels(publication.name).observe(done - fitted)
            _log.info(
                "released" if step.releases else "counted_in",
                publication=publication.name,
                version=publication.version,
                time=publication.start + publication.position,
                fit_seconds=round(fitted - began, 4),
                commit_seconds=round(done - fitted, 4),
            )
            if time.monotonic() > turn_ends:
                return
            with self._database.transaction() as connection:
                stream = streams.get(connection, stream.id)

    def _as_reckoned(self, lease: Lease, publication: Publication, mechanism: Mechanism, memory: Memory) -> bool:
        """Whether it would go on as was reckoned with when its records were charged. If not, it does not go on."""
        if of_another_guarantee(publication, mechanism):
            self._halt(lease, publication, "its configuration is of another guarantee than was reserved for it")
        elif publications.promised(publication) != publication.promise:
            self._distrust(publication, f"publication {publication.name}: it is not what was promised")
        elif not remembers(publication, mechanism, memory):
            self._halt(
                lease,
                publication,
                "what its earlier steps left is not there as they left it, and can't be made again, or this version of "
                "the service would go on with other noise",
            )
        else:
            return True
        return False

    def _commit(
        self, lease: Lease, publication: Publication, mechanism: Mechanism, time_due: int, step: Step
    ) -> Publication | None:
        """Charges and releases what one step made, or nothing; None: it was stopped or went on meanwhile."""
        with self._database.transaction() as connection:
            seconds = seconds_to_write(written(step))
            current, stream = publications.hold(connection, publication.id, lease, seconds=seconds)
            if current.state != "running":
                return None
            if (current.position, current.version) != (publication.position, publication.version):
                return None
            check(current, stream)
            return commit(connection, current, stream, mechanism, step, time_due)

    def _halt(self, lease: Lease, publication: Publication, reason: str) -> None:
        _log.error("publication_halted", publication=publication.name, reason=reason)
        with self._database.transaction() as connection:
            leases.check(connection, lease)
            streams.lock(connection, publication.stream_id)
            publications.end(connection, publication.id, state="halted", reason=reason)
            spending.settle(connection, publication.stream_id)

    def _distrust(self, publication: Publication, reason: str) -> None:
        _log.error("ledger_distrusted", stream=publication.stream, reason=reason)
        with self._database.transaction() as connection:
            streams.distrust(connection, streams.lock(connection, publication.stream_id), reason)
