"""The test that is named for a planted bug catches it: with `pytest --planted` only, since it takes an hour."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guarantees.planted import BUGS


def outcome(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


def test_every_bug_is_caught_by_a_test_that_make_test_runs():
    tests = {bug.caught_by for bug in BUGS.values() if "[" not in bug.caught_by}  # single cases are kept: conftest.py
    put_off = set()
    for file in {test.partition("::")[0] for test in tests}:
        for node in ast.walk(ast.parse(Path(file).read_text())):
            marks = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
            if not {"pytest.mark.more", "pytest.mark.long"}.isdisjoint(marks):
                put_off.add((file, node.name))
    assert [test for test in tests if (test.partition("::")[0], test.rpartition("::")[2]) in put_off] == []


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
