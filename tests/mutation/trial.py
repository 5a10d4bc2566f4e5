"""Tests in a child of this process, with a changed file or without one.

The child has the libraries already and loads the service anew, so nothing that the service computed before it was
changed is left: no cache, no constant.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import resource
import signal
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 6 * 2**30  # bytes that a child may have: a mutant may ask for any number
# Nothing of what needs servers is loaded, and of pytest's plugins only what these tests use. Processor time is what is
# limited: a test may stand still on a busy machine, and whoever takes that for a failure calls a mutant noticed.
PLUGINS = ["-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider", "-o", "timeout=3600"]
PYTEST = ["-q", "-x", "--noconftest", "--assert=plain", "-m", "not long and not planted", *PLUGINS]


class Outcome(StrEnum):
    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


class Only:
    """A plugin of pytest that leaves only some tests, in this order."""

    def __init__(self, tests: Collection[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._places])
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])


def preload() -> None:
    """Load what every child needs."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in (
        "numpy",
        "pydantic",
        "scipy.integrate",
        "scipy.optimize",
        "scipy.signal",
        "scipy.special",
        "scipy.stats",
    ):
        importlib.import_module(name)
    # The same examples for all mutants: what only luck finds is not found. Shrinking them would take minutes.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", phases=phases, database=None, deadline=None, derandomize=True)


def run_file(file: str, *plugins: object) -> int:
    """Run a file of tests in this process, up to the first one that fails. Returns pytest's exit code."""
    options = ["--hypothesis-profile", "mutation", "-c", str(ROOT / "pyproject.toml")]
    return int(pytest.main([*PYTEST, *options, file], plugins=plugins))


def attempt(path: str, source: str, tests: Mapping[str, Sequence[str]], seconds: float) -> Outcome:
    """Return what these tests make of the service with this source of a file.

    tests: by file, in the order in which to run them.
    seconds: of processor time, so that a machine that is busy with other things makes no difference.
    """

    def run() -> int:
        limit = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        _replace(path, source)
        return next(filter(None, (run_file(file, Only(chosen)) for file, chosen in tests.items())), pytest.ExitCode.OK)

    code = in_child(run)
    if code == pytest.ExitCode.OK:
        return Outcome.SURVIVED
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"a test that was there is gone: {tests}")
    return Outcome.TIMED_OUT if code in {-signal.SIGXCPU, -signal.SIGKILL} else Outcome.KILLED


def in_child(run: Callable[[], int], output: str = os.devnull) -> int:
    """Return the exit code of a child that runs this, or minus the signal that ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        sys.dont_write_bytecode = True
        code = run()
    except BaseException:  # noqa: BLE001 - whatever it is, this child must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _replace(path: str, source: str) -> None:
    """From now on this file's module is loaded from this source."""
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, fullname: str):
            return compile(source, path, "exec", dont_inherit=True)

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, *_: object):
            if fullname != module:
                return None
            return importlib.util.spec_from_file_location(module, ROOT / path, loader=Loader(module, str(ROOT / path)))

    sys.meta_path.insert(0, Finder())
