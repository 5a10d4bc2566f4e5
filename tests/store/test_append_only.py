"""Charges and releases stay as they were written: by the rights of the service's role, and by triggers."""

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from service.store.migrate import migrate
from service.store.tables import APPEND_ONLY, READ_ONLY, metadata
from tests.conftest import World

TABLES = [table.name for table in APPEND_ONLY]
CHANGES = ("UPDATE {} SET version = version", "DELETE FROM {}", "TRUNCATE {} CASCADE")


def connect(url: str, role: str | None = None) -> psycopg.Connection:
    plain = make_url(url).set(drivername="postgresql")
    if role is not None:
        plain = plain.set(username=role)
    return psycopg.connect(plain.render_as_string(False), autocommit=True)


@pytest.mark.parametrize("table", TABLES)
def test_the_services_role_may_select_and_insert_and_nothing_else(world: World, table):
    privileges = "SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN"
    with connect(world.settings.database_url) as connection:
        held = [
            each
            for each in privileges
            if connection.execute("SELECT has_table_privilege(%s, %s)", [table, each]).fetchone()[0]
        ]
        assert held == ["SELECT", "INSERT"]
        connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
        statements = (*CHANGES, "DROP TABLE {}", "ALTER TABLE {} DISABLE TRIGGER ALL", "SELECT * FROM {} FOR UPDATE")
        for statement in statements:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql.SQL(statement).format(sql.Identifier(table)))
        for statement in ("SET session_replication_role = replica", "CREATE TABLE more ()", "SET ROLE perennial"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_it_owns_nothing_and_has_what_it_needs_of_every_other_table(world: World):
    with connect(world.settings.database_url) as connection:
        for name in metadata.tables.keys() - set(TABLES):
            read_only = metadata.tables[name] in READ_ONLY
            for right in ("SELECT",) if read_only else ("SELECT", "INSERT", "UPDATE", "DELETE"):
                assert connection.execute("SELECT has_table_privilege(%s, %s)", [name, right]).fetchone()[0], name
            assert not connection.execute("SELECT has_table_privilege(%s, 'TRUNCATE')", [name]).fetchone()[0]
        query = "SELECT count(*) FROM pg_class WHERE relowner = (SELECT oid FROM pg_roles WHERE rolname = current_user)"
        assert connection.execute(query).fetchone() == (0,)


def test_a_role_that_owned_the_tables_does_not_once_another_migrates(world: World):
    url = make_url(world.settings.migration_url)
    with connect(world.settings.migration_url) as connection:
        connection.execute("GRANT UPDATE ON charges TO PUBLIC")
        connection.execute("GRANT UPDATE (version) ON charges TO PUBLIC")
    migrate(url.set(username="postgres").render_as_string(False), service=world.settings.migration_url)
    statements = "ALTER TABLE {} DISABLE TRIGGER ALL", *CHANGES
    with connect(world.settings.migration_url) as connection:
        for table in TABLES:
            connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            connection.execute(
                sql.SQL("GRANT ALL ON {} TO CURRENT_USER").format(sql.Identifier(table))
            )  # only a warning
            for statement in statements:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(sql.SQL(statement).format(sql.Identifier(table)))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("role", [None, "postgres"], ids=["owner", "superuser"])
def test_triggers_refuse_even_the_owner_and_a_superuser_who_skips_triggers(world: World, table, role):
    with connect(world.settings.migration_url, role) as connection:
        if role is not None:
            connection.execute("SET session_replication_role = replica")
        for statement in CHANGES:
            with pytest.raises(psycopg.errors.RestrictViolation, match="append-only"):
                connection.execute(sql.SQL(statement).format(sql.Identifier(table)))
