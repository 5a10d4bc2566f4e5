"""A long ledger is walked in a thread of its own: its stream waits, or is vouched for, and no other waits for it."""
# ruff: noqa: F401, F811 - fixtures are other files'

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import delete, update

from service.ledger import high_water_mark
from service.publishing import confirmation
from service.store import streams, tables
from service.store.database import DatabaseUnavailable
from service.worker import audit as auditing
from service.worker import publisher as publishing
from service.worker.context import WorkerContext
from tests.conftest import join, wait_until
from tests.worker.published import Bench, SteppingPublisher
from tests.worker.test_audit import halfway, owner, stream, tampering
from tests.worker.test_publishing import bench


@pytest.fixture(autouse=True)
def long_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ledger is a long one."""
    monkeypatch.setattr(auditing, "SHORT_LEDGER", -1)


def started(bench: Bench) -> WorkerContext:
    """A worker that walks in a thread of its own, which has not come to it yet."""
    context = bench.context()
    context.audit._walking = True
    return context


@contextmanager
def walking(context: WorkerContext) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=context.audit.walk_on, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        join(thread)


def charged(bench: Bench) -> None:
    """Some releases are out, others are due, and no walk has left a note."""
    halfway(bench)
    bench.files.put_note("log", {})


def noted(bench: Bench) -> None:
    """Some releases are out, others are due, and a walk has found nothing."""
    halfway(bench)
    bench.context().audit.walk(1)


def test_an_empty_ledger_is_walked_too(bench: Bench, owner):
    """Before anything is charged the sums beside the charges may have been changed already."""
    with tampering(owner) as connection:
        connection.execute(update(tables.streams).values(segments_sum=1))
    context = started(bench)
    assert not context.audit.look(1)
    with walking(context):
        wait_until(lambda: stream(bench).distrusted)


def test_a_long_ledger_is_not_published_on_before_it_is_walked(bench: Bench):
    charged(bench)
    context = started(bench)
    assert not context.audit.look(1)
    with walking(context):
        wait_until(lambda: context.audit.look(1))


def test_a_publisher_passes_over_what_is_not_walked(bench: Bench, monkeypatch):
    monkeypatch.setattr(publishing, "WALK_SECONDS", math.inf)
    charged(bench)
    before = bench.counts()
    context = started(bench)
    publisher = SteppingPublisher(context)
    assert publisher.step(threading.Event()), "others may be due"
    assert not publisher.step(threading.Event())
    assert bench.counts() == before
    publisher._dispatcher._retry_at.clear()
    monkeypatch.setattr(publishing, "WALK_SECONDS", 0.0)
    with walking(context):
        wait_until(lambda: (publisher.step(threading.Event()), bench.counts() != before)[1])


def test_a_short_ledger_is_walked_by_who_asks(bench: Bench, monkeypatch):
    monkeypatch.setattr(auditing, "SHORT_LEDGER", 1000)
    assert started(bench).audit.look(1)


def test_a_stream_that_goes_on_while_it_is_walked_is_as_its_mark_says(bench: Bench, monkeypatch):
    """The mark is read first: it may only have come less far than what is walked."""
    charged(bench)
    audit, look = bench.context().audit, auditing.verify.look

    def and_publish(*args):
        looked = look(*args)
        monkeypatch.setattr(auditing.verify, "look", look)
        with bench.database.transaction() as connection:
            connection.execute(update(tables.streams).values(records=10))
        bench.publish_all()
        return looked

    monkeypatch.setattr(auditing.verify, "look", and_publish)
    audit.walk(1)
    assert bench.files.high_water_mark("log")["charges"] == 5
    assert stream(bench).distrusted is None


def another_stream(bench: Bench, name: str = "other") -> int:
    """One with nothing on it."""
    settings = {"retention": "keep", "epsilon": Decimal(1), "delta": Decimal(0)}
    schema = {"features": 2, "task": {"kind": "classification", "classes": 2}}
    with bench.database.transaction() as connection:
        return streams.create(connection, name=name, log=name, schema=schema, **settings).id


def test_short_ledgers_of_streams_that_wait_are_walked_together(bench: Bench, monkeypatch):
    monkeypatch.setattr(auditing, "SHORT_LEDGER", 1000)
    charged(bench)
    other, audit = another_stream(bench), started(bench).audit
    monkeypatch.setattr(auditing.verify, "look", lambda *_: pytest.fail("one was walked alone"))
    assert audit.look(1, [1, other])
    assert audit.look(other)


@pytest.mark.parametrize("changed", ["a charge", "an empty ledger"])
def test_of_ledgers_that_are_walked_together_the_one_that_was_changed_is_found(
    bench: Bench, owner, monkeypatch, changed
):
    monkeypatch.setattr(auditing, "SHORT_LEDGER", 1000)
    charged(bench)
    other = another_stream(bench)
    wrong, well = (1, other) if changed == "a charge" else (other, 1)
    with tampering(owner) as connection:
        if changed == "a charge":
            connection.execute(update(tables.charges).where(tables.charges.c.id == 1).values(epsilon=0.01))
        else:
            connection.execute(update(tables.streams).where(tables.streams.c.id == other).values(segments_sum=1))
    audit = started(bench).audit
    assert audit.look(well, [well, wrong])
    assert audit.look(wrong)
    with bench.database.transaction() as connection:
        assert streams.get(connection, wrong).distrusted
        assert not streams.get(connection, well).distrusted


def test_a_stream_that_was_put_in_order_is_trusted_again_though_others_are_walked_with_it(bench: Bench, monkeypatch):
    monkeypatch.setattr(auditing, "SHORT_LEDGER", 1000)
    charged(bench)
    other, audit = another_stream(bench), started(bench).audit
    with bench.database.transaction() as connection:
        assert streams.distrust(connection, streams.get(connection, 1), "it was not as it was left")
    assert audit.look(other, [1, other])
    assert audit.look(1)
    assert stream(bench).distrusted is None


def test_a_worker_that_starts_again_publishes_on_the_note_of_a_walk(bench: Bench):
    noted(bench)
    assert started(bench).audit.look(1)


def test_after_a_note_the_whole_ledger_is_walked_all_the_same(bench: Bench, owner):
    noted(bench)
    with tampering(owner) as connection:
        connection.execute(update(tables.charges).where(tables.charges.c.id == 1).values(epsilon=0.01))
    context = started(bench)
    assert context.audit.look(1)
    context.audit.confirm()  # which hears of the stream
    with walking(context):
        wait_until(lambda: stream(bench).distrusted)
    assert "charge 1" in stream(bench).distrusted


def test_a_walk_that_found_something_leaves_no_note(bench: Bench, owner):
    halfway(bench)
    with tampering(owner) as connection:
        connection.execute(update(tables.charges).where(tables.charges.c.id == 1).values(epsilon=0.01))
    bench.context().audit.walk(1)
    assert bench.files.note("log") == {}


@pytest.mark.parametrize("why", ["old", "of the future", "another ledger", "unreadable"])
def test_a_note_that_does_not_fit_is_not_believed(bench: Bench, why):
    noted(bench)
    note = bench.files.note("log")
    if why == "old":
        note["at"] -= auditing.SECONDS_BETWEEN_AUDITS
    elif why == "of the future":
        note["at"] = time.time() + 100.0
    elif why == "another ledger":
        note["mark"]["head"] = "0" * 64
    else:
        note = {"at": "now", "mark": []}
    bench.files.put_note("log", note)
    assert not started(bench).audit.look(1)


def test_a_walk_that_fails_holds_up_no_other(bench: Bench, monkeypatch):
    charged(bench)
    context, real, walked = started(bench), auditing.verify.look, []

    def fails_once(connection, identity):
        walked.append(identity)
        if len(walked) == 1:
            raise RuntimeError
        return real(connection, identity)

    monkeypatch.setattr(auditing.verify, "look", fails_once)
    with walking(context):
        wait_until(lambda: context.audit.look(1))
    assert len(walked) > 1


def test_a_short_walk_that_fails_stops_no_publisher(bench: Bench, monkeypatch):
    """Else it would begin with the same stream again and again, and come to no other."""
    monkeypatch.setattr(auditing, "SHORT_LEDGER", 1000)
    monkeypatch.setattr(publishing, "WALK_SECONDS", math.inf)
    charged(bench)
    before, context = bench.counts(), started(bench)
    with monkeypatch.context() as patched:
        patched.setattr(auditing.verify, "look", lambda *_: 1 / 0)
        publisher = SteppingPublisher(context)
        assert publisher.step(threading.Event()), "others may be due"
        assert not publisher.step(threading.Event())
    assert bench.counts() == before
    assert stream(bench).distrusted is None
    assert context.audit.look(1)


def unreadable(bench: Bench, log: str) -> None:
    """The mark of a stream can't be read, though its folder is there."""
    (bench.files.root / f"{log}.witness").unlink(missing_ok=True)
    (bench.files.root / f"{log}.witness").mkdir()


def test_a_mark_that_can_not_be_read_holds_up_its_own_stream_alone(bench: Bench, monkeypatch):
    monkeypatch.setattr(auditing, "SHORT_LEDGER", 1000)
    charged(bench)
    third, other = another_stream(bench, "third"), another_stream(bench)
    unreadable(bench, "other")
    audit = started(bench).audit
    assert audit.look(1, [1, other, third])
    assert audit.look(third)
    assert not audit.look(other), "nor does it end the thread that asks"


def test_with_a_mark_that_can_not_be_read_others_are_confirmed(bench: Bench, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("service.publishing.confirmation.Confirmer.confirm", lambda *_: None)
        bench.publish_all()
    another_stream(bench)
    unreadable(bench, "other")
    bench.context().audit.confirm()
    assert stream(bench).confirmed_charges == stream(bench).charges > 0


def test_every_stream_that_is_older_than_its_mark_is_named(bench: Bench):
    another_stream(bench)
    with bench.database.transaction() as connection:
        every = streams.every(connection)
        marks = high_water_mark.marks(connection, every)
        ahead = {log: vars(replace(mark, records=mark.records + 1)) for log, mark in marks.items()}
        assert high_water_mark.behind_of_each(connection, ahead, every).keys() == {"log", "other"}
        assert high_water_mark.behind_of_each(connection, ahead | {"log": None}, every).keys() == {"other"}
        old = {name: ahead["other"][name] for name in ("records", "erasures", "charges", "head")}  # without a timeline
        reason = high_water_mark.behind_of_each(connection, {"log": None, "other": old}, every)["other"]
    assert reason.endswith(high_water_mark.REPLACED)


def test_the_trouble_of_one_stream_holds_up_no_other_and_nobody_waits_for_each_other(bench: Bench, monkeypatch):
    confirmer, other = bench.context().confirmer, another_stream(bench)
    true, together = confirmer._confirm, []

    def confirm(identities):
        together.append(list(identities))
        if 1 in identities:
            raise ValueError("of one stream")
        true(identities)

    monkeypatch.setattr(confirmer, "_confirm", confirm)
    for most, expected in ((50, [[1, other], [1], [other]]), (1, [[1], [1], [other]])):
        monkeypatch.setattr(confirmation, "MAX_TOGETHER", most)
        confirmer.confirm_each([other, 1])
        assert together == expected, "always in the order of their ids"
        together.clear()
    assert bench.files.high_water_mark("other") is not None


def test_who_confirms_outlives_a_database_that_is_away(bench: Bench, monkeypatch):
    confirmer, asked_for = bench.context().confirmer, []

    def confirm(identities):
        asked_for.append(list(identities))
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(confirmer, "_confirm", confirm)
    confirmer._waiting = {1}
    for _ in range(2):
        confirmer._confirm_waiting()
    assert asked_for == [[1]], "once; the audit asks again"


def test_a_stream_that_is_there_no_more_holds_up_no_walk(bench: Bench, owner):
    """Another database was put in the place of this one, or a standby without the newest streams was promoted."""
    charged(bench)
    context, other = started(bench), another_stream(bench)
    context.audit.confirm()
    context.audit._first = {"other": (0.0, other), "log": (1.0, 1)}
    context.confirmer._logs.clear()  # another worker has confirmed it
    with tampering(owner) as connection:
        connection.execute(delete(tables.leases).where(tables.leases.c.resource == f"stream:{other}"))
        connection.execute(delete(tables.streams).where(tables.streams.c.id == other))
        connection.execute(update(tables.charges).where(tables.charges.c.id == 1).values(epsilon=0.01))
    with walking(context):
        wait_until(lambda: stream(bench).distrusted)
    context.audit.confirm()
    assert list(context.audit._first) == ["log"]


def test_only_streams_that_have_changed_are_looked_at(bench: Bench, monkeypatch):
    audit = bench.context().audit
    bench.publish_all()
    for _ in range(3):
        audit.confirm()
    looked, real = [], streams.needed
    monkeypatch.setattr(streams, "needed", lambda identities: looked.append(identities) or real(identities))
    audit.confirm()
    assert looked == []
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(confirmed_charges=0))
    audit.confirm()
    audit.confirm()
    assert looked == [[1], [1]], "by the audit, and to confirm it"
    with bench.database.transaction() as connection:
        row = streams.get(connection, 1)
    assert row.confirmed_charges == row.charges
