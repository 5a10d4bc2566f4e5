"""The state that the threads of one worker process share."""

import math
import threading
import time
from dataclasses import dataclass, field

from service.publishing.confirmation import Confirmer
from service.publishing.prepared import Prepared
from service.store.database import Database
from service.store.segment_files import SegmentFiles
from service.worker.audit import Audit
from service.worker.bell import Bell
from service.worker.leases import LeaseKeeper
from service.worker.lookout import Lookout
from service.worker.queue import Queue
from service.worker.ticker import Ticker


@dataclass
class Desk:
    """The work that is under way in this process."""

    busy: set[int] = field(default_factory=set)
    """Publications that a thread of this process is at, whether its lease still holds or not."""
    drawn: dict[str, tuple[str, Prepared]] = field(default_factory=dict)
    """Steps whose commit failed, each with the lineage that it follows on, by promise: an id may come again."""
    owed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Attempts to note as soon as the database is back, by promise: position and version."""
    left: dict[int, float] = field(default_factory=dict)
    """When a thread of this process was last done with a publication."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_free(self, publication: int, *, since: float = math.inf) -> bool:
        """Return whether no thread of this process is at a publication, nor was after `since`."""
        return publication not in self.busy and self.left.get(publication, since) <= since

    def take(self, publication: int, *, since: float = math.inf) -> bool:
        """Take a publication, if it is free."""
        with self.lock:
            if not self.is_free(publication, since=since):
                return False
            self.busy.add(publication)
            return True

    def leave(self, publication: int) -> None:
        """Be done with a publication: a look that begins from now on shows what is due of it."""
        with self.lock:
            self.busy.discard(publication)
            self.left[publication] = time.monotonic()

    def forget(self, before: float) -> None:
        """Forget when publications were left before some time, which only looks older than that ask for."""
        with self.lock:
            self.left = {publication: at for publication, at in self.left.items() if at >= before}


class Workshop:
    """The parts of one worker, put together."""

    def __init__(
        self, database: Database, files: SegmentFiles, keeper: LeaseKeeper, dask_scheduler: str | None = None
    ) -> None:
        self.database, self.files, self.keeper, self.dask_scheduler = database, files, keeper, dask_scheduler
        self.bell = Bell(database)
        self.confirmer = Confirmer(database, files)
        self.audit = Audit(database, files, self.confirmer, self.bell.ring)
        self.ticker = Ticker(database, self.confirmer, self.audit)
        self.desk = Desk()
        self.lookout = Lookout(self.desk)
        self.queue = Queue()
