"""Publishing is all or nothing, once, and never unpaid."""

import threading
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, update

from service.learning.output_perturbation import OutputPerturbation
from service.ledger import (
    charging,
    open_entry,
    open_free_ledgers,
    open_leased_entry,
    open_ledger,
    reservations,
    spending,
)
from service.store import charges, leases, publications, releases, segments, streams, tables
from service.store.publications import NewPublication
from service.store.rows import Rows
from service.worker import publisher as publisher_module
from service.worker.leases import LeaseKeeper
from service.worker.publisher import Publisher
from tests.conftest import World, run_out, wait_until
from tests.worker.conftest import new_sealer
from tests.worker.published import Bench, dies_in, published, taken_over

SCHEMA = {"features": 1, "task": {"kind": "classification", "classes": 2}, "norm_bound": 1.0, "feature_map": None}
CONFIGURATION = {
    "mechanism": {"kind": "sliding_window", "block": 2, "blocks": 3},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 0},
}


@pytest.fixture
def bench(world: World, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Yield the bench of a stream with the retention, or of the configuration, that an indirect parameter says."""
    parameter = getattr(request, "param", None)
    configuration = parameter if isinstance(parameter, dict) else CONFIGURATION
    retention = parameter if isinstance(parameter, str) else "keep"
    columns = {"x": np.linspace(-1, 1, 10, dtype=np.float32)[:, None], "y": np.arange(10, dtype=np.int32) % 2}
    with published(world, SCHEMA, configuration, columns, epsilon=2, retention=retention) as bench:
        yield bench


def test_every_release_has_its_charge_and_every_step_is_published_once(bench: Bench):
    bench.publish_all()
    publication = bench.now()
    assert (publication.position, publication.due) == (10, 12)
    assert bench.counts() == (publication.version, publication.version)
    with bench.database.transaction() as connection:
        ranges = spending.exact(connection, publication.stream_id, 0, 10)
        pages = charges.page(connection, publication.stream_id, limit=1000, before=None)
    for record in range(10):
        charged = sum(Fraction(each["epsilon"]) for each in pages if each["start"] <= record < each["end"])
        (spent,) = [spent for start, end, spent in ranges if start <= record < end]
        assert spent.epsilon == charged <= 1


def locked(bench: Bench) -> set[str]:
    """Return the tables in which another transaction holds the lock of a row."""
    of_ledger = (tables.leases, tables.streams, tables.publications)
    with bench.database.transaction() as connection:
        rows = {each: len(connection.execute(select(each)).all()) for each in of_ledger}
        free = {each: len(connection.execute(select(each).with_for_update(skip_locked=True)).all()) for each in rows}
    return {each.name for each in rows if free[each] < rows[each]}


def test_every_door_to_the_ledger_locks_what_it_says(bench: Bench):
    publication, stream = bench.now(), bench.stream().id
    with bench.database.transaction() as connection:
        lease = leases.take(connection, leases.publication(bench.identity), owner="test", seconds=600)
    for door, rows in (
        (lambda connection: open_ledger(connection, stream), {"streams"}),
        (lambda connection: open_free_ledgers(connection, [stream]), {"streams"}),
        (lambda connection: open_entry(connection, publication), {"streams", "publications"}),
        (
            lambda connection: open_leased_entry(connection, bench.identity, lease),
            {"leases", "streams", "publications"},
        ),
        (lambda connection: leases.check(connection, lease), {"leases"}),
    ):
        with bench.database.transaction() as connection:
            door(connection)
            assert locked(bench) == rows


@pytest.mark.parametrize("function", ["ledger.append", "releases.append", "publications.move"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_inside_the_commit_publishes_and_charges_nothing(bench: Bench, monkeypatch, function, after):
    module, name = (
        {"ledger": charging, "releases": releases, "publications": publications}[function.split(".")[0]],
        function.split(".")[1],
    )
    with dies_in(monkeypatch, module, name, after=after):
        bench.publisher().step(threading.Event())
    assert bench.counts() == (0, 0)
    bench.publish_all()
    assert bench.counts()[0] == bench.now().version


def test_of_two_that_fitted_the_same_step_only_the_holder_of_the_lease_commits(bench: Bench, monkeypatch):
    taken_over(bench, monkeypatch)
    publication = bench.now()
    assert bench.counts() == (publication.version, publication.version)
    assert publication.position == 10


def test_a_step_is_not_committed_under_a_lease_that_ran_out_though_nobody_took_it(bench: Bench, monkeypatch):
    """Another worker may take it at any moment, and draw the same step."""
    slow, commit = bench.publisher(), Publisher._commit

    def sleep_first(self: Publisher, *args: Any) -> Any:
        if self is slow:
            run_out(bench.database)
        return commit(self, *args)

    monkeypatch.setattr(Publisher, "_commit", sleep_first)
    slow.step(threading.Event())
    assert bench.counts() == (0, 0)
    bench.publish_all()
    assert bench.counts()[0] == bench.now().version > 0


def test_publications_take_turns(bench: Bench, monkeypatch):
    """However much is due of one: where records come fast, something always is."""
    monkeypatch.setattr(publisher_module, "TURN_SECONDS", 0)
    first = bench.now()
    with bench.database.transaction() as connection:
        settings = {
            name: getattr(first, name)
            for name in ("configuration", "plan", "kind", "epsilon", "delta", "due", "publish_delay")
        }
        second = publications.create(
            connection, first.stream_id, NewPublication(name="q", start=0, obligations=first.owes, **settings)
        )
    publisher, positions = bench.publisher(), []
    for _ in range(4):
        publisher.step(threading.Event())
        with bench.database.transaction() as connection:
            positions.append([publications.get(connection, each.id).position for each in (first, second)])
    assert positions[:3] == [[6, 6], [8, 8], [10, 10]]


def test_what_would_pass_the_cap_halts_the_publication_and_is_not_published(bench: Bench):
    publisher = bench.publisher()
    publisher._audit.look(1)
    stop = threading.Event()
    with bench.database.transaction() as connection:
        # As if records had been charged by something that went wrong: the ledger is what counts.
        connection.execute(
            tables.spent.insert().values(publication_id=bench.identity, start=3, stop=4, amount=Decimal("0.9"))
        )
    assert publisher.step(stop)
    publication = bench.now()
    assert (publication.state, bench.counts()) == ("halted", (0, 0))
    assert "cap" in publication.reason


WINDOW_OF_SEVEN = CONFIGURATION | {"mechanism": {"kind": "sliding_window", "block": 1, "blocks": 7}}


@pytest.mark.parametrize("bench", [WINDOW_OF_SEVEN], indirect=True)
def test_each_fit_starts_from_the_release_that_its_schedule_names(bench: Bench, monkeypatch):
    """Example 1 of paper-audit.md 1.4, each step by a worker that has read the releases before from the database."""
    real, centers = OutputPerturbation.release, []

    def release(self, records, n, center, *others):
        centers.append(center)
        return real(self, records, n, center, *others)

    monkeypatch.setattr(OutputPerturbation, "release", release)
    for records in (7, 8, 9, 10):
        with bench.database.transaction() as connection:
            connection.execute(update(tables.streams).values(records=records))
        bench.publish_all()
    with bench.database.transaction() as connection:
        made = releases.page(connection, bench.identity, limit=100, before=None)[::-1]
        released = {each.version: releases.parameters(connection, bench.identity, each.version) for each in made}
    assert [(each.fit, each.parent) for each in made] == [
        *[((3, 7), None), ((1, 3), 1), ((0, 1), 2)],
        ((7, 8), 2),
        *[((7, 9), 1), ((2, 3), 5)],
        ((9, 10), 5),
    ]
    for each, center in zip(made, centers, strict=True):
        assert (center == (released[each.parent] if each.parent else 0)).all()


@pytest.mark.parametrize(
    "bench", [CONFIGURATION, CONFIGURATION | {"publish_delay": 0.4}], indirect=True, ids=["at once", "at its tick"]
)
def test_what_a_halted_publication_keeps_is_settled(bench: Bench, monkeypatch):
    """Its charges stay reserved on its records, and no more."""

    def publish() -> None:
        bench.publish_all()
        with bench.database.transaction() as connection:
            connection.execute(update(tables.parked).values(tick=func.to_timestamp(0)))
        bench.context().ticker.publish(1)

    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    publish()
    monkeypatch.setattr("service.worker.publisher.of_another_guarantee", lambda *_: True)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    publish()
    assert (bench.now().state, bench.counts()) == ("halted", (2, 2))
    with bench.database.transaction() as connection:
        stairs = reservations.kept_stairs(connection, 1)
        assert stairs == reservations.stairs(Rows(connection), publications.of_stream(connection, 1))
        assert stairs != [(0, spending.PrivacyLoss())]


@pytest.mark.parametrize(
    "privacy", [{"epsilon": 2, "delta": 0}, {"epsilon": 1, "delta": 1e-6}], ids=["more", "another currency"]
)
def test_what_was_not_reserved_is_not_published(bench: Bench, privacy):
    """Noise and charges follow from the configuration, what others may have from the row beside it."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.publications).values(configuration=CONFIGURATION | {"privacy": privacy}))
    assert bench.publisher().step(threading.Event())
    publication = bench.now()
    assert (publication.state, bench.counts()) == ("halted", (0, 0))
    assert "reserved" in publication.reason


def test_a_stopped_publication_commits_nothing_that_was_under_way(bench: Bench, monkeypatch):
    real = Publisher._commit

    def stop_first(self, *args):
        with bench.database.transaction() as connection:
            open_entry(connection, publications.get(connection, bench.identity)).end("stopped")
        return real(self, *args)

    monkeypatch.setattr(Publisher, "_commit", stop_first)
    bench.publisher().step(threading.Event())
    assert bench.counts() == (0, 0)


def test_missing_records_are_never_made_up_for(bench: Bench):
    publisher = bench.publisher()
    publisher._audit.look(1)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.segments).values(stop=9))
    while publisher.step(threading.Event()):
        pass
    assert (bench.now().state, bench.now().position) == ("running", 8), "it goes on when the records are back"
    with bench.database.transaction() as connection:
        assert all(each.fit[1] <= 9 for each in releases.page(connection, bench.identity, limit=100, before=None))
        assert connection.execute(select(tables.attempts)).all() == [], "however often it is tried"


def test_a_later_fit_is_that_of_a_stream_with_empty_slots(bench: Bench, monkeypatch):
    """The same records and the same n as if the erased slots had never held anything, so the same law."""
    real, fitted = OutputPerturbation.release, []

    def release(self, records, n, *others):
        fitted.append((records.x[:, 0].tolist(), records.y.tolist(), n))
        return real(self, records, n, *others)

    monkeypatch.setattr(OutputPerturbation, "release", release)
    x, y = np.linspace(-1, 1, 10, dtype=np.float32), np.arange(10) % 2
    present = np.ones(10, dtype=bool)
    with bench.database.transaction() as connection:
        for start, stop in ((1, 3), (4, 6), (9, 10)):
            segments.erase(connection, 1, start, stop)
            present[start:stop] = False
    bench.publish_all()
    with bench.database.transaction() as connection:
        made = releases.page(connection, bench.identity, limit=100, before=None)[::-1]
    assert (4, 6) in [each.fit for each in made], "of nothing but empty slots"
    assert fitted == [
        (x[start:stop][present[start:stop]].tolist(), y[start:stop][present[start:stop]].tolist(), stop - start)
        for start, stop in (each.fit for each in made)
    ]


@pytest.mark.parametrize("bench", ["needed"], indirect=True)
def test_needed_records_are_kept_and_only_those(bench: Bench):
    """With retention `needed` a segment goes when no running publication can read it again."""
    settings = bench.world.settings
    with bench.database.transaction() as connection:
        (whole,) = segments.holding(connection, 1, 0, 10)
        leases.create(connection, "test")
        lease = leases.take(connection, "test", owner="test", seconds=60)
        pieces = []
        for start in range(0, 10, 2):
            columns = bench.files.read("log", whole.file, whole.sha256, start, start + 2)
            file, sha256 = bench.files.write("log", start, start + 2, columns)
            pieces.append(segments.Segment(start=start, stop=start + 2, file=file, sha256=sha256))
        segments.replace(connection, lease, streams.get(connection, 1), [whole], pieces)
    bench.publish_all()

    def drop() -> int:
        keeper = LeaseKeeper(bench.database, seconds=600.0)
        sealer = new_sealer(bench.database, settings.redis_url, bench.files, keeper)
        with bench.database.transaction() as connection:
            stream = streams.get(connection, 1)
        sealer._dropper.drop_unneeded(wait_until(lambda: keeper.take(leases.stream(1))), stream)
        with bench.database.transaction() as connection:
            return segments.kept_from(connection, 1)

    # Released up to record 10 (blocks 2-4): what comes next is block 5 alone, then the window of blocks 4-6.
    assert drop() == 8
    assert {file.name for file in (settings.segment_store / "log").iterdir()} == {pieces[4].file, whole.file}
