"""`perennial load` of a Parquet file beside bare posts of the same records as Arrow, and a load that is killed.

    python -m benchmarks.load [--records 5000000]

A whole service on this machine (API, worker, Valkey, PostgreSQL). Bare posts are bodies that were made before, of as
many records as `perennial load` sends at once, over one connection. The killed load is ended by SIGKILL when a quarter,
a half and three quarters of the records have numbers, and started again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pyarrow as pa
from pyarrow import parquet

import perennial
from perennial.batches import encode
from perennial.data import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES, ROWS_OF_A_GROUP, BATCH = 8, 100_000, 10_000
KILLED_AT = (0.25, 0.5, 0.75)  # of the records


def groups(records: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    for start in range(0, records, ROWS_OF_A_GROUP):
        rows = min(ROWS_OF_A_GROUP, records - start)
        x = random.standard_normal((rows, FEATURES), dtype=np.float32)
        yield x, (x[:, 0] > 0).astype(np.int32)


def written(path: Path, records: int) -> Path:
    names = [f"column {number}" for number in range(FEATURES)]
    schema = pa.schema([(name, pa.float32()) for name in names] + [("y", pa.int32())])
    with parquet.ParquetWriter(path, schema) as writer:
        for x, y in groups(records):
            writer.write_table(pa.table([*x.T.copy(), y], schema=schema))
    return path


def bare(client: perennial.Client, key: str, stream: str, records: int) -> float:
    """Return the seconds that posts of ready bodies take."""
    bodies = [
        encode(Block(x=x[start : start + BATCH], y=y[start : start + BATCH]))
        for x, y in groups(records)
        for start in range(0, len(x), BATCH)
    ]
    with httpx.Client(base_url=client.url, headers={"Authorization": f"Bearer {key}"}, trust_env=False) as http:
        begun = time.perf_counter()
        for number, (media_type, body) in enumerate(bodies):
            headers = {"Content-Type": media_type, "Idempotency-Key": f"{number}"}
            while http.post(f"/v1/streams/{stream}/records", content=body, headers=headers).status_code == 429:
                time.sleep(0.05)
        return time.perf_counter() - begun


def started(client: perennial.Client, key: Path, stream: str, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "perennial", "load", stream, str(file), "--label", "y", "--url", client.url]
    return subprocess.Popen(
        [*command, "--key-file", str(key), "--batch", str(BATCH), "--state", str(file.parent / "state")],
        env=os.environ,
        stdout=subprocess.DEVNULL,
    )


def loaded(client: perennial.Client, key: Path, stream: str, file: Path) -> float:
    """Return the seconds that the command takes."""
    begun = time.perf_counter()
    with started(client, key, stream, file) as command:
        if command.wait() != 0:
            raise SystemExit("the load failed")
    return time.perf_counter() - begun


def killed(client: perennial.Client, key: Path, stream: str, file: Path, records: int) -> None:
    """Kill the command on the way, and finish it."""
    for part in KILLED_AT:
        with started(client, key, stream, file) as command:
            while client.stream(stream).info()["records"] < part * records:
                time.sleep(0.05)
            command.kill()
    loaded(client, key, stream, file)


def numbered(client: perennial.Client, stream: str, records: int) -> int:
    """Return how many records have numbers, once they are enough and no more follow."""
    while client.stream(stream).info()["records"] < records:
        time.sleep(0.2)
    time.sleep(1.0)
    return int(client.stream(stream).info()["records"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    records = parser.parse_args().records
    with tempfile.TemporaryDirectory() as place, perennial.local(Path(place, "data")) as client:
        key, file = client.folder / "admin.key", written(Path(place, "rows.parquet"), records)
        for stream in ("bare", "load", "killed"):
            client.create_stream(stream, features=FEATURES, classes=2, epsilon=1)
        seconds = {"bare posts": bare(client, key.read_text().strip(), "bare", records)}
        numbered(client, "bare", records)
        seconds["perennial load"] = loaded(client, key, "load", file)
        numbered(client, "load", records)
        for name, each in seconds.items():
            print(f"{name}: {each:.1f} s, {records / each:,.0f} records/s")
        print(f"ratio: {seconds['bare posts'] / seconds['perennial load']:.2f}")
        killed(client, key, "killed", file, records)
        print(f"killed {len(KILLED_AT)} times: {numbered(client, 'killed', records) - records} records too many")


if __name__ == "__main__":
    main()
