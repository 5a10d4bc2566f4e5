"""The migrations make the tables that the code describes, and can be run again and back."""

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect

from service.store.migrate import configuration, is_current, migrate
from service.store.tables import metadata
from tests.conftest import World


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
