"""The syncs that a release waits for, each beside the least that this disk and this server take for the same bytes.

    python -m benchmarks.releases [--rounds 200] [--records 10000000] [--weights 10000]

Real PostgreSQL and segment folder; the worker's own publisher, ticker and confirmer; only records and fits are left
out. A step is parked before its tick. From the tick on a release needs these syncs, one after the other, none of which
can be left out (`publishing.confirmation`): of the commit; of the high-water mark, a witness beside the segments, whose
file and folder are synced; and of the commit that makes the release visible. Each round measures the floor too: the
same bytes in a statement of one row that is a transaction, or in a file that takes the place of another.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.ledger import SCHEMA, Simulated
from service import logs
from service.embedded import embedded_servers
from service.learning.output_perturbation import OutputPerturbation
from service.store.migrate import migrate

CLASSES = 10
BLOCK = 10_000
DELAY = Decimal("0.001")  # seconds between ticks, so short that a step's tick has come once it is parked
VISIBLE_BYTES = 100  # about as many as change on the rows of a stream and a publication when a release appears
PARTS = ("park, before the tick", "commit", "high-water mark", "make visible")
FROM_TICK = "from the tick until it is visible"
_WAL_SYNCS = "SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal' AND backend_type = 'client backend'"


class Unfitted(OutputPerturbation):
    """A learner that fits nothing, with weights as hard to compress as noisy ones."""

    def release(self, *_: Any) -> np.ndarray:
        return np.random.default_rng().standard_normal(self.shape)


class Releases:
    """Releases of one publication, one after the other."""

    def __init__(self, simulated: Simulated) -> None:
        self._simulated, context = simulated, simulated.publisher
        self._ticker, self._confirmer = context._ticker, context._confirmer  # noqa: SLF001
        self._confirmer._running = True  # noqa: SLF001 - `publish` does what its thread does
        self._put, self._marking = self._confirmer.files.put_high_water_mark, 0.0
        self._confirmer.files.put_high_water_mark = self._timed  # type: ignore[method-assign]
        self.mark: dict[str, Any] = {}
        simulated.state.publication = replace(simulated.state.publication, publish_delay=DELAY)

    def _timed(self, log: str, content: dict[str, Any]) -> None:
        began, self.mark = time.perf_counter(), content
        self._put(log, content)
        self._marking = time.perf_counter() - began

    def publish(self) -> list[float]:
        """Publish one step; return how many seconds each part took."""
        state, step = self._simulated.state, self._simulated.step()
        began = time.perf_counter()
        moved = self._simulated.publisher._commit(self._simulated.lease, state, step)  # noqa: SLF001
        assert moved is not None
        parked = time.perf_counter()
        state.go_on(moved, step)
        state.sizes.clear()  # it waits no longer
        time.sleep(2 * float(DELAY))
        ticked = time.perf_counter()
        self._ticker.step()
        committed = time.perf_counter()
        self._confirmer._confirm_waiting()  # noqa: SLF001
        visible = time.perf_counter()
        assert self.mark["charges"] >= state.publication.version, "it was not published"
        return [parked - began, committed - ticked, self._marking, visible - committed - self._marking]


class Floor:
    """The least that the same bytes take, on the same server and the same disk."""

    def __init__(self, url: str, folder: Path, sizes: list[int], mark: bytes) -> None:
        self._session = psycopg.connect(url.replace("+psycopg", ""), autocommit=True)
        self._session.execute("CREATE TABLE bare (content bytea)")
        self._folder, self._sizes, self._mark = folder, sizes, mark
        folder.mkdir()

    def measure(self) -> list[float]:
        """Return how many seconds each part takes at least."""
        park, commit, visible = (self._commit(size) for size in self._sizes)
        return [park, commit, self._write(), visible]

    def _commit(self, size: int) -> float:
        content = os.urandom(size)
        began = time.perf_counter()
        self._session.execute("INSERT INTO bare VALUES (%b)", [content])
        return time.perf_counter() - began

    def _write(self) -> float:
        began = time.perf_counter()
        with (self._folder / "new").open("xb", buffering=0) as file:
            file.write(self._mark)
            os.fsync(file.fileno())
        (self._folder / "new").replace(self._folder / "mark")
        descriptor = os.open(self._folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        return time.perf_counter() - began


def syncs(url: str, releases: Releases, rounds: int) -> str:
    """Return how many syncs each of some releases took: of PostgreSQL's log, by its own count, and of this process."""
    counted, sync = [], os.fsync
    releases._simulated.database.close()  # noqa: SLF001 - a session that ends tells its count

    def counting(fd: Any) -> None:
        counted.append(fd)
        sync(fd)

    os.fsync = counting
    try:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as session:
            before = session.execute(_WAL_SYNCS).fetchone()
            for _ in range(rounds):
                releases.publish()
            releases._simulated.database.close()  # noqa: SLF001
            time.sleep(1.0)
            after = session.execute(_WAL_SYNCS).fetchone()
    finally:
        os.fsync = sync
    assert before is not None
    assert after is not None
    return (
        f"{(after[0] - before[0]) / rounds:.2f} of PostgreSQL's log, {len(counted) / rounds:.2f} of the segment folder"
    )


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="The syncs that a release waits for, beside their floor.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--records", type=int, default=10**7)
    parser.add_argument("--weights", type=int, default=10_000)
    options = parser.parse_args()
    logs.configure("warning")
    schema = SCHEMA | {
        "features": options.weights // CLASSES - 1,  # and the intercept
        "task": {"kind": "classification", "classes": CLASSES},
    }
    with tempfile.TemporaryDirectory() as temporary, embedded_servers(temporary) as servers:
        folder = Path(temporary)
        migrate(servers.database_url, service=servers.service_url)
        simulated = Simulated(
            folder,
            servers.service_url,
            blocks=1,
            block=BLOCK,
            delta=0.0,
            name="s",
            schema=schema,
            learner=Unfitted,
        )
        while simulated.state.publication.position < options.records:
            simulated.grow(simulated.state.publication.version + 20)
        releases = Releases(simulated)
        releases.publish()
        size = 8 * options.weights
        floor = Floor(
            servers.database_url, folder / "bare", [size, size, VISIBLE_BYTES], json.dumps(releases.mark).encode()
        )
        position = simulated.state.publication.position
        print(
            f"{options.weights:,} weights at {position:,} records, {options.rounds} rounds; medians (nine tenths)\n",
            flush=True,
        )
        pairs = [(floor.measure(), releases.publish()) for _ in range(options.rounds)]
        print("| part | floor | a release | above |\n|---|---|---|---|")
        rows = [(name, [(least[i], took[i]) for least, took in pairs]) for i, name in enumerate(PARTS)]
        rows.append((FROM_TICK, [(sum(least[1:]), sum(took[1:])) for least, took in pairs]))
        for name, times in rows:
            least, took, above = (
                sorted(1e3 * seconds for seconds in column)
                for column in ([a for a, _ in times], [b for _, b in times], [b - a for a, b in times])
            )
            cells = [
                f"{statistics.median(times):.2f} ({times[len(times) * 9 // 10]:.2f}) ms"
                for times in (least, took, above)
            ]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        print(f"\nsyncs of a release: {syncs(servers.database_url, releases, options.rounds)}")


if __name__ == "__main__":
    main()
