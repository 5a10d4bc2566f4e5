"""The files of numbered records: safetensors with `x` (float32, records × features) and `y`, where the task has them.
Written once, synced before the row that names them commits, never changed.
"""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import safe_open

from service.streams.codec import Columns, pack

SECONDS_TO_LOCK = 5.0
MAX_CHECKED = 2**16  # files of which a process remembers that they are right
_MARK = ".witness"
_OF_THE_VOLUME = "lost+found"  # which file systems have at their root


class FilesReplaced(Exception):
    """A folder holds other files than the database names, and lacks some that it does: they are of different times."""


class SegmentDamaged(Exception):
    """A file does not hold what was written to it. Nothing may be made from it."""


class StoreUnsuitable(Exception):
    """Nothing may be kept in such an object store."""


class SegmentFiles:
    """A folder with one folder per stream."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._checked: dict[tuple[str, str], tuple[int, ...]] = {}  # as each file was when its hash was last right
        self._synced: set[str] = set()  # logs whose folders' names are on disk, since this process synced the root
        self._marks_read: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}  # as it was when it was last read

    def described(self) -> dict[str, Any]:
        """Return where the files are, for a process on the same machine (`places.open_described`)."""
        return {"folder": str(self.root)}

    def probe(self) -> None:
        """Raise StoreUnsuitable where a store does not do what it must; folders do."""

    def sweep_copies(self) -> None:
        """Delete copies for as long as the process runs; a folder needs none."""

    def drop_copies(self) -> None:
        """Delete all copies, before a process ends that no other one sweeps for. A folder has no copies."""

    def write(self, log: str, start: int, stop: int, columns: Columns) -> tuple[str, bytes]:
        """Write a new file, which is on disk when this returns; return its name and SHA-256."""
        packed = pack(columns)
        name = f"{start:012d}-{stop:012d}-{secrets.token_hex(4)}.safetensors"
        self.put(log, name, packed)
        return name, hashlib.sha256(packed).digest()

    def put(self, log: str, name: str, content: bytes) -> None:
        """Write a new file, which is on disk when this returns. Raises FileExistsError."""
        folder = self.root / log
        if log not in self._synced or not folder.is_dir():  # its maker may have died before it synced the root
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _sync(self.root)
            self._synced.add(log)
        with (folder / name).open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync(folder)

    def read(
        self, log: str, name: str, sha256: bytes, start: int, stop: int, *, only: frozenset[str] | None = None
    ) -> Columns:
        """Return rows [start, stop) of a file, counted from its first row. only: the columns to read; None: all.

        Raises:
            FileNotFoundError: it is gone; the sealer may have put another in its place.
            SegmentDamaged: its SHA-256 is not the one it was written with.
        """
        self._check(log, name, sha256)
        with safe_open(self.root / log / name, framework="numpy") as file:
            names = file.keys() if only is None else only
            return {column: file.get_slice(column)[start:stop] for column in names}

    def check(self, log: str, name: str, sha256: bytes) -> None:
        """Read and hash the whole file, also if it was checked before. Raises like `read`."""
        self._checked.pop((log, name), None)
        self._check(log, name, sha256)

    def delete(self, log: str, name: str) -> None:
        self._checked.pop((log, name), None)
        (self.root / log / name).unlink(missing_ok=True)

    @contextmanager
    def gone_if(self, refusal: type[Exception], log: str, name: str | None) -> Iterator[None]:
        """Delete a file whose commit is refused: the lease's new holder may have erased and swept before it was there.

        name: None: nothing was written.
        """
        try:
            yield
        except refusal:
            if name is not None:
                self.delete(log, name)
            raise

    def high_water_mark(self, log: str) -> dict[str, Any] | None:
        """Return the high-water mark of a stream; None where there is none, {} where it can't be read."""
        try:
            with (self.root / f"{log}{_MARK}").open("rb") as file:
                state = _state(file)
                if (known := self._marks_read.get(log)) is None or known[0] != state:
                    known = self._marks_read[log] = state, parsed(file.read())
        except FileNotFoundError:
            return None
        return known[1]

    def put_high_water_mark(self, log: str, content: dict[str, Any]) -> None:
        """Replace the high-water mark of a stream; on disk when this returns."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.root / f"{log}.{secrets.token_hex(4)}.new"
        with _gone_if_it_fails(new):
            with new.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(json.dumps(content).encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.root / f"{log}{_MARK}")
        _sync(self.root)

    def note(self, log: str) -> dict[str, Any]:
        """Return the note that `put_note` wrote last about a stream; {} where it can't be read."""
        try:
            return parsed((self.root / f"{log}.walked").read_bytes())
        except OSError:
            return {}

    def put_note(self, log: str, content: dict[str, Any]) -> None:
        """Replace the note of a stream; a crash may lose it."""
        new = self.root / f"{log}.{secrets.token_hex(4)}.new"
        with _gone_if_it_fails(new):
            new.touch(mode=0o600)
            new.write_text(json.dumps(content))
            new.replace(self.root / f"{log}.walked")

    @contextmanager
    def high_water_mark_lock(self, log: str) -> Iterator[None]:
        """Hold the lock under which one process or thread at a time replaces a stream's high-water mark."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.root / f"{log}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _check(self, log: str, name: str, sha256: bytes) -> None:
        """Raise SegmentDamaged unless the file has this SHA-256; hash it again only if it was touched since."""
        with (self.root / log / name).open("rb") as file:
            state = _state(file)
            if self._checked.get((log, name)) == state:
                return
            if hashlib.file_digest(file, "sha256").digest() != sha256:
                raise SegmentDamaged(f"the segment {name} does not hold what was written to it")
        if len(self._checked) >= MAX_CHECKED:  # others deleted most; the rest is hashed once more
            self._checked.clear()
        self._checked[log, name] = state

    def orphans(self, log: str, known: set[str]) -> list[str]:
        """Return files that no row names: those of commits that never came, unless the rows are of an older time."""
        return sorted(self.names(log) - known)

    def sweep(self, log: str, known: set[str], names: set[str]) -> list[str]:
        """Delete the orphans among `names`. Only for the holder of the stream's lease.

        `names` were listed before `known` was read, under the lease: a file that a later holder writes is not among
        them.

        Raises:
            FilesReplaced: files that rows name are gone while there are others. So rows and files are of different
                times, and an orphan may hold the records of files that were put together, or rewritten, since then.
        """
        orphans = sorted(names - known)
        if orphans and (gone := sorted(known - names)):
            raise FilesReplaced(
                f"of the files that the database names, {len(gone)} are missing, from {gone[0]} to {gone[-1]}, and "
                f"{len(orphans)} are there that it does not name"
            )
        for name in orphans:
            self.delete(log, name)
        return orphans

    def logs(self) -> set[str]:
        """Return the logs of which there are files, or a high-water mark."""
        there = [path for path in self.root.iterdir() if path.name != _OF_THE_VOLUME] if self.root.is_dir() else []
        return {path.name for path in there if path.is_dir()} | {path.stem for path in there if path.suffix == _MARK}

    def get(self, log: str, name: str) -> bytes:
        """Return a file as it is."""
        return (self.root / log / name).read_bytes()

    def names(self, log: str) -> set[str]:
        """Return the names of all files of a stream."""
        folder = self.root / log
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@contextmanager
def _gone_if_it_fails(new: Path) -> Iterator[None]:
    """Delete a new file again where it can't be written whole: where there is no room it is tried again and again."""
    try:
        yield
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _lock(descriptor: int) -> None:
    """Lock a file. Its holder may hang: raises TimeoutError then, for the caller to try again later."""
    deadline = time.monotonic() + SECONDS_TO_LOCK
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process has held the lock for too long") from None
            time.sleep(0.002)
        else:
            return


def _state(file: BinaryIO) -> tuple[int, ...]:
    """Return what changes whenever a file is touched: device, inode, size and ctime, which no writer can set."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


def parsed(content: bytes) -> dict[str, Any]:
    """Return a JSON object; {} where it is none."""
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
