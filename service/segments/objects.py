"""The files of numbered records in an object store: s3://, gs:// or az://.

Segments never change, and the row that names one is what counts: so they need one PUT, and nothing else. High-water
marks do change. Each is an object of its own, `LOG.witness/NUMBER`, which is created and never overwritten, and the
largest number is the one that holds.

Why no mark says less than the one before. A writer takes the number after the newest that it saw before it read what is
committed. If another has written since, the store refuses: there is such an object. It would not where that object is
deleted already, because many came after it: so a writer looks again, and its mark counts if it is the newest of all.
Only then it deletes those before the last `MARKS_KEPT`. This needs a store that creates an object once, however many
try, and lists what it has: `probe` tries the first, and all of the above do the second.

A machine keeps copies in a folder, each for at most `COPY_SECONDS`: so long may bytes of erased records stay there
after they are gone from the store. Versions and replicas of objects are the operator's to delete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from service.segments.files import SegmentDamaged, SegmentFiles, StoreUnsuitable, parsed
from service.streams.codec import Columns, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

COPY_SECONDS = 3600.0
SECONDS_BETWEEN_SWEEPS = 30.0
MARKS_KEPT = 2
TRIES = 3
PROBES_AT_ONCE = 8
PROBE_ROUNDS = 3
STORES = ("s3://", "gs://", "az://")
RETRY_SECONDS = 60
_CHUNK_BYTES = 2**20


class SegmentObjects(SegmentFiles):
    """An object store, with a folder for copies. Methods raise OSError where the store does not do what it should."""

    def __init__(self, url: str, copies: Path, *, most_bytes: int) -> None:
        """Open a store; nothing is asked of it yet.

        Args:
            url: of the store, with a prefix if it holds other things too.
            copies: the folder for copies of what was read or written.
            most_bytes: the size from which on the oldest copies go.

        Raises:
            StoreUnsuitable: it is none, or obstore is not installed.
        """
        super().__init__(copies)
        self.url, self.most_bytes = url, most_bytes
        self._store = _opened(url)
        self._marks: dict[str, tuple[int, dict[str, Any]]] = {}  # the newest that was read of each stream
        self._based_on: dict[str, int] = {}  # the newest number when the lock was taken

    def probe(self) -> None:
        """Create objects more than once: the store must refuse, or writers could overwrite each other's marks.

        Some stores refuse only what comes after the first write has ended, so several are written at the same time.

        Raises:
            StoreUnsuitable: it lets an object be created twice.
            OSError: it does not answer as it should, or refuses the credentials.
        """
        with ThreadPoolExecutor(PROBES_AT_ONCE) as pool, _errors(_NO_BUCKET):
            for _ in range(PROBE_ROUNDS):
                name = f"probe-{secrets.token_hex(8)}"
                created = sum(pool.map(lambda content, to=name: self._create(to, content), [b"probe"] * PROBES_AT_ONCE))
                refused = not self._create(name, b"again")
                self._remove(name)
                if created > 1 or not refused:
                    raise StoreUnsuitable(
                        "the object store overwrites objects that are to be created only once: use another"
                    )

    def described(self) -> dict[str, Any]:
        """Return where the files are, for a process on the same machine."""
        return {**super().described(), "url": self.url, "most_bytes": self.most_bytes}

    def sweep_copies(self) -> None:
        """Delete copies that are old, or too many, for as long as the process runs."""
        while True:
            with suppress(OSError):
                self._drop_copies()
            time.sleep(SECONDS_BETWEEN_SWEEPS)

    def drop_copies(self) -> None:
        """Delete all copies. Another process that reads one gets it again."""
        with suppress(OSError):
            self._drop_copies(self.most_bytes)

    def write(self, log: str, start: int, stop: int, columns: Columns) -> tuple[str, bytes]:
        """A new object that is stored when this returns: its name and its SHA-256."""
        content = pack(columns)
        name = f"{start:012d}-{stop:012d}-{secrets.token_hex(4)}.safetensors"
        self.put(log, name, content)
        with suppress(OSError), self._new_copy(log, name) as file:  # who finds no copy gets one
            file.write(content)
        return name, hashlib.sha256(content).digest()

    def put(self, log: str, name: str, content: bytes) -> None:
        """Store a file, whatever is there by that name."""
        import obstore

        with _errors(_NO_BUCKET):
            obstore.put(self._store, f"{log}/{name}", content)

    def get(self, log: str, name: str) -> bytes:
        """Return a file as it is in the store."""
        with _errors():
            return self._read(f"{log}/{name}")

    def delete(self, log: str, name: str) -> None:
        """Delete a segment and this machine's copy of it."""
        super().delete(log, name)
        with _errors():
            self._remove(f"{log}/{name}")

    def names(self, log: str) -> set[str]:
        """Return the names of all files of a stream."""
        return self._listed(log)

    def logs(self) -> set[str]:
        """Return the logs of which the store has files, or a high-water mark."""
        import obstore

        with _errors():
            prefixes = _patiently(lambda: obstore.list_with_delimiter(self._store))["common_prefixes"]
        return {prefix.removesuffix(".witness") for prefix in prefixes}

    def high_water_mark(self, log: str) -> dict[str, Any] | None:
        """Return what was last written down about a stream; None: nothing was. {} if it can't be read."""
        for _ in range(TRIES):
            newest = self._newest(log)
            if not newest:
                return None
            known = self._marks.get(log)
            if known is None or known[0] != newest:
                try:
                    with _errors():
                        content = self._read(_mark(log, newest))
                except FileNotFoundError:  # two more were written meanwhile
                    continue
                known = self._marks[log] = newest, parsed(content)
            return known[1]
        raise OSError(errno.EBUSY, "others write it faster than it can be read")

    def put_high_water_mark(self, log: str, content: dict[str, Any]) -> None:
        """Write something down about a stream, after what was; for the holder of its lock. It is stored on return."""
        number, body = self._based_on[log] + 1, json.dumps(content).encode()
        with _errors():
            # It may be there by our own attempt, if the answer to that was lost and obstore tried again.
            ours = self._create(_mark(log, number), body) or self._read(_mark(log, number)) == body
            if not ours or self._newest(log) != number:
                raise OSError(errno.EAGAIN, "another machine wrote it at the same time: it is tried again")
            self._based_on[log] = number
            self._marks[log] = number, content
            for older in self._listed(f"{log}.witness"):
                if int(older) <= number - MARKS_KEPT:
                    self._remove(f"{log}.witness/{older}")

    @contextmanager
    def high_water_mark_lock(self, log: str) -> Iterator[None]:
        """Hold what lets one thread of this machine at a time write; the number does so among machines."""
        with super().high_water_mark_lock(log):
            self._based_on[log] = self._newest(log)
            try:
                yield
            finally:
                del self._based_on[log]

    def _check(self, log: str, name: str, sha256: bytes) -> None:
        """Have a copy that holds what was written. A truncated answer is asked for again."""
        for last in (False, False, True):
            if not (self.root / log / name).exists():
                self._fetch(log, name)
            try:
                super()._check(log, name, sha256)
            except SegmentDamaged:
                super().delete(log, name)
                if last:
                    raise
            else:
                return

    def check(self, log: str, name: str, sha256: bytes) -> None:
        """Read the whole object, not the copy. Raises like `read`."""
        super().delete(log, name)
        self._check(log, name, sha256)

    def _fetch(self, log: str, name: str) -> None:
        import obstore

        def attempt() -> None:
            content = obstore.get(self._store, f"{log}/{name}")
            self._drop_copies(content.meta["size"])
            with self._new_copy(log, name) as file:
                for chunk in content.stream(min_chunk_size=_CHUNK_BYTES):
                    file.write(chunk)

        with _errors():
            _patiently(attempt)

    @contextmanager
    def _new_copy(self, log: str, name: str) -> Iterator[Any]:
        folder = self.root / log
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = folder / f"{name}.{secrets.token_hex(4)}.new"
        try:
            with new.open("xb") as file:
                os.fchmod(file.fileno(), 0o600)
                yield file
            new.replace(folder / name)
        finally:
            new.unlink(missing_ok=True)

    def _drop_copies(self, room: int = 0) -> None:
        """Delete old copies, and the oldest until `room` more bytes are within the limit."""
        copies = []
        for path in self.root.glob("*/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                copies.append((status.st_mtime, status.st_size, path))
        left, oldest = sum(size for _, size, _ in copies) + room, time.time() - COPY_SECONDS
        for written, size, path in sorted(copies, key=lambda copy: copy[0]):
            if written > oldest and left <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            left -= size

    def _newest(self, log: str) -> int:
        """Return the number of the newest mark; 0: there is none."""
        return max(map(int, self._listed(f"{log}.witness")), default=0)

    def _listed(self, folder: str) -> set[str]:
        import obstore

        with _errors():
            objects = _patiently(lambda: obstore.list(self._store, f"{folder}/").collect())
        return {str(item["path"]).rpartition("/")[2] for item in objects}

    def _create(self, path: str, content: bytes) -> bool:
        """Return whether there was no such object."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, path, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def _read(self, path: str) -> bytes:
        import obstore

        return _patiently(lambda: obstore.get(self._store, path).bytes().to_bytes())

    def _remove(self, path: str) -> None:
        import obstore

        with suppress(FileNotFoundError):
            obstore.delete(self._store, path)


def _mark(log: str, number: int) -> str:
    return f"{log}.witness/{number:020d}"


def _opened(url: str) -> Any:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError:
        raise StoreUnsuitable("segments in an object store need obstore: pip install 'perennial[objects]'") from None
    try:
        if not url.startswith(STORES):
            raise ValueError  # noqa: TRY301 - as of an address that obstore does not take
        return from_url(url, retry_config={"retry_timeout": timedelta(seconds=RETRY_SECONDS)})
    except (BaseError, ValueError, TypeError) as error:
        raise StoreUnsuitable(
            f"the object store can't be opened ({type(error).__name__}): give s3://BUCKET/PREFIX, gs://BUCKET/PREFIX "
            "or az://CONTAINER/PREFIX"
        ) from None


def _patiently(attempt: Callable[[], T]) -> T:
    """Return what an attempt to read returns. obstore itself tries again only until an answer begins."""
    from obstore.exceptions import BaseError

    for _ in range(TRIES - 1):
        with suppress(BaseError):
            return attempt()
    return attempt()


_NO_BUCKET = "there is no bucket or container that PERENNIAL_SEGMENT_STORE names: create it, or correct the setting"


@contextmanager
def _errors(missing: str = os.strerror(errno.ENOENT)) -> Iterator[None]:
    """Errors of the store as errors of the system, without what the store said. missing: what is, if something is."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError as error:
        if error.errno is None:  # the store's
            raise FileNotFoundError(errno.ENOENT, missing) from None
        raise
    except (PermissionDeniedError, UnauthenticatedError):
        raise PermissionError(errno.EACCES, "the object store refuses the credentials") from None
    except BaseError as error:
        reason = f"the object store does not answer as it should ({type(error).__name__})"
        raise OSError(errno.EIO, reason) from None
