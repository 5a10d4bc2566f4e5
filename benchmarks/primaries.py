"""Measure the processor time of a record with one server of the log, and with a cluster of three primaries.

Twelve streams take three batches of 100 records each and number them, again and again, by turns on one server and on
a cluster, all of them reached over TCP. Printed: processor seconds of appending, of numbering and of the log's
servers together, as they are and beside those with one server. PostgreSQL does the same in both, and is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis

from service.embedded import Servers, embedded_servers
from service.embedded.directory import open_data_directory
from service.embedded.processes import stop_together
from service.embedded.valkey import Valkey
from service.embedded.waiting import StopRequest
from service.log import Appenders, open_readers, read_primaries
from service.segments.files import SegmentFiles
from service.store.database import Database
from service.worker import sealer as sealing
from service.worker.leases import LeaseKeeper
from service.worker.sealer import Sealer
from tests.conftest import make_world, wait_until
from tests.log.primaries import PRIMARIES, three_in_cluster
from tests.log.test_command_counts import BATCHES, RECORDS, STREAMS, append, new_stream
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PARTS = ("appending", "numbering", "servers")


@contextmanager
def over_tcp(folder: Path) -> Iterator[str]:
    """Run one server; yield its URL."""
    port = free_port()
    with open_data_directory(folder, StopRequest()) as directory:
        server = Valkey(directory)
        more = ("--port", str(port), "--bind", "127.0.0.1")
        server.child.program = replace(server.child.program, command=(*server.child.program.command, *more))
        try:
            server.start()
            wait_until(server.ready)
            yield f"redis://127.0.0.1:{port}"
        finally:
            stop_together([server.child])


@dataclass
class Scene:
    """Streams on some primaries, both ends of their logs, and the processor seconds that they took."""

    servers: Servers
    url: str
    primaries: Sequence[Redis]
    folder: Path
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    sent: int = 0

    def __post_init__(self) -> None:
        settings: Any = make_world(self.servers, self.folder, redis_url=self.url).settings
        self.database, named = Database(settings.database_url), read_primaries(self.url)
        named.refresh()
        self.readers, keeper = open_readers(named), LeaseKeeper(self.database, seconds=3600.0)
        files = SegmentFiles(settings.segment_store)
        self.sealers = [Sealer(self.database, reader, files, keeper) for reader in self.readers]
        self.appenders = Appenders(named, max_batches=1000, max_bytes=10**9)
        self.loop = asyncio.Runner()
        self.streams = [
            self.loop.run(new_stream(self.database, self.appenders, f"s{number}")) for number in range(STREAMS)
        ]
        for sealer in self.sealers:
            sealer.step(wait_milliseconds=0)

    def turn(self) -> None:
        """Append a batch to all streams, and number the records."""
        servers, began = self.server_seconds(), time.process_time()
        self.loop.run(append(self.appenders, self.streams))
        appended = time.process_time()
        self.sent += STREAMS * BATCHES * RECORDS
        while self.numbered() < self.sent:
            for sealer in self.sealers:
                sealer._seal_waiting(0)  # noqa: SLF001 - `step` looks for free streams too
        self.seconds["appending"] += appended - began
        self.seconds["numbering"] += time.process_time() - appended
        self.seconds["servers"] += self.server_seconds() - servers

    def numbered(self) -> int:
        """Return how many records have numbers."""
        held = [stream for sealer in self.sealers for _, stream in sealer._held.values()]  # noqa: SLF001
        return sum(stream.records for stream in held)

    def server_seconds(self) -> float:
        """Return the processor seconds of the log's servers."""
        usage: list[Any] = [primary.info("cpu") for primary in self.primaries]
        return float(sum(info["used_cpu_user"] + info["used_cpu_sys"] for info in usage))

    def close(self) -> None:
        """Close all connections."""
        self.loop.run(self.appenders.close())
        self.loop.close()
        for reader in self.readers:
            reader.close()
        for primary in self.primaries:
            primary.close()
        self.database.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=120)
    turns = parser.parse_args().turns
    sealing.TIDY_SECONDS = 10**6
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(embedded_servers(folder / "servers"))
        one = stack.enter_context(over_tcp(folder / "one"))
        cluster = stack.enter_context(three_in_cluster(folder / "cluster"))
        scenes = {
            "one server": Scene(servers, one, [Redis.from_url(one)], folder / "1"),
            "cluster": Scene(
                servers, cluster.url, [cluster.redis(number + 1) for number in range(PRIMARIES)], folder / "2"
            ),
        }
        for _ in range(turns):
            for scene in scenes.values():
                scene.turn()
        for scene in scenes.values():
            scene.close()
    first = next(iter(scenes.values())).seconds
    print(f"| {turns * STREAMS * BATCHES * RECORDS:,} records | {' | '.join(PARTS)} | all |")
    for name, scene in scenes.items():
        sums = [(scene.seconds[part], first[part]) for part in PARTS]
        sums.append((sum(scene.seconds.values()), sum(first.values())))
        print(f"| {name} | {' | '.join(f'{took:.2f} s, {took / of_one:.2f}' for took, of_one in sums)} |")


if __name__ == "__main__":
    main()
