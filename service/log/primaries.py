"""Which primary holds the log of which stream.

A primary is a Redis or Valkey server that takes writes. The log of a stream lies on one primary. PostgreSQL stores the
*place* of each stream: in a list of primaries the number of one, in a cluster the slot of the stream's keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.log.connection import LogUnavailable


@dataclass(frozen=True, kw_only=True)
class Primary:
    """One server of the log. `number`: from 1; `places`: the places of the streams that it holds."""

    number: int
    url: str
    places: tuple[range, ...]


class Primaries(Protocol):
    """All primaries of the log."""

    def refresh(self) -> None:
        """Look which primaries there are now. LogUnavailable: nobody says it."""

    def every(self) -> Sequence[Primary]:
        """Return all primaries, by number. LogUnavailable: nobody says which there are."""

    def of(self, log: str, place: int | None, /) -> Primary:
        """Return the primary of a stream's log. LogUnavailable: there is none."""

    def place(self, log: str, streams: Mapping[int, int], /) -> int | None:
        """Return the place of a new stream; `streams`: how many streams have each place."""


class ListedPrimaries:
    """Primaries that know nothing of each other. A place is the number of a primary; None: the first one's."""

    def refresh(self) -> None:
        pass

    def __init__(self, urls: Sequence[str]) -> None:
        numbered = enumerate(urls, start=1)
        self._every = [Primary(number=each, url=url, places=(range(each, each + 1),)) for each, url in numbered]

    def every(self) -> Sequence[Primary]:
        return self._every

    def of(self, _log: str, place: int | None, /) -> Primary:
        number = place or 1
        if number > len(self._every):
            raise LogUnavailable(
                f"this stream is on primary {number}, and PERENNIAL_REDIS_URL has {len(self._every)}: name all of them"
            )
        return self._every[number - 1]

    def place(self, _log: str, streams: Mapping[int, int], /) -> int | None:
        """Return the number of the primary with the fewest streams; None if there is one primary only."""
        if len(self._every) == 1:
            return None
        return min((each.number for each in self._every), key=lambda number: (streams.get(number, 0), number))
