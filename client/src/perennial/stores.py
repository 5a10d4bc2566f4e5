"""Files of this machine and objects of object stores, as files that are read by parts."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from perennial.extras import needs

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")
_BUFFER_BYTES = 2**23  # bytes of a request when a whole object is read


@dataclass(frozen=True)
class LocalFile:
    """A file of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """Return the file's name without its folder."""
        return self.path.name

    @property
    def place(self) -> str:
        """Return the file's absolute address, which does not depend on the working directory."""
        return str(self.path.resolve())

    @contextmanager
    def opened(self, *, buffer: int = _BUFFER_BYTES) -> Iterator[Any]:  # noqa: ARG002 - the system's are enough
        """Open the file for reading."""
        with self.path.open("rb") as file:
            yield file


@dataclass(frozen=True)
class StoredObject:
    """An object of an object store. Its address is `place`; credentials come from the environment, as the store's are.

    A request that the store answers with 5xx, or not at all, is made again for up to three minutes.
    """

    place: str

    def __str__(self) -> str:
        return self.place

    @property
    def name(self) -> str:
        """Return the last part of the object's address."""
        return PurePosixPath(self.place).name

    @contextmanager
    def opened(self, *, buffer: int = _BUFFER_BYTES) -> Iterator[Any]:
        """Open the object for reading. buffer: the least bytes of a request."""
        with needs("stores"):
            from obstore.exceptions import BaseError, PermissionDeniedError, PreconditionError, UnauthenticatedError
            from obstore.store import from_url
        try:
            ranges = _Ranges(from_url(self.place.rpartition("/")[0]), self.name)
            with io.BufferedReader(ranges, buffer_size=buffer) as reader:
                yield reader
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self.place) from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise PermissionError(errno.EACCES, "the store refuses the credentials", self.place) from None
        except PreconditionError:
            raise OSError(errno.EBUSY, "it has changed while it was read", self.place) from None
        except BaseError as error:
            reason = f"the store does not answer as it should ({type(error).__name__})"
            raise OSError(errno.EIO, reason, self.place) from None


class _Ranges(io.RawIOBase):
    """An object, read by ranges, as it was when it was opened."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        import obstore

        self._get, self._store, self._name = obstore.get, store, name
        known = obstore.head(store, name)
        self._size, self._version = known["size"], known["e_tag"]
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        end = min(self._position + len(buffer), self._size)
        size = max(0, end - self._position)
        if size:
            options: GetOptions = {"range": (self._position, end), "if_match": self._version}
            buffer[:size] = memoryview(self._get(self._store, self._name, options=options).bytes())
            self._position = end
        return size


def source(text: str) -> LocalFile | StoredObject:
    """Return what a path, or an address such as s3://bucket/days.parquet, names. Raises ValueError for other ones."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        return LocalFile(Path(text))
    if scheme not in SCHEMES:
        raise ValueError(f"an address must begin with {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    return StoredObject(text)
