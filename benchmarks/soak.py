"""A long steady load in minutes: the memory of every process over time, and how long requests take meanwhile.

    python -m benchmarks.soak [--seconds 180]

API, worker, Valkey and PostgreSQL run as under `perennial up`, on one stream with one publication: batches of 100
records of 32 features as JSON, a model of the last 100,000 records for every 100,000, segments kept while they are
needed. First the peak is measured, as many batches as eight connections can send; then what a batch and a `GET latest`
take with nothing else to do; then both under half of that peak, sent at even times whether or not answers have come.
The time of a request counts from the moment at which it was due, so that waiting for the answers before it counts too.
Memory is what each process has for itself and its part of what it shares (PSS).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from benchmarks.processes import busy_seconds, processes
from benchmarks.serving import Connection, Service, service, turn

FEATURES = 32
RECORDS = 100  # in a batch
BLOCK = 100_000
CONNECTIONS = 8
MOST_SECONDS = 600.0
IDLE_SECONDS = 20.0
READS_PER_SECOND = 20.0  # of `GET latest`, and of batches too with nothing else to do
PROCESSES = {"API": "service api", "worker": "service worker", "Valkey": "valkey-server", "PostgreSQL": "postgres"}


@dataclass
class Pace:
    """A request at even times over one connection."""

    running: Service
    sent: bytes
    status: int
    per_second: float
    offset: float = 0.0
    took: list[float] = field(default_factory=list)
    """Seconds from when each was due to the end of its answer."""

    def run(self, began: float, seconds: float) -> None:
        """Send requests for that many seconds from `began` on the monotonic clock."""
        with Connection(self.running.port) as connection:
            due = began + self.offset
            while due < began + seconds:
                time.sleep(max(0.0, due - time.monotonic()))
                connection.ask(self.sent, self.status)
                self.took.append(time.monotonic() - due)
                due += 1 / self.per_second


def together(paces: list[Pace], seconds: float) -> None:
    """Run all paces at the same time."""
    began = time.monotonic() + 0.1
    threads = [threading.Thread(target=pace.run, args=(began, seconds)) for pace in paces]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Memory(threading.Thread):
    """Reads the MiB of each process every second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[dict[str, float]] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Read the memory until `stop` is set."""
        while not self.over.wait(1.0):
            self.seen.append(memory())

    def around(self, part: float) -> dict[str, float]:
        """Return the medians over the tenth of the run around this part of it."""
        middle, width = part * (len(self.seen) - 1), len(self.seen) / 20
        near = [memory for at, memory in enumerate(self.seen) if abs(at - middle) <= width]
        return {name: statistics.median(memory[name] for memory in near) for name in PROCESSES}


def memory() -> dict[str, float]:
    """Return the MiB of this process's children, by name."""
    mebibytes = dict.fromkeys(PROCESSES, 0.0)
    for pid, name in processes(PROCESSES).items():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    mebibytes[name] += int(line.split()[1]) / 1024
    return mebibytes


def processor_seconds() -> dict[str, float]:
    """Return the processor seconds of this process's children, by name."""
    seconds = dict.fromkeys(PROCESSES, 0.0)
    for pid, name in processes(PROCESSES).items():
        seconds[name] += busy_seconds(pid)
    return seconds


def p(took: list[float], part: float) -> str:
    """Return a quantile in milliseconds."""
    return f"{1e3 * float(np.quantile(took, part)):.1f} ms"


def main() -> None:
    """Print the tables, in Markdown."""
    parser = argparse.ArgumentParser(description="A steady load at half the peak: memory and times.")
    parser.add_argument("--seconds", type=float, default=180.0, help=f"of load, at most {MOST_SECONDS:g}")
    seconds = min(MOST_SECONDS, parser.parse_args().seconds)
    random = np.random.default_rng(1)
    x = random.standard_normal((RECORDS, FEATURES)).astype(np.float32)
    body = orjson.dumps({"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, option=orjson.OPT_SERIALIZE_NUMPY)
    with service(worker=True, max_key_requests=1e9) as running:
        stream = running.stream(FEATURES, retention="needed")
        name = running.publish(stream, block=BLOCK, regularization=0.01)
        post = running.request("POST", f"/v1/streams/{stream}/records", body, content_type="application/json")
        get = running.request("GET", f"/v1/publications/{name}/releases/latest")
        peak = statistics.median(
            turn(running.port, post, 202, seconds=4.0, connections=CONNECTIONS).rate for _ in range(3)
        )
        running.await_release(name)
        idle = [Pace(running, post, 202, READS_PER_SECOND), Pace(running, get, 200, READS_PER_SECOND, 0.025)]
        together(idle, IDLE_SECONDS)
        rate = peak / 2 / CONNECTIONS
        posts = [Pace(running, post, 202, rate, number / rate / CONNECTIONS) for number in range(CONNECTIONS)]
        gets = Pace(running, get, 200, READS_PER_SECOND)
        looking = Memory()
        looking.start()
        busy, began = time.process_time(), time.monotonic()
        together([*posts, gets], seconds)
        client = (time.process_time() - busy) / (time.monotonic() - began)
        looking.over.set()
        looking.join()
        lag = running.metric("perennial_lag_seconds")
        releases = running.metric("perennial_release_version")
    loaded = [seconds for pace in posts for seconds in pace.took]
    print(f"Peak {peak:,.0f} batches/s; {seconds:g} s at {len(loaded) / seconds:,.0f}/s: ", end="")
    print(
        f"{RECORDS * len(loaded):,} records, {releases:.0f} models. At the end the oldest batch without numbers ",
        end="",
    )
    print(f"was {lag:.2f} s old. The client took {client:.2f} cores.\n")
    print("| | alone, median | p99 | under load, median | p99 |\n|---|---|---|---|---|")
    for what, alone, busily in (("a batch", idle[0].took, loaded), ("`GET latest`", idle[1].took, gets.took)):
        print(f"| {what} | {p(alone, 0.5)} | {p(alone, 0.99)} | {p(busily, 0.5)} | {p(busily, 0.99)} |")
    parts = (0.1, 0.3, 0.5, 0.7, 0.9)
    print("\n| MiB, after | " + " | ".join(f"{part * seconds:.0f} s" for part in parts) + " |")
    print("|---" * (1 + len(parts)) + "|")
    for process in PROCESSES:
        print(f"| {process} | " + " | ".join(f"{looking.around(part)[process]:.0f}" for part in parts) + " |")


if __name__ == "__main__":
    main()
