"""Which versions of the service may run on a database's schema.

A migration that says `widens = True` leaves everything as the version before it needs it: both versions may run at the
same time. After any other migration only newer ones may. The older version can't know later migrations, so these write
into `served_schemas` for which schemas a version may have been written.

Every API and every worker asks when it starts: without Alembic, which takes as long to load as the driver.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Select,
    Text,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    text,
)

from service.store.database import DatabaseUnavailable
from service.store.tables import served_schemas

_FIELDS = re.compile(r'^(revision|down_revision|widens) = "?(\w+)"?$', re.MULTILINE)
_OID = text("SELECT to_regclass(:table)")
_LEASES_STAND_STILL = text("LOCK TABLE leases IN EXCLUSIVE MODE")
_LEASES_ARE_LOST = text(
    "UPDATE leases SET epoch = epoch + 1, expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()"
)


class SchemaNarrowed(DatabaseUnavailable):
    """A migration made the schema one on which this version of the service can't run."""

    def __init__(self) -> None:
        super().__init__("the database has the schema of a newer version, beside which this one can't run: upgrade it")


def is_current(connection: Connection) -> bool:
    """Return whether the database's schema is the one that this version was written for."""
    return revisions(connection) == newest()


def serves(connection: Connection) -> bool:
    """Return whether this version may run: on its own schema, or on one that was only widened since."""
    if not _exists(connection, served_schemas.name):
        return False
    return connection.execute(_serving(newest())).scalar_one()


@cache
def _serving(revisions: frozenset[str]) -> Select[bool]:
    return select(_is_any_of(revisions))


def is_served() -> ColumnElement[bool]:
    """Return the same as a condition, for a query."""
    return _is_any_of(newest())


def _is_any_of(revisions: frozenset[str]) -> ColumnElement[bool]:
    served = served_schemas.c.revision == func.any(literal(sorted(revisions), ARRAY(Text)))
    return exists(select(served_schemas.c.revision).where(served))


def stop_leases(connection: Connection) -> None:
    """Lock all leases until the migration's transaction ends, so that nobody takes one or commits with one before."""
    if _exists(connection, "leases"):
        connection.execute(_LEASES_STAND_STILL)


def note_served(connection: Connection, before: set[str]) -> None:
    """Note who may run now, last thing in a migration; who may not has lost all leases.

    Args:
        before: the revisions that the database had before the migration.
    """
    served = {each for revision in revisions(connection) for each in _served_by(revision)}
    if _exists(connection, served_schemas.name):
        connection.execute(delete(served_schemas))
        connection.execute(insert(served_schemas), [{"revision": each} for each in sorted(served)])
    if not before <= served and _exists(connection, "leases"):
        connection.execute(_LEASES_ARE_LOST)


def newest() -> frozenset[str]:
    """Return the last revision of the chain of migrations: several revisions if the chain forks."""
    return _newest(folder())


@cache
def _newest(of: Path) -> frozenset[str]:
    migrations = _migrations(of)
    return frozenset(migrations) - {each["down_revision"] for each in migrations.values()}


def folder() -> Path:
    """Return where the migrations lie: in the package that was installed, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed, checkout = package / "migrations", package.parent / "migrations"
    return installed if installed.is_dir() else checkout


def _migrations(of: Path) -> dict[str, dict[str, str]]:
    """Return what each migration of a folder says of itself, by its revision."""
    fields = [dict(_FIELDS.findall(path.read_text())) for path in (of / "versions").glob("*.py")]
    return {each["revision"]: each for each in fields}


def _served_by(revision: str) -> Iterator[str]:
    """Yield a revision, and those before it as long as migrations only widened them."""
    migrations = _migrations(folder())
    yield revision
    while migrations[revision].get("widens") == "True":
        revision = migrations[revision]["down_revision"]
        yield revision


def revisions(connection: Connection) -> set[str]:
    """Return the last migration that was run: none before the first, several if their chain forked."""
    if not _exists(connection, "alembic_version"):
        return set()
    return set(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())


def _exists(connection: Connection, table: str) -> bool:
    return connection.execute(_OID, {"table": table}).scalar_one() is not None
