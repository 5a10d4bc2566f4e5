"""Whose step is next: streams take turns, and on a stream short steps overtake long ones.

Everything here follows from public estimates of what steps cost, never from measured times.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING

from service.mechanisms.timing import largest_cost

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from service.privacy.accounting.obligations import FitSize
    from service.store.due_steps import DueStep

MOST_SIZES = 10_000  # whose estimates are remembered


class Queue:
    """One for all publishers of a worker.

    Start-time fair queueing (Goyal, Vin and Cheng 1996) between streams: each has a clock of the seconds that its steps
    were estimated to take, and the stream whose clock is behind is next. The clock of a stream that had nothing due
    goes on with that of the stream served last, so nothing is saved up. On a stream the step is next that would have
    ended first if it had begun when it became due: a short step overtakes a long one that became due before it, but no
    step waits for ever.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, float] = {}  # by stream, in estimated seconds; absent: at most `_now`
        self._now = 0.0  # the clock of the stream that was served last, when it was
        self._streams: set[int] = set()  # those that had something due at the last look
        self._since: dict[int, float] = {}  # when each publication was first seen to have a step due
        self._planned: dict[int, float] = {}  # seconds of the largest step of each publication
        self._estimates: dict[int, tuple[tuple[int, int], float]] = {}  # of one step, by what it follows
        self._lock = threading.Lock()
        self._own = secrets.randbits(62)

    def unknown(self, waiting: Iterable[DueStep]) -> list[int]:
        """Return the publications the size of whose fits it has not seen."""
        with self._lock:
            return [each.id for each in waiting if each.id not in self._planned]

    def reckon(self, sizes: Mapping[int, FitSize]) -> None:
        """Estimate steps by the sizes of their publications' fits."""
        with self._lock:
            if len(self._planned) > MOST_SIZES:
                self._planned.clear()
            self._planned |= {identity: largest_cost(size).seconds for identity, size in sizes.items()}

    def in_order(self, waiting: Iterable[DueStep]) -> list[DueStep]:
        """Return all publications that have a step due, the next one first."""
        waiting = list(waiting)
        with self._lock:
            now, streams = time.monotonic(), {each.stream_id for each in waiting}
            for stream in streams - self._streams:
                self._clocks[stream] = max(self._clocks.get(stream, 0.0), self._now)
            self._clocks = {each: clock for each, clock in self._clocks.items() if clock > self._now or each in streams}
            self._streams = streams
            self._since = {each.id: self._since.get(each.id, now) for each in waiting}
            self._estimates = {each: known for each, known in self._estimates.items() if each in self._since}
            return sorted(waiting, key=self._place)

    def estimate(self, publication: DueStep) -> float:
        """Return the seconds that the publication's next step may take, as far as that is known."""
        with self._lock:
            return self._estimate(publication)

    def learn(self, publication: DueStep, seconds: float) -> None:
        """Remember what the publication's next step may take."""
        with self._lock:
            self._estimates[publication.id] = (publication.position, publication.version), seconds

    def serve(self, publication: DueStep, seconds: float) -> None:
        """Count a step that begins now."""
        with self._lock:
            self._now = max(self._now, self._clocks.get(publication.stream_id, 0.0))
            self._clocks[publication.stream_id] = self._clocks.get(publication.stream_id, self._now) + seconds
            self._since.pop(publication.id, None)

    def _place(self, publication: DueStep) -> tuple[float, float, int]:
        """Return its place in the order. Workers begin with different streams where all are alike."""
        stream, since = publication.stream_id, self._since[publication.id]
        return self._clocks[stream], since + self._estimate(publication), hash((self._own, stream))

    def _estimate(self, publication: DueStep) -> float:
        step, seconds = self._estimates.get(publication.id, (None, 0.0))
        known = step == (publication.position, publication.version)
        return seconds if known else self._planned.get(publication.id, 0.0)
