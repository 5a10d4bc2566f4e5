"""Waiting that notices a request to stop."""

import time
from collections.abc import Callable

from service.embedded.errors import Stopped

POLL_SECONDS = 0.02


class StopRequest:
    """Set by signal handlers; a plain attribute, as an Event's lock may be held by the very code they interrupt."""

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        if self.requested:
            raise Stopped


def wait_for(condition: Callable[[], bool], seconds: float, stop: StopRequest) -> bool:
    """Return whether the condition came true in time; raises Stopped when a stop is asked for first."""
    deadline = time.monotonic() + seconds
    while not condition():
        stop.check()
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
