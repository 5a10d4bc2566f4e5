"""To number a record costs as many commands on three primaries as on one, and none of them names two slots."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from secrets import token_hex

import numpy as np
import pytest
from redis import Redis

from service.embedded import Servers
from service.log import Appenders, open_readers, read_primaries
from service.segments.files import SegmentFiles
from service.store import streams
from service.store.database import Database
from service.store.streams import Stream
from service.streams.codec import pack
from service.worker import sealer as sealing
from service.worker.leases import LeaseKeeper
from service.worker.sealer import Sealer
from tests.conftest import make_world, wait_until
from tests.log.primaries import three_in_cluster
from tests.worker.conftest import SCHEMA

STREAMS, ROUNDS, BATCHES, RECORDS = 12, 10, 3, 100
BATCH = pack({"x": np.zeros((RECORDS, 1), np.float32), "y": np.zeros(RECORDS, np.int32)})


def commands_to_number(servers: Servers, url: str, folder: Path, count: Callable[[], int]) -> int:
    """Return how many commands the log did to take and to number ROUNDS × STREAMS × BATCHES batches."""
    world = make_world(servers, folder, redis_url=url)
    database, primaries = Database(world.settings.database_url), read_primaries(url)
    primaries.refresh()
    readers, keeper = open_readers(primaries), LeaseKeeper(database, seconds=600.0)
    sealers = [Sealer(database, reader, SegmentFiles(world.settings.segment_store), keeper) for reader in readers]
    with asyncio.Runner() as runner:
        appenders = Appenders(primaries, max_batches=1000, max_bytes=10**9)
        made = [runner.run(new_stream(database, appenders, f"s{number}")) for number in range(STREAMS)]
        for sealer in sealers:
            sealer.step(wait_milliseconds=0)
        runner.run(append(appenders, made))
        number(database, sealers, STREAMS * BATCHES * RECORDS)
        before = count()
        for turn in range(ROUNDS):
            runner.run(append(appenders, made))
            number(database, sealers, (turn + 2) * STREAMS * BATCHES * RECORDS)
        done = count() - before
        runner.run(appenders.close())
    for reader in readers:
        reader.close()
    database.close()
    return done


async def new_stream(database: Database, appenders: Appenders, name: str) -> Stream:
    log = token_hex(16)
    await appenders.create(log)
    with database.transaction() as connection:
        return streams.create(
            connection,
            name=name,
            log=log,
            schema=SCHEMA,
            retention="keep",
            epsilon=Decimal(1),
            delta=Decimal(0),
        )


async def append(appenders: Appenders, made: list[Stream]) -> None:
    for _ in range(BATCHES):
        for stream in made:
            await appenders.append(stream.log, BATCH, RECORDS, idempotency=None)


def number(database: Database, sealers: list[Sealer], records: int) -> None:
    def numbered() -> bool:
        for sealer in sealers:
            sealer.step(wait_milliseconds=0)
        with database.transaction() as connection:
            return sum(each.records for each in streams.every(connection)) == records

    wait_until(numbered)


@pytest.mark.long
def test_three_primaries_cost_as_many_commands_as_one(servers: Servers, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sealing, "TIDY_SECONDS", 10**6)
    with Redis.from_url(servers.redis_url) as redis:
        one = commands_to_number(
            servers,
            servers.redis_url,
            tmp_path / "one",
            lambda: sum(each["calls"] for each in redis.info("commandstats").values()),
        )
    with three_in_cluster(tmp_path / "three") as three:
        many = commands_to_number(servers, three.url, tmp_path / "several", three.commands)
        assert three.refused_across_slots() == 0
    print(f"commands of one primary: {one}, of three: {many}, ratio {many / one:.3f}")
    assert many <= 1.05 * one
