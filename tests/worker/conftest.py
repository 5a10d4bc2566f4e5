"""A stream with its log, and as many sealers on it as a test wants."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from secrets import token_hex
from typing import TypeVar

import numpy as np
import pytest
from redis import Redis

from service.log import Appender, open_readers, read_primaries
from service.segments.files import SegmentFiles
from service.segments.locating import read_records
from service.store import streams
from service.store.database import Database
from service.streams.codec import pack
from service.worker.leases import LeaseKeeper
from service.worker.sealer import Sealer
from tests.conftest import World, run_out

T = TypeVar("T")

SCHEMA = {"features": 1, "task": {"kind": "classification", "classes": 2}, "norm_bound": 1.0, "feature_map": None}


def new_sealer(database: Database, url: str, files: SegmentFiles, keeper: LeaseKeeper) -> Sealer:
    """Return a sealer for the only primary of a log."""
    return Sealer(database, open_readers(read_primaries(url))[0], files, keeper)


@dataclass
class Bench:
    """One stream, and as many sealers as a test wants."""

    world: World
    database: Database
    files: SegmentFiles
    stream: streams.Stream

    def append(self, *values: float, label: int = 0) -> str:
        return asyncio.run(self.with_appender(lambda appender: self.append_by(appender, *values, label=label)))

    async def with_appender(self, work: Callable[[Appender], Awaitable[T]]) -> T:
        """Return what one API does, which forgets all afterwards."""
        appender = Appender(self.world.settings.redis_url, max_batches=100, max_bytes=10**6)
        try:
            return await work(appender)
        finally:
            await appender.close()

    async def append_by(self, appender: Appender, *values: float, label: int = 0) -> str:
        columns = {"x": np.array(values, dtype=np.float32)[:, None], "y": np.full(len(values), label, dtype=np.int32)}
        return (await appender.append(self.stream.log, pack(columns), len(values), idempotency=None)).entry

    def sealer(self, keeper: LeaseKeeper | None = None, url: str | None = None) -> Sealer:
        keeper = keeper or LeaseKeeper(self.database, seconds=600.0)
        return new_sealer(self.database, url or self.world.settings.redis_url, self.files, keeper)

    def successor(self) -> Sealer:
        """Return the successor of a sealer that died, or sleeps: its leases have run out."""
        run_out(self.database)
        return self.sealer()

    def now(self) -> streams.Stream:
        with self.database.transaction() as connection:
            return streams.get(connection, self.stream.id)

    def values(self) -> list[float]:
        stream = self.now()
        return read_records(self.database, self.files, stream, 0, 0, stream.records).x[:, 0].tolist()

    def redis(self) -> Redis:
        return Redis.from_url(self.world.settings.redis_url)

    def key(self, part: str) -> str:
        return f"perennial:{{{self.stream.log}}}:{part}"


def new_stream(world: World, database: Database, name: str, **changes: object) -> streams.Stream:
    """With its log, of SCHEMA changed so."""
    log = token_hex(16)

    async def create() -> None:
        appender = Appender(world.settings.redis_url, max_batches=1, max_bytes=1)
        await appender.create(log)
        await appender.close()

    asyncio.run(create())
    with database.transaction() as connection:
        return streams.create(
            connection,
            name=name,
            log=log,
            schema=SCHEMA | changes,
            retention="keep",
            epsilon=Decimal(1),
            delta=Decimal(0),
        )


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that follow each other at once are of one turn, however slow the machine is."""
    monkeypatch.setattr("service.worker.publisher.TURN_SECONDS", math.inf)


@pytest.fixture
def bench(world: World, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Yield the bench of a stream with SCHEMA, changed as an indirect parameter says."""
    database = Database(world.settings.database_url)
    stream = new_stream(world, database, "s", **getattr(request, "param", {}))
    yield Bench(world, database, SegmentFiles(world.settings.segment_store), stream)
    database.close()
