"""What is committed stays committed, whatever PostgreSQL's configuration says; a server that may lose it is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import insert, text

from service.embedded import postgres
from service.store import tables
from service.store.database import Database, DatabaseUnsafe, require_durability
from service.store.migrate import migrate
from tests.conftest import World, wait_until
from tests.faults.clusters import Cluster
from tests.test_cli import perennial


def superuser(world: World, statement: str) -> None:
    """Runs a statement as the database's owner does."""
    owner = Database(world.settings.migration_url)
    with owner.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
    owner.close()


def setting(connection: object, name: str) -> str:
    return connection.execute(text(f"SHOW {name}")).scalar_one()


@pytest.mark.parametrize("configured", ["off", "local", "remote_write"])
def test_every_transaction_that_writes_commits_durably_whatever_is_configured(world: World, configured):
    database = Database(world.settings.database_url)
    with database.transaction() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
    superuser(world, f"ALTER DATABASE {name} SET synchronous_commit = {configured}")
    database.close()
    database = Database(world.settings.database_url)
    for number in range(2):  # the second has the same connection, on which it is not set any more
        with database.transaction() as connection:
            assert setting(connection, "synchronous_commit") == configured
            connection.execute(insert(tables.leases).values(resource=f"test:{number}"))
            assert setting(connection, "synchronous_commit") == "on"
    database.close()


def test_what_waits_for_more_is_left_as_it_is(world: World):
    database = Database(world.settings.database_url)
    with database.transaction() as connection:
        connection.execute(text("SET LOCAL synchronous_commit = remote_apply"))
        connection.execute(insert(tables.leases).values(resource="test"))
        assert setting(connection, "synchronous_commit") == "remote_apply"
    database.close()


@contextmanager
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str, without: str = "") -> Iterator[Cluster]:
    """A server with more settings than it has, or without one that it has."""
    real = postgres._settings

    def settings(sockets: Path) -> list[str]:
        words = real(sockets)
        kept = [word for word in words[1::2] if word.partition("=")[0] != without]
        return [word for setting in (*kept, *more) for word in ("-c", setting)]

    monkeypatch.setattr(postgres, "_settings", settings)
    folder.mkdir(mode=0o700)
    running = Cluster(folder).start()
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("off", [("fsync",), ("full_page_writes",), ("fsync", "full_page_writes")], ids=" and ".join)
def test_a_server_that_may_lose_commits_is_refused(tmp_path: Path, monkeypatch, off):
    with cluster(tmp_path / "cluster", monkeypatch, *(f"{name}=off" for name in off)) as running:
        owner, service = running.urls
        migrate(owner, service=service)
        database = Database(service)
        wrong = " and ".join(f"{name} = off" for name in off)
        with pytest.raises(DatabaseUnsafe, match=wrong), database.transaction():
            pass
        database.close()
        for command in ("api", "worker"):
            settings = {"PERENNIAL_DATABASE_URL": service, "PERENNIAL_REDIS_URL": "redis://127.0.0.1:1"}
            done = perennial(command, **settings, PERENNIAL_METRICS_PORT="0")
            assert done.returncode == 78
            assert f"PostgreSQL runs with {wrong}" in done.stderr
            assert f"Set {' and '.join(off)} to on" in done.stderr


def test_a_setting_that_is_changed_beneath_an_open_connection_is_noticed(tmp_path: Path, monkeypatch):
    """PostgreSQL takes it over when it reads its configuration again."""
    with cluster(tmp_path / "cluster", monkeypatch, without="fsync") as running:
        database = Database(running.urls[1], connections=1)
        with database.transaction() as connection:
            require_durability(connection)
        with running.connect() as administrator:
            administrator.execute("ALTER SYSTEM SET fsync = off")
            administrator.execute("SELECT pg_reload_conf()")
        with database.transaction() as connection:
            wait_until(lambda: setting(connection, "fsync") == "off")
            with pytest.raises(DatabaseUnsafe, match="fsync = off"):
                require_durability(connection)
        database.close()
