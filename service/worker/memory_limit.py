"""How much memory a process of this machine may have, at most."""

import os
import resource
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""A container's limit: version 2 and version 1 of control groups."""


def memory_limit() -> int:
    """Return the bytes: the least of the machine's memory, its container's limit, and the limits of `ulimit -v, -d`."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft = (resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return min([machine, *_of_container(), *(each for each in soft if each != resource.RLIM_INFINITY)])


def _of_container() -> list[int]:
    texts = [path.read_text().strip() for path in CGROUP_LIMITS if path.is_file()]
    return [int(each) for each in texts if each.isdigit()]
