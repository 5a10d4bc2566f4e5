"""How publishing and the ledger behave as a stream grows old: time and memory, on simulated records.

    python -m benchmarks.ledger [--charges 100000] [--blocks 10] [--delta 0]

Real PostgreSQL, the worker's own transaction, the API's own answers; only records and fits are left out. Charges up to
the number asked for are written by the same code, many in one transaction, so that it ends.
"""

import argparse
import contextlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import Connection, func, select, update

from service.embedded import embedded_servers
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.ledger.verify import look, verify
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.linear import LinearMechanism
from service.publishing.prepared import PendingStep, prepare
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store import leases, publications, streams, tables
from service.store.database import Database
from service.store.migrate import migrate
from service.store.publications import NewPublication
from service.store.step_records import SavedState
from service.streams.schema import StreamSchema
from service.worker.context import WorkerContext
from service.worker.leases import LeaseKeeper
from service.worker.publication_state import PublicationState
from service.worker.publisher import Publisher
from tests.conftest import serving

KEY = "k" * 40
NOTHING = Records(x=np.zeros((0, 20), dtype=np.float32), y=np.zeros(0, dtype=np.int32))
SCHEMA = {"features": 20, "task": {"kind": "classification", "classes": 2}, "norm_bound": 1.0, "feature_map": None}


class Idle(OutputPerturbation):
    """A learner that fits nothing, with the charges and noise of the real one."""

    def release(self, *_: Any) -> np.ndarray:
        return np.zeros(self.shape)


class Simulated:
    """A publication whose fits are not done: their releases are zeros. The rest is the worker's."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        blocks: int,
        block: int,
        delta: float,
        name: str,
        schema: dict[str, Any] = SCHEMA,
        learner: type[OutputPerturbation] = Idle,
    ) -> None:
        self.database = Database(url)
        privacy = {"epsilon": 1, "delta": delta}
        mechanism = {"kind": "sliding_window", "block": block, "blocks": blocks}
        self.configuration = {
            "mechanism": mechanism,
            "learner": {"kind": "output_perturbation"},
            "privacy": privacy,
            "publish_delay": 0,
        }
        built = build(StreamSchema.model_validate(schema), PublicationConfiguration.model_validate(self.configuration))
        assert isinstance(built, LinearMechanism)
        self.mechanism = replace(built, learner=learner(**vars(built.learner)))
        with self.database.transaction() as connection:
            stream = streams.create(
                connection,
                name=name,
                log=name,
                schema=schema,
                retention="keep",
                epsilon=Decimal(2),
                delta=Decimal("1e-5"),
            )
            connection.execute(update(tables.streams).where(tables.streams.c.id == stream.id).values(records=2**40))
            new = NewPublication(
                name=name,
                start=0,
                configuration=self.configuration,
                plan=self.mechanism.plan(),
                obligations=self.mechanism.obligations(),
                kind=self.mechanism.currency,
                epsilon=Decimal(1),
                delta=Decimal(str(delta)),
                due=self.mechanism.next_time(0),
                publish_delay=Decimal(0),
            )
            made = publications.create(connection, stream.id, new)
        keeper = LeaseKeeper(self.database, seconds=3600)
        self.publisher = Publisher(WorkerContext(self.database, SegmentFiles(folder / "segments"), keeper))
        lease = keeper.take(leases.publication(made.id))
        assert lease is not None
        self.lease = lease
        memory = SavedState(parts={}, digest=None)
        self.state = PublicationState(made, replace(stream, records=2**40), self.mechanism, memory, {})

    def step(self) -> PendingStep:
        """Return the next step, drawn."""
        due = self.state.time_due()
        version = self.state.publication.version + 1
        step = self.mechanism.step(due, self.state.chain, version, lambda *_: NOTHING)
        return prepare(self.state.publication.start, self.mechanism, step, due)

    def publish(self, times: int) -> list[float]:
        """Publish that many steps; return the seconds of each transaction."""
        seconds = []
        for _ in range(times):
            prepared = self.step()
            began = time.perf_counter()
            moved = self.publisher._commit(self.lease, self.state, prepared)  # noqa: SLF001
            seconds.append(time.perf_counter() - began)
            assert moved is not None
            self.state.go_on(moved, prepared)
        return seconds

    def grow(self, charges: int) -> None:
        """Publish until there are that many charges, many steps in one transaction."""
        real = Database.transaction
        while self.state.publication.version < charges:
            with real(self.database) as connection:

                @contextlib.contextmanager
                def same(_: Database, connection: Connection = connection) -> Iterator[Connection]:
                    yield connection

                Database.transaction = same  # type: ignore[assignment, method-assign]
                try:
                    self.publish(20)
                finally:
                    Database.transaction = real  # type: ignore[method-assign]


def milliseconds(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return (
        f"median {1e3 * statistics.median(ordered):6.2f} ms, fastest tenth {1e3 * ordered[len(ordered) // 10]:6.2f} ms"
    )


def answers(settings: Settings, stream: str, name: str) -> None:
    """Print how long the API takes to answer, over HTTP on loopback."""
    with serving(settings) as url, httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}) as client:
        body: dict[str, Any] = {
            "name": "another",
            "stream": stream,
            "mechanism": {"kind": "sliding_window", "block": 10, "blocks": 3},
            "learner": {"kind": "output_perturbation"},
            "privacy": {"epsilon": 1.5, "delta": 0},
        }
        calls: dict[str, Callable[[], httpx.Response]] = {
            "GET ledger": lambda: client.get(f"/v1/streams/{stream}/ledger"),
            "GET ledger, a part": lambda: client.get(f"/v1/streams/{stream}/ledger?start=1000&end=4000"),
            "GET charges": lambda: client.get(f"/v1/streams/{stream}/ledger/charges"),
            "GET stream": lambda: client.get(f"/v1/streams/{stream}"),
            "GET publication": lambda: client.get(f"/v1/publications/{name}"),
            "POST publications, refused": lambda: client.post("/v1/publications", json=body),
        }
        for what, call in calls.items():
            call()
            seconds = []
            for _ in range(20):
                began = time.perf_counter()
                answer = call()
                seconds.append(time.perf_counter() - began)
            print(f"  {what:28} {answer.status_code} {len(answer.content):8,} bytes  {milliseconds(seconds)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--charges", type=int, default=100_000)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--block", type=int, default=100)
    parser.add_argument("--delta", type=float, default=0.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, embedded_servers(folder) as servers:
        migrate(servers.database_url, service=servers.service_url)
        one = Simulated(
            Path(folder), servers.service_url, blocks=options.blocks, block=options.block, delta=options.delta, name="s"
        )
        settings = Settings(
            _env_file=None, redis_url=servers.redis_url, database_url=servers.service_url, admin_key=KEY
        )
        for charges in (1, options.charges // 100, options.charges // 10, options.charges):
            began = time.perf_counter()
            one.grow(charges)
            grew = time.perf_counter() - began
            seconds = one.publish(200 if charges > 1 else 20)
            with one.database.transaction() as connection:
                rows = [
                    connection.execute(select(func.count()).select_from(table)).scalar_one()
                    for table in (tables.charges, tables.spent, tables.outlines)
                ]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{rows[0]:,} charges, {one.state.publication.position:,} records, {rows[1]:,} exact ranges, "
                f"{rows[2]:,} stretches; publishing: {milliseconds(seconds)}; at most {memory:.0f} MiB; "
                f"grew in {grew:.0f} s",
                flush=True,
            )
            with one.database.transaction() as connection:
                connection.execute(
                    update(tables.streams)
                    .where(tables.streams.c.id == one.state.publication.stream_id)
                    .values(records=one.state.publication.due - 1)
                )
            answers(settings, "s", "s")
            with one.database.transaction() as connection:
                connection.execute(
                    update(tables.streams)
                    .where(tables.streams.c.id == one.state.publication.stream_id)
                    .values(records=2**40)
                )
        began = time.perf_counter()
        with one.database.transaction() as connection:
            _, findings = look(connection, one.state.publication.stream_id)
        print(f"the chains alone, as a worker does: {time.perf_counter() - began:.1f} s, {len(findings)} findings")
        began = time.perf_counter()
        with one.database.transaction() as connection:
            report = verify(connection)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"all of it: {time.perf_counter() - began:.1f} s, at most {memory:.0f} MiB, {report.findings[:3]}")


if __name__ == "__main__":
    main()
