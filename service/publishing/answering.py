"""Answers linear queries: from a public histogram, compared with the records where an instance is open.

One process's. Any number of processes may answer for the same publication: the database is the arbiter. An instance's
threshold is read from what its opening left, never drawn again; comparisons are with fresh noise in memory, and an easy
answer writes nothing. A hard query is one transaction: it finds the instance as it was read, measures, charges,
releases, opens the next instance or freezes, and only when that is committed is anything said.

What is not committed is answered as if the query had been easy: where another process was first, the database went
away, or the publication was stopped meanwhile. An error, or an answer from the state that the other left, would tell
that this query was hard too: a second yes from one threshold, which nobody paid for (`privacy.sparse_vector`). So that
answer may be farther off than was promised; who asks again is answered from the new state. For the same reason all
queries of a request are answered from the state that was found when it began, and from what this process itself
publishes meanwhile. A crash between commit and answer has published a release that nobody was told the answer of: what
it cost is charged, and the next instance has a threshold of its own.

A query's time is the publication's position: the slots that have paid for the open instance. Counts are of the records
among them that are still there: they are built once from the segments, added to as the position moves, and built anew
when something was erased.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import structlog
from numpy.typing import NDArray

from service.logs import place_of
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import Histogram, LinearQuery, error_bound
from service.mechanisms.linear_queries import LinearQueries, Opened, opened
from service.mechanisms.mechanism import Forgotten, Part
from service.mechanisms.stream_schema import StreamSchema
from service.publishing.commit import check, commit, of_another_guarantee, remembers, seconds_to_write
from service.publishing.records import read_records
from service.store import parts, publications, releases, streams, witness
from service.store.database import ONE_VIEW, Database, DatabaseUnavailable
from service.store.ledger import LedgerBroken
from service.store.parts import Memory
from service.store.publications import Publication
from service.store.releases import Release
from service.store.segment_files import SegmentFiles
from service.store.streams import Stream

_log = structlog.get_logger(__name__)

MOST_CELLS = 2**23  # of all publications whose counts are kept
RECORDS_AT_ONCE = 2**20


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


@dataclass(frozen=True, kw_only=True)
class _State:
    """As a publication was when it was read: `open` None where no query is compared, not yet or, `frozen`, any more."""

    publication: Publication
    stream: Stream
    mechanism: LinearQueries
    histogram: Histogram
    open: Opened | None

    @property
    def frozen(self) -> bool:
        return self.open is None and (self.publication.position > 0 or self.publication.state != "running")


@dataclass
class _Held:
    """What is kept of one publication; its lock lets one request at a time compare."""

    cells: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    state: _State | None = None
    erasures: int = -1
    time: int = 0
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class Answerer:
    """Of one process. Threads may ask at the same time."""

    def __init__(self, database: Database, files: SegmentFiles) -> None:
        self._database, self._files = database, files
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._lock = threading.Lock()

    def answers(self, publication: Publication, erasures: int, queries: Sequence[LinearQuery]) -> list[Answer]:
        """Answers them one after the other.

        Args:
            publication: of linear queries, as it was found when the request came.
            erasures: the id of the newest erasure on its stream then.
            queries: of the categories of its stream.
        """
        held = self._keep(publication)
        with held.lock:
            state = self._refreshed(held, publication, erasures)
            found = []
            for query in queries:
                answer, state = self._answer(held, state, query)
                found.append(answer)
            held.state = state
            return found

    def _keep(self, publication: Publication) -> _Held:
        """What is kept of a publication; of those that nobody asked for longest, nothing."""
        with self._lock:
            held = self._held.setdefault(publication.id, _Held(cells=publication.plan["model"]["cardinality"]))
            self._held.move_to_end(publication.id)
            while len(self._held) > 1 and sum(each.cells for each in self._held.values()) > MOST_CELLS:
                self._held.popitem(last=False)
            return held

    def _refreshed(self, held: _Held, publication: Publication, erasures: int) -> _State:
        """The state as it is now or was a moment ago, with the counts that belong to it."""
        known = held.state
        if known is None or _moved(known.publication, publication):
            known = held.state = self._read(publication.id)
        time = known.publication.position
        if known.open is not None and (held.erasures < erasures or held.time < time):
            if held.erasures < erasures:
                held.counts, held.time = np.zeros(known.mechanism.cardinality, dtype=np.int64), 0
            for start in range(held.time, time, RECORDS_AT_ONCE):
                stop = min(time, start + RECORDS_AT_ONCE)
                held.counts += self._counted(known, start, stop)
                held.time = stop
            held.erasures = erasures
        return known

    def _counted(self, state: _State, start: int, stop: int) -> NDArray[np.int64]:
        records = read_records(self._database, self._files, state.stream, state.publication.start, start, stop)
        return np.bincount(records.y.astype(np.int64), minlength=state.mechanism.cardinality)

    def _read(self, identity: int) -> _State:
        """Everything of one moment. What is not as it was left can only be read from, not compared with.

        Nor can what is older than the stream's witness tells: no worker may have looked yet, and the threshold of a
        backup is one that a query may have been hard by since.
        """
        with self._database.transaction() as connection:
            log = streams.get(connection, publications.get(connection, identity).stream_id).log
        told = self._files.witness(log)  # before the stream is read: it may only have come further since
        with self._database.transaction() as connection:
            connection.execute(ONE_VIEW)
            publication = publications.get(connection, identity)
            stream = streams.get(connection, publication.stream_id)
            restored = witness.contradicts(connection, told, stream) is not None
            memory = parts.load(connection, identity)
            latest = None if publication.latest is None else releases.find(connection, identity, publication.latest)
        configuration = PublicationConfiguration.model_validate(publication.configuration)
        mechanism = build(StreamSchema.model_validate(stream.schema), configuration)
        assert isinstance(mechanism, LinearQueries)  # noqa: S101 - whoever asks has looked
        if latest is None:
            histogram = Histogram.uniform(mechanism.cardinality, publication.position)
        else:
            shown = Histogram(shares=latest.parameters[0], time=latest.time - publication.start)
            histogram = shown.grown(publication.position)
        now = None
        if (
            publication.state == "running"
            and publication.distrusted is None
            and not restored
            and publication.position > 0
            and publications.promised(publication) == publication.promise
            and not of_another_guarantee(publication, mechanism)
            and remembers(publication, mechanism, memory)
        ):
            with suppress(Forgotten):
                now = opened(_chain(memory))
        return _State(publication=publication, stream=stream, mechanism=mechanism, histogram=histogram, open=now)

    def _answer(self, held: _Held, state: _State, query: LinearQuery) -> tuple[Answer, _State]:
        guess = query.of(state.histogram.shares)
        time, now, mechanism = state.publication.position, state.open, state.mechanism
        absolute = state.publication.start + time
        if now is None:
            return Answer(answer=guess, measured=False, frozen=state.frozen, time=absolute, error_bound=None), state
        if now.instance.is_above(
            now.instance.value(query.count(held.counts), time, guess), mechanism.height, now.noise
        ) and (found := self._hit(held, state, now, query)):
            answer, following = found
            bound = mechanism.error_of_measured(now.instance, time)
            return Answer(answer=answer, measured=True, frozen=False, time=absolute, error_bound=bound), following
        bound = mechanism.error_of_easy(now.instance)
        return Answer(answer=guess, measured=True, frozen=False, time=absolute, error_bound=bound), state

    def _hit(self, held: _Held, state: _State, now: Opened, query: LinearQuery) -> tuple[float, _State] | None:
        """Publishes what a hard query brings: its answer, and the state after it. None: nothing was published."""
        try:
            return self._published(held, state, now, query)
        except DatabaseUnavailable as error:
            _log.warning("part_unavailable", part="queries", reason=str(error))
        except LedgerBroken as broken:  # a worker finds it too, and then nothing more is compared
            _log.error("ledger_broken", finding=str(broken))
        except Exception as error:  # noqa: BLE001 - whatever went wrong: an error would tell that the query was hard
            _log.error(
                "publishing_failed",
                publication=state.publication.name,
                error=type(error).__name__,
                at=place_of(error),
            )
        return None

    def _published(self, held: _Held, state: _State, now: Opened, query: LinearQuery) -> tuple[float, _State] | None:
        identity = state.publication.id
        with self._database.transaction() as connection:
            seconds = seconds_to_write(state.histogram.shares.nbytes)
            current, stream = publications.hold(connection, identity, None, seconds=seconds)
            if current.state != "running":
                return None
            check(current, stream)
            memory = parts.load(connection, identity)
            if not remembers(current, state.mechanism, memory):
                return None
            latest = opened(_chain(memory))
            if latest is None or not _is(latest, now):
                return None  # another was first
            step, answer = state.mechanism.hit(
                latest, query, held.counts, state.histogram, Fraction(current.worst_amount), current.version + 1
            )
            left = commit(connection, current, stream, state.mechanism, step, current.position)
        _log.info("released", publication=left.name, version=left.version, time=left.start + state.histogram.time)
        (release,) = step.releases
        shown = Histogram(shares=release.parameters[0], time=release.time)
        # Records that came meanwhile are counted in when the next request comes.
        time = state.publication.position
        return answer, replace(
            state,
            publication=replace(left, position=time),
            histogram=shown,
            open=opened(step.chain),
        )


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


def _is(latest: Opened, now: Opened) -> bool:
    """Whether the instance that is open is the one that a query was compared by."""
    return (latest.instance, latest.noise) == (now.instance, now.noise)


def _moved(known: Publication, found: Publication) -> bool:
    """Whether what was found is newer than what is known; of two requests the later may have found the older."""
    return (
        found.version > known.version
        or found.position > known.position
        or (found.state, found.distrusted) != (known.state, known.distrusted)
    )


def _chain(memory: Memory) -> list[Part]:
    return [Part(number=number, values=values) for number, values in memory.parts.items()]
