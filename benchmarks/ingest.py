"""Records per second from HTTP to disk: the API beside a handler that only parses and appends (bare.py).

    python -m benchmarks.ingest

Both are one process of the same server on the same Valkey, which answers a write when it is on disk, and get the same
records: 32 float32 features and a class, in every format, by 1, 100 and 1000 a request, over 8 connections. JSON and
NDJSON are what Python's own `json` makes of `x.tolist()`, twenty characters a number. They take turns, after each of
which the log is emptied and its file written anew; the medians of the turns are compared. No worker runs: it would take
both the same cores. Beside the rates stands the processor time of a request, which other programs on the machine change
less: that of the API's and of the bare handler's process, and that of Valkey for each of the two.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nanoarrow
import numpy as np
import redis
from nanoarrow.ipc import StreamWriter

from benchmarks.processes import busy_seconds, processes
from benchmarks.serving import Service, Turn, picture, request, service, turn

if TYPE_CHECKING:
    from collections.abc import Callable

FEATURES = 32
BATCHES = (1, 100, 1000)
CONNECTIONS = 8
PROCESSES = {"API": "service api", "bare": "benchmarks.bare", "Valkey": "valkey-server"}


def as_json(x: np.ndarray, y: np.ndarray) -> bytes:
    return json.dumps({"x": x.tolist(), "y": y.tolist()}).encode()


def as_rows(x: np.ndarray, y: np.ndarray) -> bytes:
    rows = zip(x.tolist(), y.tolist(), strict=True)
    return b"".join(json.dumps({"x": row, "y": label}).encode() + b"\n" for row, label in rows)


def as_arrow(x: np.ndarray, y: np.ndarray) -> bytes:
    kinds = {"x": nanoarrow.fixed_size_list(nanoarrow.float32(), x.shape[1]), "y": nanoarrow.int32()}
    rows = nanoarrow.c_array_from_buffers(
        kinds["x"], len(x), [None], children=[nanoarrow.c_array(x.ravel(), nanoarrow.float32())]
    )
    labels = nanoarrow.c_array(y.astype(np.int32), kinds["y"])
    out = io.BytesIO()
    with StreamWriter.from_writable(out) as writer:
        writer.write_array(
            nanoarrow.c_array_from_buffers(nanoarrow.struct(kinds), len(x), [None], children=[rows, labels])
        )
    return out.getvalue()


FORMATS = {
    "JSON": ("application/json", as_json),
    "NDJSON": ("application/x-ndjson", as_rows),
    "Arrow": ("application/vnd.apache.arrow.stream", as_arrow),
}


@dataclass(frozen=True)
class Measured:
    """Medians of the turns of the API and of the bare handler, in this order."""

    rates: tuple[float, float]  # records per second
    ratio: float  # median of the turns' ratios
    handlers: tuple[float, float]  # processor seconds of a request in the handler's process
    logs: tuple[float, float]  # processor seconds of a request in Valkey
    client: float  # the most that the client took of a core


def compare(running: Service, name: str, size: int, turns: int, seconds: float) -> Measured:
    """Measure both handlers in turns, with that many records a request."""
    random = np.random.default_rng(1)
    media_type, write = FORMATS[name]
    body = write(random.standard_normal((size, FEATURES)).astype(np.float32), random.integers(0, 2, size))
    pids = {name: pid for pid, name in processes(PROCESSES).items()}
    pairs = []
    with contextlib.closing(redis.Redis.from_url(running.redis_url)) as log:
        for _ in range(turns):
            path = f"/v1/streams/{running.stream(FEATURES)}/records"
            requests = (
                ("API", running.port, running.request("POST", path, body, content_type=media_type)),
                ("bare", running.bare_port, request("POST", "/", body, content_type=media_type)),
            )
            pair = []
            for handler, port, sent in requests:
                before = [busy_seconds(pids[process]) for process in (handler, "Valkey")]
                took = turn(port, sent, 202, seconds=seconds, connections=CONNECTIONS)
                after = [busy_seconds(pids[process]) for process in (handler, "Valkey")]
                pair.append((took, [(last - first) / took.requests for first, last in zip(before, after, strict=True)]))
                _empty(log)
            pairs.append(pair)

    def median(of: Callable[[Turn, list[float]], float]) -> tuple[float, float]:
        api, bare = (statistics.median(of(*pair[index]) for pair in pairs) for index in (0, 1))
        return api, bare

    return Measured(
        rates=median(lambda took, _: size * took.rate),
        ratio=statistics.median(api.rate / bare.rate for (api, _), (bare, _) in pairs),
        handlers=median(lambda _, busy: busy[0]),
        logs=median(lambda _, busy: busy[1]),
        client=max(took.client for pair in pairs for took, _ in pair),
    )


def _empty(log: redis.Redis) -> None:
    """Empty Valkey and its append-only file, which it would otherwise rewrite during somebody's turn."""
    _await_rewritten(log)
    log.flushall()
    log.bgrewriteaof()
    _await_rewritten(log)


def _await_rewritten(log: redis.Redis) -> None:
    deadline = time.monotonic() + 30
    while any(log.info("persistence")[what] for what in ("aof_rewrite_in_progress", "aof_rewrite_scheduled")):
        if time.monotonic() > deadline:
            raise TimeoutError("the log's file is not rewritten")
        time.sleep(0.01)


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="Records per second from HTTP to disk, beside a bare handler.")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--sizes", type=int, nargs="+", default=BATCHES, help="of batches, in records")
    parser.add_argument("--formats", nargs="+", default=[*FORMATS], choices=[*FORMATS])
    options = parser.parse_args()
    measured = {}
    print(
        "| records a request | format | API, records/s | bare, records/s | ratio | API + Valkey | bare + Valkey |"
        " client, cores |\n|---|---|---|---|---|---|---|---|",
        flush=True,
    )
    with service(worker=False, max_backlog_batches=10**9, max_backlog_bytes=10**12, max_key_requests=1e9) as running:
        for size in options.sizes:
            for name in options.formats:
                each = measured[size, name] = compare(running, name, size, options.turns, options.seconds)
                rates = " | ".join(f"{rate:,.0f}" for rate in each.rates)
                busy = " | ".join(
                    f"{1e6 * handler:,.0f} + {1e6 * log:,.0f} µs"
                    for handler, log in zip(each.handlers, each.logs, strict=True)
                )
                print(f"| {size} | {name} | {rates} | {each.ratio:.2f} | {busy} | {each.client:.2f} |", flush=True)
    largest = BATCHES[-1]
    if any((largest, name) not in measured for name in FORMATS):
        return
    faster = [measured[largest, "Arrow"].rates[index] / measured[largest, "JSON"].rates[index] for index in (0, 1)]
    print("\nBy {} records a request, Arrow over JSON: API {:.1f}, bare {:.1f}.".format(largest, *faster))
    picture(
        "ingest.svg",
        f"Records of {FEATURES} features from HTTP to disk, {largest} a request",
        "records/s",
        list(FORMATS),
        {who: [measured[largest, name].rates[index] for name in FORMATS] for index, who in enumerate(("API", "bare"))},
    )


if __name__ == "__main__":
    main()
