"""Which steps are due, as the publishers of one worker know it.

To look takes long where much is due. So they share a look, and where nothing is left of it, they rest for some times as
long as it took: what became due meanwhile is then found together.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.store.due_steps import DueStep
    from service.worker.workshop import Desk

LOOK_SECONDS = 0.1  # for which what is due is taken from one look
LOOKS_TO_ONE = 10  # times what one look took, where many publications are due
TURN_SECONDS = 0.5  # then others have their turn: where records keep coming, there is always something due


@dataclass(frozen=True)
class Look:
    """The steps that were due when somebody looked, between two times of this process's clock.

    `heard`: how often the bell had been rung before.
    """

    heard: int
    began: float
    ended: float
    waiting: Sequence[DueStep]

    @property
    def rest(self) -> float:
        """The earliest time to look again, where nothing is left of it."""
        return self.ended + min(TURN_SECONDS, LOOKS_TO_ONE * (self.ended - self.began))

    @property
    def until(self) -> float:
        """The time until which it is used, though more may be due by then."""
        return max(self.rest, self.ended + LOOK_SECONDS)


class Lookout:
    """One for all publishers of a worker."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._last = Look(heard=-1, began=0.0, ended=0.0, waiting=[])
        self._lock = threading.Lock()

    def look(
        self, ask: Callable[[], Look], wants: Callable[[DueStep, Look], bool], pause: Callable[[float], object]
    ) -> Look:
        """Return the last look while the caller wants something of it; else a new one, but not all the time.

        Where something is left of the last look that the caller does not want, it looks again at once.

        ask: looks. pause: waits for so many seconds.
        """
        with self._lock:
            last = self._last
            if time.monotonic() < last.until and any(wants(each, last) for each in last.waiting):
                return last
            if not any(self._desk.is_free(each.id, since=last.began) for each in last.waiting):
                pause(max(0.0, last.rest - time.monotonic()))
            self._last = ask()
            self._desk.forget(last.began)
            return self._last
