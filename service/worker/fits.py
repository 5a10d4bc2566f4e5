"""Take a step of a publication: in this process, or in one of its own where it may need much time or memory.

Which of the two follows from the public estimate of `mechanisms.timing`, never from a measured time. A process of its
own can be killed by the kernel when memory runs out, without the worker, and by the worker when the step is not wanted
any more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe
from signal import Signals
from typing import TYPE_CHECKING, Any

import structlog

from service.learning.optimization.sums import SINGLE_THREADED
from service.mechanisms.timing import Cost, fit_cost
from service.privacy import randomness
from service.privacy.accounting.composition import Slots
from service.publishing.prepared import PendingStep, prepare, unpacked
from service.segments.locating import locate, read_records
from service.worker.fit_process import REFUSALS, Task
from service.worker.memory_limit import memory_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from service.segments.files import SegmentFiles
    from service.store.database import Database
    from service.worker.publication_state import PublicationState

_log = structlog.get_logger(__name__)

SHORT_SECONDS = 5.0
SMALL_BYTES = 128 * 2**20
"""A fit that may need more of either has a process of its own; starting it takes about half a second."""
BYTES_OF_A_PROCESS = 128 * 2**20  # before it reads records; measured: 57 MiB
SECONDS_FOR_DASK = 2.0
SECONDS_BETWEEN_LOOKS = 0.5


class NotWanted(Exception):
    """The step was given up: its publication was stopped, its lease is lost, or the worker stops."""


class FitTooLarge(Exception):
    """The step needs more than this machine gives it: memory, or a process of its own.

    It follows from public numbers and from the machine. Nothing is drawn: the step waits for a worker that has enough.
    """


class FitDied(Exception):
    """The process of a fit ended before the fit did; the text says how."""


def next_cost(state: PublicationState) -> Cost:
    """Return what the next step of a publication may cost."""
    records = state.mechanism.reads(state.time_due())
    return fit_cost(state.publication.owes.fit, records, in_blocks=state.mechanism.reads_blocks(records))


def draw(
    database: Database,
    files: SegmentFiles,
    state: PublicationState,
    wanted: Callable[[], bool],
    scheduler: str | None = None,
) -> PendingStep:
    """Take the next step of a publication, with fresh noise.

    Args:
        database: where its records are written down.
        files: the segments' folder.
        state: of the publication, before the step.
        wanted: whether somebody still wants the step; asked again and again while it runs in a process of its own.
        scheduler: of a Dask cluster, which a fit of blocks uses that may take more than `SECONDS_FOR_DASK`.

    Raises:
        NotWanted: `wanted` returned False.
        FitTooLarge: it may need more memory than a process may have here, or no process can be started.
        FitDied: the step's process was killed, or failed in a way that nobody foresaw.
        Inaccurate, Unaffordable, StateLost, SegmentDamaged, SegmentsMissing: see `Mechanism.step`.
    """
    publication, cost = state.publication, next_cost(state)
    reads_models = state.mechanism.reads_models  # from the database, and its records in pieces
    if not reads_models and cost.bytes + BYTES_OF_A_PROCESS > (limit := memory_limit()):
        raise FitTooLarge(
            f"a fit of {state.mechanism.reads(state.time_due())} records may need {cost.bytes / 2**20:.0f} MiB by its "
            f"plan, beside {BYTES_OF_A_PROCESS / 2**20:.0f} MiB of its process, and a process here may have "
            f"{limit / 2**20:.0f} MiB: give a worker more memory"
        )
    in_blocks = state.mechanism.reads_blocks(state.mechanism.reads(state.time_due()))
    if not reads_models and (in_blocks or cost.seconds > SHORT_SECONDS or cost.bytes > SMALL_BYTES):
        return draw_in_subprocess(database, files, state, cost, wanted, scheduler)
    slots = publication.slots is Slots.EVALUATION
    read = state.reading(
        partial(
            read_records, database, files, state.stream, publication.start, labels_of=publication.id, evaluates=slots
        )
    )
    time_due = state.time_due()
    step = state.mechanism.step(time_due, state.chain, publication.version + 1, read)
    return prepare(publication.start, state.mechanism, step, time_due)


def draw_in_subprocess(
    database: Database,
    files: SegmentFiles,
    state: PublicationState,
    cost: Cost,
    wanted: Callable[[], bool],
    scheduler: str | None,
) -> PendingStep:
    """Take it in a process of its own."""
    publication = state.publication
    in_blocks = state.mechanism.reads_blocks(state.mechanism.reads(state.time_due()))
    task = Task(
        schema=state.stream.schema,
        configuration=publication.configuration,
        segments=files.described(),
        start=publication.start,
        time=state.time_due(),
        next_version=publication.version + 1,
        stored=tuple(state.memory.parts),
        released=None if state.released is None else vars(state.released),
        scheduler=scheduler if in_blocks and cost.seconds > SECONDS_FOR_DASK else None,
    )
    with _process(SINGLE_THREADED if in_blocks else {}) as (process, connection):
        try:
            task.send(connection, state.chain)
            while True:
                message = _message(connection, wanted)
                if "noted" in message:
                    _log.warning("fit_goes_on", publication=publication.name, reason=message["noted"])
                    continue
                if "read" not in message:
                    break
                if message["drawn"]:
                    randomness.note_draw()
                where = locate(database, state.stream, publication.start, *message["read"], labels_of=publication.id)
                connection.send_bytes(json.dumps(where.to_json()).encode())
            if "done" in message:
                return unpacked(connection.recv_bytes())
        except (EOFError, OSError):
            raise FitDied(f"{_how_it_ended(process)}{_needs(cost)}") from None
    if "refused" in message:
        name, text = message["refused"]
        raise REFUSALS[name](text)
    _log.warning("fit_failed", publication=publication.name, error=message["failed"], at=message["at"])
    raise FitDied(f"its process failed with {message['failed']}{_needs(cost)}")


def _message(connection: Connection, wanted: Callable[[], bool]) -> dict[str, Any]:
    """Return the next message of the process."""
    while not connection.poll(SECONDS_BETWEEN_LOOKS):
        if not wanted():
            raise NotWanted
    message: dict[str, Any] = json.loads(connection.recv_bytes())
    return message


def command(descriptor: int) -> list[str]:
    """Return the command of a process that talks through a socket."""
    return [sys.executable, "-m", "service.worker.fit_process", str(descriptor)]


@contextmanager
def _process(more: dict[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    """Start a process with `more` in its environment, and kill it afterwards."""
    process, ours = _started(more)
    with ours:
        try:
            yield process, ours
        finally:
            process.kill()
            process.wait()


def _started(more: dict[str, str]) -> tuple[subprocess.Popen[bytes], Connection]:
    try:
        ours, theirs = Pipe()
        with theirs:
            process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what it could say there may repeat records
                pass_fds=(theirs.fileno(),),
                env={name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")} | more,
            )
    except OSError as error:  # too many processes or files, no memory, or the program is being replaced
        raise FitTooLarge(f"a process of its own can't be started here ({error.strerror})") from None
    return process, ours


def _needs(cost: Cost) -> str:
    """Return what somebody should know who reads how a process ended."""
    return f"; by its plan it may need {cost.bytes / 2**20:.0f} MiB of memory, and {cost.seconds:.3g} s"


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """Return how a process that closed its side of the socket ended."""
    status = process.wait()
    if status < 0:
        return f"its process was killed by {Signals(-status).name}"
    return f"its process exited with status {status}"
