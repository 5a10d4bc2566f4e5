"""The first admin key survives a power failure, with its name."""

import os
from pathlib import Path

import pytest

from service.embedded.admin_key import ensure_admin_key
from service.embedded.directory import DataDirectory
from service.embedded.errors import EmbeddedError


def test_it_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch):
    synced, real = [], os.fsync
    folder = tmp_path.resolve()

    def fsync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), (folder / "admin.key").exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    key, path = ensure_admin_key(DataDirectory(folder, folder, -1))
    assert synced == [(folder / "admin.key.new", False), (folder, True)]
    assert path.read_text().strip() == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_admin_key(DataDirectory(folder, folder, -1)) == (key, path)


def test_one_that_is_empty_is_none(tmp_path: Path):
    (tmp_path / "admin.key").touch()
    with pytest.raises(EmbeddedError, match="is empty"):
        ensure_admin_key(DataDirectory(tmp_path, tmp_path, -1))
