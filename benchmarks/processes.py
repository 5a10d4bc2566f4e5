"""The processes that a benchmark started: which they are, and how long each has kept a processor busy."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def processes(commands: Mapping[str, str]) -> dict[int, str]:
    """Return the name of each process that this one started, by its id. commands: by name, a part of its command."""
    parents, lines = {}, {}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name)
            parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            lines[pid] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    names = {pid: next((name for name, part in commands.items() if part in line), None) for pid, line in lines.items()}
    return {pid: name for pid, name in names.items() if name is not None and _descends(pid, parents)}


def busy_seconds(pid: int) -> float:
    """Return the processor time of all threads that a process has, to the nanosecond; 0: it is gone."""
    seconds = 0.0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                seconds += int((thread / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
