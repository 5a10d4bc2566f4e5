"""Optional packages: imported where they are used, with a sentence where they are missing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turn a failing import into a sentence that names the extra of this package to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            f"This needs the package {missing.name}: install it, or perennial-client with the extra [{extra}].",
            name=missing.name,
        ) from None
