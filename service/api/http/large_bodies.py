"""The process that reads large batches of records for one API: started for the first one, and again where it died."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import TYPE_CHECKING, Any

import structlog
from fastapi.concurrency import run_in_threadpool

from service.api.http.large_process import ReadTask
from service.streams.batches import InvalidRecords, TooManyRecords, packed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_log = structlog.get_logger(__name__)

ATTEMPTS = 2  # a process may be killed for what others do


class ReaderDied(Exception):
    """The process was killed in each attempt at the same body: probably it needs more memory than there is."""


class ReaderFailed(Exception):
    """The process met an error that nobody foresaw, which is logged."""


@dataclass(frozen=True, kw_only=True)
class ReadBatch:
    """A batch as the log holds it.

    `size`: the bytes of its body, unpacked. `fingerprint`: by what the body is known again, or "".
    """

    content: bytes
    records: int
    size: int
    fingerprint: str


class LargeBodies:
    """Reads one body after the other."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._asking = threading.Lock()  # a cancelled request's thread still takes its own answer
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    async def read(self, task: ReadTask, sent: bytes) -> ReadBatch:
        """Return the batch that a body holds.

        Raises:
            InvalidRecords, TooLong, TooManyRecords: the body is refused.
            ReaderDied, ReaderFailed: nobody knows what the body holds.
        """
        async with self._turn:
            for _ in range(ATTEMPTS):
                with suppress(EOFError, OSError):
                    return await run_in_threadpool(self._ask, task, sent)
        raise ReaderDied

    def close(self) -> None:
        """End the process."""
        if (process := self._process) is not None:
            process.kill()  # so a thread that waits for its answer waits no longer
        with self._asking:
            self._end()

    def _ask(self, task: ReadTask, sent: bytes) -> ReadBatch:
        with self._asking:
            try:
                answer, content = self._answered(task, sent)
            except BaseException as error:  # an answer may still come: it must not be taken for the next body's
                status = self._end()
                if isinstance(error, EOFError | OSError):
                    _log.warning("reader_of_large_bodies_died", status=status)
                raise
        if "done" in answer:
            return ReadBatch(content=content, **answer["done"])
        if "refused" in answer:
            raise InvalidRecords(*((row, reason) for row, reason in answer["refused"]))
        if "too_long" in answer:
            raise packed.TooLong
        if "too_many" in answer:
            raise TooManyRecords(answer["too_many"])
        _log.error("large_body_unread", error=answer["failed"], at=answer["at"])
        raise ReaderFailed

    def _answered(self, task: ReadTask, sent: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the process's answer, and the batch that comes after it."""
        if self._connection is None:
            self._start()
        connection = self._connection
        assert connection is not None  # noqa: S101 - it was started
        connection.send_bytes(json.dumps(vars(task)).encode())
        connection.send_bytes(sent)
        answer: dict[str, Any] = json.loads(connection.recv_bytes())
        return answer, connection.recv_bytes() if "done" in answer else b""

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what it could say there may repeat records
                pass_fds=(theirs.fileno(),),
                env={name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")},
            )
        self._connection = ours

    def _end(self) -> int | None:
        """End the process; return its exit status if there was one. For the thread that holds the lock."""
        if self._process is None or self._connection is None:
            return None
        self._process.kill()
        status = self._process.wait()
        self._connection.close()
        self._process = self._connection = None
        return status


def command(descriptor: int) -> list[str]:
    """Return the command of a process that talks through a socket."""
    return [sys.executable, "-m", "service.api.http.large_process", str(descriptor)]
