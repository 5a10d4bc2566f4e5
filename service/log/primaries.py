"""Which server holds the log of which stream: the only one, or a primary of a cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.crc import REDIS_CLUSTER_HASH_SLOTS


@dataclass(frozen=True, kw_only=True)
class Primary:
    """One server of the log. `number`: from 1; `slots`: those of the streams that it holds."""

    number: int
    url: str
    slots: tuple[range, ...]


class Primaries(Protocol):
    """All servers of the log that take writes."""

    def refresh(self) -> None:
        """Look which primaries there are now. LogUnavailable: nobody says it."""

    def every(self) -> Sequence[Primary]:
        """Return all primaries, by number. LogUnavailable: nobody says which there are."""

    def of(self, log: str, /) -> Primary:
        """Return the primary of a stream's log. LogUnavailable: there is none."""


class OnePrimary:
    """The only server of the log."""

    def __init__(self, url: str) -> None:
        self._primary = Primary(number=1, url=url, slots=(range(REDIS_CLUSTER_HASH_SLOTS),))

    def refresh(self) -> None:
        pass

    def every(self) -> Sequence[Primary]:
        return [self._primary]

    def of(self, _log: str, /) -> Primary:
        return self._primary
