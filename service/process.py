"""Memory settings of every process of the service."""

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import cast

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h


@contextmanager
def loading() -> Iterator[None]:
    """Load modules with the garbage collector off, a fifth faster, and exclude them from later collections.

    structlog loads `rich` where it is installed, to draw tracebacks, which are never logged: 8 MiB in every process.
    """
    gc.disable()
    if hidden := "rich" not in sys.modules:
        sys.modules["rich"] = cast("ModuleType", None)  # makes its import fail
    try:
        yield
    finally:
        if hidden:
            del sys.modules["rich"]
        gc.freeze()
        gc.enable()


def keep_memory() -> None:
    """Keep freed memory in the process for the next batch: the system would have to zero new pages.

    glibc comes to the same limits by itself, but only once it has freed a block of 32 MiB.
    """
    with suppress(AttributeError):  # only glibc has mallopt
        set_limit = ctypes.CDLL(None).mallopt
        set_limit(_MMAP_THRESHOLD, 2**25)
        set_limit(_TRIM_THRESHOLD, 2**26)


def leave_no_crash_dumps() -> None:
    """Turn off core dumps of this process and its children, since their memory holds records.

    Linux takes a limit of one byte, other than of none, for the wish that programs that collect them get none either.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    least = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (least, least))
