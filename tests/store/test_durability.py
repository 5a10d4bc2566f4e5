"""Commits stay committed, whatever PostgreSQL's configuration says; a server that may lose it is refused."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, text

from service.embedded import postgres
from service.store import tables
from service.store.database import (
    DURABILITY,
    Database,
    DatabaseUnsuitable,
    pipelined,
    read_together,
    require_durability,
    write,
)
from service.store.migrate import migrate
from tests.conftest import World, wait_until
from tests.faults.clusters import Cluster
from tests.test_cli import perennial

DURABLE = ("fsync", "full_page_writes")


def superuser(world: World, statement: str) -> None:
    """Runs a statement as the database's owner does."""
    owner = Database(world.settings.migration_url)
    with owner.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
    owner.close()


def setting(connection: object, name: str) -> str:
    return connection.execute(text(f"SHOW {name}")).scalar_one()


def by_sqlalchemy(connection: Connection, resource: str) -> None:
    connection.execute(insert(tables.leases).values(resource=resource))


def by_the_driver(connection: Connection, resource: str) -> None:
    write(connection, insert(tables.leases), {"resource": resource})


def by_the_driver_in_a_pipeline(connection: Connection, resource: str) -> None:
    with pipelined(connection):
        by_the_driver(connection, resource)


WRITING = [by_sqlalchemy, by_the_driver, by_the_driver_in_a_pipeline]


@pytest.mark.parametrize("add", WRITING)
@pytest.mark.parametrize("configured", ["off", "local", "remote_write"])
def test_every_transaction_that_writes_commits_durably_whatever_is_configured(world: World, configured, add):
    database = Database(world.settings.database_url)
    with database.transaction() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
    superuser(world, f"ALTER DATABASE {name} SET synchronous_commit = {configured}")
    database.close()
    database = Database(world.settings.database_url)
    for number in range(2):  # the second has the same connection, on which it is not set any more
        with database.transaction() as connection:
            assert setting(connection, "synchronous_commit") == configured
            add(connection, f"test:{number}")
            assert setting(connection, "synchronous_commit") == "on"
    database.close()


def test_what_waits_for_more_is_left_as_it_is(world: World):
    database = Database(world.settings.database_url)
    with database.transaction() as connection:
        connection.execute(text("SET LOCAL synchronous_commit = remote_apply"))
        connection.execute(insert(tables.leases).values(resource="test"))
        assert setting(connection, "synchronous_commit") == "remote_apply"
    database.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server with the service's tables, whose command line does not say what keeps commits: it may be changed."""
    real = postgres._settings

    def settings(sockets: Path) -> list[str]:
        words = real(sockets)
        left = [word for word in words[1::2] if word.partition("=")[0] not in DURABLE]
        return [word for setting in left for word in ("-c", setting)]

    folder = tmp_path_factory.mktemp("cluster")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres, "_settings", settings)
        running = Cluster(folder).start()
    owner, service = running.urls
    migrate(owner, service=service)
    yield running
    running.close()


def switch(server: Cluster, names: Iterable[str], value: str) -> None:
    """Configure these settings, and wait until new connections have them."""
    with server.connect() as administrator:
        for name in names:
            administrator.execute(f"ALTER SYSTEM SET {name} = {value}")
        administrator.execute("SELECT pg_reload_conf()")

    def is_done() -> bool:
        with server.connect() as another:
            return all(another.execute(f"SHOW {name}").fetchone() == (value,) for name in names)

    wait_until(is_done)


@pytest.mark.more
@pytest.mark.parametrize("off", [("fsync",), ("full_page_writes",), ("fsync", "full_page_writes")], ids=" and ".join)
def test_a_server_that_may_lose_commits_is_refused(cluster: Cluster, off):
    """Every process refuses it. The commands end with the same words; they are started where both are off."""
    service = cluster.urls[1]
    switch(cluster, off, "off")
    wrong = " and ".join(f"{name} = off" for name in off)
    advice = f"PostgreSQL runs with {wrong}: .* Set {' and '.join(off)} to on"
    try:
        database = Database(service)
        with pytest.raises(DatabaseUnsuitable, match=advice), database.transaction():
            pass
        database.close()
        for command in ("api", "worker") if len(off) > 1 else ():
            settings = {"PERENNIAL_DATABASE_URL": service, "PERENNIAL_REDIS_URL": "redis://127.0.0.1:1"}
            done = perennial(command, **settings, PERENNIAL_METRICS_PORT="0")
            assert done.returncode == 78
            assert re.search(advice, done.stderr)
    finally:
        switch(cluster, off, "on")


def test_a_setting_that_is_changed_beneath_an_open_connection_is_noticed(cluster: Cluster):
    """PostgreSQL takes it over when it reads its configuration again."""
    database = Database(cluster.urls[1], connections=1)
    with database.transaction() as connection:
        require_durability(*read_together(connection, (DURABILITY, {}))[0])
    switch(cluster, ["fsync"], "off")
    with database.transaction() as connection:
        wait_until(lambda: setting(connection, "fsync") == "off")
        with pytest.raises(DatabaseUnsuitable, match="fsync = off"):
            require_durability(*read_together(connection, (DURABILITY, {}))[0])
    database.close()
    switch(cluster, ["fsync"], "on")
