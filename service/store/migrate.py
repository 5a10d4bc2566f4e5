"""Brings the database's schema up to date with Alembic. Two that start at once take turns.

Alembic is loaded where something is missing: at most starts nothing is, and to load it takes longer than all the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import Connection, MetaData, Table, text
from sqlalchemy.engine import make_url

from service.store.database import Database, driver_url
from service.store.schema_version import folder, is_current
from service.store.tables import APPEND_ONLY, READ_ONLY, metadata

if TYPE_CHECKING:
    from alembic.config import Config

SECONDS = 24 * 3600.0  # for one statement: of a large table it may take hours
_LOCK = 0x706572656E6E69  # "perenni"
_VERSION = Table("alembic_version", MetaData())
_OWNED = text("SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = :name AND tableowner = :role")


class CannotMigrate(Exception):
    """The database stays as it was: something must be done before."""


def migrate(
    url: str, revision: str = "head", *, service: str | None = None, variable: str = "PERENNIAL_MIGRATION_URL"
) -> None:
    """Runs what migrations are missing, and gives the service's role the rights it needs, in one transaction.

    Args:
        url: as the role that owns the tables.
        service: as the role by which the API and workers connect; it is made if it is not there. It may read releases
            and charges and add to them, and change nothing. None, or the same role: it owns the tables, and
            only triggers keep it from that.
        variable: the setting that holds `url`, for errors.

    Raises:
        DatabaseUnavailable: there is no connection; DatabaseUnsuitable: nor would there be one later.
        CannotMigrate: the role could not be made, or a migration says what to do first.
    """
    database = Database(url, connections=1, seconds=SECONDS, limits={}, variable=variable)
    try:
        with database.transaction() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            if revision != "head" or not is_current(connection):
                _upgrade(connection, revision)
            wanted = make_url(driver_url(service or url))
            owner = connection.execute(text("SELECT current_user")).scalar_one()
            if wanted.username not in (None, owner):
                _grant(connection, str(wanted.username), wanted.password)
    finally:
        database.close()


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command

    config = configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _grant(connection: Connection, role: str, password: str | None) -> None:
    """Every right that is not needed is taken away, whoever gave it. Without a password it gets that of our own."""
    quoted = connection.dialect.identifier_preparer.quote(role)
    if not connection.execute(text("SELECT FROM pg_roles WHERE rolname = :role"), {"role": role}).rowcount:
        if not connection.execute(
            text("SELECT rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user")
        ).scalar_one():
            raise CannotMigrate(f"there is no role {role}, and this one may not make it: CREATE ROLE {quoted} LOGIN")
        session: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
        connection.execute(text(f"CREATE ROLE {quoted} LOGIN"))
        if known := password or session.info.password:
            # Only its hash goes to the server, whose log may hold statements.
            scrambled = session.pgconn.encrypt_password(known.encode(), role.encode(), b"scram-sha-256").decode()
            connection.exec_driver_sql(f"ALTER ROLE {quoted} PASSWORD '{scrambled}'")
    connection.execute(text(f"GRANT USAGE ON SCHEMA public TO {quoted}"))
    for table in (*metadata.tables.values(), _VERSION):
        if connection.execute(_OWNED, {"name": table.name, "role": role}).rowcount:
            # From before the two were told apart; whoever owns a table can give itself any right back.
            connection.execute(text(f"ALTER TABLE {table.name} OWNER TO CURRENT_USER"))
        rights = "SELECT" if table in (*READ_ONLY, _VERSION) else "SELECT, INSERT"
        if table not in (*APPEND_ONLY, *READ_ONLY, _VERSION):
            rights += ", UPDATE, DELETE"
        connection.execute(text(f"REVOKE ALL ON {table.name} FROM PUBLIC, {quoted}"))
        connection.execute(text(f"GRANT {rights} ON {table.name} TO {quoted}"))


def configuration() -> Config:
    """Alembic's, without a file: where the migrations lie is all there is to say."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    return config
