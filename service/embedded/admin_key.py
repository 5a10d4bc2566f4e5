"""The first admin key: made once, readable by its owner alone."""

import os
import secrets
from pathlib import Path

from service.embedded.directory import DataDirectory, sync_folder
from service.embedded.errors import EmbeddedError


def ensure_admin_key(directory: DataDirectory) -> tuple[str, Path]:
    """Return the first admin key and its file, made if there is none. The caller holds the directory's lock."""
    path = directory.file("admin.key")
    if not path.exists():
        _write_once(path, secrets.token_urlsafe(32))
    key = path.read_text().strip()
    if not key:
        raise EmbeddedError(f"{path} is empty: remove it to get a new key")
    return key, path


def _write_once(path: Path, key: str) -> None:
    unfinished = path.with_name(path.name + ".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
        file.flush()
        os.fsync(descriptor)
    unfinished.rename(path)
    sync_folder(path.parent)
