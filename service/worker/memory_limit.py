"""How much memory a process of this machine may have, at most."""

import os
import resource
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
"""Version 2 of control groups has one line there: `0::` and where this process's group is, as systemd made it."""


def memory_limit() -> int:
    """Return the bytes: the least of the machine's memory, the limits of its control groups, and `ulimit -v, -d`."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft = (resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([machine, *_of_groups(), *(each for each in soft if each != resource.RLIM_INFINITY)])


def _of_groups() -> list[int]:
    """Return the limits of this process's group and of all above it; a container sees its own at the top."""
    names = [line.removeprefix("0::") for line in _text(OWN_CGROUP).splitlines() if line.startswith("0::")]
    group = CGROUPS / (names[0].strip("/") if names else "")
    above = [each for each in (group, *group.parents) if each.is_relative_to(CGROUPS)]
    files = [*(each / "memory.max" for each in above), CGROUPS / "memory/memory.limit_in_bytes"]
    return [int(text) for text in map(_text, files) if text.isdigit()]


def _text(path: Path) -> str:
    """Return what a file holds; nothing where there is none."""
    return path.read_text().strip() if path.is_file() else ""
