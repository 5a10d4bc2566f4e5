"""Unpack bodies that say with which Content-Encoding they are packed: one whole packed stream, never past a limit."""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Any, Protocol

from service.streams.batches.checks import InvalidRecords

if TYPE_CHECKING:
    from collections.abc import Callable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LARGEST_WINDOW = 23  # 2^23 bytes: what RFC 9659 lets a sender ask for


class TooLong(Exception):
    """A body has more bytes than it may have."""


class _Decompressor(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_CODINGS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "zstd": lambda: zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _LARGEST_WINDOW}),
}
_CODINGS["x-gzip"] = _CODINGS["gzip"]
UNPACKED = ("gzip", "zstd")
IDENTITY = "identity"


def known(coding: str) -> bool:
    """Return whether bodies of this coding are read."""
    return coding == IDENTITY or coding in _CODINGS


def unpack(sent: bytes, coding: str, limit: int) -> bytes:
    """Return the whole body. Raises TooLong where it becomes longer than the limit, InvalidRecords where it is none."""
    if coding == IDENTITY:  # its length was bounded as it came
        return sent
    unpacking = Unpacking(sent, coding)
    return unpacking.whole(unpacking.next(limit + 1), limit)


class Unpacking:
    """One packed body that is unpacked piece by piece."""

    def __init__(self, sent: bytes, coding: str) -> None:
        self._decompressor: _Decompressor = _CODINGS[coding]()
        self._left = sent

    def next(self, room: int) -> bytes:
        """Return the next bytes, as many as there is room for. Raises InvalidRecords."""
        decompressor = self._decompressor
        try:
            unpacked = decompressor.decompress(self._left, room)
        except (zlib.error, zstd.ZstdError, EOFError):
            raise _not_packed() from None
        if decompressor.unused_data:  # a second packed stream could hide any number of further ones
            raise _not_packed()
        self._left = getattr(decompressor, "unconsumed_tail", b"")  # zstd keeps it itself
        return unpacked

    @property
    def ended(self) -> bool:
        """True if nothing follows what was returned."""
        return self._decompressor.eof

    def whole(self, unpacked: bytes, limit: int) -> bytes:
        """Return all that was unpacked. Raises TooLong, or InvalidRecords where the packed stream goes on."""
        if len(unpacked) > limit:
            raise TooLong
        if not self.ended:
            raise _not_packed()
        return unpacked


def _not_packed() -> InvalidRecords:
    return InvalidRecords((None, "the body is not what Content-Encoding says: one whole packed stream"))
