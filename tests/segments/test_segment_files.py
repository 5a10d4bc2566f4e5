"""The files of records are safetensors, whoever writes them."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from service.segments import files as segment_files
from service.segments.files import SegmentDamaged, SegmentFiles
from service.streams.codec import pack, unpack

X = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    "columns",
    [
        {"x": X, "y": np.arange(4, dtype=np.int32)},
        {"x": X[::2], "y": X[:2, 1]},  # of which neither lies in one piece
        {"y": np.arange(3, dtype=np.int32)},
        {"x": X[:0], "y": X[:0, 0]},
        {"x": np.frombuffer(b"-" + X.tobytes(), np.float32, X.size, 1).reshape(X.shape)},
    ],
)
def test_safetensors_reads_what_is_packed(columns):
    packed = pack(columns)
    assert int.from_bytes(packed[:8], "little") % 8 == 0
    for read in (load, unpack):
        content = read(packed)
        assert content.keys() == columns.keys()
        for name, column in columns.items():
            assert content[name].dtype == column.dtype
            assert np.array_equal(content[name], column)


def test_the_same_columns_are_the_same_bytes():
    assert pack({"x": X}) == pack({"x": X.copy()})
    assert pack({"x": X}) != pack({"x": X.reshape(3, 4)})


@pytest.fixture
def synced(monkeypatch) -> list[Path]:
    """Return what was synced, in order, by the path that it had then."""
    paths: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


@pytest.mark.parametrize("what", ["file", "folder", "root"])
def test_what_is_written_is_on_disk_before_anybody_is_told_its_name(tmp_path: Path, synced: list[Path], what):
    root = tmp_path.resolve() / "segments"
    name, _ = SegmentFiles(root).write("log", 0, 4, {"x": X})
    file, folder = root / "log" / name, root / "log"
    assert {"file": file, "folder": folder, "root": root}[what] in synced
    if what == "folder":
        assert synced.index(file) < synced.index(folder)


@pytest.mark.parametrize("who", ["its maker", "another process"])
def test_a_folder_that_its_maker_could_not_sync_is_synced_later(tmp_path: Path, monkeypatch, synced: list[Path], who):
    files = SegmentFiles(tmp_path.resolve())

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "not synced")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="not synced"):
        patched.setattr(segment_files, "_sync", fail)
        files.write("log", 0, 4, {"x": X})
    assert (files.root / "log").is_dir()
    later = files if who == "its maker" else SegmentFiles(files.root)
    later.write("log", 0, 4, {"x": X})
    assert files.root in synced
    synced.clear()
    later.write("log", 4, 8, {"x": X})
    assert files.root not in synced, "once is enough"


def test_a_mark_is_on_disk_before_it_takes_the_place_of_the_one_before(tmp_path: Path, monkeypatch, synced: list[Path]):
    root, files = tmp_path.resolve(), SegmentFiles(tmp_path.resolve())
    files.put_high_water_mark("log", {"charges": 1})
    synced.clear()
    marks: list[Any] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (marks.append(SegmentFiles(root).high_water_mark("log")), real(descriptor))
    )
    files.put_high_water_mark("log", {"charges": 2})
    assert [each["charges"] for each in marks] == [1, 2], "the old one is there until the new one is on disk"
    assert (synced[0].parent, synced[1]) == (root, root)


def test_files_of_records_are_their_owners_alone(tmp_path: Path):
    files = SegmentFiles(tmp_path / "segments")
    name, _ = files.write("log", 0, 4, {"x": X})
    files.put_high_water_mark("log", {})
    files.put_note("log", {})
    with files.high_water_mark_lock("log"):
        paths = [path for path in tmp_path.rglob("*") if path != tmp_path / "segments"]
    assert tmp_path / "segments" / "log" / name in paths
    assert {path.stat().st_mode & 0o077 for path in paths} == {0}


def test_a_file_that_is_changed_after_it_was_read_is_found_out(tmp_path: Path):
    files = SegmentFiles(tmp_path)
    name, sha256 = files.write("log", 0, 4, {"x": X})
    files.read("log", name, sha256, 0, 4)
    path = tmp_path / "log" / name
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SegmentDamaged):
        files.read("log", name, sha256, 0, 4)


def test_who_checks_a_file_reads_it_again_though_nobody_has_touched_it(tmp_path: Path, monkeypatch):
    """As after a disk has lost some bits."""
    monkeypatch.setattr(segment_files, "_state", lambda _: (0,))
    files = SegmentFiles(tmp_path)
    name, sha256 = files.write("log", 0, 4, {"x": X})
    files.check("log", name, sha256)
    (tmp_path / "log" / name).write_bytes(b"other")
    with pytest.raises(SegmentDamaged):
        files.check("log", name, sha256)


def test_files_that_were_read_are_not_remembered_for_ever(tmp_path: Path, monkeypatch):
    """Another worker deletes them: who only reads would remember more and more that are gone."""
    monkeypatch.setattr(segment_files, "MAX_CHECKED", 3)
    files, hashed = SegmentFiles(tmp_path), []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: (hashed.append(given), real(*given))[1])
    for number in range(9):
        name, sha256 = files.write("log", number, number + 4, {"x": X})
        for _ in range(2):
            files.read("log", name, sha256, 0, 4)
        assert len(files._checked) <= 3
    assert len(hashed) == 9


def test_one_at_a_time_writes_a_mark(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(segment_files, "SECONDS_TO_LOCK", 0.02)
    one, other = SegmentFiles(tmp_path), SegmentFiles(tmp_path)
    with one.high_water_mark_lock("log"):
        with pytest.raises(TimeoutError), other.high_water_mark_lock("log"):
            pass
        with other.high_water_mark_lock("another"):
            pass
    with other.high_water_mark_lock("log"):
        pass


@pytest.mark.parametrize("what", ["mark", "note"])
def test_of_what_finds_no_room_nothing_is_left(tmp_path: Path, monkeypatch, what):
    files = SegmentFiles(tmp_path)
    put = files.put_high_water_mark if what == "mark" else files.put_note
    put("log", {"records": 1})

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no room"):
        patched.setattr(os, "fsync", full)
        patched.setattr(Path, "write_text", full)
        put("log", {"records": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["log.witness" if what == "mark" else "log.walked"]
    assert (files.high_water_mark("log") if what == "mark" else files.note("log")) == {"records": 1}
