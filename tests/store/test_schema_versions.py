"""Which versions of the service run on a schema: the one before too, as long as migrations only widen."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.store import leases, schema_version, streams
from service.store.database import Database, DatabaseUnavailable
from service.store.leases import LeaseLost
from service.store.migrate import migrate
from service.store.schema_version import SchemaNarrowed, serves
from service.worker.main import work
from tests.conftest import World
from tests.faults.up import ROOT
from tests.upgrades.versions import add_migration


@contextmanager
def next_version(at: Path, *, widens: bool) -> Iterator[None]:
    """As if the code were of the version after this one, which has a migration more."""
    migrations = at / "migrations"
    shutil.copytree(schema_version.folder(), migrations)
    add_migration(migrations, widens=widens)
    here, folder = threading.get_ident(), schema_version.folder

    def of_this_thread() -> Path:
        """Return another folder to this thread alone: workers of other tests go on beside it."""
        return migrations if threading.get_ident() == here else folder()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_version, "folder", of_this_thread)
        patch.setattr("service.store.migrate.folder", of_this_thread)
        yield


@pytest.fixture
def database(world: World) -> Iterator[Database]:
    opened = Database(world.settings.database_url)
    with opened.transaction() as connection:
        leases.create(connection, "stream:1")
    yield opened
    opened.close()


def take(database: Database) -> leases.Lease | None:
    with database.transaction() as connection:
        return leases.take(connection, "stream:1", owner="this", seconds=600)


def test_this_version_goes_on_where_the_next_one_only_widens(world: World, database: Database, tmp_path: Path):
    lease = take(database)
    with next_version(tmp_path, widens=True):
        migrate(world.settings.migration_url, service=world.settings.database_url)
    with database.transaction() as connection:
        leases.check(connection, lease)
        leases.release(connection, lease)
        assert serves(connection)
        streams.ready(connection)
    assert take(database)


def test_this_version_can_do_nothing_more_where_the_next_one_does_not(world: World, database: Database, tmp_path: Path):
    lease = take(database)
    with next_version(tmp_path, widens=False):
        migrate(world.settings.migration_url, service=world.settings.database_url)
        with database.transaction() as connection:
            assert serves(connection)
    with pytest.raises(LeaseLost), database.transaction() as connection:
        leases.check(connection, lease)
    assert take(database) is None
    with pytest.raises(DatabaseUnavailable, match="newer version"), database.transaction() as connection:
        streams.ready(connection)
    assert start(world) == (78, "perennial: the database's schema is not this version's: run `perennial migrate`\n")


def start(world: World) -> tuple[int, str]:
    """Return how `perennial worker` ends, and its last words."""
    addresses = {f"PERENNIAL_{name.upper()}": getattr(world.settings, name) for name in ("redis_url", "database_url")}
    command = [sys.executable, "-m", "service", "worker"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | addresses, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_worker_ends_after_a_migration_that_leaves_the_schema_to_newer_ones(world: World, tmp_path: Path):
    ended: list[BaseException] = []

    def run() -> None:
        try:
            work(world.settings, threading.Event())
        except SchemaNarrowed as error:
            ended.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    with next_version(tmp_path, widens=False):
        migrate(world.settings.migration_url, service=world.settings.database_url)
    worker.join(200)
    assert [str(error) for error in ended] == [str(SchemaNarrowed())]
