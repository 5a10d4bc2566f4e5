"""A cluster of three primaries of the log, on servers of their own."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from redis import Redis

from service.embedded.directory import DataDirectory, open_data_directory
from service.embedded.processes import stop_together
from service.embedded.valkey import Valkey
from service.embedded.waiting import StopRequest
from tests.conftest import HANG_SECONDS, wait_until
from tests.ports import free_port

PRIMARIES, SLOTS = 3, 2**14


@dataclass
class Three:
    """`url`: the setting that names the cluster."""

    servers: list[Valkey]
    url: str

    def redis(self, number: int) -> Redis:
        return Redis.from_url(self.servers[number - 1].url)

    def kill(self, number: int) -> None:
        child = self.servers[number - 1].child
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: not child.running)

    def start(self, number: int) -> None:
        server = self.servers[number - 1]
        server.start()
        wait_until(server.ready)
        self.serves(number)

    def serves(self, number: int) -> None:
        with self.redis(number) as redis:
            wait_until(lambda: redis.cluster("INFO")["cluster_state"] == "ok")

    def refused_across_slots(self) -> int:
        """Return how many commands the servers refused since their keys were in several slots."""
        refused = 0
        for number in range(1, PRIMARIES + 1):
            with self.redis(number) as redis:
                refused += redis.info("errorstats").get("errorstat_CROSSSLOT", {"count": 0})["count"]
        return refused

    def commands(self) -> int:
        """Return how many commands all servers have done together, also those within scripts."""
        done = 0
        for number in range(1, PRIMARIES + 1):
            with self.redis(number) as redis:
                done += sum(each["calls"] for each in redis.info("commandstats").values())
        return done


@contextmanager
def three_in_cluster(folder: Path) -> Iterator[Three]:
    """Run a cluster of three primaries. If one is away, the others serve their slots."""
    stop = StopRequest()
    with ExitStack() as stack:
        directories = [stack.enter_context(open_data_directory(folder / str(each), stop)) for each in range(PRIMARIES)]
        ports = [free_port() for _ in range(2 * PRIMARIES)]
        servers = [_node(directory, *ports[2 * each : 2 * each + 2]) for each, directory in enumerate(directories)]
        try:
            for server in servers:
                server.start()
                wait_until(server.ready)
            three = Three(servers, f"redis+cluster://127.0.0.1:{ports[0]},127.0.0.1:{ports[2]}")
            edges = [SLOTS * each // PRIMARIES for each in range(PRIMARIES + 1)]
            for number in range(1, PRIMARIES + 1):
                with three.redis(number) as redis:
                    redis.execute_command("CLUSTER ADDSLOTSRANGE", edges[number - 1], edges[number] - 1)
                    redis.execute_command("CLUSTER MEET", "127.0.0.1", ports[0], ports[1])
            for number in range(1, PRIMARIES + 1):
                three.serves(number)
            yield three
        finally:
            stop_together([server.child for server in servers])


def _node(directory: DataDirectory, port: int, bus: int) -> Valkey:
    server = Valkey(directory)
    settings = {
        "port": port,
        "cluster-port": bus,
        "bind": "127.0.0.1",
        "cluster-enabled": "yes",
        "cluster-require-full-coverage": "no",
        "cluster-node-timeout": int(1000 * HANG_SECONDS),  # else one that stalls, or its processor, is taken for away
    }
    words = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    server.child.program = replace(server.child.program, command=(*server.child.program.command, *words))
    return server
