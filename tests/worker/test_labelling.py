"""Coins are tossed once, whoever dies when; a batch is learnt from when its labels are there or can't come any more."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy import ColumnElement, Table, delete, func, select, update

from service.ledger import charging
from service.ledger.verify import verify
from service.mechanisms.active_learning.active_gradient import ActiveGradient
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.publishing.commit import charges_otherwise
from service.publishing.confirmation import Confirmer
from service.store import labels, parts, publications, releases, tables
from service.store.charges import newest
from service.store.database import Database
from service.store.due_fits import due_fits
from service.store.due_steps import due_steps
from service.worker import fits
from tests.conftest import World
from tests.worker.published import Bench, dies_in, published, taken_over

SCHEMA = {"features": 1, "task": {"kind": "unlabelled"}, "norm_bound": 1.0, "feature_map": None}
CONFIGURATION = {
    "mechanism": {
        "kind": "active_learning",
        "batching": "fixed_window",
        "size": 4,
        "threshold": 1.0,
        "epsilon_selection": 20,
    },
    "learner": {"kind": "noisy_gradient_descent"},
    "privacy": {"epsilon": 25, "delta": 0},
}
REQUESTS = tables.label_requests


@pytest.fixture
def bench(world: World) -> Iterator[Bench]:
    """Ten records without labels, of whose first window all are selected, but once in a billion."""
    columns = {"x": np.linspace(-1, 1, 10, dtype=np.float32)[:, None]}
    with published(world, SCHEMA, CONFIGURATION, columns, epsilon=25) as bench:
        yield bench


@pytest.fixture
def tossed(monkeypatch) -> list[int]:
    """The slots whose coins were tossed, in order."""
    slots, true = [], ActiveGradient.select

    def toss(self, records, start, end, *more):
        selected, stopped = true(self, records, start, end, *more)
        slots.extend(range(start, stopped))
        return selected, stopped

    monkeypatch.setattr(ActiveGradient, "select", toss)
    return slots


def requested(bench: Bench) -> list[int]:
    with bench.database.transaction() as connection:
        return list(connection.execute(select(REQUESTS.c.record).order_by(REQUESTS.c.record)).scalars())


def answer_all(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        for record in connection.execute(select(REQUESTS.c.record).where(REQUESTS.c.label.is_(None))).scalars():
            assert labels.answer(connection, bench.identity, "p", record, record % 2)


def tamper(bench: Bench, table: Table, changed: dict[str, object], *where: ColumnElement[bool]) -> None:
    """Change rows of an append-only table, as the database's owner can."""
    owner = Database(bench.world.settings.migration_url)
    with owner.transaction() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table.name} DISABLE TRIGGER append_only")
        assert connection.execute(update(table).where(*where).values(changed)).rowcount
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ENABLE ALWAYS TRIGGER append_only")
    owner.close()


def findings(bench: Bench) -> list[str]:
    with bench.database.transaction() as connection:
        return verify(connection).findings


def test_a_window_is_asked_for_waited_for_and_learnt_from(bench: Bench, tossed):
    bench.publish_all()
    assert (requested(bench), tossed) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert bench.counts() == (0, 1)
    with bench.database.transaction() as connection:
        assert due_steps(connection) == []
        assert due_fits(connection, [bench.identity]) == {}
        left = connection.scalar(select(func.min(REQUESTS.c.expires_at) - func.clock_timestamp()))
    assert left > timedelta(seconds=bench.now().owes.labelling.lease_seconds), "time for more than one person"
    answer_all(bench)
    with bench.database.transaction() as connection:
        assert set(due_fits(connection, [bench.identity])) == {bench.identity}
    bench.publish_all()
    assert (requested(bench), tossed) == ([4, 5, 6, 7], list(range(8)))
    assert bench.counts() == (1, 2)
    assert findings(bench) == []


def test_a_fit_in_a_process_of_its_own_is_given_the_labels(bench: Bench, monkeypatch):
    bench.publish_all()
    answer_all(bench)
    real, given = fits.locate, []
    monkeypatch.setattr(fits, "locate", lambda *args, **more: given.append(real(*args, **more)) or given[-1])
    monkeypatch.setattr(fits, "SHORT_SECONDS", 0.0)
    bench.publisher().step(threading.Event())
    assert bench.counts()[0] == 1
    assert given[0].answers == ((0, 0), (1, 1), (2, 0), (3, 1))


def test_what_is_not_confirmed_is_asked_of_nobody(bench: Bench, monkeypatch):
    """Coins that PostgreSQL forgets are tossed again: nobody may know how they fell."""
    with monkeypatch.context() as patched:
        patched.setattr(Confirmer, "confirm", lambda *_: None)
        bench.publish_all()
    assert requested(bench) == [0, 1, 2, 3]
    with bench.database.transaction() as connection:
        assert labels.lease(connection, bench.identity, seconds=60) is None
        assert labels.progress(connection, [bench.identity]) == {bench.identity: labels.Progress()}
        assert not labels.answer(connection, bench.identity, "p", 0, 1)
    bench.context().audit.confirm()
    with bench.database.transaction() as connection:
        assert labels.lease(connection, bench.identity, seconds=60).record == 0


def test_labels_that_can_not_come_any_more_are_not_waited_for(bench: Bench):
    bench.publish_all()
    with bench.database.transaction() as connection:
        assert labels.answer(connection, bench.identity, "p", 1, 1)
        connection.execute(update(REQUESTS).values(expires_at=func.now()))
    with bench.database.transaction() as connection:
        assert not labels.answer(connection, bench.identity, "p", 2, 1)
    bench.publish_all()
    assert bench.counts() == (1, 2)
    assert requested(bench) == [4, 5, 6, 7]


@pytest.mark.parametrize("function", ["labels.ask", "ledger.append", "parts.keep", "publications.move"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_before_coins_are_committed_asks_for_nothing(bench: Bench, monkeypatch, tossed, function, after):
    module, name = function.split(".")
    module = {"labels": labels, "ledger": charging, "parts": parts, "publications": publications}[module]
    with dies_in(monkeypatch, module, name, after=after):
        bench.publisher().step(threading.Event())
    assert (requested(bench), bench.counts()) == ([], (0, 0))
    bench.publish_all()
    assert (requested(bench), bench.counts()) == ([0, 1, 2, 3], (0, 1))
    assert findings(bench) == []


@pytest.mark.parametrize("function", ["forget", "append", "move"])
def test_a_crash_before_a_model_is_committed_loses_no_answer(bench: Bench, monkeypatch, tossed, function):
    bench.publish_all()
    answer_all(bench)
    module = {"forget": labels, "append": releases, "move": publications}[function]
    with dies_in(monkeypatch, module, function):
        bench.publisher().step(threading.Event())
    assert bench.counts() == (0, 1)
    bench.publish_all()
    assert bench.counts() == (1, 2)
    assert tossed == list(range(8))
    assert findings(bench) == []


def test_of_two_that_tossed_the_same_coins_one_commits(bench: Bench, monkeypatch):
    """The second takes over, and its coins count."""
    taken_over(bench, monkeypatch)
    assert (requested(bench), bench.counts()) == ([0, 1, 2, 3], (0, 1))
    assert findings(bench) == []


@pytest.mark.parametrize("gone", [[tables.parts], [tables.parts, tables.memories]], ids=["parts", "all of it"])
def test_coins_that_are_lost_are_never_tossed_again(bench: Bench, gone):
    """A worker that tossed them again would charge their records twice."""
    bench.publish_all()
    answer_all(bench)
    with bench.database.transaction() as connection:
        for table in gone:
            connection.execute(delete(table))
    bench.publish_all()
    assert bench.now().state == "halted"
    assert bench.counts() == (0, 1)


@pytest.mark.parametrize("changed", [{"stop": tables.charges.c.stop - 1}, {"epsilon": 1.0}], ids=["stop", "amount"])
def test_a_charge_that_is_changed_is_found_before_a_model_is_published_for_it(bench: Bench, changed):
    bench.publish_all()
    answer_all(bench)
    publisher = bench.publisher()
    publisher._audit.look(1)  # all was well when the worker started
    tamper(bench, tables.charges, changed)
    assert publisher.step(threading.Event())
    assert bench.counts() == (0, 1)
    assert bench.stream().distrusted is not None
    assert findings(bench)


def test_who_did_not_pay_on_arrival_is_found(bench: Bench):
    """Obligations that say that a coin and an update cost more than the records were charged."""
    bench.publish_all()
    answer_all(bench)
    bench.publish_all()
    with bench.database.transaction() as connection:
        other = replace(bench.now(), id=bench.identity + 1)
        assert newest(connection, bench.now()) is not None
        assert newest(connection, other) is None, "charges of one publication pay for no other"
        owed = bench.now().obligations
        dearer = owed["charging"] | {"event": owed["charging"]["event"] | {"scale": 0.01}}
        connection.execute(update(tables.publications).values(obligations=owed | {"charging": dearer}))
    assert any("owes for its coin" in each for each in findings(bench))


def test_records_that_count_and_never_paid_for_a_coin_are_found(bench: Bench):
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.publications).values(position=5, seal="another"))
    assert any("not all of its records have paid for their coins" in each for each in findings(bench))


def test_a_batch_that_two_models_learnt_from_is_found(bench: Bench):
    for _ in range(2):
        bench.publish_all()
        answer_all(bench)
    bench.publish_all()
    assert (bench.counts()[0], findings(bench)) == (2, [])
    second = tables.releases.c.version == 2
    tamper(bench, tables.releases, {"fit_start": 3}, second)
    assert any("learnt from a batch that another had learnt from" in each for each in findings(bench))


def test_whose_mechanism_charges_otherwise_than_it_owes_goes_no_further(bench: Bench):
    """Obligations of which every digest is right, and which are another mechanism's."""
    publication, stream = bench.now(), bench.stream()
    settings = PublicationConfiguration.model_validate(publication.configuration)
    mechanism = build(stream.parsed_schema, settings)
    for changed in ({"slots": "evaluation"}, {"charging": {"when": "release"}}):
        other = replace(publication, obligations=publication.obligations | changed)
        assert (charges_otherwise(publication, mechanism), charges_otherwise(other, mechanism)) == (False, True)
    with bench.database.transaction() as connection:
        owed = bench.now().obligations | {"charging": {"when": "release"}}
        connection.execute(update(tables.publications).values(obligations=owed))
        digest = publications.obligations_digest(publications.get(connection, bench.identity))
        connection.execute(update(tables.publications).values(obligations_digest=digest))
    assert findings(bench) == []
    assert bench.publisher().step(threading.Event())
    assert bench.counts() == (0, 0)
    assert bench.now().state == "halted"
    assert "at another moment than its obligations say" in bench.now().reason
