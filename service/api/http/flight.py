"""Request bodies that one API holds at the same time: so many bytes of each key, and in all.

A body counts until its request is answered, by what it has become: a packed one by what it is unpacked, and while it is
unpacked by the most that it may become. A key that sends alone may always send one body. A part of the room for all is
free for keys that hold nothing else, so that a few keys that send slowly can't take all of it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from service.api.http.problems import Problem

if TYPE_CHECKING:
    from types import TracebackType


FREE_PART = 4
"""One part in so many of the room for all keys is for keys that hold one body alone."""


class InFlight:
    """The bodies of one process.

    of_one, of_all: the most bytes of one key, and of all together. all: how many are held now.
    """

    def __init__(self, *, of_one: int, of_all: int) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._held: Counter[int] = Counter()
        self.all = 0

    def body(self, key: int) -> Body:
        """Return a body of this key that holds nothing yet; what it holds is let go when its block ends."""
        return Body(self, key)

    def resize(self, key: int, before: int, after: int) -> None:
        """Count that a body of this key grows or shrinks. Raises Problem where there is no room for it."""
        more = after - before
        only_one = self._held[key] == before
        of_all = self._of_all if only_one else self._of_all - self._of_all // FREE_PART
        for held, most, whose in (
            (self._held[key], self._of_one, "This key sends"),
            (self.all, of_all, "All keys together send"),
        ):
            if more > 0 and held > before and held + more > most:
                raise Problem(
                    "too-much-at-once",
                    f"{whose} more than {most} bytes at the same time. Nothing was done; wait for answers first.",
                    headers={"Retry-After": "1"},
                )
        self.all += more
        self._held[key] += more
        if not self._held[key]:
            del self._held[key]


class Body:
    """The bytes that one request holds."""

    def __init__(self, flight: InFlight, key: int) -> None:
        self._flight, self._key, self._size = flight, key, 0

    def resize(self, size: int) -> None:
        """It holds so many bytes now. Raises Problem where there is no room for them."""
        self._flight.resize(self._key, self._size, size)
        self._size = size

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.resize(0)
