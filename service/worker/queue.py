"""Whose step is next: streams take turns, and on a stream short steps overtake long ones.

Everything here follows from public estimates of what steps cost, never from measured times.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from service.mechanisms.timing import largest_cost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from service.store.publications import Publication


class Queue:
    """One for all publishers of a worker.

    Each stream has a sum of the seconds that its steps were estimated to take; the stream with the least sum is next.
    A stream that had nothing due for a while begins with the least sum of those that have, so it saves up nothing. On
    a stream the step is next that would have ended first if it had begun when it became due: a short step overtakes a
    long one that became due before it, but no step waits for ever.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # that steps of each stream took, by estimate
        self._since: dict[int, float] = {}  # when each publication was first seen to have a step due
        self._estimates: dict[int, tuple[tuple[int, int], float]] = {}  # of a publication's step, by what it follows
        self._lock = threading.Lock()

    def in_order(self, waiting: Iterable[Publication]) -> list[Publication]:
        """Return all publications that have a step due, the next one first."""
        waiting = list(waiting)
        with self._lock:
            now = time.monotonic()
            streams, identities = {each.stream_id for each in waiting}, {each.id for each in waiting}
            self._seconds = {stream: seconds for stream, seconds in self._seconds.items() if stream in streams}
            least = min(self._seconds.values(), default=0.0)
            self._seconds = dict.fromkeys(streams, least) | self._seconds
            self._since = {each: self._since.get(each, now) for each in identities}
            self._estimates = {each: known for each, known in self._estimates.items() if each in identities}
            return sorted(
                waiting, key=lambda each: (self._seconds[each.stream_id], self._since[each.id] + self._estimate(each))
            )

    def estimate(self, publication: Publication) -> float:
        """Return the seconds that the publication's next step may take, as far as that is known."""
        with self._lock:
            return self._estimate(publication)

    def learn(self, publication: Publication, seconds: float) -> None:
        """Remember what the publication's next step may take."""
        with self._lock:
            self._estimates[publication.id] = _step(publication), seconds

    def serve(self, publication: Publication, seconds: float) -> None:
        """Count a step that begins now."""
        with self._lock:
            self._seconds[publication.stream_id] = self._seconds.get(publication.stream_id, 0.0) + seconds
            self._since.pop(publication.id, None)

    def _estimate(self, publication: Publication) -> float:
        step, seconds = self._estimates.get(publication.id, (None, 0.0))
        return seconds if step == _step(publication) else largest_cost(publication.plan).seconds


def _step(publication: Publication) -> tuple[int, int]:
    return publication.position, publication.version
