"""A publication of linear queries, without an API: who asks it, who counts records in, and what is charged."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest

from service.ledger import spending
from service.ledger import verify as verifying
from service.ledger.invariants import INVARIANTS
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import LinearQuery
from service.mechanisms.interactive import opened
from service.privacy.accounting import events
from service.privacy.accounting.events import OpenedInstance
from service.privacy.currency import Currency, round_up
from service.publishing.confirmation import Confirmer
from service.queries import instances
from service.queries.answering import Answer, Answerer
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store import charges, parts, publications, releases, streams
from service.store.database import CONFIRM, Database
from service.store.publications import NewPublication
from service.store.rows import Rows
from service.streams.schema import StreamSchema
from service.worker.listener import Listener
from service.worker.publisher import Publisher
from tests.conftest import join, unique
from tests.worker import published

CATEGORIES = 6
SCHEMA = {
    "features": None,
    "task": {"kind": "categorical", "cardinality": CATEGORIES},
    "norm_bound": 1.0,
    "feature_map": None,
}
ALPHA = 0.2
LEASE_SECONDS = 600.0  # longer than any test takes
PURE = {"epsilon": 1000, "delta": 0}
"""So much that noise is a hundredth of a record: what is hard is known beforehand."""


@dataclass
class Bench:
    """A categorical stream and a publication of linear queries on it."""

    database: Database
    files: SegmentFiles
    identity: int
    answerers: list[Answerer] = field(default_factory=list)

    def arrive(self, *categories: int) -> None:
        """Numbers records, as the sealer does."""
        columns = {"y": np.array(categories, dtype=np.int32)}
        published.number(self.database, self.files, self.now().stream_id, columns)

    def count_in(self) -> None:
        """Take steps as a worker does, as long as something is due."""
        while self.publisher.step(threading.Event()):
            pass

    @cached_property
    def publisher(self) -> Publisher:
        return published.publisher(self.database, self.files)

    def answerer(self) -> Answerer:
        """Return that of a process that starts after all others have ended in order."""
        for each in self.answerers:
            each.close()
        return self.another()

    def another(self) -> Answerer:
        """Return that of a process that runs beside the others."""
        self.answerers.append(Answerer(self.database, self.files, lease_seconds=LEASE_SECONDS))
        return self.answerers[-1]

    def now(self) -> publications.Publication:
        with self.database.transaction() as connection:
            return publications.get(connection, self.identity)

    def ask(self, answerer: Answerer, *queries: LinearQuery):
        return answerer.answers(self.now(), queries)

    def open(self):
        with self.database.transaction() as connection:
            return opened(instances._chain(parts.load(connection, self.identity)))

    def charges(self) -> list[dict]:
        with self.database.transaction() as connection:
            return list(charges.walk(Rows(connection), self.now().stream_id))

    def all_is_well(self) -> None:
        with self.database.transaction() as connection:
            assert [each for ask in INVARIANTS.values() for each in ask(connection)] == []
        with self.database.transaction() as connection:
            assert verifying.verify(connection).findings == []


def make_bench(settings: Settings, database: Database, *, privacy=PURE, start=0, schema=SCHEMA, **more) -> Bench:
    mechanism = {"kind": "linear_queries", "first": 20, "hits": 4, "accuracy": ALPHA} | more
    configuration = PublicationConfiguration.model_validate({"mechanism": mechanism, "privacy": privacy})
    built = build(StreamSchema.model_validate(schema), configuration)
    exact = {name: Decimal(str(value)) for name, value in privacy.items()}
    with database.transaction() as connection:
        name = unique("stream")
        stream = streams.create(connection, name=name, log=name, schema=schema, retention="keep", **exact)
        new = NewPublication(
            name=unique("publication"),
            start=start,
            configuration=configuration.stored(),
            plan=built.plan(),
            obligations=built.obligations(),
            kind=built.currency,
            due=start + built.next_time(0),
            publish_delay=Decimal(0),
            **exact,
        )
        publication = publications.create(connection, stream.id, new)
    return Bench(database, SegmentFiles(settings.segment_store), publication.id)


@contextmanager
def confirming(database: Database, files: SegmentFiles) -> Iterator[None]:
    """Run what a worker runs for APIs: it confirms what they have committed."""
    confirmer = Confirmer(database, files)
    listener = Listener(database, {CONFIRM: lambda stream: confirmer.soon(int(stream))})
    stop = threading.Event()
    thread = threading.Thread(target=listener.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    join(thread)


def with_records(bench: Bench) -> Bench:
    """40 of them: 30 of category 0, 10 of category 1."""
    bench.arrive(*[0] * 30, *[1] * 10)
    bench.count_in()
    return bench


def share(*categories: int) -> LinearQuery:
    return LinearQuery.holding(np.array(categories))


EVERY = share(*range(CATEGORIES))


def from_histogram(answer: Answer, guess: float) -> bool:
    """Return whether an answer says that it comes from a histogram, which has this guess, and nothing more."""
    return answer == Answer(answer=pytest.approx(guess), measured=False, frozen=False, time=40, error_bound=None)


def easy(answer: Answer, guess: float) -> bool:
    return answer.measured and not answer.frozen and answer.answer == pytest.approx(guess, abs=1e-9)


def by_hand(bench: Bench) -> None:
    """Each record pays once for each instance that was open while it was there, and for each answer that counted it."""
    publication = bench.now()
    kind = Currency(publication.kind)
    with bench.database.transaction() as connection:
        released = list(releases.walk(Rows(connection), bench.identity))
        changes = list(spending.changes(Rows(connection), [bench.identity]))
    charged = [Fraction(0)] * publication.position
    for each in bench.charges():
        for record in range(each["start"], each["end"]):
            charged[record] += Fraction(each["epsilon"] if kind is Currency.PURE else each["rho"])
    owed = [Fraction(0)] * publication.position
    every = [publication.obligations["charging"]["event"], *(each["noise"]["next"] for each in released)]
    arrived = [each["end"] for each in bench.charges()]
    closed = [each["id"] for each in bench.charges() if each["version"] is not None]
    for number, instance in enumerate(every):
        if instance is None:
            break
        until = closed[number] if number < len(closed) else len(arrived) + 1
        there = max(end for end in arrived[: until - 1])
        for record in range(there):
            owed[record] += Fraction(round_up(OpenedInstance.from_json(instance).cost(kind, records=1)))
    for each in released:
        for record in range(each["fit_stop"]):
            owed[record] += events.from_json(each["noise"]).cost(kind, records=1)
    assert all(0 <= paid - debt < Fraction(1, 10**12) for paid, debt in zip(charged, owed, strict=True))
    level, walked = Fraction(0), {record: change for record, _, change in changes}
    for record in range(publication.position):
        level += walked.get(record, 0)
        assert level == charged[record]
    assert (
        max(charged)
        <= build(
            StreamSchema.model_validate(SCHEMA), PublicationConfiguration.model_validate(publication.configuration)
        ).capacity
    )
