"""Progress of long calls: a bar, or a function that is called."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perennial.extras import needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def reporting(
    progress: bool | Callable[[int], object],
    data: Any,
) -> Iterator[Callable[[int], object] | None]:
    """Yield a function to call with the number of newly accepted records; None if no progress is shown.

    progress: True for a bar, which needs tqdm; or such a function.
    """
    if not progress:
        yield None
    elif progress is True:
        with needs("progress"):
            from tqdm.auto import tqdm
        total = len(data) if hasattr(data, "__len__") and not isinstance(data, tuple | dict) else None
        with tqdm(total=total, unit=" records") as bar:
            yield bar.update
    else:
        yield progress
