"""The state that the threads of one worker process share."""

import threading
from dataclasses import dataclass, field

from service.publishing.confirmation import Confirmer
from service.publishing.prepared import Prepared
from service.store.database import Database
from service.store.segment_files import SegmentFiles
from service.worker.audit import Audit
from service.worker.bell import Bell
from service.worker.leases import LeaseKeeper
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
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, publication: int) -> bool:
        """Take a publication, unless another thread of this process is at it."""
        with self.lock:
            if publication in self.busy:
                return False
            self.busy.add(publication)
            return True


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
        self.queue = Queue()
