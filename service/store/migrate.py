"""Brings the database's schema up to date with Alembic. Two that start at once take turns."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from service.store.database import driver_url

_LOCK = 0x706572656E6E69  # "perenni"


def migrate(url: str, revision: str = "head") -> None:
    """Runs what migrations are missing, in one transaction."""
    engine = create_engine(driver_url(url))
    try:
        with engine.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            config = configuration()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
    finally:
        engine.dispose()


def is_current(url: str) -> bool:
    """Whether the schema is the one this version was written for."""
    engine = create_engine(driver_url(url))
    try:
        with engine.connect() as connection:
            found = MigrationContext.configure(connection).get_current_heads()
    finally:
        engine.dispose()
    return set(found) == set(ScriptDirectory.from_config(configuration()).get_heads())


def configuration() -> Config:
    """Alembic's, without a file: where the migrations lie is all there is to say."""
    package = Path(__file__).resolve().parent.parent
    installed, checkout = package / "migrations", package.parent / "migrations"
    config = Config()
    config.set_main_option("script_location", str(installed if installed.is_dir() else checkout).replace("%", "%%"))
    return config
