"""The state that the threads of one worker process share."""

from service.publishing.confirmation import Confirmer
from service.publishing.prepared import PendingStep
from service.segments.files import SegmentFiles
from service.store.database import Database
from service.worker.audit import Audit
from service.worker.dispatcher import Dispatcher
from service.worker.leases import LeaseKeeper
from service.worker.ticker import Ticker


class WorkerContext:
    """The parts of one worker, put together, and what its publishers must not forget between two attempts."""

    def __init__(
        self, database: Database, files: SegmentFiles, keeper: LeaseKeeper, dask_scheduler: str | None = None
    ) -> None:
        self.database, self.files, self.keeper, self.dask_scheduler = database, files, keeper, dask_scheduler
        self.dispatcher = Dispatcher(database)
        self.confirmer = Confirmer(database, files)
        self.audit = Audit(database, files, self.confirmer, self.dispatcher.wake)
        self.ticker = Ticker(database, self.confirmer, self.audit)
        self.drawn: dict[str, tuple[str, PendingStep]] = {}
        """Steps whose commit failed, each with the lineage that it follows on, by promise: an id may come again."""
        self.owed: dict[str, tuple[int, int]] = {}
        """Attempts to note as soon as the database is back, by promise: position and version."""
