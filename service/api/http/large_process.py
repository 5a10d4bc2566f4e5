"""Read large batches of records in a process of its own: `python -m service.api.http.large_process DESCRIPTOR`.

To unpack and parse a body of 16 MB holds the interpreter for up to 70 ms at a time: in the API's own process nobody
else would be answered then. The process knows no server and no key. It reads one body after the other through one
socket, `DESCRIPTOR`:

1. parent: `ReadTask` as JSON, then the body as it was sent;
2. process: `{"done": {…}}`, what `ReadBatch` says of it, and its bytes; or `{"refused": [[row, reason]…]}`,
   `{"too_long": true}`, `{"too_many": most}`; or `{"failed": name, "at": place}` for any other error.

The process is the first to be killed where memory runs out, and others go before it where processors are busy. It ends
when its parent does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from service.streams.batches import READERS, InvalidRecords, TooManyRecords, fingerprint, packed, read_batch
from service.streams.schema import stored_schema
from service.tracebacks import place_of

NICENESS = 10
OUT_OF_MEMORY_SCORE = "1000"
"""The kernel kills whichever process has the highest score first; 1000 is the highest."""


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """How to read a body.

    `format`: its media type. `limit`: the most bytes that it may have, unpacked. `most`: the most records. `secret`:
    of the pseudonyms of units, in hexadecimal digits, if the stream has units.
    """

    schema: dict[str, Any]
    format: str
    coding: str
    limit: int
    most: int
    secret: str | None


def main() -> None:
    """Read bodies until the parent closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C asks the parent to end, which answers its requests first
    os.nice(NICENESS)
    with suppress(OSError):  # no such file where this is no Linux
        Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_SCORE)
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, OSError):
        while True:
            task = ReadTask(**json.loads(connection.recv_bytes()))
            _answer(connection, task, connection.recv_bytes())


def _answer(connection: Connection, task: ReadTask, sent: bytes) -> None:
    try:
        content, rest = _read(task, sent)
    except InvalidRecords as refused:
        _send(connection, {"refused": refused.reasons})
    except packed.TooLong:
        _send(connection, {"too_long": True})
    except TooManyRecords as many:
        _send(connection, {"too_many": many.most})
    except MemoryError:  # another process may have more, and else the parent says what to do
        raise
    except Exception as error:  # noqa: BLE001 - the parent answers that something went wrong
        _send(connection, {"failed": type(error).__name__, "at": place_of(error)})
    else:
        _send(connection, {"done": rest})
        connection.send_bytes(content)


def _read(task: ReadTask, sent: bytes) -> tuple[bytes, dict[str, Any]]:
    secret = None if task.secret is None else bytes.fromhex(task.secret)
    body = packed.unpack(sent, task.coding, task.limit)
    records, content = read_batch(READERS[task.format], body, stored_schema(task.schema).layout(), task.most, secret)
    return content, {"records": records, "size": len(body), "fingerprint": fingerprint(body, secret)}


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main()
