"""The migrations make the tables that the code describes, and can be run again and back."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from decimal import Decimal
from itertools import pairwise

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from redis.crc import key_slot
from sqlalchemy import Column, Connection, Engine, Table, create_engine, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError

from service.ledger.verify import verify
from service.log.connection import entries_key
from service.store import streams
from service.store.migrate import CannotMigrate, configuration, migrate
from service.store.schema_version import is_current, newest
from service.store.streams import slot
from service.store.tables import metadata, units
from tests.conftest import World, wait_until
from tests.store.conftest import publish_some
from tests.worker.test_publishing import bench as publishing  # noqa: F401


def current(world: World) -> bool:
    engine = create_engine(world.settings.migration_url)
    with engine.connect() as connection:
        answer = is_current(connection)
    engine.dispose()
    return answer


def test_alembic_names_the_same_newest_migration():
    assert newest() == set(ScriptDirectory.from_config(configuration()).get_heads())


def test_migrations_and_tables_are_the_same(world: World):
    engine = create_engine(world.settings.migration_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_second_run_changes_nothing_and_the_way_back_is_clean(world: World):
    migrate(world.settings.migration_url)
    assert current(world)
    engine = create_engine(world.settings.migration_url)
    with engine.begin() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()
    assert not current(world)
    migrate(world.settings.migration_url)
    assert current(world)


OLDER = (
    *("0024", "0022", "0020", "0017", "0016", "0014", "0018", "0015", "0013", "0012", "0011", "0010", "0009", "0008"),
    *("0007", "0006", "0005", "0004", "0003", "0002", "0001"),
)
SUMMARIES = ("streams", "segments", "publications", "charges", "releases", "outlines", "kept")


@pytest.mark.more
@pytest.mark.parametrize(
    "older",
    [
        pytest.param(("0010", "0005", "0001"), id="some"),  # the last one takes each step
        pytest.param(OLDER, marks=pytest.mark.long, id="all"),
    ],
)
def test_down_and_up_again_on_real_data_makes_the_same_sums_and_digests(world: World, older):
    """From each older version; and what was changed behind the ledger's back there is as visible afterwards."""
    publish_some(world.settings)
    engine = create_engine(world.settings.migration_url)

    def everything() -> dict[str, list]:
        with engine.connect() as connection:
            tables = {name: metadata.tables[name] for name in SUMMARIES}
            return {
                name: sorted(map(repr, connection.execute(select(*lasting(table))).mappings()))
                for name, table in tables.items()
            }

    before = everything()
    assert all(before.values())
    for revision in older:
        down(engine, revision)
        migrate(world.settings.migration_url, service=world.settings.database_url)
        assert everything() == before, revision
    with engine.begin() as connection:
        assert verify(connection).findings == []
    down(engine, "0002")
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE releases DISABLE TRIGGER append_only"))
        connection.execute(text("UPDATE releases SET role = 'link' WHERE publication_id = 2 AND version = 2"))
        connection.execute(text("ALTER TABLE releases ENABLE ALWAYS TRIGGER append_only"))
    migrate(world.settings.migration_url, service=world.settings.database_url)
    with engine.begin() as connection:
        findings = verify(connection).findings
    assert len(findings) == 1
    assert "version 2: its digest is not that of its content" in findings[0]
    engine.dispose()


def lasting(table: Table) -> list[Column]:
    """Its columns that can be found again: not whether there was ever a mark, which the next one says anew."""
    return [column for column in table.c if column.name != "marked"]


def test_a_database_with_streams_on_several_servers_is_refused_and_stays_as_it_was(world: World):
    engine = create_engine(world.settings.migration_url)
    down(engine, "0024")
    names = ("one", "first", "second", "third")
    with engine.begin() as connection:
        for name, place in zip(names, ("NULL", "1", "2", str(slot("third"))), strict=True):
            connection.execute(
                text(
                    "INSERT INTO streams (name, log, place, schema, retention, epsilon, delta, promise) "
                    f"VALUES ('{name}', '{name}', {place}, '{{}}', 'keep', 1, 0, '')"
                )
            )
    with pytest.raises(CannotMigrate, match=r"than its first \(second\): .* `perennial move-stream`"):
        migrate(world.settings.migration_url)
    assert not current(world), "0.1.0 can still move them"
    with engine.begin() as connection:
        connection.execute(text("UPDATE streams SET place = 1 WHERE name = 'second'"))
    migrate(world.settings.migration_url)
    with engine.connect() as connection:
        places = dict(connection.execute(text("SELECT name, place FROM streams")).all())
    assert places == {name: slot(name) for name in names}
    engine.dispose()


def test_slots_are_those_of_a_cluster():
    assert [slot(log) for log in ("one", "a" * 32)] == [
        key_slot(entries_key(log).encode()) for log in ("one", "a" * 32)
    ]


def down(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def test_a_database_that_has_the_table_of_0006_already_is_brought_up_to_date(world: World):
    """For a day 0005 made `memories` too, which is 0006's."""
    engine = create_engine(world.settings.migration_url)
    down(engine, "0006")
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0005'"))
    migrate(world.settings.migration_url)
    assert current(world)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def add_people(connection: Connection, name: str, *, erased: int) -> None:
    """Add a stream with three units, of which so many are erased; its counter stays at 0."""
    schema = {"features": 1, "task": {"kind": "unlabelled"}, "unit": {"max_records": 1}}
    budget = {"epsilon": Decimal(1), "delta": Decimal(0)}
    stream = streams.create(connection, name=name, log=name, schema=schema, retention="keep", **budget)
    for unit in range(3):
        row = {"stream_id": stream.id, "pseudonym": bytes([unit] * 16), "counted": 0, "last": -1}
        connection.execute(units.insert().values(row | {"erased": unit < erased}))


def test_counters_of_erased_units_that_fell_are_mended(world: World):
    """A counter that is too high stays: it tells of an erasure that the database has lost."""
    engine = create_engine(world.settings.migration_url)
    with engine.begin() as connection:
        for name, erased in enumerate([0, 1, 2, 2, 2, 1]):
            add_people(connection, str(name), erased=erased)
    down(engine, "0022")
    with engine.begin() as connection:
        for name, counter in enumerate([0, -1, -3, 1, 2, 2]):
            fell = {"name": str(name), "counter": counter}
            connection.execute(text("UPDATE streams SET units_erased = :counter WHERE name = :name"), fell)
    migrate(world.settings.migration_url)
    with engine.begin() as connection:
        assert verify(connection).findings == ["stream 5: 1 units are erased, not 2"]
        assert [each.units_erased for each in streams.every(connection)] == [0, 1, 2, 2, 2, 2]
    engine.dispose()


def test_a_unit_that_an_older_version_erases_during_the_migration_is_counted(world: World):
    engine = create_engine(world.settings.migration_url)
    with engine.begin() as connection:
        add_people(connection, "s", erased=0)
    down(engine, "0022")
    migration = threading.Thread(target=migrate, args=(world.settings.migration_url,))
    with engine.begin() as connection:
        connection.execute(text("UPDATE units SET erased = true WHERE pseudonym = :first"), {"first": bytes(16)})
        connection.execute(text("UPDATE streams SET units_erased = units_erased - 1"))
        migration.start()
        waiting = "SELECT FROM pg_locks JOIN pg_database d ON d.oid = database WHERE NOT granted AND datname = :name"
        wait_until(lambda: connection.execute(text(waiting), {"name": engine.url.database}).all())
    migration.join()
    with engine.begin() as connection:
        assert [each.units_erased for each in streams.every(connection)] == [1]
    engine.dispose()


@pytest.mark.more
def test_an_older_version_finds_all_that_it_reads(world: World):
    """So its API can go on serving releases and taking records until it is replaced."""
    engine = create_engine(world.settings.migration_url)
    columns = []
    for revision in (None, *OLDER):
        if revision is not None:
            down(engine, revision)
        tables = inspect(engine)
        columns.append(
            {
                (table, column["name"], str(column["type"]))
                for table in tables.get_table_names()
                for column in tables.get_columns(table)
            }
        )
    engine.dispose()
    for newer, older in pairwise(columns):
        assert older <= newer


@pytest.mark.parametrize(
    "statement",
    [
        (
            "INSERT INTO streams (name, log, place, schema, retention, epsilon, delta) "
            "VALUES ('t', 't', 1, '{}', 'keep', 1, 0)"
        ),
        (
            "INSERT INTO publications (name, stream_id, start, configuration, plan, kind, epsilon, delta, due) "
            "SELECT 'q', stream_id, start, configuration, plan, kind, epsilon, delta, due FROM publications"
        ),
        "INSERT INTO segments (stream_id, start, stop, file, sha256) SELECT id, 0, 1, 'f', '' FROM streams",
        (
            "UPDATE publications SET position = 1, due = 2, version = 1, latest = 1, chain = '{1}', digest = 'd', "
            "worst_record = 0, worst_amount = 1"
        ),
        "UPDATE publications SET state = 'stopped'",
        "UPDATE streams SET units_erased = units_erased - 1",
    ],
    ids=["a stream", "a publication", "a segment", "a release", "a stop", "an erasure of a unit"],
)
def test_what_an_older_version_would_write_is_refused_whole(publishing, statement):
    """As it wrote it: without what the newer one asks for, so that it can leave nothing half done."""
    with pytest.raises(IntegrityError), publishing.database.transaction() as connection:
        connection.execute(text(statement))


def test_the_services_role_is_made_with_its_password_if_the_owner_may(world: World):
    url = make_url(world.settings.migration_url)
    superuser = url.set(username="postgres").render_as_string(False)
    service = url.set(username=f"service_of_{url.database}", password="p@ss:word").render_as_string(False)
    with pytest.raises(CannotMigrate, match=f"service_of_{url.database}"):
        migrate(world.settings.migration_url, service=service)
    migrate(superuser, service=service)
    migrate(superuser, service=service)
    with psycopg.connect(make_url(service).set(drivername="postgresql").render_as_string(False)) as connection:
        assert connection.execute("SELECT has_table_privilege('charges', 'INSERT')").fetchone() == (True,)
    with psycopg.connect(make_url(superuser).set(drivername="postgresql").render_as_string(False)) as connection:
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
        assert connection.execute(query, [make_url(service).username]).fetchone()[0].startswith("SCRAM-SHA-256$")
