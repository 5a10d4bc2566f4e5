"""The stage of random histories, with a database, a log and a folder of its own."""

import asyncio
from contextlib import contextmanager

import psycopg
import pytest
from sqlalchemy.engine import make_url

from service.store import tables
from service.store.database import Database
from service.store.segment_files import SegmentFiles
from service.worker import publisher as publishing
from tests.conftest import make_world
from tests.faults.stage import Accidents, Stage
from tests.faults.steps import instrument
from tests.log.primaries import three_in_cluster


@pytest.fixture
def stage(servers, tmp_path, monkeypatch):
    with staged(make_world(servers, tmp_path), monkeypatch) as stage:
        yield stage


@pytest.fixture
def stage_on_a_cluster(servers, tmp_path, monkeypatch):
    with (
        three_in_cluster(tmp_path / "cluster") as three,
        staged(make_world(servers, tmp_path, redis_url=three.url), monkeypatch) as stage,
    ):
        yield stage
        assert three.refused_across_slots() == 0


@contextmanager
def staged(world, monkeypatch):
    owner = make_url(world.settings.migration_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(owner, autocommit=True) as connection:
        for table in tables.APPEND_ONLY:  # so that the rows of one history can make room for the next one's
            connection.execute(f"ALTER TABLE {table.name} DISABLE TRIGGER USER")
        name = make_url(owner).database
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")  # nobody pulls this plug
    accidents = Accidents()
    monkeypatch.setattr(publishing, "AFTER_AN_ERROR_SECONDS", 0)
    instrument(accidents.reach, monkeypatch.setattr)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a crash leaves tasks behind
    # None of these processes hangs: on a busy machine one may only wait for its turn, in a transaction too.
    monkeypatch.setattr("service.store.database._LIMITS", "-c lock_timeout=300s")
    database = Database(world.settings.database_url)
    yield Stage(
        database, SegmentFiles(world.settings.segment_store), world.settings.redis_url, accidents, loop, clear=owner
    )
    database.close()
    loop.close()
