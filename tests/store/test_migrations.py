"""The migrations make the tables that the code describes, and can be run again and back."""

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, select
from sqlalchemy.engine import make_url

from service.store.migrate import RoleMissing, configuration, is_current, migrate
from service.store.tables import metadata
from service.store.verify import verify
from tests.conftest import World
from tests.store.conftest import publish_some


def test_migrations_and_tables_are_the_same(world: World):
    engine = create_engine(world.settings.migration_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_second_run_changes_nothing_and_the_way_back_is_clean(world: World):
    migrate(world.settings.migration_url)
    assert is_current(world.settings.migration_url)
    engine = create_engine(world.settings.migration_url)
    with engine.begin() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()
    assert not is_current(world.settings.migration_url)
    migrate(world.settings.migration_url)
    assert is_current(world.settings.migration_url)


SUMMARIES = ("streams", "publications", "charges", "releases", "outlines", "kept")


def test_down_and_up_again_on_real_data_makes_the_same_sums_and_digests(world: World):
    publish_some(world.settings)
    engine = create_engine(world.settings.migration_url)

    def everything() -> dict[str, list]:
        with engine.connect() as connection:
            tables = {name: metadata.tables[name] for name in SUMMARIES}
            return {
                name: sorted(map(repr, connection.execute(select(table)).mappings())) for name, table in tables.items()
            }

    before = everything()
    assert all(before.values())
    with engine.begin() as connection:
        config = configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    migrate(world.settings.migration_url, service=world.settings.database_url)
    assert everything() == before
    with engine.begin() as connection:
        assert verify(connection).findings == []
    engine.dispose()


def test_the_services_role_is_made_with_its_password_if_the_owner_may(world: World):
    url = make_url(world.settings.migration_url)
    superuser = url.set(username="postgres").render_as_string(False)
    service = url.set(username=f"service_of_{url.database}", password="p@ss:word").render_as_string(False)
    with pytest.raises(RoleMissing, match=f"service_of_{url.database}"):
        migrate(world.settings.migration_url, service=service)
    migrate(superuser, service=service)
    migrate(superuser, service=service)
    with psycopg.connect(make_url(service).set(drivername="postgresql").render_as_string(False)) as connection:
        assert connection.execute("SELECT has_table_privilege('charges', 'INSERT')").fetchone() == (True,)
    with psycopg.connect(make_url(superuser).set(drivername="postgresql").render_as_string(False)) as connection:
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = %s"
        assert connection.execute(query, [make_url(service).username]).fetchone()[0].startswith("SCRAM-SHA-256$")
