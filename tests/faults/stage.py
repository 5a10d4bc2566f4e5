"""The stage of random histories: a worker in this process, and accidents that happen to it at a moment."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import strategies as st

from service.log import Appenders, Reader, open_readers, read_primaries
from service.log.primaries import Primaries
from service.segments.files import SegmentFiles
from service.store import tables
from service.store.database import Database
from service.worker.audit import Audit
from service.worker.context import WorkerContext
from service.worker.leases import LeaseKeeper
from service.worker.sealer import Sealer
from service.worker.ticker import Ticker
from tests.worker.published import SteppingPublisher

APPENDING = [("Appender._evaluate: log", "before"), ("Appender._evaluate: log", "after")]
WRITTEN = [each for each in tables.metadata.sorted_tables if each not in tables.READ_ONLY]
"""The tables that the service writes."""

WORKING = [
    ("SegmentFiles.put: sync", "after"),
    ("Sealer._seal: commit", "after"),
    ("Reader.trim: log", "after"),
    ("Merger.replace: commit", "after"),
    ("Eraser.delete_erased: commit", "before"),
    ("draw: fit", "after"),
    ("Publisher._committed: commit", "before"),
    ("Publisher._committed: commit", "after"),
    ("Ticker._publish: commit", "before"),
    ("Ticker._publish: commit", "after"),
    ("SegmentFiles.put_high_water_mark: sync", "before"),
    ("Confirmer._show: commit", "after"),
]


ON_OBJECTS = {
    "SegmentObjects.put: object": "SegmentFiles.put: sync",
    "SegmentObjects._create: object": "SegmentFiles.put_high_water_mark: sync",
}
"""Writes to an object store, as the moments above that they take the place of."""


def accidents(moments: list[tuple[str, str]]) -> st.SearchStrategy[tuple[str, tuple[str, str]] | None]:
    """Draw an accident that happens when one of the moments comes first; often it doesn't come."""
    happen = [(what, moment) for moment in moments for what in ("crash", "overtaken")]
    return st.sampled_from([*[None] * 3, *happen])


class Crash(BaseException):
    """As if the process ended here."""


@dataclass
class Accidents:
    """Makes an accident happen at its moment. The dead take no step."""

    what: str | None = None
    at: tuple[str, str] | None = None
    dead: bool = False
    crashes: int = 0
    overtakings: int = 0
    thread: int = field(default_factory=threading.get_ident)

    def reach(self, step: str, when: str) -> None:
        if threading.get_ident() != self.thread:
            return  # another test's worker, which still runs in this process
        if self.dead:
            raise Crash
        if self.what is None or (ON_OBJECTS.get(step, step), when) != self.at:
            return
        what, self.what = self.what, None
        if what == "crash":
            self.crashes, self.dead = self.crashes + 1, True
            raise Crash
        if (step.endswith("commit"), when) != (True, "before"):  # there it would wait for what this one has locked
            self.overtakings += 1
            self.overtake()

    @contextmanager
    def happening(self, accident):
        """Yields a list that is no longer empty once it came to a crash."""
        self.what, self.at = accident or (None, None)
        crashed = []
        try:
            yield crashed
        except Crash:
            crashed.append(True)
        finally:
            self.what, self.dead = None, False


@dataclass
class Stage:
    """The servers and folders that all histories share."""

    database: Database
    files: SegmentFiles
    redis_url: str
    accidents: Accidents
    loop: asyncio.AbstractEventLoop
    clear: str
    histories: int = 0
    steps: int = 0
    releases: int = 0
    counted_blocks: int = 0
    counted_models: int = 0
    numbered: int = 0

    def wait_for(self, coroutine):
        """Return what it returns; or Crash, when that is where it went."""

        async def watched():
            task = asyncio.ensure_future(coroutine)
            while not task.done() and not self.accidents.dead:  # noqa: ASYNC110 - it happens in whatever task it hits
                await asyncio.sleep(0)
            if self.accidents.dead:
                task.cancel()
                raise Crash
            return task.result()

        return self.loop.run_until_complete(watched())

    def worker(self) -> "Worker":
        keeper = LeaseKeeper(self.database, seconds=3600)
        readers = open_readers(self.primaries())
        sealers = [Sealer(self.database, reader, self.files, keeper) for reader in readers]
        context = WorkerContext(self.database, self.files, keeper)
        return Worker(sealers, readers, SteppingPublisher(context), context.ticker, context.audit)

    def appender(self) -> Appenders:
        return Appenders(self.primaries(), max_batches=1000, max_bytes=10**6)

    def primaries(self) -> Primaries:
        primaries = read_primaries(self.redis_url)
        primaries.refresh()
        return primaries


@dataclass
class Worker:
    sealers: list[Sealer]
    readers: Sequence[Reader]
    publisher: SteppingPublisher
    ticker: Ticker
    audit: Audit

    def number(self) -> None:
        for sealer in self.sealers:
            sealer.step(wait_milliseconds=0)

    def publish(self) -> None:
        self.publisher.step(threading.Event())
        self.ticker.step()

    def end(self) -> None:
        for reader in self.readers:
            reader.close()
