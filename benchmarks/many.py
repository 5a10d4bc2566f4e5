"""Measure the processor time of lists, metrics and workers where there are many streams.

    python -m benchmarks.many [--streams 1000] [--only lists|workers]

Workers: see `many_workers`. Lists: each stream has a running and an ended publication, with a release each, a
segment, entries, an erasure and a dead letter. One stream is made by the API, the others are copies of its rows; no
worker runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, bindparam, func, insert, literal, select, text, update

from benchmarks import many_workers
from benchmarks.serving import Service, service
from benchmarks.soak import processor_seconds
from service.store import tables
from service.store.database import Database

TURNS = 5
ANSWER_SECONDS = 300.0
BETWEEN_LOOKS_SECONDS = 1.1  # seconds for which metrics are cached
RECORDS = 2000  # publications of each stream
SLIDING_WINDOW = {"kind": "sliding_window", "block": 10, "blocks": 10}
ONE_RELEASE = {
    "version": 1,
    "time": 100,
    "role": "model",
    "window_start": 0,
    "window_stop": 100,
    "fit_start": 0,
    "fit_stop": 100,
    "shape": [1, 1],
    "parameters": b"01234567",
    "model": {},
    "noise": {},
    "digest": "",
}

ROWS = (
    """
    INSERT INTO shown (publication_id, position, due, worst_amount)
    SELECT id, 100, 110, 0 FROM publications ON CONFLICT DO NOTHING
    """,
    f"INSERT INTO segments SELECT id, 0, {RECORDS}, 'file', '', '' FROM streams",
    f"""
    INSERT INTO entries SELECT id, n || '-1', 10 * n, 10 * n + 10, now()
    FROM streams, generate_series(0, {RECORDS} / 10 - 1) AS n
    """,
    "INSERT INTO erasures (stream_id, start, stop) SELECT id, 10, 20 FROM streams",
    "INSERT INTO dead_letters (stream_id, entry, reason, size) SELECT id, '1-1', 'why', 1 FROM streams",
    """
    INSERT INTO charges
    SELECT stream_id, row_number() OVER (PARTITION BY stream_id), id, 1, 0, 100, 0.5, 0, NULL, now(), '', ''
    FROM publications
    """,
)


def fill(running: Service, connection: Connection, streams: int) -> None:
    """Make a stream with everything, and copies of it."""
    made = running.stream(20, retention="needed")
    names = [
        running.make(
            "publications",
            {
                "stream": made,
                "mechanism": SLIDING_WINDOW,
                "learner": {"kind": "output_perturbation", "regularization": 0.1},
                "privacy": {"epsilon": 1, "delta": 0},
            },
        )
        for _ in range(2)
    ]
    running.client.delete(f"/v1/publications/{names[1]}").raise_for_status()
    copies = select(func.generate_series(1, streams - 1).label("copy")).subquery()
    suffix = literal("-") + copies.c.copy.cast(tables.streams.c.name.type)
    first, ours = tables.streams, tables.streams.alias("ours")
    copied = select(*_columns(first, name=first.c.name + suffix, log=first.c.log + suffix)).select_from(first)
    _copy(connection, first, copied.join(copies, literal(True)))
    of_it = ours.c.name.like(first.c.name + "-%")
    for table in (tables.publications, tables.kept_reservations):
        columns = _columns(table, stream_id=ours.c.id)
        if table is tables.publications:
            columns = _columns(table, stream_id=ours.c.id, name=table.c.name + func.replace(ours.c.name, made, ""))
        copied = select(*columns).select_from(table).join(first, first.c.id == table.c.stream_id).join(ours, of_it)
        _copy(connection, table, copied)
    for statement in ROWS:
        connection.execute(text(statement))
    charges = tables.charges
    moved = {"publication_id": charges.c.publication_id, "stream_id": charges.c.stream_id}
    moved |= {"number": charges.c.id, "charge": charges.c.id}
    given = {name: bindparam(name, value, tables.releases.c[name].type) for name, value in ONE_RELEASE.items()}
    values = moved | given
    connection.execute(insert(tables.releases).from_select(list(values), select(*values.values())))
    connection.execute(
        update(first).values(records=RECORDS, confirmed_charges=2, confirmed_releases=2, charges=2, releases=2)
    )
    connection.execute(text("ANALYZE"))


def _columns(table: Table, **instead: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    return [instead.get(column.name, column) for column in table.c if column.name != "id"]


def _copy(connection: Connection, table: Table, rows: Select[Any]) -> None:
    connection.execute(insert(table).from_select([column.name for column in table.c if column.name != "id"], rows))


def measure(running: Service, path: str) -> str:
    """Return a line of the table: the median of a few turns."""
    spent: dict[str, list[float]] = {}
    size = 0
    for _ in range(TURNS):
        before = processor_seconds()
        answer = running.client.get(path, timeout=ANSWER_SECONDS).raise_for_status()
        size = len(answer.content)
        for name, seconds in processor_seconds().items():
            spent.setdefault(name, []).append(seconds - before[name])
        time.sleep(BETWEEN_LOOKS_SECONDS)
    shown = {name: statistics.median(spent[name]) for name in ("API", "PostgreSQL", "Valkey")}
    return f"| `{path}` | {size / 1e6:.2f} MB |" + "".join(f" {seconds:.2f} |" for seconds in shown.values())


def main() -> None:
    """Print the tables, in Markdown."""
    parser = argparse.ArgumentParser(description="The cost of lists, metrics and workers where there are many streams.")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--only", choices=["lists", "workers"])
    options = parser.parse_args()
    if options.only != "workers":
        lists(options.streams)
    if options.only != "lists":
        for line in many_workers.report(options.streams):
            print(line, flush=True)


def lists(streams: int) -> None:
    """Print the cost of the API's lists and metrics."""
    with service(worker=False) as running:
        database = Database(running.database_url)
        with database.transaction() as connection:
            fill(running, connection, streams)
        print(f"{streams} streams, {2 * streams} publications; seconds of processor time\n")
        print("| | answer | API | PostgreSQL | Valkey |\n|---|---|---|---|---|")
        for path in (f"/v1/streams?limit={min(streams, 1000)}", "/metrics"):
            print(measure(running, path), flush=True)
        database.close()


if __name__ == "__main__":
    main()
