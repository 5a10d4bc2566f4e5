"""Random histories of a stream with units: no unit ever has more than m counting slots.

As in `test_simulator`, the store, the log and the sealer are the real ones, and Hypothesis chooses what dies, or is
overtaken by another sealer, at which moment. The log loses entries, and the database is put back to an earlier state.
After every step all segments are read: the slots that count are those of the definition, and the others hold nothing.
"""

from contextlib import suppress
from decimal import Decimal
from secrets import token_hex

import hypothesis
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis import Redis
from sqlalchemy import func, select

from service.log import Appender, LogLost, LogUnavailable, Position
from service.publishing.units import erase_unit
from service.store import numbering, segments, streams, tables
from service.streams.units import pseudonym
from tests.conftest import run_out
from tests.faults.stage import APPENDING, WRITTEN, Stage, accidents
from tests.streams.test_units import counted_by_definition

COUNTING = [
    *[(step, when) for step in ("counted: commit", "Sealer._seal: commit") for when in ("before", "after")],
    ("SegmentFiles.put: sync", "after"),
    ("Reader.trim: log", "after"),
    ("Merger.replace: commit", "after"),
    ("Eraser.delete_erased: commit", "before"),
]
ERASING = [("erase_unit: commit", "before"), ("erase_unit: commit", "after")]
UNITS = 4


class UnitHistory(RuleBasedStateMachine):
    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.appender, self.worker = self.new_appender(), self.stage.worker()
        self.stage.accidents.overtake = self.overtake
        self.stage.histories += 1
        self.closed, self.backup, self.backed_up = {}, None, ({}, {})

    def new_appender(self):
        return Appender(self.stage.redis_url, max_batches=1000, max_bytes=10**6)

    @initialize(records=st.integers(1, 3), separation=st.integers(1, 3))
    def begin(self, records, separation):
        log = token_hex(16)
        self.stage.wait_for(self.appender.create(log))
        unit = {"max_records": records, "min_separation": separation}
        schema = {"features": 1, "task": {"kind": "classification", "classes": 2}, "norm_bound": 1.0, "unit": unit}
        with self.stage.database.transaction() as connection:
            self.stream = streams.create(
                connection, name="s", log=log, schema=schema, retention="keep", epsilon=Decimal(1), delta=Decimal(0)
            )
            self.secret = streams.secret_of_units(connection, self.stream)
        self.ids = {pseudonym(self.secret, unit): unit for unit in range(UNITS)}

    @rule(units=st.lists(st.integers(0, UNITS - 1), min_size=1, max_size=6), accident=accidents(APPENDING))
    def post(self, units, accident):
        columns = {
            "x": np.full((len(units), 1), 7.0, dtype=np.float32),
            "y": np.ones(len(units), dtype=np.int32),
            "unit": np.array(units, dtype=np.object_),
        }
        body = self.stream.layout.encode(columns, self.secret)
        with self.stage.accidents.happening(accident) as crashed, suppress(LogLost, LogUnavailable):
            self.stage.wait_for(self.appender.append(self.stream.log, body, len(units), idempotency=None))
        if crashed:
            self.stage.wait_for(self.appender.close())
            self.appender = self.new_appender()

    @rule(accident=accidents(COUNTING))
    def count(self, accident):
        with self.stage.accidents.happening(accident) as crashed:
            self.worker.number()
        if crashed:
            self.restart()

    @rule(units=st.lists(st.integers(0, UNITS - 1), min_size=1, max_size=6), accident=accidents(COUNTING))
    def post_and_count(self, units, accident):
        self.post(units, None)
        self.count(accident)

    @rule()
    def restart(self):
        self.worker.end()
        run_out(self.stage.database)
        self.worker = self.stage.worker()

    @rule(unit=st.integers(0, UNITS - 1), accident=accidents(ERASING))
    def erase(self, unit, accident):
        before, name = self.now().records, pseudonym(self.secret, unit)
        with self.stage.accidents.happening(accident):
            erase_unit(self.stage.database, self.stage.files, self.now(), name)
        row = self.rows().get(name)
        if row is not None and row.erased:
            self.closed.setdefault(unit, before)

    @rule()
    def back_up(self):
        with psycopg.connect(self.stage.clear) as connection:
            self.backup = {each.name: self.copied(connection, each.name) for each in WRITTEN}
        self.backed_up = dict(self.closed), {each: each.read_bytes() for each in self.segments()}

    @rule()
    def restore(self):
        """Put an earlier state of the database in the place of the newest, beneath the segments and the log.

        Segments that were replaced since come back beside the newer ones, as from a backup of the folder.
        """
        if self.backup is None:
            return
        self.worker.end()
        self.clear()
        with psycopg.connect(self.stage.clear) as connection:
            for name, rows in self.backup.items():
                with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                    copy.write(rows)
        closed, files = self.backed_up
        for path in set(files) - set(self.segments()):
            path.write_bytes(files[path])
        self.closed = dict(closed)
        run_out(self.stage.database)
        self.worker = self.stage.worker()

    @rule(lost=st.integers(1, 3))
    def cut_log(self, lost):
        """The log loses its newest entries, numbered or not."""
        with Redis.from_url(self.stage.redis_url) as redis:
            key = f"perennial:{{{self.stream.log}}}:entries"
            redis.xdel(key, *[entry for entry, _ in redis.xrevrange(key, count=lost)] or ["1-1"])

    @rule()
    def resume(self):
        """An administrator makes a halted stream go on."""
        stream = self.now()
        if stream.halted is None:
            return
        position = Position(entry=stream.sealed_entry, sequence=stream.sealed_sequence)
        log = self.stage.wait_for(self.appender.resume(stream.log, position))
        with self.stage.database.transaction() as connection:
            numbering.resume(connection, stream, sequence=log.sequence, lost_batches=log.lost_batches)

    @invariant()
    def no_unit_has_more_counting_slots_than_it_may(self):
        if not hasattr(self, "stream"):
            return
        self.stage.steps += 1
        stream = self.now()
        columns = self.stored(stream.records)
        pattern = [self.ids[each.tobytes()] for each in columns["unit"]]
        counted = set(np.flatnonzero(columns["counts"]).tolist())
        assert counted == self.expected(pattern)
        assert not columns["x"][columns["counts"] == 0].any()
        rows = self.rows()
        assert stream.units_erased == sum(row.erased for row in rows.values())
        for name, row in rows.items():
            mine = [slot for slot in sorted(counted) if pattern[slot] == self.ids[name]]
            assert len(mine) == row.counted <= stream.parsed_schema.unit.max_records
            assert row.last == (mine[-1] if mine else -1)

    def expected(self, pattern):
        """Return which slots count: an erased unit's pattern ends where it was erased."""
        bound = self.stream.parsed_schema.unit.bound
        gone = [slot >= self.closed.get(unit, len(pattern)) for slot, unit in enumerate(pattern)]
        counting = counted_by_definition(bound, pattern)
        return {slot for slot in counting if not gone[slot]}

    def stored(self, records):
        with self.stage.database.transaction() as connection:
            holding = segments.holding(connection, self.stream.id, 0, records)
        files, log = self.stage.files, self.stream.log
        parts = [files.read(log, each.file, each.sha256, 0, each.stop - each.start) for each in holding]
        names = ("x", "unit", "counts")
        empty = {"x": np.zeros((0, 1)), "unit": np.zeros((0, 16), dtype=np.uint8), "counts": np.zeros(0)}
        columns = {name: np.concatenate([empty[name], *(part[name] for part in parts)]) for name in names}
        assert len(columns["x"]) == records
        return columns | {"unit": columns["unit"].astype(np.uint8)}

    def segments(self):
        return sorted(self.stage.files.root.glob(f"{self.stream.log}/*.safetensors"))

    def rows(self):
        with self.stage.database.transaction() as connection:
            return {bytes(row.pseudonym): row for row in connection.execute(select(tables.units))}

    def now(self):
        with self.stage.database.transaction() as connection:
            return streams.get(connection, self.stream.id)

    def overtake(self):
        """Another sealer does all there is to do, as when this one hung for longer than its leases."""
        run_out(self.stage.database)
        other = self.stage.worker()
        other.number()
        other.end()
        run_out(self.stage.database)

    def copied(self, connection, name):
        with connection.cursor().copy(f"COPY {name} TO STDOUT") as copy:
            return b"".join(copy)

    def clear(self):
        with psycopg.connect(self.stage.clear) as connection:
            for table in reversed(WRITTEN):
                connection.execute(f"DELETE FROM {table.name}")

    def teardown(self):
        self.worker.end()
        self.stage.wait_for(self.appender.close())
        with self.stage.database.transaction() as connection:
            self.stage.numbered += connection.execute(select(func.count()).select_from(tables.entries)).scalar_one()
        self.clear()


def run(stage, seed, histories, record_property):
    machine = hypothesis.seed(int(seed))(type("UnitHistory", (UnitHistory,), {"stage": stage}))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=20,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert stage.numbered or histories < 50, "histories in which nothing is numbered show nothing"
    record_property(
        "faults",
        f"{stage.histories} histories of units (seed {seed}) of {stage.steps} steps, with {stage.accidents.crashes} "
        f"crashes and {stage.accidents.overtakings} sealers overtaken: no unit counts more often than it may",
    )


@pytest.mark.slow
def test_no_unit_counts_too_often_whatever_dies_or_is_lost(stage, seed, request, record_property):
    planted = request.config.getoption("--plant")
    run(stage, seed, 50 if planted else request.config.getoption("--histories") // 2, record_property)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
def test_nor_in_a_thousand_histories(stage, seed, record_property):
    run(stage, seed, 1000, record_property)
