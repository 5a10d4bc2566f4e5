"""How many easy linear queries are answered in a second, of a histogram over 10,000 categories.

    python -m benchmarks.queries

The records are spread evenly, so that a histogram that knows nothing is right and no query is hard: each is evaluated
on the exact counts and on the histogram, and compared with exact noise. First the mechanism alone, in this process and
on one core; then over HTTP from one client, in requests of up to a hundred queries and 2^20 bytes, with API and worker
as under `perennial up`. The processor time is the API's own, from its metrics.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from benchmarks.serving import Connection, Service, service
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.histogram import Histogram, LinearQuery
from service.mechanisms.interactive import opened
from service.mechanisms.linear_queries.mechanism import LinearQueries
from service.streams.schema import StreamSchema

if TYPE_CHECKING:
    from collections.abc import Callable

CATEGORIES = 10_000
RECORDS = 500_000
TASK = {"kind": "categorical", "cardinality": CATEGORIES}
MECHANISM = {"kind": "linear_queries", "first": RECORDS, "hits": 10, "accuracy": 0.2}
PRIVACY = {"epsilon": 1, "delta": 1e-6}
DISTINCT = 100  # queries, asked in turn
MOST_BYTES = 2**20  # of a request

RANDOM = np.random.default_rng(1)
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "10 categories": lambda: {"categories": RANDOM.choice(CATEGORIES, 10, replace=False)},
    "1,000 categories": lambda: {"categories": RANDOM.choice(CATEGORIES, 1000, replace=False)},
    "10,000 weights": lambda: {"weights": RANDOM.integers(0, 1001, CATEGORIES) / 1000},
}


def main() -> None:
    """Print the table, in Markdown."""
    parser = argparse.ArgumentParser(description="Easy linear queries a second.")
    parser.add_argument("--queries", type=int, default=100_000, help="of the mechanism alone, of each kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="over HTTP, for each kind")
    options = parser.parse_args()
    queries_of = {kind: [make() for _ in range(DISTINCT)] for kind, make in KINDS.items()}
    alone = {kind: by_the_mechanism(queries, options.queries) for kind, queries in queries_of.items()}
    with service(worker=True) as running:
        publication = published(running)
        over = {kind: over_http(running, publication, queries, options.seconds) for kind, queries in queries_of.items()}
    print("| a query is | the mechanism alone | over HTTP | a request | processor time of the API, each |")
    print("|---|---|---|---|---|")
    for kind, (rate, size, processor) in over.items():
        print(f"| {kind} | {alone[kind]:,.0f}/s | {rate:,.0f}/s | {size / 2**10:,.0f} KiB | {1e6 * processor:.0f} µs |")


def by_the_mechanism(bodies: list[dict[str, Any]], count: int) -> float:
    """Return the answers per second."""
    mechanism = build(
        StreamSchema.model_validate({"task": TASK}),
        PublicationConfiguration.model_validate({"mechanism": MECHANISM, "privacy": PRIVACY}),
    )
    assert isinstance(mechanism, LinearQueries)
    now = opened(mechanism.step(RECORDS, (), 1, lambda *_: None).chain)  # type: ignore[arg-type]
    assert now is not None
    counts, shown = np.full(CATEGORIES, RECORDS // CATEGORIES), Histogram.uniform(CATEGORIES, RECORDS)
    queries = [
        LinearQuery.weighing(body["weights"]) if "weights" in body else LinearQuery.holding(body["categories"])
        for body in bodies
    ]
    began = time.perf_counter()
    for number in range(count):
        query = queries[number % DISTINCT]
        value = now.instance.value(query.count(counts), RECORDS, query.of(shown.shares))
        assert not now.instance.is_above(value, mechanism.height, now.noise), "it is easy"
    return count / (time.perf_counter() - began)


def published(running: Service) -> str:
    """Return a stream with its records counted in, and its publication."""
    stream = running.make("streams", {"task": TASK, "budget": PRIVACY})
    publication = running.make("publications", {"stream": stream, "mechanism": MECHANISM, "privacy": PRIVACY})
    records = np.arange(RECORDS) % CATEGORIES
    with Connection(running.port) as connection:
        for batch in np.split(records, 10):
            body = orjson.dumps({"y": batch}, option=orjson.OPT_SERIALIZE_NUMPY)
            path = f"/v1/streams/{stream}/records"
            connection.ask(running.request("POST", path, body, content_type="application/json"), 202)
    path = f"/v1/publications/{publication}/queries"
    while running.client.post(path, json={"categories": []}).json()["time"] < RECORDS:
        time.sleep(0.1)
    return publication


def over_http(
    running: Service, publication: str, queries: list[dict[str, Any]], seconds: float
) -> tuple[float, int, float]:
    """Return answers per second, bytes of a request, and the API's processor seconds per answer."""
    body = orjson.dumps(queries, option=orjson.OPT_SERIALIZE_NUMPY)
    if len(body) > MOST_BYTES:
        queries = queries[: len(queries) * MOST_BYTES // len(body)]
        body = orjson.dumps(queries, option=orjson.OPT_SERIALIZE_NUMPY)
    path = f"/v1/publications/{publication}/queries"
    sent = running.request("POST", path, body, content_type="application/json")
    with Connection(running.port) as connection:
        connection.ask(sent, 200)
        before, began, answers = _processor(running), time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            connection.ask(sent, 200)
            answers += len(queries)
    return answers / took, len(body), (_processor(running) - before) / answers


def _processor(running: Service) -> float:
    lines = running.client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("process_cpu_seconds_total "))


if __name__ == "__main__":
    main()
