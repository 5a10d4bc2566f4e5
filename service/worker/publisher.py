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
from service.mechanisms.configuration import PublicationConfiguration, StreamSchema
from service.mechanisms.scheduled import Model, Scheduled, Step
from service.privacy.noise import Unaffordable
from service.store import leases, ledger, publications, releases, streams
from service.store.database import NEW_PUBLICATION, NEW_RECORDS, Database, DatabaseUnavailable
from service.store.leases import Lease, LeaseLost
from service.store.ledger import NewCharge, OverBudget
from service.store.publications import Publication
from service.store.segment_files import SegmentFiles
from service.worker.leases import LeaseKeeper
from service.worker.records import read_records

_log = structlog.get_logger(__name__)

AFTER_AN_ERROR_SECONDS = 5.0  # before the same publication is tried again by the same thread
LOOK_ANYWAY_SECONDS = 1.0  # a notification can be lost while the database is away


class Bell:
    """Rung when records or publications are committed by anybody; several publishers wait for it."""

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
                with self._database.listen(NEW_RECORDS, NEW_PUBLICATION) as connection:
                    while not stop.is_set():
                        for _ in connection.notifies(timeout=0.5, stop_after=1):
                            self.ring()
            except DatabaseUnavailable:
                stop.wait(0.5)


class Publisher:
    """One of a worker's publishing threads."""

    def __init__(self, database: Database, files: SegmentFiles, keeper: LeaseKeeper, bell: Bell) -> None:
        self._database, self._files, self._keeper, self._bell = database, files, keeper, bell
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
        """Publishes all that is due of the first due publication that nobody works on; whether there was one."""
        with self._database.transaction() as connection:
            waiting = publications.due(connection)
        for publication in waiting:
            if time.monotonic() < self._not_before.get(publication.id, 0.0):
                continue
            with self._keeper.taking(leases.publication(publication.id)) as lease:
                if lease is None:
                    continue
                try:
                    self._publish_due(lease, publication.id, stop)
                except LeaseLost:
                    _log.warning("lease_lost", publication=publication.name)
                except DatabaseUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001 - one publication's trouble must not stop the others
                    _log.error(
                        "publishing_failed",
                        publication=publication.name,
                        error=type(error).__name__,
                        at=place_of(error),
                    )
                    metrics.FAILURES.labels(publication.name).inc()
                    self._not_before[publication.id] = time.monotonic() + AFTER_AN_ERROR_SECONDS
                return True
        return False

    def _publish_due(self, lease: Lease, identity: int, stop: threading.Event) -> None:
        with self._database.transaction() as connection:
            publication = publications.get(connection, identity)
            stream = streams.get(connection, publication.stream_id)
            chain = [
                Model(version=version, parameters=releases.parameters(connection, identity, version))
                for version in publication.chain
            ]
        configuration = PublicationConfiguration.model_validate(publication.configuration)
        mechanism = build(StreamSchema.model_validate(stream.schema), configuration)
        while not stop.is_set() and publication.state == "running" and publication.due <= stream.records:
            began = time.perf_counter()
            time_due = publication.due - publication.start
            try:
                step = mechanism.step(
                    time_due,
                    chain,
                    publication.version + 1,
                    partial(read_records, self._database, self._files, stream, publication.start),
                )
                fitted = time.perf_counter()
                publication = self._commit(lease, publication, mechanism, time_due, step)
            except (OverBudget, Inaccurate, Unaffordable) as refusal:
                self._halt(lease, publication, str(refusal))
                return
            chain = list(step.chain)
            committed = time.perf_counter()
            metrics.FIT.labels(publication.name).observe(fitted - began)
            metrics.PUBLISH.labels(publication.name).observe(committed - fitted)
            _log.info(
                "released",
                publication=publication.name,
                version=publication.version,
                time=publication.start + time_due,
                fit_seconds=round(fitted - began, 4),
                commit_seconds=round(committed - fitted, 4),
            )
            with self._database.transaction() as connection:
                stream = streams.get(connection, stream.id)

    def _commit(
        self, lease: Lease, publication: Publication, mechanism: Scheduled, time_due: int, step: Step
    ) -> Publication:
        """Charges and releases what one step made, all of it or nothing."""
        start = publication.start
        with self._database.transaction() as connection:
            leases.check(connection, lease)
            streams.lock(connection, publication.stream_id)
            current = publications.lock(connection, publication.id)
            if current.state != "running":
                return current
            if (current.position, current.version) != (publication.position, publication.version):
                raise LeaseLost(lease.resource)
            charges = ledger.append(
                connection,
                current,
                mechanism.capacity,
                [
                    NewCharge(
                        start=start + each.fit[0], stop=start + each.fit[1], version=each.version, amount=each.charge
                    )
                    for each in step.releases
                ],
            )
            now = ledger.now(connection)
            for each, charge in zip(step.releases, charges, strict=True):
                releases.append(
                    connection,
                    publication=current.id,
                    stream=current.stream_id,
                    version=each.version,
                    charge=charge,
                    time=start + each.time,
                    role=each.role,
                    window=(start + each.window[0], start + each.window[1]),
                    fit=(start + each.fit[0], start + each.fit[1]),
                    parent=each.parent,
                    parameters=each.parameters,
                    model=mechanism.model_description(),
                    noise=each.perturbation.described(),
                    published_at=now,
                )
            publications.move(
                connection,
                current.id,
                position=time_due,
                due=start + mechanism.next_time(time_due),
                version=step.releases[-1].version,
                latest=max((each.version for each in step.releases if each.role == "model"), default=current.latest),
                chain=[model.version for model in step.chain],
            )
            return publications.get(connection, current.id)

    def _halt(self, lease: Lease, publication: Publication, reason: str) -> None:
        _log.error("publication_halted", publication=publication.name, reason=reason)
        with self._database.transaction() as connection:
            leases.check(connection, lease)
            publications.end(connection, publication.id, state="halted", reason=reason)
