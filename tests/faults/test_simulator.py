"""Random histories of posts, crashes, restarts, publications, evaluations, ends, erasures, beside a model of them.

The store, the log, the sealer and the publisher are the real ones on real servers, in this process. A crash is raised
at a random step (steps.py) and nothing of that worker does anything any more; or, there, another worker takes all its
leases over and does its work before it goes on. Hypothesis chooses, and shrinks what fails to a short history.
`--histories 3000` runs more of them than the default, `--seed` the same ones again.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import product
from secrets import token_hex

import hypothesis
import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from service.inputs.refused import Refused
from service.ledger import open_ledger
from service.ledger.errors import BudgetExceeded
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.privacy.accounting.budget import Accounting, Budget
from service.store import erasing, publications, streams, tables
from service.store.publications import NewPublication
from service.streams.codec import pack
from service.streams.schema import StreamSchema
from tests.conftest import run_out
from tests.faults.conftest import LOGS, SEGMENTS
from tests.faults.evaluations import Evaluations
from tests.faults.load import Batch, check, due
from tests.faults.stage import APPENDING, WORKING, WRITTEN, Stage, accidents
from tests.faults.sums import Sums
from tests.mechanisms import cases

SCHEMA = {
    "features": 2,
    "task": {"kind": "classification", "classes": 2},
    "norm_bound": 1.0,
    "feature_map": None,
}
OUTPUT, DESCENT = {"kind": "output_perturbation"}, {"kind": "noisy_gradient_descent"}
MECHANISMS = [
    ({"kind": "sliding_window", "block": 2, "blocks": 2}, OUTPUT, 0),
    ({"kind": "independent_batches", "batch": 3}, OUTPUT, 0),
    ({"kind": "continual", "base": 4, "update_every": 2}, OUTPUT, 1e-6),
    *cases.of_families("HISTORIES").values(),
    ({"kind": "lifelong", "task_size": [3, 4], "batch": 2, "memory": 1}, OUTPUT, 1e-6),
    ({"kind": "active_learning", "batching": "fixed_batch", "size": 2}, DESCENT, 0),
    ({"kind": "active_learning", "batching": "fixed_window", "size": 3}, DESCENT, 0),
    ({"kind": "preparation", "records": 4}, None, 1e-6),
]
PREPARATION = len(MECHANISMS) - 1
AT_ARRIVAL = "active_learning"  # its records pay as they come, a release or not
TICK = Decimal("0.05")
HANG_SECONDS = 200
HALTED = "a history ends it"
BUDGETS = {
    "basic": Budget(epsilon=Decimal("2.5"), delta=Decimal("1e-5")),
    "zcdp": Budget(epsilon=Decimal(8), delta=Decimal("1e-5"), accounting=Accounting.ZCDP),
}


@dataclass
class Promises:
    """The producer's knowledge: one half of the model."""

    stream: str = "s"
    number: int = 0
    accepted: dict[str, Batch] = field(default_factory=dict)
    unanswered: set[Batch] = field(default_factory=set)
    out_of_turn: set[Batch] = field(default_factory=set)


class History(Evaluations, Sums, RuleBasedStateMachine):
    """The other half of the model: what was ever seen stays as it was."""

    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.promises, self.keys = Promises(), {}
        self.next_record = 0
        self.numbers: dict[str, tuple[int, int]] = {}
        self.shown: dict[tuple[int, int], tuple] = {}  # releases with their charges, by publication and version
        self.charged: dict[int, tuple] = {}
        self.appender, self.worker = self.stage.appender(), self.stage.worker()
        self.stage.accidents.overtake = self.overtake
        self.stage.histories += 1

    @initialize(
        retention=st.sampled_from(["keep", "needed"]),
        accounting=st.sampled_from(sorted(BUDGETS)),
        which=st.integers(0, 2),
        every=st.sampled_from([None, 2, 3]),
    )
    def begin(self, retention, accounting, which, every):
        budget = BUDGETS[accounting]
        self.schema = SCHEMA | ({} if every is None else {"evaluation": {"every": every}})
        log = token_hex(16)
        self.wait_for(self.appender.create(log))
        with self.stage.database.transaction() as connection:
            self.stream = streams.create(
                connection, name="s", log=log, schema=self.schema, retention=retention,
                epsilon=budget.epsilon, delta=budget.delta, accounting=accounting,
            )  # fmt: skip
        self.begin_publication(which)
        if every is not None:
            self.begin_evaluation([0], 1, 0, ticks=False)

    @rule(records=st.integers(1, 6), accident=accidents(WORKING))
    def post_and_work(self, records, accident):
        self.post(records, False, None)
        self.work(accident)

    @rule(records=st.integers(1, 6), key=st.booleans(), accident=accidents(APPENDING))
    def post(self, records, key, accident):
        batch = Batch(0, self.next_record, self.next_record + records)
        self.next_record = batch.stop
        if key:
            self.keys[f"key {batch.first}"] = batch
        self.send(batch, f"key {batch.first}" if key else None, accident)

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), accident=accidents(APPENDING))
    def post_again(self, data, accident):
        key = data.draw(st.sampled_from(sorted(self.keys)))
        if self.keys[key] in self.promises.unanswered:
            self.promises.out_of_turn.add(self.keys[key])
        self.send(self.keys[key], key, accident)

    @rule(accident=accidents(WORKING))
    def work(self, accident):
        with self.stage.accidents.happening(accident) as crashed:
            self.worker.number()
            self.worker.publish()
        if crashed:
            self.restart()

    @rule()
    def restart(self):
        self.worker.end()
        run_out(self.stage.database)
        self.worker = self.stage.worker()

    @rule(which=st.integers(0, 1), ticks=st.booleans(), accident=accidents(WORKING))
    def begin_with_features(self, which, ticks, accident):
        """A preparation, a publication that names it, and records that both wait for."""
        self.begin_publication(PREPARATION, ticks)
        with self.stage.database.transaction() as connection:
            newest = publications.of_stream(connection, self.stream.id)[0]
        if newest.state == "running" and newest.configuration["mechanism"] == MECHANISMS[PREPARATION][0]:
            self.begin_publication(which, ticks, features=newest)
        self.post_and_work(6, accident)

    @rule(which=st.integers(0, len(MECHANISMS) - 1), ticks=st.booleans())
    def begin_publication(self, which, ticks=True, features=None):
        mechanism, learner, delta = MECHANISMS[which]
        self.admit(mechanism, learner, delta, ticks and mechanism["kind"] != AT_ARRIVAL, features)

    def admit(self, mechanism, learner, delta, ticks, features=None):
        delay = TICK if ticks else Decimal(0)
        configuration = {
            "mechanism": mechanism,
            "learner": learner,
            "privacy": {"epsilon": 1, "delta": delta},
            "publish_delay": float(delay),
        } | ({} if features is None else {"features": {"from": features.name, "version": 1}})
        checked = PublicationConfiguration.model_validate(configuration)
        with self.stage.database.transaction() as connection:
            ledger = open_ledger(connection, self.stream.id)
            known, records = publications.of_stream(connection, self.stream.id), ledger.stream.records
            try:
                built = build(StreamSchema.model_validate(self.schema), checked, start=records)
            except Refused:
                if "evaluation" not in self.schema:
                    raise
                return  # some fit would have evaluation slots alone
            new = NewPublication(
                name=f"p{len(known)}", start=records, configuration=configuration, plan=built.plan(),
                obligations=replace(built.obligations(), draws=built.draws()),
                kind=built.currency, epsilon=Decimal(1), delta=Decimal(str(delta)),
                due=records + built.next_time(0), publish_delay=delay,
                features_from=features and features.id,
            )  # fmt: skip
            with suppress(BudgetExceeded):
                ledger.admit(new)

    @rule(which=st.integers(0, 3), reason=st.sampled_from([None, HALTED]))
    def end_publication(self, which, reason):
        with self.stage.database.transaction() as connection:
            ledger = open_ledger(connection, self.stream.id)
            running = [each for each in publications.of_stream(connection, self.stream.id) if each.state == "running"]
            if which < len(running):
                ledger.entry(running[which].id).end("halted" if reason else "stopped", reason)

    @rule(where=st.floats(0, 1), length=st.integers(1, 3))
    def erase(self, where, length):
        with self.stage.database.transaction() as connection:
            records = streams.get(connection, self.stream.id).records
            start = int(where * records)
            if start < records:
                erasing.erase(connection, self.stream.id, start, min(records, start + length))

    @invariant()
    def nothing_that_was_seen_changes(self):
        self.stage.steps += 1
        if not hasattr(self, "stream"):
            return
        with self.stage.database.transaction() as connection:
            rows = connection.execute(select(tables.entries)).all()
            numbers = {row.entry: (row.start, row.stop) for row in rows}
            joined = tables.releases.join(
                tables.charges,
                (tables.charges.c.stream_id == tables.releases.c.stream_id)
                & (tables.charges.c.id == tables.releases.c.charge),
            )
            releases = connection.execute(select(tables.releases, tables.charges.c.hash).select_from(joined)).all()
            charges = connection.execute(select(tables.charges).order_by(tables.charges.c.id)).all()
            known = publications.of_stream(connection, self.stream.id)
            stream = streams.get(connection, self.stream.id)
        mark = self.stage.files.high_water_mark(self.stream.log) or {"charges": 0, "releases": 0}
        assert stream.confirmed_charges <= mark["charges"]
        assert stream.confirmed_releases <= mark["releases"]
        assert stream.distrusted is None
        reasons = "two attempts", "its features come from", HALTED
        assert all(any(why in each.reason for why in reasons) for each in known if each.state == "halted")
        assert numbers.items() >= self.numbers.items()
        self.numbers = numbers
        shown = {(row.publication_id, row.version): tuple(row) for row in releases}
        assert shown.items() >= self.shown.items()
        self.shown = shown
        numbered = {(row.publication_id, row.version): row.number for row in releases}
        for each in known:  # whoever has features of another one was released after that
            if each.features_from is not None and (each.id, 1) in numbered:
                assert numbered[each.features_from, 1] < numbered[each.id, 1]
        charged = {row.id: tuple(row) for row in charges}
        assert charged.items() >= self.charged.items()
        self.charged = charged
        self.check_versions(releases, known)
        early = {each.id for each in known if each.configuration["mechanism"]["kind"] == AT_ARRIVAL}
        assert all((each.version is None) == (each.publication_id in early) for each in charges)
        own = [(each.publication_id, each.version) for each in charges if each.publication_id not in early]
        assert len(own) == len(set(own))
        assert set(own) == {which for which in shown if which[0] not in early}
        for identity in early:  # each record once, in order, as far as its steps have come
            (mine,) = [each for each in known if each.id == identity]
            ranges = [(each.start, each.stop) for each in charges if each.publication_id == identity]
            ends = [mine.start, *(stop for _, stop in ranges)]
            assert [start for start, _ in ranges] == ends[:-1]

    def teardown(self):
        try:
            if hasattr(self, "stream"):
                self.finish()
        finally:
            self.worker.end()
            self.wait_for(self.appender.close())
            with psycopg.connect(self.stage.clear) as connection:
                for table in reversed(WRITTEN):
                    connection.execute(f"DELETE FROM {table.name}")

    def finish(self):
        """Let the rest be done by a worker to whom nothing happens, for as long as anything comes of it."""
        self.restart()
        before, came_at = None, time.monotonic()
        while not (set(self.promises.accepted) <= set(self.numbers) and not due(self.stage.database)):
            assert time.monotonic() < came_at + HANG_SECONDS, "something that was accepted or due never came"
            self.worker.number()
            self.worker.publish()
            self.worker.audit.confirm()  # what died between its commit and its confirmation
            self.nothing_that_was_seen_changes()
            if before != (came := (len(self.numbers), len(self.charged), len(self.shown))):
                before, came_at = came, time.monotonic()
            time.sleep(float(TICK))
        check(self.stage.database, self.stage.files, [self.promises])
        self.check_sums()
        self.stage.releases += len(self.shown)
        self.stage.counted_blocks += self.counted_blocks
        self.stage.counted_models += self.counted_models

    def send(self, batch, key, accident):
        numbers = np.arange(batch.first, batch.stop)
        x = np.stack([np.zeros_like(numbers), numbers], axis=1).astype(np.float32)
        packed = pack({"x": x, "y": (numbers % 2).astype(np.int32)})
        idempotency = (key, "body") if key else None
        answer = None
        with self.stage.accidents.happening(accident) as crashed:
            answer = self.wait_for(self.appender.append(self.stream.log, packed, len(numbers), idempotency=idempotency))
        if crashed:
            self.promises.unanswered.add(batch)
            self.wait_for(self.appender.close())
            self.appender = self.stage.appender()
        else:
            assert self.promises.accepted.setdefault(answer.entry, batch) == batch
            self.promises.unanswered.discard(batch)

    def overtake(self):
        """Another worker does all there is to do, as when this one hung for longer than its leases."""
        run_out(self.stage.database)
        other = self.stage.worker()
        other.number()
        other.publish()
        other.end()
        run_out(self.stage.database)

    def wait_for(self, coroutine):
        """Return what it returns; or Crash, when that is where it went."""
        return self.stage.wait_for(coroutine)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_histories_keep_every_promise(stage, seed, request, record_property):
    take_random_histories(stage, seed, request, record_property)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("stage", list(product(SEGMENTS, LOGS))[1:], ids=" ".join, indirect=True)
def test_random_histories_elsewhere_keep_every_promise(stage, seed, request, record_property):
    """Segments in a folder or an object store, whose answers fail or not; one primary, a list of three, a cluster."""
    take_random_histories(stage, seed, request, record_property)


def take_random_histories(stage, seed, request, record_property):
    machine = hypothesis.seed(int(seed))(type("History", (History,), {"stage": stage}))
    planted = request.config.getoption("--plant")
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100 if planted else request.config.getoption("--histories"),
            stateful_step_count=20,
            deadline=None,
            database=None,
            phases=[Phase.generate] if planted else [Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
    record_property(
        "faults",
        f"{stage.histories} histories (seed {seed}) of {stage.steps} steps, with {stage.accidents.crashes} crashes, "
        f"{stage.accidents.overtakings} workers overtaken and {stage.releases} releases, "
        f"{stage.counted_blocks} of them blocks of evaluations, which counted {stage.counted_models} models: every "
        "promise kept",
    )
