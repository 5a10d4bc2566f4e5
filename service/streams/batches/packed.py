"""Unpack bodies that say with which Content-Encoding they are packed, never past a limit.

A body is one packed stream or several, one after the other (RFC 1952, 2.2: members; RFC 8878, 3: frames), all of them
whole.
"""

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

MOST_STREAMS = 1000
"""To begin one takes 6 µs and may take nine bytes: these take as long as a batch of 1 MiB."""

_PIECE_BYTES = 2**16  # are given to a decompressor at once: it copies those that follow a stream's end
_LARGEST_WINDOW = 23  # 2^23 bytes: what RFC 9659 lets a sender ask for


class TooLong(Exception):
    """Raised for a body that is longer than the limit once it is unpacked."""


class _Decompressor(Protocol):
    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes: ...


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
    """Return the whole unpacked body. Raises TooLong beyond the limit, InvalidRecords if it can't be unpacked."""
    if coding == IDENTITY:  # the server bounded its length while receiving it
        return sent
    unpacking = Unpacking(sent, coding)
    return unpacking.whole(unpacking.next(limit + 1), limit)


class Unpacking:
    """One packed body that is unpacked piece by piece."""

    def __init__(self, sent: bytes, coding: str) -> None:
        self._begin: Callable[[], _Decompressor] = _CODINGS[coding]
        self._decompressor, self._streams = self._begin(), 1
        self._sent, self._position = memoryview(sent), 0

    def next(self, room: int) -> bytes:
        """Return the next bytes, as many as there is room for; fewer if the body ends. Raises InvalidRecords."""
        pieces: list[bytes] = []
        while room and not self.ended:
            if self._decompressor.eof:
                self._decompressor, self._streams = self._begin(), self._streams + 1
                if self._streams > MOST_STREAMS:
                    raise InvalidRecords((None, f"the body has more than {MOST_STREAMS} packed streams: join them"))
            try:
                pieces.append(self._decompress(room))
            except (zlib.error, zstd.ZstdError, EOFError):
                raise _not_packed() from None
            room -= len(pieces[-1])
            if not pieces[-1] and not self._decompressor.eof and self._position == len(self._sent):
                break  # the body ends within a stream
        return b"".join(pieces)

    def _decompress(self, room: int) -> bytes:
        decompressor = self._decompressor
        piece = self._sent[self._position : self._position + _PIECE_BYTES]
        if not getattr(decompressor, "needs_input", True):  # zstd keeps its unread input, zlib returns it
            piece = piece[:0]
        unpacked: bytes = decompressor.decompress(piece, room)
        unread = decompressor.unused_data if decompressor.eof else getattr(decompressor, "unconsumed_tail", b"")
        self._position += len(piece) - len(unread)
        return unpacked

    @property
    def ended(self) -> bool:
        """Return whether the body has been unpacked to its end."""
        return self._decompressor.eof and self._position == len(self._sent)

    def whole(self, unpacked: bytes, limit: int) -> bytes:
        """Return all that was unpacked. Raises TooLong, or InvalidRecords where the packed stream goes on."""
        if len(unpacked) > limit:
            raise TooLong
        if not self.ended:
            raise _not_packed()
        return unpacked


def _not_packed() -> InvalidRecords:
    return InvalidRecords((None, "the body is not what Content-Encoding says: whole packed streams"))
