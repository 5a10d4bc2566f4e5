"""Whose step is next: streams take turns, and on a stream short steps overtake long ones.

Everything here follows from public estimates of what steps cost, never from measured times.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from service.mechanisms.timing import largest_cost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from service.privacy.accounting.obligations import FitSize
    from service.store.due_steps import DueStep

MAX_ESTIMATES = 10_000  # of publications' plans that are remembered


class FairQueue:
    """The order of all steps that are due in one worker; one thread at a time may use it.

    Start-time fair queueing (Goyal, Vin and Cheng 1996) between streams: each has a clock of the seconds that its steps
    were estimated to take, and the stream whose clock is behind is next. The clock of a stream that had nothing due
    goes on with that of the stream served last, so nothing is saved up. On a stream the step is next that would have
    ended first if it had begun when it became due: a short step overtakes a long one that became due before it, but no
    step waits for ever.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, float] = {}  # by stream, in estimated seconds; absent: at most `_now`
        self._now = 0.0  # the clock of the stream that was served last, when it was
        self._streams: set[int] = set()  # those that had something due at the last update
        self._since: dict[int, float] = {}  # when each publication was first seen to have a step due
        self._planned: dict[int, float] = {}  # seconds of the largest step of each publication
        self._estimates: dict[int, tuple[tuple[int, int], float]] = {}  # of one step, by what it follows
        self._own = secrets.randbits(62)

    def unknown(self, due: Iterable[DueStep]) -> list[int]:
        """Return the publications whose plans' estimates are not known."""
        return [step.id for step in due if step.id not in self._planned]

    def estimate_by_plan(self, sizes: Mapping[int, FitSize]) -> None:
        """Estimate steps by the sizes of their publications' fits."""
        if len(self._planned) > MAX_ESTIMATES:
            self._planned.clear()
        self._planned |= {publication: largest_cost(size).seconds for publication, size in sizes.items()}

    def update(self, due: Collection[DueStep], in_progress: Collection[int] = ()) -> None:
        """Replace what is due. in_progress: publications whose estimates are kept too."""
        now, streams = time.monotonic(), {step.stream_id for step in due}
        for stream in streams - self._streams:
            self._clocks[stream] = max(self._clocks.get(stream, 0.0), self._now)
        self._clocks = {
            stream: clock for stream, clock in self._clocks.items() if clock > self._now or stream in streams
        }
        self._streams = streams
        self._since = {step.id: self._since.get(step.id, now) for step in due}
        kept = self._since.keys() | set(in_progress)
        self._estimates = {publication: known for publication, known in self._estimates.items() if publication in kept}

    def first(self, due: Iterable[DueStep], most_seconds: float = float("inf")) -> DueStep | None:
        """Return the next of some steps of the last `update` whose estimate is at most `most_seconds`, if any."""
        return min((step for step in due if self.estimate(step) <= most_seconds), key=self._place, default=None)

    def estimate(self, step: DueStep) -> float:
        """Return the seconds that a step may take, as far as that is known."""
        position, seconds = self._estimates.get(step.id, (None, 0.0))
        known = position == (step.position, step.version)
        return seconds if known else self._planned.get(step.id, 0.0)

    def learn(self, step: DueStep, seconds: float) -> None:
        """Remember what a step may take."""
        self._estimates[step.id] = (step.position, step.version), seconds

    def serve(self, step: DueStep, seconds: float) -> None:
        """Count a step that begins now."""
        self._now = max(self._now, self._clocks.get(step.stream_id, 0.0))
        self._clocks[step.stream_id] = self._clocks.get(step.stream_id, self._now) + seconds
        self._since.pop(step.id, None)

    def _place(self, step: DueStep) -> tuple[float, float, int]:
        """Return the step's place in the order. Workers begin with different streams where all are alike."""
        stream = step.stream_id
        ends = self._since.get(step.id, 0.0) + self.estimate(step)
        return self._clocks.get(stream, self._now), ends, hash((self._own, stream))
