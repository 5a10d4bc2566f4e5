"""Which schema this version of the service was written for, and whether a database has it.

Every API and every worker asks that when it starts: without Alembic, which takes as long to load as the driver.
"""

import re
from pathlib import Path

from sqlalchemy import Connection, text

_REVISIONS = re.compile(r'^(revision|down_revision) = "(\w+)"$', re.MULTILINE)


def is_current(connection: Connection) -> bool:
    """Return whether the database's schema is the one that this version was written for."""
    if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar_one() is None:
        return False
    return set(connection.execute(text("SELECT version_num FROM alembic_version")).scalars()) == newest()


def newest() -> set[str]:
    """Return the last revision of the chain of migrations: several revisions if the chain forks."""
    migrations = [dict(_REVISIONS.findall(path.read_text())) for path in (folder() / "versions").glob("*.py")]
    return {each["revision"] for each in migrations} - {each.get("down_revision", "") for each in migrations}


def folder() -> Path:
    """Return where the migrations lie: in the package that was installed, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed, checkout = package / "migrations", package.parent / "migrations"
    return installed if installed.is_dir() else checkout
