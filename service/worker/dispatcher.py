"""Hands publications whose next step is due to the publishers of one worker.

One thread asks the database what is due; publishers take it in the order of a fair queue. Looking takes long
where much is due, so the dispatcher rests for some times as long as a look took, and what becomes due meanwhile is
found together.
"""

import threading
import time

from service.logs import Outage
from service.store import publications
from service.store.database import Database, DatabaseUnavailable
from service.store.due_steps import DueStep, due_steps
from service.worker import fits
from service.worker.fair_queue import FairQueue

SECONDS_BETWEEN_LOOKS = 2.0  # at most, since a notification can be lost while the database is away
REST_PER_LOOK = 10  # seconds of rest for each second that a look took
MAX_REST_SECONDS = 0.5


class Dispatcher:
    """Knows what is due and which publications threads of this process work on.

    No publication is handed out twice at the same time, even if its lease ran out meanwhile: two threads would draw
    noise for the same step.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue = FairQueue()
        self._due: dict[int, DueStep] = {}  # by publication: due at the newest look, and not taken since
        self._in_progress = set[int]()
        self._finished = set[int]()  # since the newest look began, whose answer may be older than that
        self._retry_at: dict[int, float] = {}  # by publication that has to wait, of this process's clock
        self._changed = threading.Condition()  # guards all of the above
        self._closed = False
        self._woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Look whenever something may have become due, until `stop` is set or `close` is called."""
        outage = Outage("dispatcher")
        while not stop.is_set() and not self._closed:
            self._woken.clear()
            began = time.monotonic()
            try:
                self.look()
                outage.end()
            except DatabaseUnavailable as error:
                outage.begin(str(error))
                stop.wait(0.5)
            took = time.monotonic() - began
            rest_until = time.monotonic() + min(MAX_REST_SECONDS, REST_PER_LOOK * took)
            self._woken.wait(self._seconds_to_next_look())
            stop.wait(max(0.0, rest_until - time.monotonic()))

    def wake(self) -> None:
        """Look soon: records, a publication or labels were committed, or a stream may be published on again."""
        self._woken.set()

    def close(self) -> None:
        """Let every `take` return None, now and from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.wake()

    def look(self) -> None:
        """Ask the database what is due.

        Raises:
            DatabaseUnavailable: it did not answer; what was known to be due is due still.
        """
        with self._changed:
            now = time.monotonic()
            self._retry_at = {identity: at for identity, at in self._retry_at.items() if at > now}
            self._finished.clear()
            left_out = self._in_progress | self._retry_at.keys()
        with self._database.transaction() as connection:  # estimates of plans are written by this thread alone
            due = due_steps(connection, but=left_out)
            unknown = self._queue.unknown(due)
            sizes = publications.fit_sizes(connection, unknown) if unknown else {}
        with self._changed:
            left_out = self._in_progress | self._finished | self._retry_at.keys()
            self._due = {step.id: step for step in due if step.id not in left_out}
            self._queue.estimate_by_plan(sizes)
            self._queue.update(self._due.values(), self._in_progress)
            self._changed.notify_all()

    def take(self, *, short: bool = False, wait: bool = True) -> DueStep | None:
        """Return the publication whose step is next, which no other thread gets until `finish`.

        Args:
            short: only a step that is short by its public estimate.
            wait: until there is one; else return None where there is none.

        Returns:
            None where the dispatcher is closed.
        """
        most_seconds = fits.SHORT_SECONDS if short else float("inf")
        with self._changed:
            while not self._closed:
                if (step := self._queue.first(self._due.values(), most_seconds)) is not None:
                    del self._due[step.id]
                    self._in_progress.add(step.id)
                    return step
                if not wait:
                    break
                self._changed.wait()
        return None

    def begin_step(self, step: DueStep, seconds: float, *, short: bool) -> bool:
        """Note the estimate of a step that a publisher has taken; return whether the publisher may begin it.

        The estimate of a plan is of the largest step; this one is of the step's own records.
        """
        with self._changed:
            self._queue.learn(step, seconds)
            if short and seconds > fits.SHORT_SECONDS:
                return False
            self._queue.serve(step, seconds)
            return True

    def finish(self, step: DueStep, *, look_again: bool) -> None:
        """Be done with a publication; look_again: more of it may be due at once."""
        with self._changed:
            self._in_progress.discard(step.id)
            self._finished.add(step.id)
        if look_again:
            self.wake()

    def retry_later(self, publication: int, seconds: float) -> None:
        """Leave a publication alone for some seconds."""
        with self._changed:
            self._retry_at[publication] = time.monotonic() + seconds

    def waiting_streams(self) -> list[int]:
        """Return the streams on which something is due and not taken."""
        with self._changed:
            return [step.stream_id for step in self._due.values()]

    def _seconds_to_next_look(self) -> float:
        with self._changed:
            return max(0.0, min([SECONDS_BETWEEN_LOOKS, *(at - time.monotonic() for at in self._retry_at.values())]))
