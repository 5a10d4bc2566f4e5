"""Records per second from HTTP to numbers on a stream with units, and what the processes take for it.

    python -m benchmarks.unit_ingest [--records 400000] [--known 10000000]

A whole service on this machine: API, worker, Valkey, PostgreSQL. A client posts Arrow bodies that were made before, as
`perennial load --unit` makes them, over eight connections. In the lines `returning` every record is of one of 100,000
units, each of which has records already; in `new`, every record is of a unit of its own, beside so many `--known` ones.
A line has the records that were numbered a second, the seconds of a processor that each process took for a million
records, and by how much its memory grew.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psycopg

from benchmarks.serving import Connection, Service, service
from perennial.batches import encode
from perennial.data import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES, BATCH, UNITS, CONNECTIONS = 8, 1000, 100_000, 8
PROCESSES = {"API": "service api", "worker": "service worker", "Valkey": "valkey-server", "PostgreSQL": "postgres"}
TICKS_A_SECOND = 100


def bodies(records: int, first: int, units: int) -> list[bytes]:
    """Return batches whose units are `first` and later, in an order of chance; as many units as records: each once."""
    random = np.random.default_rng(first)
    whose = random.permutation(units)[:records] if units >= records else random.integers(0, units, records)
    x = random.standard_normal((BATCH, FEATURES), dtype=np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    ids = np.array([f"person-{first + person}" for person in whose], dtype=object)
    blocks = (Block(x=x, y=y, unit=ids[start : start + BATCH]) for start in range(0, records, BATCH))
    return [encode(block)[1] for block in blocks]


def made(running: Service) -> str:
    """Return a new stream of units."""
    settings = {
        "features": FEATURES,
        "task": {"kind": "classification", "classes": 2},
        "budget": {"epsilon": 1, "delta": 1e-6},
        "unit": {"max_records": 64},
    }
    return running.make("streams", settings)


def numbered(running: Service, stream: str, sent: list[bytes]) -> float:
    """Post all bodies, wait until all records have numbers, and return the seconds it took."""
    path = f"/v1/streams/{stream}/records"
    before = int(running.client.get(f"/v1/streams/{stream}").json()["records"])

    def post(part: list[bytes]) -> None:
        with Connection(running.port) as connection:
            for body in part:
                connection.ask(
                    running.request("POST", path, body, content_type="application/vnd.apache.arrow.stream"), 202
                )

    began = time.perf_counter()
    with ThreadPoolExecutor() as pool:
        list(pool.map(post, [sent[start::CONNECTIONS] for start in range(CONNECTIONS)]))
    while running.client.get(f"/v1/streams/{stream}").json()["records"] < before + len(sent) * BATCH:
        time.sleep(0.02)
    return time.perf_counter() - began


def know(running: Service, stream: str, known: int) -> None:
    """Write down units that nobody sends, as if each had had a record."""
    identity = "(SELECT id FROM streams WHERE name = %(stream)s)"
    query = (
        f"INSERT INTO units SELECT {identity}, substr(sha256(int8send(n)), 1, 16), 1, 0, false "
        "FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n"
    )
    with psycopg.connect(running.database_url.replace("+psycopg", ""), autocommit=True) as connection:
        for first in range(0, known, 10**6):
            last = min(known, first + 10**6) - 1
            connection.execute(query, {"stream": stream, "first": first, "last": last})
        connection.execute("ANALYZE units")


def running_processes() -> Iterator[tuple[str, int, float, int]]:
    """Yield name, id, seconds of a processor and bytes in memory of each process that this one started."""
    known = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            known[int(folder.name)] = int(fields[1]), command, sum(map(int, fields[11:13])) / TICKS_A_SECOND
    for number, (above, command, seconds) in known.items():
        parent = above
        while parent in known and parent != os.getpid():
            parent = known[parent][0]
        name = next((name for name, words in PROCESSES.items() if words in command), None)
        if parent == os.getpid() and name is not None:
            yield name, number, seconds, _memory(number)


def _memory(number: int) -> int:
    """Return the bytes of a process, its part of what it shares."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{number}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def taken() -> dict[str, tuple[float, float]]:
    """Return each process's processor seconds and bytes, by name."""
    total = dict.fromkeys(PROCESSES, (0.0, 0.0))
    for name, _, seconds, memory in running_processes():
        total[name] = total[name][0] + seconds, total[name][1] + memory
    return total


def measured(running: Service, name: str, stream: str, sent: list[bytes]) -> None:
    """Measure one case and print its line."""
    before = taken()
    seconds = numbered(running, stream, sent)
    after, millions = taken(), len(sent) * BATCH / 1e6
    cells = [f"{(after[process][0] - before[process][0]) / millions:.1f}" for process in PROCESSES]
    grown = [f"{(after[process][1] - before[process][1]) / 2**20:.0f}" for process in PROCESSES]
    print(f"| {name} | {len(sent) * BATCH / seconds:,.0f} | {' | '.join(cells)} | {' / '.join(grown)} |", flush=True)


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="Records per second on a stream with units, from HTTP to numbers.")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--known", type=int, default=10**7)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print(f"| records | a second | {' | '.join(f'{process}, s' for process in PROCESSES)} | MiB more |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with service(worker=True, max_backlog_batches=10**9, max_backlog_bytes=10**12, max_key_requests=1e9) as running:
        stream = made(running)
        numbered(running, stream, bodies(UNITS, 0, UNITS))
        for _ in range(options.turns):
            measured(running, "returning", stream, bodies(options.records, 0, UNITS))
        stream = made(running)
        know(running, stream, options.known)
        for turn in range(options.turns):
            new = bodies(options.records, 10**9 + turn * options.records, options.records)
            measured(running, "new", stream, new)


if __name__ == "__main__":
    main()
