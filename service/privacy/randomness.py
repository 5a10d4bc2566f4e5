"""Random bytes of the operating system, the source of every draw, and a count of draws."""

import os
from itertools import count

_draws = count()  # its `next` is one step of the interpreter, so that no thread loses another's


def random_bytes(size: int) -> bytes:
    """Return so many bytes from the operating system's generator."""
    note_draw()
    return os.urandom(size)


def note_draw() -> None:
    """Count a draw that another process made for this one."""
    next(_draws)


def mark() -> int:
    """Return the present count of draws, to pass to `drawn_since`."""
    return next(_draws)


def drawn_since(marked: int) -> bool:
    """Return whether this process may have drawn anything since a mark. False is certain; other threads count too."""
    return next(_draws) != marked + 1
