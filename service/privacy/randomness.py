"""The operating system's random bytes, from which everything that is drawn comes, and whether anything was drawn."""

import os
from itertools import count

_draws = count()  # its `next` is one step of the interpreter, so that no thread loses another's


def random_bytes(size: int) -> bytes:
    """Return so many bytes from the operating system's generator."""
    note_draw()
    return os.urandom(size)


def note_draw() -> None:
    """Count something that was drawn elsewhere, in a process of its own."""
    next(_draws)


def mark() -> int:
    """Return what `drawn_since` takes."""
    return next(_draws)


def drawn_since(marked: int) -> bool:
    """Return whether this process may have drawn anything since a mark. False is certain; other threads count too."""
    return next(_draws) != marked + 1
