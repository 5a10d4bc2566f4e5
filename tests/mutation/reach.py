"""Which tests run which lines, measured once for each file of tests and kept until the code changes."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import coverage
import pytest

from tests.mutation.trial import ROOT, in_child, run_file

if TYPE_CHECKING:
    from tests.mutation.mutants import Mutant

ROOMS = ("privacy", "inputs", "streams", "learning", "schedules", "mechanisms", "figures")
CACHE = ROOT / ".mutation_cache"
SHARED = ("service", *(f"tests/{folder}" for folder in (*ROOMS, "api", "docs")))  # whatever a test of the rooms may use
WHOLE = "docs"  # tests about all rooms: of texts, tables and names
LOADING = ""  # the lines that run while a file of tests is loaded, the service's modules with it


@dataclass(frozen=True)
class Reach:
    """The `lines` that each test of a file runs, in each file, and the `seconds` of processor time that it takes."""

    file: str
    lines: dict[str, dict[str, list[int]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that may notice a mutant, the quickest first.

        A line that runs only while modules are loaded, as constants do, may be noticed by any test that runs some of
        the same file, by any of the same room, and by any about all rooms.
        """

        def runs(test: str) -> bool:
            return not set(mutant.lines).isdisjoint(self.lines.get(test, {}).get(mutant.path, ()))

        loaded = runs(LOADING)
        near = self.file.split("/")[1] in {mutant.path.split("/")[1], WHOLE}
        chosen = [
            test
            for test in self.seconds
            if runs(test) or (loaded and (near or mutant.path in self.lines.get(test, {})))
        ]
        return sorted(chosen, key=lambda test: (not runs(test), self.seconds[test]))


def tests_of(mutant: Mutant, reached: list[Reach]) -> dict[str, list[str]]:
    """Return all tests that may notice a mutant: first those of its own file, then of its room, then all others."""
    room, module = mutant.path.split("/")[1], Path(mutant.path).stem

    def distance(reach: Reach) -> tuple[bool, bool]:
        return Path(reach.file).stem != f"test_{module}", not reach.file.startswith(f"tests/{room}/")

    chosen = {reach.file: reach.tests_of(mutant) for reach in sorted(reached, key=distance)}
    return {file: tests for file, tests in chosen.items() if tests}


def measure() -> list[Reach]:
    """Return what each file of tests runs. RuntimeError if a test fails: a mutant would seem to be noticed by it."""
    CACHE.mkdir(exist_ok=True)
    sources = [path for folder in SHARED for path in sorted((ROOT / folder).rglob("*.py"))]
    shared = _digest(path for path in sources if not path.name.startswith("test_"))
    files = [path for room in (*ROOMS, WHOLE) for path in sorted((ROOT / "tests" / room).rglob("test_*.py"))]
    return [_measured(str(path.relative_to(ROOT)), shared) for path in files]


def _digest(paths) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def _measured(file: str, shared: str) -> Reach:
    key = hashlib.sha256((shared + _digest([ROOT / file])).encode()).hexdigest()[:16]
    cached = CACHE / f"{file.replace('/', '.')}.{key}.json"
    if not cached.exists():
        for older in CACHE.glob(f"{file.replace('/', '.')}.*"):
            older.unlink()
        output = CACHE / "output.txt"
        if in_child(lambda: _watch(file, cached), str(output)):
            raise RuntimeError(f"{file} fails without any mutant:\n{output.read_text()[-4000:]}")
    return Reach(file, **json.loads(cached.read_text()))


def _watch(file: str, cached) -> int:
    os.environ["COVERAGE_CORE"] = "ctrace"  # the others cannot tell tests apart
    include = [str(ROOT / "service" / room / "*") for room in ROOMS]
    watcher = coverage.Coverage(data_file=None, config_file=False, include=include)
    watcher.start()
    tests = _Tests(watcher)
    code = run_file(file, tests)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:  # all of them need servers
        code = pytest.ExitCode.OK
    watcher.stop()
    if not code:
        cached.write_text(json.dumps({"lines": _lines(watcher.get_data()), "seconds": tests.seconds}))
    return code


def _lines(data: coverage.CoverageData) -> dict[str, dict[str, list[int]]]:
    lines: dict[str, dict[str, list[int]]] = {}
    for path in data.measured_files():
        for line, tests in data.contexts_by_lineno(path).items():
            for test in tests:
                lines.setdefault(test, {}).setdefault(os.path.relpath(path, ROOT), []).append(line)
    return lines


class _Tests:
    """A plugin of pytest that says when which test runs. Each begins without what tests before it left in caches."""

    def __init__(self, watcher: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = {}
        self._watcher = watcher

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests that need servers, whose fixtures are not loaded."""
        away = [item for item in items if not _has_its_fixtures(item)]
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in away]
        self._caches: list[functools._lru_cache_wrapper] = []

    def pytest_collection_finish(self) -> None:
        self._caches = [
            each
            for each in gc.get_objects()
            if isinstance(each, functools._lru_cache_wrapper) and str(each.__module__).startswith("service.")
        ]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        for cache in self._caches:
            cache.cache_clear()
        self._watcher.switch_context(item.nodeid)
        began = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - began
            self._watcher.switch_context(LOADING)


def _has_its_fixtures(item: pytest.Item) -> bool:
    known = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    return set(item.fixturenames) <= {"request", *known}  # type: ignore[attr-defined]
