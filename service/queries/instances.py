"""The open instance of a publication of linear queries: how a process reads it, and the one way to close it.

A threshold that has answered yes is closed (`noise.sparse_vector`): it must not be compared with again, also where
the yes could not be published, or PostgreSQL has lost the commit that published it. `Closing` keeps such a yes until
the close is confirmed. It is drawn once, and every attempt to commit it writes the same bytes, as long as the
publication is as it was; where records were counted in meanwhile, the same measurement.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from sqlalchemy import Connection

from service.ledger import high_water_mark, open_leased_entry
from service.ledger.errors import LedgerBroken
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import Histogram
from service.mechanisms.interactive import NO_CATEGORY, InteractiveMechanism, Measurement, Opened, opened
from service.mechanisms.mechanism import StateLost, StatePart
from service.publishing import confirmation
from service.publishing.commit import (
    charges_otherwise,
    check,
    commit,
    of_another_guarantee,
    remembers,
    seconds_to_write,
)
from service.publishing.prepared import PendingStep, prepare
from service.segments.files import SegmentFiles
from service.segments.records import SegmentsMissing
from service.store import parts, publications, releases, streams
from service.store.database import ONE_VIEW, Database
from service.store.leases import Lease
from service.store.publications import Publication
from service.store.step_records import SavedState
from service.store.streams import Stream


@dataclass(frozen=True, kw_only=True)
class State:
    """A publication as one transaction saw it.

    `histogram`: from the newest visible release. `open`: the instance to compare with; None: there is none, or it may
    not be compared with. `confirmed`: whether all that was charged and released of the publication is confirmed.
    `mark`: the stream's high-water mark; `contradicted`: by it. `trusted`: nothing is known against the publication.
    """

    publication: Publication
    stream: Stream
    mechanism: InteractiveMechanism
    released: Histogram | None
    histogram: Histogram
    open: Opened | None
    confirmed: bool
    mark: dict[str, Any] | None
    contradicted: bool
    trusted: bool

    @property
    def frozen(self) -> bool:
        """Whether records will never again have a say in answers, as far as is visible."""
        if self.open is not None:
            return False
        return self.publication.visible_state != "running" or (self.publication.position > 0 and self.confirmed)

    def is_closed(self, instance: Opened) -> bool:
        """Return whether an instance was replaced by another, or by none any more, and no failover can undo that."""
        return self.confirmed and self.trusted and (self.open is None or not is_same(self.open, instance))

    def shows(self, closing: "Closing") -> bool:
        """Return whether the newest visible release is the one that follows from what was measured."""
        if closing.measurement is None or closing.version is None or self.released is None:
            return False
        same = np.array_equal(self.released.shares, closing.measurement.moved.shares)
        return same and self.publication.visible_latest == closing.version


@dataclass(kw_only=True)
class Closing:
    """An instance that nothing is compared with any more, and what closes it as soon as that can be committed.

    `measurement` None: no query found it hard. It is then closed by measuring `NO_CATEGORY`. `version`: of the release,
    once this process knows that it is committed.
    """

    instance: Opened
    measurement: Measurement | None = None
    version: int | None = None
    step: PendingStep | None = None
    follows: str | None = None
    """The seal of the publication that `step` was prepared for."""


def still(
    connection: Connection, files: SegmentFiles, known: State, current: Publication, *, confirmed: bool
) -> State | None:
    """Return a known state with the mark of now, if the publication that was found is as it has it; None: it is not.

    A database that was put back may show the very publication that is known: the mark tells. It is read within the
    transaction, whose database nobody can put another in the place of, and once the lease is held: no close that the
    caller does not know of can come between.
    """
    mark = files.high_water_mark(known.stream.log)  # before the stream is read: it may only have come further since
    if confirmed != known.confirmed or _changing(current) != _changing(known.publication):
        return None
    if known.contradicted or mark != known.mark:
        stream = streams.get(connection, current.stream_id)
        if (high_water_mark.contradicts(connection, files, mark, stream) is not None) != known.contradicted:
            return None
    return replace(known, mark=mark)


def read(database: Database, files: SegmentFiles, identity: int, known: State | None) -> State:
    """Return the state of a publication. known: an earlier one, whose histogram is taken over if it is the same.

    An instance whose threshold is not as it was left is not open. Nor is one of a stream that contradicts its
    high-water mark: the threshold of a backup is one that a query may have been hard by since.
    """
    with database.transaction() as connection:
        log = streams.get(connection, publications.get(connection, identity).stream_id).log
    mark = files.high_water_mark(log)  # before the stream is read: it may only have come further since
    with database.transaction() as connection:
        connection.execute(ONE_VIEW)
        publication, confirmed, _ = publications.see(connection, identity)
        stream = streams.get(connection, publication.stream_id)
        if mark is None and stream.marked and files.high_water_mark(log) is None:
            raise SegmentsMissing(f"there is no mark of stream {stream.name} in the folder of segments")
        contradicted = high_water_mark.contradicts(connection, files, mark, stream) is not None
        memory = parts.load(connection, identity)
        if known is not None and known.publication.visible_latest == publication.visible_latest:
            released = known.released
        elif publication.visible_latest is None:
            released = None
        else:
            release = releases.find(connection, identity, publication.visible_latest)
            assert release is not None  # noqa: S101 - it is visible in this view
            released = Histogram(shares=release.parameters[0], time=release.time - publication.start)
    configuration = PublicationConfiguration.model_validate(publication.configuration)
    mechanism = build(stream.parsed_schema, configuration, start=publication.start)
    assert isinstance(mechanism, InteractiveMechanism)  # noqa: S101 - the caller has checked
    known_of = Histogram.uniform(mechanism.cardinality, 0) if released is None else released
    trusted = not contradicted and _trusted(publication, mechanism, memory)
    return State(
        publication=publication,
        stream=stream,
        mechanism=mechanism,
        released=released,
        histogram=known_of.grown(publication.position) if publication.position else known_of,
        open=opened(_chain(memory)) if trusted else None,
        confirmed=confirmed,
        mark=mark,
        contradicted=contradicted,
        trusted=trusted,
    )


def close(database: Database, files: SegmentFiles, lease: Lease, state: State, closing: Closing) -> bool:
    """Commit what closes an instance; return whether this did it. False: the instance was closed before.

    The release is not visible yet: a worker is asked to confirm it.

    state: confirmed, so that its histogram is the newest one.

    Raises:
        LeaseLost: another process compares now.
        LedgerBroken: the ledger is not as it was left, or contradicts the high-water mark.
    """
    if closing.measurement is None:
        no_records = np.zeros(state.mechanism.cardinality, dtype=np.int64)
        closing.measurement = state.mechanism.measure(closing.instance, NO_CATEGORY, no_records, state.histogram)
    mark = files.high_water_mark(state.stream.log)
    with database.transaction() as connection:
        seconds = seconds_to_write(closing.measurement.moved.shares.nbytes)
        entry = open_leased_entry(connection, state.publication.id, lease, seconds=seconds)
        publication, stream = entry.publication, entry.stream
        if publication.state != "running":
            return False
        check(entry)
        high_water_mark.check(connection, files, mark, stream)
        memory = parts.load(connection, publication.id)
        if not remembers(publication, state.mechanism, memory):
            raise LedgerBroken(f"publication {publication.name}: its threshold is not as it was left")
        now = opened(_chain(memory))
        if now is None or not is_same(now, closing.instance):
            return False
        if closing.step is None or closing.follows != publication.seal:
            spent = Fraction(publication.worst_amount)
            step = state.mechanism.close(now, closing.measurement, spent, publication.version + 1)
            closing.step = prepare(publication.start, state.mechanism, step, publication.position)
            closing.follows = publication.seal
        left, _ = commit(entry, closing.step)
        confirmation.ask(connection, stream.id)
    closing.version = left.version
    return True


def is_same(one: Opened, other: Opened) -> bool:
    """Return whether two are one instance, however many slots have paid for it by now."""
    return (one.instance, one.noise) == (other.instance, other.noise)


def _trusted(publication: Publication, mechanism: InteractiveMechanism, memory: SavedState) -> bool:
    """Return whether what a publication remembers is there as it was left, and nothing is known against it."""
    if (
        publication.state != "running"
        or publication.distrusted is not None
        or publication.position == 0
        or not publications.matches_promise(publication)
        or of_another_guarantee(publication, mechanism)
        or charges_otherwise(publication, mechanism)
        or not remembers(publication, mechanism, memory)
    ):
        return False
    try:
        opened(_chain(memory))
    except StateLost:
        return False
    return True


def _changing(publication: Publication) -> tuple[str, str | None, int | None]:
    return publication.seal, publication.distrusted, publication.visible_latest


def _chain(memory: SavedState) -> list[StatePart]:
    return [StatePart(number=number, values=values) for number, values in memory.parts.items()]
