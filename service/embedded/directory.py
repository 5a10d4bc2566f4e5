"""The data directory: one owner at a time, private, with sockets where their paths are short enough."""

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from service.embedded.errors import EmbeddedError
from service.embedded.waiting import StopRequest, wait_for

LOCK_WAIT_SECONDS = 10.0
LONGEST_SOCKET_PATH = 107
"""Linux keeps unix socket paths in 108 bytes, the last of them zero."""
LONGEST_SOCKET_NAME = ".s.PGSQL.5432"
LARGEST_KEPT_LOG = 8 * 2**20
LOG_TAIL_LINES = 15


@dataclass(frozen=True)
class DataDirectory:
    """A data directory whose lock this process holds; every child inherits it, so the last one to end gives it back."""

    path: Path
    sockets: Path
    lock: int

    def file(self, name: str) -> Path:
        return self.path / name

    def subfolder(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


@contextlib.contextmanager
def open_data_directory(
    data_dir: Path, stop: StopRequest, *, wait_seconds: float = LOCK_WAIT_SECONDS
) -> Iterator[DataDirectory]:
    """Create the folder if need be, lock it, and clean up the sockets' folder at the end."""
    path = data_dir.resolve()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedError(f"can't use {path} as data directory: {error.strerror}") from error
    try:
        _check_owner(path, lock)
        _take_lock(path, lock, stop, wait_seconds)
        (path / "run").mkdir(mode=0o700, exist_ok=True)
        (path / "log").mkdir(mode=0o700, exist_ok=True)
        sockets = socket_folder(path)
        _write_holder(lock, sockets)
        try:
            yield DataDirectory(path, sockets, lock)
        finally:
            _clear_sockets(path, sockets)
    finally:
        # Closing gives the lock back only when no child holds it any more; LOCK_UN would take it from the children too.
        os.close(lock)


def _check_owner(path: Path, lock: int) -> None:
    owner = os.fstat(lock).st_uid
    if owner != os.geteuid():
        raise EmbeddedError(
            f"{path} belongs to user id {owner}, this process runs as {os.geteuid()}. "
            f"Start it as that user, or hand the folder over: chown -R {os.geteuid()} '{path}'"
        )


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_lock(path: Path, lock: int, stop: StopRequest, wait_seconds: float) -> None:
    if not wait_for(lambda: _locked(lock), wait_seconds, stop):
        pid, _ = read_holder(lock)
        raise EmbeddedError(f"another perennial up is running on {path}, pid {pid}")


def _write_holder(lock: int, sockets: Path) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, os.fsencode(f"{os.getpid()}\n{sockets}\n"), 0)


def read_holder(lock: int) -> tuple[str, Path | None]:
    """Return the process id in the lock file, and the folder of that process's sockets."""
    pid, _, sockets = os.fsdecode(os.pread(lock, 8192, 0)).partition("\n")
    return pid or "unknown", Path(sockets.removesuffix("\n")) if sockets else None


def socket_folder(path: Path) -> Path:
    """Return `run` inside the data directory, or a short private folder elsewhere if sockets' paths would be too long.

    A comma sends it elsewhere too: PostgreSQL's clients read it as a list of hosts.
    """
    inside = path / "run"
    if _short_enough(inside) and "," not in str(path):
        return inside
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    for base in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - the folder below is checked
        folder = Path(base).resolve() / f"perennial-{os.geteuid()}-{digest}"
        if _short_enough(folder) and os.access(base, os.W_OK | os.X_OK):
            _make_private(folder)
            return folder
    raise EmbeddedError(f"no place for unix sockets: {path} is too long a path and there is no writable /tmp")


def _short_enough(folder: Path) -> bool:
    return len(os.fsencode(folder / LONGEST_SOCKET_NAME)) <= LONGEST_SOCKET_PATH


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
        raise EmbeddedError(f"{folder} is not a folder that only this user can enter; remove it or set TMPDIR")


def _clear_sockets(path: Path, sockets: Path) -> None:
    if sockets.parent != path:
        with contextlib.suppress(OSError):
            for left in sockets.iterdir():
                left.unlink()
            sockets.rmdir()


def sync_folder(folder: Path) -> None:
    """Make created and renamed entries of the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rotate_log(log: Path) -> None:
    """Rename a large log of an earlier run. Servers log little, so once at each start is enough."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LARGEST_KEPT_LOG:
            log.replace(log.with_name(log.name + ".1"))


def log_tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    return ""
