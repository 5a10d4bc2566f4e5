"""Every planted bug is caught by the test that is named for it: with `pytest --planted` only, since it takes an hour.

Without that, every bug can still be planted: the program has what the bug replaces.
"""

import subprocess
import sys

import pytest

from tests.guarantees.planted import BUGS


def outcome(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_every_bug_can_be_planted():
    command = [sys.executable, "-m", "tests.guarantees.planted"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.planted
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name):
    found = outcome("--plant", name, BUGS[name].caught_by)
    assert found.returncode == 1, found.stdout[-2000:]
    assert "1 failed" in found.stdout, found.stdout[-2000:]


@pytest.mark.planted
@pytest.mark.timeout(600)
def test_and_without_a_bug_the_same_tests_pass():
    found = outcome(*sorted({bug.caught_by for bug in BUGS.values()}))
    assert found.returncode == 0, found.stdout[-2000:]
