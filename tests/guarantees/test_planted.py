"""Every planted bug is caught by the test that is named for it: with `pytest --planted` only, since it takes an hour.

Without that, every bug can still be planted: the program has what the bug replaces.
"""

import subprocess
import sys

import pytest

from tests.guarantees.planted import BUGS


def outcome(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


def test_every_bug_can_be_planted():
    command = [sys.executable, "-m", "tests.guarantees.planted"]
    planted = subprocess.run(command, capture_output=True, text=True, check=False)
    assert planted.returncode == 0, planted.stdout


@pytest.mark.planted
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name):
    ended = outcome("--plant", name, BUGS[name].caught_by)
    assert ended.returncode == 1, ended.stdout[-2000:]
    assert "1 failed" in ended.stdout, ended.stdout[-2000:]


@pytest.mark.planted
@pytest.mark.timeout(3600)
def test_and_without_a_bug_the_same_tests_pass():
    ended = outcome(*sorted({bug.caught_by for bug in BUGS.values()}))
    assert ended.returncode == 0, ended.stdout[-2000:]
