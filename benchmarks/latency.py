"""How soon the model that a batch completes can be had: from the batch's 202 to the end of a long poll's answer.

    python -m benchmarks.latency

API and worker run as under `perennial up`, on one stream with one publication: 32 features, a model of the last 2,000
records for every 2,000. One client waits with `Prefer: wait` while another posts the batch that completes the block.
The time of the fit itself (`fit_seconds` of the worker's log line `released`) is taken off: the rest is numbering
the batch, noticing, charging and publishing, and waking who waits.
"""

from __future__ import annotations

import argparse
import json
import threading
import time

import numpy as np
import orjson

from benchmarks.serving import Connection, picture, service

FEATURES = 32
BLOCK = 2_000
SECONDS_TO_SETTLE = 0.3  # seconds until the long poll waits


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="From a batch's 202 to the model that it completes.")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    totals = {}
    with service(worker=True) as running:
        stream = running.stream(FEATURES)
        publication = running.publish(stream, block=BLOCK, regularization=0.01)
        for version in range(1, options.rounds + 1):
            x = random.standard_normal((BLOCK, FEATURES)).astype(np.float32)
            y = (x[:, 0] + random.standard_normal(BLOCK) > 0).astype(np.int64)
            body = orjson.dumps({"x": x, "y": y}, option=orjson.OPT_SERIALIZE_NUMPY)
            post = running.request("POST", f"/v1/streams/{stream}/records", body, content_type="application/json")
            poll = running.request(
                "GET",
                f"/v1/publications/{publication}/releases/latest",
                if_none_match=f'"{version - 1}.json.1"',
                prefer="wait=60",
            )
            seen: list[float] = []

            def wait(poll: bytes = poll, version: int = version, seen: list[float] = seen) -> None:
                with Connection(running.port) as connection:
                    assert b'"version":%d,' % version in connection.ask(poll, 200)
                    seen.append(time.perf_counter())

            waiting = threading.Thread(target=wait)
            waiting.start()
            time.sleep(SECONDS_TO_SETTLE)
            with Connection(running.port) as connection:
                connection.ask(post, 202)
                accepted = time.perf_counter()
            waiting.join()
            totals[version] = seen[0] - accepted
        log_lines = [json.loads(line) for line in running.worker_log.read_text().splitlines()]
    fits = {line["version"]: line["fit_seconds"] for line in log_lines if line["event"] == "released"}
    rest = [totals[version] - fits[version] for version in totals]
    print("| | median | p90 |\n|---|---|---|")
    rows = {"from 202 to the model": list(totals.values()), "its fit": [fits[v] for v in totals], "the rest": rest}
    quantiles = {name: [1e3 * float(q) for q in np.quantile(values, (0.5, 0.9))] for name, values in rows.items()}
    for name, (median, most) in quantiles.items():
        print(f"| {name} | {median:.0f} ms | {most:.0f} ms |")
    picture(
        "latency.svg",
        f"From a batch's 202 to the model of {BLOCK:,} records that it completes",
        "ms",
        list(rows),
        {name: [both[index] for both in quantiles.values()] for index, name in enumerate(("median", "p90"))},
    )


if __name__ == "__main__":
    main()
