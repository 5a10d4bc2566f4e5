"""A ledger that is not what was written stops its stream, loudly, until it is whole again."""
# ruff: noqa: F401, F811 - the fixture is another file's

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, delete, func, select, text, update
from sqlalchemy.exc import IntegrityError

from service import metrics
from service.ledger import open_entry, reservations
from service.ledger.invariants import INVARIANTS
from service.store import publications, segments, streams, tables
from service.store.database import Database
from service.worker.audit import Audit
from service.worker.context import WorkerContext
from service.worker.leases import LeaseKeeper
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench
from tests.worker.test_ticks import come, far_away, park_all, publish

CHARGES, RELEASES = tables.charges, tables.releases


def audit(bench: Bench) -> Audit:
    return WorkerContext(bench.database, bench.files, LeaseKeeper(bench.database, seconds=600.0)).audit


@pytest.fixture
def owner(bench: Bench) -> Iterator[Database]:
    database = Database(bench.world.settings.migration_url)
    yield database
    database.close()


@contextmanager
def tampering(owner: Database) -> Iterator[Connection]:
    """As whoever owns the tables could."""
    with owner.transaction() as connection:
        for table in tables.APPEND_ONLY:
            connection.execute(text(f"ALTER TABLE {table.name} DISABLE TRIGGER append_only"))
        yield connection
        for table in tables.APPEND_ONLY:
            connection.execute(text(f"ALTER TABLE {table.name} ENABLE ALWAYS TRIGGER append_only"))


def halfway(bench: Bench) -> None:
    """Some releases are out, others are due."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))


def stream(bench: Bench) -> streams.Stream:
    with bench.database.transaction() as connection:
        return streams.get(connection, 1)


NEWEST = select(func.max(CHARGES.c.id)).scalar_subquery()


@pytest.mark.parametrize(
    "tamper",
    [
        update(CHARGES).where(CHARGES.c.id == NEWEST).values(epsilon=0.01),
        update(CHARGES).where(CHARGES.c.id == NEWEST).values(start=CHARGES.c.start + 1),
        update(CHARGES).where(CHARGES.c.id == NEWEST).values(epsilon=float("nan")),
        update(tables.streams).values(head="0" * 64),
        update(tables.streams).values(charges=tables.streams.c.charges - 1),
    ],
    ids=["amount", "range", "no number", "head", "count"],
)
def test_a_chain_that_does_not_end_as_it_was_left_is_not_added_to(bench: Bench, owner, tamper):
    halfway(bench)
    before = bench.counts()
    publisher = bench.publisher()
    publisher._audit.look(1)  # all was well when the worker started
    with tampering(owner) as connection:
        connection.execute(tamper)
    assert publisher.step(threading.Event())
    assert bench.counts() == before
    assert stream(bench).distrusted is not None
    assert bench.now().state == "running"
    assert bench.now().distrusted == stream(bench).distrusted
    assert not publisher.step(threading.Event()), "it is not even tried again"


@pytest.mark.parametrize("bench", [CONFIGURATION | {"publish_delay": 86_400}], indirect=True)
def test_a_halt_that_can_not_wait_for_its_tick_distrusts_the_stream(bench: Bench, owner, monkeypatch):
    """Nothing is parked of a publication that is not as it was left."""
    monkeypatch.setattr("service.worker.publisher.of_another_guarantee", lambda *_: True)
    publisher = bench.publisher()
    publisher._audit.look(1)
    with tampering(owner) as connection:
        connection.execute(update(tables.publications).values(seal="0" * 64))
    assert publisher.step(threading.Event())
    assert "not as it was left" in stream(bench).distrusted
    assert bench.now().state == "running"


@pytest.mark.more
@pytest.mark.parametrize(
    ("tamper", "where"),
    [
        (update(CHARGES).where(CHARGES.c.id == 1).values(epsilon=0.01), "charge 1"),
        (update(RELEASES).where(RELEASES.c.version == 1).values(parameters=b"\0" * 16), "version 1"),
        (update(RELEASES).where(RELEASES.c.version == 1).values(role="model"), "version 1"),
        (update(CHARGES).where(CHARGES.c.id == 1).values(epsilon=float("nan")), "charge 1"),
        (update(CHARGES).where(CHARGES.c.id == 1).values(charged_at=text("'infinity'")), "stream s"),
        (update(tables.segments).values(sha256=b"0" * 32), "records 0 to 10"),
        (update(tables.publications).values(plan={"another": 1}), "publication p"),
        (update(tables.publications).values(obligations={"another": 1}), "publication p"),
        (update(tables.spent).values(amount=0.25), "stream s"),
        (update(tables.streams).values(epsilon=3), "stream s"),
    ],
    ids=["charge", "weights", "role", "no number", "no time", "segment", "promise", "obligations", "sum", "budget"],
)
def test_a_worker_that_starts_walks_the_whole_ledger_before_it_publishes(bench: Bench, owner, tamper, where):
    halfway(bench)
    before = bench.counts()
    with owner.transaction() as connection:
        rows = connection.execute(select(tamper.table)).mappings().all()
    with tampering(owner) as connection:
        connection.execute(tamper)
    bench.publisher().step(threading.Event())
    assert bench.counts() == before
    assert where in stream(bench).distrusted
    with tampering(owner) as connection:  # an operator restores what it was
        for row in rows:
            mine = [column == row[column.name] for column in tamper.table.primary_key]
            back = {name: value for name, value in row.items() if name not in ("id", "distrusted")}
            connection.execute(update(tamper.table).where(*mine).values(back))
    audit(bench).walk(1)
    assert stream(bench).distrusted is None
    bench.publish_all()
    assert bench.now().position == 10


@far_away
def test_nor_does_it_publish_at_a_tick_before_that(bench: Bench, owner):
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    park_all(bench)
    come(bench)
    publish(bench)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    park_all(bench)
    come(bench)
    before = bench.counts()
    with tampering(owner) as connection:
        connection.execute(update(CHARGES).where(CHARGES.c.id == 1).values(epsilon=0.01))
    publish(bench)
    assert bench.counts() == before
    assert "charge 1" in stream(bench).distrusted


def test_a_verdict_does_not_undo_one_that_came_meanwhile(bench: Bench):
    with bench.database.transaction() as connection:
        read = streams.get(connection, 1)
        assert streams.distrust(connection, read, "found by another")
        assert not streams.distrust(connection, read, None)
        assert not streams.distrust(connection, read, "found too late")
        assert streams.get(connection, 1).distrusted == "found by another"


def violated(bench: Bench) -> dict[str, float]:
    audit(bench).ask_invariants()
    return {name: metrics.VIOLATIONS.labels(name)._value.get() for name in INVARIANTS}


@pytest.mark.more
@pytest.mark.parametrize(
    ("tamper", "invariant"),
    [
        (update(RELEASES).where(RELEASES.c.version == 2).values(charge=1), "published_not_charged"),
        (update(CHARGES).where(CHARGES.c.id == 2).values(version=9), "published_not_charged"),
        (delete(RELEASES).where(RELEASES.c.version == 2), "charged_not_released"),
        (update(tables.spent).values(amount=2), "over_cap"),
        (update(tables.streams).values(epsilon="0.5"), "over_cap"),
        (update(CHARGES).where(CHARGES.c.id == 2).values(previous_hash=None), "broken_chain"),
        (update(tables.streams).values(charges=1), "broken_chain"),
        (update(tables.streams).values(distrusted="why"), "broken_chain"),
        (update(tables.entries).values(start=1), "record_gap"),
        (update(tables.segments).values(stop=9), "record_gap"),
        (delete(tables.entries), "record_gap"),
        (update(tables.segments).values(start=1), "record_gap"),
        (delete(tables.segments), "record_gap"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_invariant_is_seen_to_be_violated(bench: Bench, owner, tamper, invariant):
    bench.publish_all()
    assert set(violated(bench).values()) == {0}
    with tampering(owner) as connection:
        assert connection.execute(tamper).rowcount
    assert violated(bench)[invariant] >= 1


@pytest.mark.parametrize(
    ("reason", "where"),
    [
        ("stream {0}: a row is missing", "stream {0}: a row is missing"),
        ("stream {0}, charge 2: another hash", "stream {0}, charge 2: another hash"),
        (
            "publication p, version 1: another noise (stream {0})",
            "publication p, version 1: another noise (stream {0})",
        ),
        ("a row is missing", "stream {0}: a row is missing"),
        ("stream {0}-2 is missing", "stream {0}: stream {0}-2 is missing"),
    ],
)
def test_a_stream_that_is_distrusted_is_named_once(bench: Bench, owner, reason, where):
    name = stream(bench).name
    with tampering(owner) as connection:
        connection.execute(update(tables.streams).values(distrusted=reason.format(name)))
    with bench.database.transaction() as connection:
        assert INVARIANTS["broken_chain"](connection) == [where.format(name)]


def test_an_invariant_that_can_not_be_asked_is_violated_and_ends_no_other(bench: Bench, owner):
    bench.publish_all()
    with tampering(owner) as connection:
        connection.execute(update(tables.publications).values(epsilon="NaN"))
        connection.execute(delete(tables.segments))
    counts = violated(bench)
    assert (counts["over_cap"], counts["record_gap"], counts["charged_not_released"]) == (1, 1, 0)


def test_invariants_are_asked_of_one_moment(bench: Bench, monkeypatch):
    """A publication that ends meanwhile does not count twice: with all that it reserved, and with what it keeps."""
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(epsilon=1))
    real = reservations.kept_stairs_of_each

    def stopped_meanwhile(*args):
        with bench.database.transaction() as connection:
            open_entry(connection, publications.get(connection, bench.identity)).end("stopped")
        return real(*args)

    monkeypatch.setattr(reservations, "kept_stairs_of_each", stopped_meanwhile)
    assert violated(bench)["over_cap"] == 0
    assert bench.now().state == "stopped"


def test_what_a_worker_timed_goes_with_its_publication(bench: Bench):
    """At the second look that finds it ended: Prometheus is to read the last times first."""
    with bench.database.transaction() as connection:
        entry = open_entry(connection, publications.get(connection, bench.identity))
    mine = name, stream = entry.publication.name, entry.stream.name
    looks = audit(bench)
    for each in (mine, (name, "another-stream")):
        metrics.FIT.labels(*each).observe(1.0)
        metrics.FAILURES.labels(*each).inc()
    for _ in range(2):
        looks.forget_ended()
    assert {each for each in metrics.timed_publications() if each[0] == name} == {mine}
    with bench.database.transaction() as connection:
        open_entry(connection, publications.get(connection, bench.identity)).end("stopped")
    looks.forget_ended()
    assert mine in metrics.timed_publications()
    looks.forget_ended()
    assert mine not in metrics.timed_publications()
    assert f'publication="{name}",stream="{stream}"' not in metrics.exposition(metrics.WORKER).decode()


def test_a_publication_that_is_not_as_it_was_left_is_not_added_to(bench: Bench, owner):
    """Its clock set back would make it fit and release the same records again."""
    halfway(bench)
    before = bench.counts()
    publisher = bench.publisher()
    publisher._audit.look(1)
    with tampering(owner) as connection:
        connection.execute(text("ALTER TABLE publications DISABLE TRIGGER sealed"))
        connection.execute(update(tables.publications).values(position=0, due=2, chain=[]))
        connection.execute(text("ALTER TABLE publications ENABLE TRIGGER sealed"))
    assert publisher.step(threading.Event())
    assert bench.counts() == before
    assert "not as it was left" in stream(bench).distrusted


def test_who_does_not_seal_a_publication_can_not_change_it(bench: Bench):
    """Code from before there were seals can't, for one."""
    with pytest.raises(IntegrityError, match="only with its seal"), bench.database.transaction() as connection:
        connection.execute(update(tables.publications).values(due=2))


def test_records_that_are_not_what_was_numbered_are_not_fitted(bench: Bench):
    with bench.database.transaction() as connection:
        segment = segments.first_from(connection, 1, 0)
    path = bench.world.settings.segment_store / "log" / segment.file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert bench.publisher().step(threading.Event())
    assert bench.counts() == (0, 0)
    path.write_bytes(content)
    bench.publish_all()
    assert bench.now().position == 10
