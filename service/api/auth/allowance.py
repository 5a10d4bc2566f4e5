"""A limit of requests: so many a second on average, and more for a while after a pause.

The generic cell rate algorithm (ITU-T I.371): one number for each who asks, the time at which all they asked would have
been due at the even rate. It is kept in this process alone, so that asking costs no network; several APIs allow
each their own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

MOST_KEPT = 10_000


class Allowance:
    """`rate` a second on average, `rate` · `seconds` at once."""

    def __init__(self, rate: float, *, seconds: float) -> None:
        self._interval, self._slack = 1 / rate, seconds
        self._due: dict[Hashable, float] = {}

    def early(self, who: Hashable) -> float:
        """Return how many seconds too early one more request would be; 0: it is allowed."""
        return max(0.0, self._due.get(who, 0.0) - time.monotonic() - self._slack)

    def count(self, who: Hashable) -> None:
        """Count one more request."""
        now = time.monotonic()
        self._due[who] = max(self._due.get(who, 0.0), now) + self._interval
        if len(self._due) > MOST_KEPT:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """Drop clients whose allowance has recovered; if the table is still full, drop all."""
        self._due = {who: due for who, due in self._due.items() if due > now}
        if len(self._due) > MOST_KEPT:
            self._due.clear()
