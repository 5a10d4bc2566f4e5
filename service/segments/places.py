"""Where the files of numbered records are: in a folder, or in an object store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.segments.files import SegmentFiles

if TYPE_CHECKING:
    from service.settings import Settings


def open_segments(settings: Settings) -> SegmentFiles:
    """Return the files of numbered records. A store is not asked for anything yet; copies go from now on.

    Raises:
        StoreUnsuitable: it is no store that could be opened, or obstore is not installed.
    """
    files = open_place(settings.segment_store, settings.segment_copies, most_bytes=settings.max_copy_bytes)
    return _swept(files)


def open_place(place: str | Path, copies: Path, *, most_bytes: int) -> SegmentFiles:
    """Return the files in a folder, given as a Path, or in an object store, given by its address."""
    if isinstance(place, Path):
        return SegmentFiles(place)
    from service.segments.objects import SegmentObjects

    return SegmentObjects(place, copies, most_bytes=most_bytes)


def open_elsewhere(described: dict[str, Any]) -> SegmentFiles:
    """Return the files that a process on another machine described. This process sweeps the copies on its own."""
    return _swept(open_described(described))


def open_described(described: dict[str, Any]) -> SegmentFiles:
    """Return the files that another process on this machine described, which sweeps the copies."""
    folder = Path(described["folder"])
    if "url" not in described:
        return SegmentFiles(folder)
    return open_place(described["url"], folder, most_bytes=described["most_bytes"])


def _swept(files: SegmentFiles) -> SegmentFiles:
    threading.Thread(target=files.sweep_copies, daemon=True).start()
    return files
