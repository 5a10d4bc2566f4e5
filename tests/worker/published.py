"""A publication whose records are all there, without an API or a sealer; as many publishers as a test wants."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import func, select

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.segments.files import SegmentFiles
from service.store import leases, numbering, publications, segments, streams, tables
from service.store.database import Database
from service.store.due_steps import due_steps
from service.store.publications import NewPublication
from service.streams.codec import Columns
from service.streams.schema import StreamSchema
from service.worker.context import WorkerContext
from service.worker.counting import counted
from service.worker.leases import LeaseKeeper
from service.worker.publisher import Publisher
from tests.conftest import World, run_out, wait_until


class Crash(BaseException):
    """As if the process ended here."""


def number(database: Database, files: SegmentFiles, identity: int, columns: Columns) -> None:
    """Records get their numbers on a stream, as the sealer gives them."""
    with database.transaction() as connection:
        stream = streams.get(connection, identity)
    _, counts = counted(database, stream, columns)
    with database.transaction() as connection:
        start, stop = stream.records, stream.records + len(next(iter(columns.values())))
        file, sha256 = files.write(stream.log, start, stop, columns)
        lease = leases.take(connection, leases.stream(identity), owner="test", seconds=600)
        segment = segments.Segment(start=start, stop=stop, file=file, sha256=sha256)
        sequence = stream.sealed_sequence + 1
        entry = numbering.SealedEntry(entry=f"{sequence}-1", sequence=sequence, start=start, stop=stop)
        numbering.seal(connection, lease, stream, segment, [entry], counts=counts)
        leases.release(connection, lease)


def worker_context(database: Database, files: SegmentFiles) -> WorkerContext:
    """One whose leases nobody renews, which no test is long enough to need."""
    return WorkerContext(database, files, LeaseKeeper(database, seconds=600.0))


class SteppingPublisher(Publisher):
    """A publisher that is its own dispatcher: each step looks once and publishes what is due."""

    def step(self, stop: threading.Event) -> bool:
        """Return whether it took the lease of anything, or passed over it."""
        self._dispatcher.look()
        taken = False
        while (due := self._dispatcher.take(short=self._short, wait=False)) is not None:
            try:
                taken |= self.publish(due, stop) or due.id in self._dispatcher._retry_at
            finally:
                self._dispatcher.finish(due, look_again=False)
        return taken


def publisher(database: Database, files: SegmentFiles) -> SteppingPublisher:
    return SteppingPublisher(worker_context(database, files))


@dataclass
class Bench:
    """One publication."""

    world: World
    database: Database
    files: SegmentFiles
    identity: int

    def context(self) -> WorkerContext:
        return worker_context(self.database, self.files)

    def publisher(self) -> SteppingPublisher:
        return publisher(self.database, self.files)

    def publish_all(self) -> None:
        publisher = self.publisher()

        def done() -> bool:
            publisher.step(threading.Event())
            with self.database.transaction() as connection:
                return not due_steps(connection)

        wait_until(done)

    def now(self) -> publications.Publication:
        with self.database.transaction() as connection:
            return publications.get(connection, self.identity)

    def stream(self) -> streams.Stream:
        with self.database.transaction() as connection:
            return streams.get(connection, self.now().stream_id)

    def counts(self) -> tuple[int, int]:
        """Return how many releases and how many charges there are."""
        with self.database.transaction() as connection:
            return tuple(
                connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in (tables.releases, tables.charges)
            )


@contextmanager
def published(
    world: World,
    schema: dict[str, Any],
    configuration: dict[str, Any],
    columns: Columns,
    *,
    epsilon: int,
    retention: str = "keep",
) -> Iterator[Bench]:
    """On a stream with so much ε, of these records."""
    database, files = Database(world.settings.database_url), SegmentFiles(world.settings.segment_store)
    configuration = {"publish_delay": 0} | configuration
    mechanism = build(StreamSchema.model_validate(schema), PublicationConfiguration.model_validate(configuration))
    privacy = {name: Decimal(str(value)) for name, value in configuration["privacy"].items()}
    with database.transaction() as connection:
        stream = streams.create(
            connection,
            name="s",
            log="log",
            schema=schema,
            retention=retention,
            epsilon=Decimal(epsilon),
            delta=privacy["delta"],
        )
        new = NewPublication(
            name="p",
            start=0,
            configuration=configuration,
            plan=mechanism.plan(),
            obligations=mechanism.obligations(),
            kind=mechanism.currency,
            **privacy,
            due=mechanism.next_time(0),
            publish_delay=Decimal(str(configuration["publish_delay"])),
        )
        publication = publications.create(connection, stream.id, new)
    number(database, files, stream.id, columns)
    yield Bench(world, database, files, publication.id)
    database.close()


def crash_at(patched: pytest.MonkeyPatch, module: Any, name: str, *, calls: int = 1, after: bool = False) -> None:
    """The process ends in so manieth call of a function, before it or after it."""
    real, left = getattr(module, name), iter(range(calls - 1))

    def crash(*args: Any, **options: Any) -> Any:
        if next(left, None) is not None:
            return real(*args, **options)
        if after:
            real(*args, **options)
        raise Crash

    patched.setattr(module, name, crash)


@contextmanager
def dies_in(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, after: bool = False) -> Iterator[None]:
    """Let nothing inside get further than that function."""
    with monkeypatch.context() as patched, pytest.raises(Crash):
        crash_at(patched, module, name, after=after)
        yield


def taken_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One publisher falls asleep between its fit and its commit; another takes over and publishes meanwhile."""
    slow, real = bench.publisher(), Publisher._commit

    def sleep_first(self: Publisher, *args: Any) -> Any:
        if self is slow:
            run_out(bench.database)
            bench.publish_all()
        return real(self, *args)

    monkeypatch.setattr(Publisher, "_commit", sleep_first)
    assert slow.step(threading.Event())
