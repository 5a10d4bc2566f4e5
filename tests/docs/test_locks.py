"""The versions that run the service are those that were tested."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pinned(lock: str) -> set[str]:
    """The packages of a lock: name==version, and on which systems."""
    return set(re.findall(r"^([a-z0-9][^ ]*==\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_the_versions_that_run_are_those_that_are_tested():
    run, tested = pinned("requirements.lock"), pinned("requirements-dev.lock")
    assert len(run) > 20
    assert run <= tested, "run `make lock`"
