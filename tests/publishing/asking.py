"""A publication of linear queries, without an API: who asks it, who counts records in, and what is charged."""

import threading
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import LinearQuery
from service.mechanisms.linear_queries import opened
from service.mechanisms.stream_schema import StreamSchema
from service.publishing import answering
from service.publishing.answering import Answer, Answerer
from service.settings import Settings
from service.store import ledger, parts, publications, segments, streams
from service.store import verify as verifying
from service.store.database import Database
from service.store.invariants import INVARIANTS
from service.store.segment_files import SegmentFiles
from service.worker.publisher import Publisher
from tests.conftest import unique
from tests.worker import published

CATEGORIES = 6
SCHEMA = {
    "features": None,
    "task": {"kind": "categorical", "cardinality": CATEGORIES},
    "norm_bound": 1.0,
    "feature_map": None,
}
ALPHA = 0.2
PURE = {"epsilon": 1000, "delta": 0}
"""So much that noise is a hundredth of a record: what is hard is known beforehand."""


@dataclass
class Bench:
    """A categorical stream and a publication of linear queries on it."""

    database: Database
    files: SegmentFiles
    identity: int

    def arrive(self, *categories: int) -> None:
        """Numbers records, as the sealer does."""
        columns = {"y": np.array(categories, dtype=np.int32)}
        published.number(self.database, self.files, self.now().stream_id, columns)

    def count_in(self) -> None:
        """What a worker does as long as something is due."""
        while self.publisher.step(threading.Event()):
            pass

    @cached_property
    def publisher(self) -> Publisher:
        return published.publisher(self.database, self.files)

    def answerer(self) -> Answerer:
        """Of another process."""
        return Answerer(self.database, self.files)

    def now(self) -> publications.Publication:
        with self.database.transaction() as connection:
            return publications.get(connection, self.identity)

    def ask(self, answerer: Answerer, *queries: LinearQuery, found: publications.Publication | None = None):
        """As a request that found the publication so."""
        with self.database.transaction() as connection:
            erasures = segments.newest_erasure(connection, self.now().stream_id)
        return answerer.answers(found or self.now(), erasures, queries)

    def open(self):
        with self.database.transaction() as connection:
            return opened(answering._chain(parts.load(connection, self.identity)))

    def charges(self) -> list[dict]:
        with self.database.transaction() as connection:
            return list(ledger.walk(connection, self.now().stream_id))

    def all_is_well(self) -> None:
        with self.database.transaction() as connection:
            assert [each for ask in INVARIANTS.values() for each in ask(connection)] == []
        with self.database.transaction() as connection:
            assert verifying.verify(connection).findings == []


def make_bench(settings: Settings, database: Database, *, privacy=PURE, start=0, **more) -> Bench:
    mechanism = {"kind": "linear_queries", "first": 20, "hits": 4, "accuracy": ALPHA} | more
    asked = PublicationConfiguration.model_validate({"mechanism": mechanism, "privacy": privacy})
    built = build(StreamSchema.model_validate(SCHEMA), asked)
    exact = {name: Decimal(str(value)) for name, value in privacy.items()}
    with database.transaction() as connection:
        name = unique("stream")
        stream = streams.create(connection, name=name, log=name, schema=SCHEMA, retention="keep", **exact)
        publication = publications.create(
            connection,
            name=unique("publication"),
            stream=stream.id,
            start=start,
            configuration=asked.model_dump(mode="json"),
            plan=built.plan(),
            kind=built.kind,
            due=start + built.next_time(0),
            **exact,
        )
    return Bench(database, SegmentFiles(settings.segment_store), publication.id)


def with_records(bench: Bench) -> Bench:
    """40 of them: 30 of category 0, 10 of category 1."""
    bench.arrive(*[0] * 30, *[1] * 10)
    bench.count_in()
    return bench


def share(*categories: int) -> LinearQuery:
    return LinearQuery.holding(np.array(categories))


EVERY = share(*range(CATEGORIES))


def easy(answer: Answer, guess: float) -> bool:
    return answer.measured and not answer.frozen and answer.answer == pytest.approx(guess, abs=1e-9)
