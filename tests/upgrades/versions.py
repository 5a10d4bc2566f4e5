"""Other versions of the service: one from the repository's history, and one that has a migration more than this one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from service.store import schema_version
from tests.faults.up import ROOT

LANDED = "6727e544"
"""The newest version that others may run, other than this one."""

_NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{newest}"
widens = {widens}


def upgrade() -> None:
    op.add_column("streams", sa.Column("of_the_next_version", sa.Text()))


def downgrade() -> None:
    op.drop_column("streams", "of_the_next_version")
"""


def landed_version(folder: Path) -> Path:
    """Return the folder, with the code of LANDED in it."""
    command = ["git", "archive", LANDED, "service", "migrations"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this checkout's history does not reach back to {LANDED}")
    folder.mkdir()
    subprocess.run(["tar", "--extract", "--directory", folder], input=done.stdout, check=True)
    return folder


def next_version(folder: Path, *, widens: bool) -> Path:
    """Return the folder, with this version's code in it and a migration more."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("service", "migrations"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    add_migration(folder / "migrations", widens=widens)
    return folder


def add_migration(migrations: Path, *, widens: bool) -> None:
    """Write a migration that follows on this version's newest one."""
    (newest,) = schema_version.newest()
    (migrations / "versions" / "next.py").write_text(_NEXT.format(newest=newest, widens=widens))
