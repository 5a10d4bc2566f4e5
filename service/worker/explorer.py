"""Runs what the explorer is asked to compare, one comparison after the other, in a process of its own.

The process is behind all else that the machine has to do, knows no server and gets nothing but the data set: it can't
reach a stream. The result of a cell is stored at once, so after a crash another worker begins with the next
one. When this worker ends, the process's input ends, and with it the process.
"""

import json
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from service.explorer import datasets
from service.store import explorations, leases
from service.store.database import Database, DatabaseUnavailable
from service.store.explorations import Exploration
from service.store.leases import Lease
from service.worker.leases import LeaseKeeper

_log = structlog.get_logger(__name__)

SECONDS_BETWEEN_LOOKS = 2.0
SECONDS_OF_SILENCE = 1.0  # of a comparison, before it is looked whether somebody still wants it
NICENESS = 19
MAX_SECONDS = 3600.0  # for one comparison
GONE = "its data set was deleted"
LONG = "it took longer than an hour; ask for fewer epsilons, runs or records"
BROKEN = "its process ended before it was done; it may need more memory than there is"


class Explorer:
    """One of a worker's threads."""

    def __init__(self, database: Database, keeper: LeaseKeeper) -> None:
        self._database, self._keeper = database, keeper

    def run(self, stop: threading.Event) -> None:
        """Until told to stop; what is away is waited for."""
        while not stop.is_set():
            try:
                if not self.step(stop):
                    stop.wait(SECONDS_BETWEEN_LOOKS)
            except DatabaseUnavailable as error:
                _log.warning("part_unavailable", part="explorer", reason=str(error))
                stop.wait(SECONDS_BETWEEN_LOOKS)

    def step(self, stop: threading.Event) -> bool:
        """Runs the oldest comparison that nobody runs; whether there was one."""
        with self._database.transaction() as connection:
            waiting = explorations.under_way(connection)
        for identity in waiting:
            with self._keeper.taking(leases.exploration(identity)) as lease:
                if lease is None:
                    continue
                with self._database.transaction() as connection:
                    exploration = explorations.begin(connection, identity)
                    known = {} if exploration is None else explorations.findings_by_cell(connection, identity)
                if exploration is None:
                    continue
                outcome = self._explore(lease, exploration, sorted(known), stop)
                if outcome is not None:
                    with self._database.transaction() as connection:
                        explorations.end(connection, identity, *outcome)
                return True
        return False

    def _explore(
        self, lease: Lease, exploration: Exploration, done: list[int], stop: threading.Event
    ) -> tuple[str, str | None] | None:
        """How it ended, and why; None: it was cancelled, or is to be gone on with later, or elsewhere."""
        content = self._content(exploration.comparison["dataset"])
        if content is None:
            return "failed", GONE
        task = {"comparison": exploration.comparison, "done": done, "size": len(content)}
        began = time.monotonic()
        with _process(json.dumps(task).encode() + b"\n" + content) as lines:
            for line in lines:
                if stop.is_set() or not self._keeper.holds(lease):
                    return None
                if time.monotonic() > began + MAX_SECONDS:
                    return "failed", LONG
                with self._database.transaction() as connection:
                    report: dict[str, Any] = json.loads(line or b"{}")
                    if "found" in report:
                        explorations.keep(connection, exploration.id, report["cell"], report["found"])
                    if not explorations.report(
                        connection, exploration.id, report.get("progress", exploration.progress)
                    ):
                        return None
        if not self._keeper.holds(lease):
            return None
        with self._database.transaction() as connection:
            whole = len(explorations.findings_by_cell(connection, exploration.id)) == exploration.cells
        return ("done", None) if whole else ("failed", BROKEN)

    def _content(self, dataset: int | str) -> bytes | None:
        if isinstance(dataset, str):
            return datasets.sample(dataset).packed()
        with self._database.transaction() as connection:
            return explorations.content(connection, dataset)


@contextmanager
def _process(given: bytes) -> Iterator[Iterator[bytes]]:
    """Return what a process that gets this tells, line by line; an empty one each second in which it tells nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "service.explorer", str(NICENESS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what it could say there may repeat the data
        env={"OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stdin is not None  # noqa: S101 - asked for
    assert process.stdout is not None  # noqa: S101
    try:
        threading.Thread(target=_give, args=(process, given), daemon=True).start()
        yield _lines(process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def _give(process: subprocess.Popen[bytes], given: bytes) -> None:
    """From a thread of its own: a process that does not read must not keep us. Its input stays open: see its module."""
    assert process.stdin is not None  # noqa: S101
    try:
        process.stdin.write(given)
        process.stdin.flush()
    except (OSError, ValueError):
        return  # it has ended


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert process.stdout is not None  # noqa: S101
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        rest = b""
        while True:
            if not selector.select(SECONDS_OF_SILENCE):
                yield b""
                continue
            piece = process.stdout.read1(2**16)  # type: ignore[attr-defined]
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
