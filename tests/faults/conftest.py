"""The stage of random histories, with a database, a log and a folder of its own."""

import asyncio
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy.engine import make_url

from service.segments.places import open_place
from service.store import tables
from service.store.database import Database
from service.worker import publisher as publishing
from tests.conftest import make_world
from tests.faults.stage import Accidents, Stage
from tests.faults.steps import instrument
from tests.log.primaries import three_in_cluster
from tests.segments.objects.server import BUCKET, Faults, serving

SEGMENTS, LOGS = ("folder", "objects", "faulty objects"), ("one", "cluster")
ENOUGH_REQUESTS = 1000  # of which some fail for certain
FAULTS = Faults(refused=0.02, forgotten=0.02, cut=0.01, seconds=2.0)


@pytest.fixture
def stage(servers, tmp_path, monkeypatch, request):
    """Yield a stage with segments in one of SEGMENTS and one of LOGS, by an indirect parameter."""
    segments, log = getattr(request, "param", ("folder", "one"))
    places = {}
    with ExitStack() as stack:
        if log != "one":
            three = stack.enter_context(three_in_cluster(tmp_path / "log"))
            places["redis_url"] = three.url
        if segments != "folder":
            server = stack.enter_context(serving())
            places |= {"segment_store": f"s3://{BUCKET}/stage", "segment_copies": tmp_path / "copies"}
            server.faults = replace(FAULTS) if segments == "faulty objects" else Faults()
        yield stack.enter_context(staged(make_world(servers, tmp_path, **places), monkeypatch))
        if log != "one":
            assert three.refused_across_slots() == 0
        if segments != "folder":
            assert server.faults.failed > 0 or segments == "objects" or server.faults.requests < ENOUGH_REQUESTS


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
    monkeypatch.setattr("service.store.database.LIMITS", {"lock_timeout": "300s"})
    database = Database(world.settings.database_url)
    place, copies = world.settings.segment_store, world.settings.segment_copies
    files = open_place(place, copies, most_bytes=2**20)
    yield Stage(database, files, world.settings.redis_url, accidents, loop, clear=owner)
    database.close()
    loop.close()
