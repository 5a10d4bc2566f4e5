"""Where the folders of tests are: in memory where there is room, since most of what they do on a disk is to wait."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 * 2**30
_PREFIX = "tests-"


def choose_folder(config: pytest.Config) -> None:
    """Have pytest make its folders in memory, unless `--basetemp` says where. Its name is short: sockets lie in it."""
    if config.option.basetemp or not MEMORY.is_dir():
        return
    _delete_those_of_ended_runs()
    if shutil.disk_usage(MEMORY).free >= ROOM_BYTES and _available_bytes() >= 2 * ROOM_BYTES:
        config.option.basetemp = str(MEMORY / f"{_PREFIX}{os.getpid()}")


def delete_folder(config: pytest.Config) -> None:
    """Give memory back after a run without failures; after one with some, the next run does."""
    if Path(config.option.basetemp or "") == MEMORY / f"{_PREFIX}{os.getpid()}":
        shutil.rmtree(config.option.basetemp, ignore_errors=True)


def _delete_those_of_ended_runs() -> None:
    for folder in MEMORY.glob(f"{_PREFIX}*"):
        with suppress(ValueError, PermissionError):
            try:
                os.kill(int(folder.name.removeprefix(_PREFIX)), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)


def _available_bytes() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
