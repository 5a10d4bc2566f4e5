"""How much memory a call takes."""

import tracemalloc
from collections.abc import Callable
from typing import Any


def most_held(call: Callable[..., Any], *arguments: Any) -> int:
    """Return the most bytes that a call holds beside what was held before, its result included."""
    tracemalloc.start()
    try:
        result = call(*arguments)
        held = tracemalloc.get_traced_memory()[1]
        del result
        return held
    finally:
        tracemalloc.stop()
