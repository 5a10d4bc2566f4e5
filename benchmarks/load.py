"""`perennial load` of a Parquet file beside posts of the same records as ready Arrow bodies, and a load that is killed.

    python -m benchmarks.load [--records 5000000] [--turns 3]

A whole service on this machine (API, worker, Valkey, PostgreSQL). Posts are bodies that were made before, over so many
connections at the same time, of so many records each: give the numbers with which they are fastest. A script reads the
same file and posts it as Arrow, over one connection, with neither keys nor a journal. All take turns, each on a stream
that the worker knows already, so that it numbers records meanwhile; the next begins when all records of the one before
have numbers. Beside the seconds there is the processor time of each process meanwhile. The killed load is ended by
SIGKILL when one, two and three fifths of the records have numbers, and started again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import parquet

import perennial
from benchmarks.serving import Connection, request
from perennial.batches import encode
from perennial.data import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perennial.local import LocalClient

FEATURES, ROWS_OF_A_GROUP = 8, 100_000
KILLED_AT = (0.2, 0.4, 0.6)  # share of the records
SECONDS_TO_FIND = 2.0  # seconds within which a worker finds a new stream
TICKS = os.sysconf("SC_CLK_TCK")


def groups(records: int, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    for start in range(0, records, rows):
        x = random.standard_normal((min(rows, records - start), FEATURES), dtype=np.float32)
        yield x, (x[:, 0] > 0).astype(np.int32)


def written(path: Path, records: int) -> Path:
    names = [f"column {number}" for number in range(FEATURES)]
    schema = pa.schema([(name, pa.float32()) for name in names] + [("y", pa.int32())])
    with parquet.ParquetWriter(path, schema) as writer:
        for x, y in groups(records, ROWS_OF_A_GROUP):
            writer.write_table(pa.table([*x.T.copy(), y], schema=schema))
    return path


def post(client: LocalClient, bodies: list[tuple[str, bytes]], connections: int, stream: str) -> None:
    """Send all bodies over so many connections."""
    path, port = f"/v1/streams/{stream}/records", int(client.url.rpartition(":")[2])
    key, following = f"Bearer {key_of(client).read_text().strip()}", iter(enumerate(bodies))

    def send() -> None:
        with Connection(port) as connection:
            for number, (media_type, body) in following:
                headers = {"authorization": key, "content_type": media_type, "idempotency_key": f"{number}"}
                connection.ask(request("POST", path, body, **headers), 202)

    threads = [threading.Thread(target=send) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def key_of(client: LocalClient) -> Path:
    return client.folder / "admin.key"


def started(client: LocalClient, stream: str, file: Path) -> subprocess.Popen[bytes]:
    program = str(Path(sys.executable).with_name("perennial"))
    command = [program, "load", stream, str(file), "--label", "y", "--url", client.url]
    return subprocess.Popen(
        [*command, "--key-file", str(key_of(client)), "--state", str(file.parent / "state")],
        stdout=subprocess.DEVNULL,
    )


SCRIPT = """
import http.client
import sys
import numpy as np
import pyarrow as pa
from pyarrow import parquet

port, key, path, file, features, size = sys.argv[1:]
features = int(features)
server = http.client.HTTPConnection("127.0.0.1", int(port))
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/vnd.apache.arrow.stream"}
for batch in parquet.ParquetFile(file).iter_batches(int(size)):
    columns = [column.to_numpy() for column in batch.columns]
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.column_stack(columns[:features]).ravel()), features)
    made = pa.record_batch({"x": x, "y": batch.column(features)})
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, made.schema) as writer:
        writer.write_batch(made)
    server.request("POST", path, memoryview(body.getvalue()), headers)
    answer = server.getresponse()
    answer.read()
    assert answer.status == 202
"""


def script(client: LocalClient, size: int, stream: str, file: Path) -> None:
    """Run the few lines that a user might write instead."""
    port, key = client.url.rpartition(":")[2], key_of(client).read_text().strip()
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        port,
        key,
        f"/v1/streams/{stream}/records",
        str(file),
        str(FEATURES),
        str(size),
    ]
    subprocess.run(command, check=True)


def load(client: LocalClient, stream: str, file: Path) -> None:
    with started(client, stream, file) as command:
        if command.wait() != 0:
            raise SystemExit("the load failed")


def kill(client: LocalClient, stream: str, file: Path, records: int) -> None:
    """Kill the command halfway, then run it again to the end."""
    for part in KILLED_AT:
        with started(client, stream, file) as command:
            while client.stream(stream).info()["records"] < part * records:
                time.sleep(0.02)
            if command.poll() is not None:
                raise SystemExit("the load ended before it was killed")
            command.kill()
    load(client, stream, file)


def numbered(client: LocalClient, stream: str, records: int) -> int:
    """Wait until enough records have numbers and their count no longer grows; return the count."""
    while client.stream(stream).info()["records"] < records:
        time.sleep(0.2)
    time.sleep(1.0)
    return int(client.stream(stream).info()["records"])


class Processors:
    """The processor time that processes below this one took, in seconds, by what they are."""

    def __init__(self) -> None:
        self._before = self._now()

    def since(self) -> dict[str, float]:
        now = self._now()
        return {name: now[name] - self._before[name] for name in sorted(now) if now[name] - self._before[name] >= 0.05}

    @staticmethod
    def _now() -> defaultdict[str, float]:
        parents: dict[int, tuple[int, float, str]] = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                numbers = place.joinpath("stat").read_text().rpartition(")")[2].split()
                command = place.joinpath("cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            seconds = sum(map(int, numbers[11:15])) / TICKS  # its own, and that of children that have ended
            parents[int(place.name)] = int(numbers[1]), seconds, _kind(command)
        spent: defaultdict[str, float] = defaultdict(float)
        for pid, (_, seconds, kind) in parents.items():
            above = pid
            while above in parents and above != os.getpid():
                above = parents[above][0]
            if above == os.getpid():
                spent["client" if pid == above else kind] += seconds
        return spent


def _kind(command: list[bytes]) -> str:
    words = b" ".join(command).decode(errors="replace")
    return next((name for name in ("postgres", "valkey", "worker", "large_process", "api") if name in words), "others")


class Turns:
    """Posts and loads that take turns, each on a new stream of the same service."""

    def __init__(self, client: LocalClient, records: int) -> None:
        self._client, self._records = client, records
        self.seconds: dict[str, list[float]] = {}

    def take(self, name: str, act: Callable[[str], None]) -> None:
        """Run the function, print how long it took, and wait until all records have numbers."""
        stream = self.new(f"{name}-{len(self.seconds.get(name, []))}")
        processors, began = Processors(), time.perf_counter()
        act(stream)
        took = time.perf_counter() - began
        self.seconds.setdefault(name, []).append(took)
        spent = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in processors.since().items())
        print(f"{name}: {took:.2f} s, {self._records / took:,.0f} records/s; processors: {spent}", flush=True)
        numbered(self._client, stream, self._records)

    def new(self, name: str) -> str:
        made = self._client.create_stream(name, features=FEATURES, classes=2, epsilon=1).name
        time.sleep(SECONDS_TO_FIND)
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4], help="of the posts")
    parser.add_argument("--batch", type=int, default=28_000, help="records of a post")
    parser.add_argument("--no-kill", action="store_true")
    options = parser.parse_args()
    records = options.records
    with tempfile.TemporaryDirectory() as place, perennial.local(Path(place, "data")) as client:
        file, turns = written(Path(place, "rows.parquet"), records), Turns(client, records)
        bodies = [encode(Block(x=x, y=y)) for x, y in groups(records, options.batch)]
        for _ in range(options.turns):
            turns.take("load", lambda stream: load(client, stream, file))
            turns.take("script", lambda stream: script(client, options.batch, stream, file))
            for connections in options.connections:
                turns.take(f"posts-{connections}", partial(post, client, bodies, connections))
        medians = {name: statistics.median(seconds) for name, seconds in turns.seconds.items()}
        for name, seconds in medians.items():
            print(f"{name}: median {seconds:.2f} s, {seconds / medians['load']:.2f} of the load's")
        if not options.no_kill:
            kill(client, turns.new("killed"), file, records)
            print(f"killed {len(KILLED_AT)} times: {numbered(client, 'killed', records) - records} records too many")


if __name__ == "__main__":
    main()
