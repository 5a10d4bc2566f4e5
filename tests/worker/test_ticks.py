"""A finished step waits for its public tick: uncharged, unnumbered and unseen; then it appears whole, once."""
# ruff: noqa: F811 - a fixture is another file's

import math
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select, text, update
from structlog.testing import capture_logs

from service import metrics
from service.learning.output_perturbation import OutputPerturbation
from service.ledger import open_entry, spending
from service.ledger.verify import verify
from service.publishing import ticks
from service.publishing.prepared import unpacked
from service.store import parked, publications, releases, tables
from service.store.database import DatabaseUnavailable
from service.store.due_steps import due_steps
from service.store.publications import NewPublication
from service.worker.publisher import Publisher
from tests.conftest import join, run_out, wait_until
from tests.worker.published import Bench
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

TICK = Decimal("0.4")
TICKS = CONFIGURATION | {"publish_delay": float(TICK)}
FAR = CONFIGURATION | {"publish_delay": 86_400}
REMEMBERS = {
    "mechanism": {"kind": "online_leader", "batch": 2, "noise": "blt"},
    "learner": {"kind": "noisy_gradient_descent"},
    "privacy": {"epsilon": 1, "delta": 0},
    "publish_delay": float(TICK),
}
with_ticks = pytest.mark.parametrize("bench", [TICKS], indirect=True)
far_away = pytest.mark.parametrize("bench", [FAR], indirect=True)


def park_all(bench: Bench) -> Publisher:
    publisher = bench.publisher()
    while publisher.step(threading.Event()):
        pass
    return publisher


def waiting(bench: Bench) -> list[parked.Parked]:
    with bench.database.transaction() as connection:
        return parked.of_publication(connection, bench.identity)


def come(bench: Bench) -> None:
    """All ticks of what waits have come."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.parked).values(tick=func.to_timestamp(0)))


def publish(bench: Bench) -> None:
    bench.context().ticker.publish(1)


def add_without_ticks(bench: Bench) -> None:
    """A second publication on the same stream, whose steps are published as soon as they are ready."""
    first = bench.now()
    settings = {name: getattr(first, name) for name in ("plan", "kind", "epsilon", "delta")} | {
        "obligations": first.owes
    }
    prompt = CONFIGURATION | {"publish_delay": 0}
    with bench.database.transaction() as connection:
        new = NewPublication(name="q", start=0, configuration=prompt, due=6, publish_delay=Decimal(0), **settings)
        publications.create(connection, 1, new)


def published_at(bench: Bench) -> list[tuple[int, Any]]:
    with bench.database.transaction() as connection:
        query = select(tables.releases.c.version, tables.releases.c.published_at).order_by(tables.releases.c.version)
        return [tuple(row) for row in connection.execute(query)]


@with_ticks
def test_a_parked_step_is_neither_charged_nor_numbered_nor_seen(bench: Bench):
    park_all(bench)
    publication = bench.now()
    assert len(waiting(bench)) == 3
    assert (publication.position, publication.version, publication.latest, bench.counts()) == (0, 0, None, (0, 0))
    with bench.database.transaction() as connection:
        assert spending.exact(connection, publication.stream_id, 0, 10) == [(0, 10, spending.PrivacyLoss())]
        assert due_steps(connection) == []


@with_ticks
def test_a_tick_that_a_clock_ahead_gave_is_taken_anew(bench: Bench):
    """And said: the noise stays as it was drawn, the tick alone moves, to a multiple of the delay that is near."""
    park_all(bench)
    drawn = [step.content for step in waiting(bench)]
    tomorrow = func.clock_timestamp() + timedelta(days=1)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.parked).values(tick=tomorrow))
    before, moved = datetime.now(UTC), metrics.TICKS_TAKEN_ANEW._value.get()
    with capture_logs() as lines:
        assert bench.context().ticker.step() == 0
    assert metrics.TICKS_TAKEN_ANEW._value.get() - moved == 3
    (line,) = (line for line in lines if line["event"] == "clock_was_ahead")
    assert (line["ticks_taken_anew"], line["log_level"]) == (3, "error")
    assert 86_000 <= line["seconds"] <= 86_400
    for step, content in zip(waiting(bench), drawn, strict=True):
        assert before <= step.tick <= datetime.now(UTC) + timedelta(seconds=1)
        assert round(Decimal(step.tick.timestamp()), 6) % TICK == 0
        assert step.content == content
    context = bench.context()
    wait_until(lambda: (context.ticker.step(), not waiting(bench))[1])
    assert bench.now().position == 10


@pytest.mark.parametrize("bench", [CONFIGURATION | {"publish_delay": 3600}], indirect=True)
def test_a_tick_that_is_not_too_far_ahead_stays(bench: Bench):
    park_all(bench)
    ticks_before = [step.tick for step in waiting(bench)]
    bench.context().ticker.step()
    with bench.database.transaction() as connection:
        assert all(each.ahead is None for each in parked.next_ticks(connection))
    assert [step.tick for step in waiting(bench)] == ticks_before


@far_away
def test_nothing_appears_before_its_tick(bench: Bench):
    park_all(bench)
    publish(bench)
    assert (len(waiting(bench)), bench.counts()) == (3, (0, 0))


@with_ticks
def test_at_its_tick_a_step_appears_whole_and_tells_that_time(bench: Bench):
    park_all(bench)
    context, expected = bench.context(), waiting(bench)
    wait_until(lambda: (context.ticker.step(), not waiting(bench))[1])
    assert bench.now().position == 10
    shown_at = dict(published_at(bench))
    with bench.database.transaction() as connection:
        numbered = connection.execute(select(func.max(tables.entries.c.numbered_at))).scalar_one()
        charged = connection.execute(select(tables.charges.c.version, tables.charges.c.charged_at)).all()
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []
    for step in expected:
        for release in unpacked(step.content).releases:
            assert shown_at[release.version] == step.tick
    assert dict(map(tuple, charged)) == shown_at
    for moment in shown_at.values():
        since = Decimal(int(moment.timestamp())) + Decimal(moment.microsecond) / 10**6
        assert since % TICK == 0
        assert moment >= numbered + timedelta(seconds=float(TICK))


@with_ticks
def test_what_is_parked_is_published_as_it_was_drawn_whoever_does_it(bench: Bench, monkeypatch):
    park_all(bench)
    expected = [release for step in waiting(bench) for release in unpacked(step.content).releases]
    monkeypatch.setattr(OutputPerturbation, "release", None)  # nothing is drawn from here on
    come(bench)
    publish(bench)
    with bench.database.transaction() as connection:
        for release in expected:
            assert (releases.parameters(connection, bench.identity, release.version) == release.parameters).all()


@pytest.mark.parametrize("bench", [REMEMBERS], indirect=True)
def test_a_worker_goes_on_from_what_another_has_parked(bench: Bench):
    """Also where later noise takes back earlier noise, which is parked too."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=4))
    park_all(bench)
    assert len(waiting(bench)) == 2
    come(bench)
    publish(bench)
    for records in (6, 8, 10):  # each by a worker that knows of the others what is stored
        with bench.database.transaction() as connection:
            connection.execute(update(tables.streams).values(records=records))
        park_all(bench)
    assert len(waiting(bench)) == 3
    come(bench)
    publish(bench)
    assert (bench.now().position, bench.now().version) == (10, 5)
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []
        assert connection.execute(select(func.count()).select_from(tables.parked)).scalar_one() == 0


@with_ticks
def test_a_step_is_published_once_by_however_many_workers(bench: Bench):
    park_all(bench)
    come(bench)
    shops = [bench.context() for _ in range(4)]
    for context in shops:
        context.audit.look(1)
    barrier = threading.Barrier(len(shops))

    def publish(context: Any) -> None:
        barrier.wait()
        context.ticker.publish(1)

    threads = [threading.Thread(target=publish, args=(context,)) for context in shops]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert bench.counts() == (bench.now().version, bench.now().version)
    assert bench.now().position == 10


@far_away
def test_a_stop_before_the_tick_drops_what_waits_uncharged(bench: Bench):
    park_all(bench)
    with bench.database.transaction() as connection:
        open_entry(connection, publications.get(connection, bench.identity)).end("stopped")
    assert waiting(bench) == []
    publish(bench)
    assert bench.counts() == (0, 0)


@far_away
def test_a_halt_waits_for_its_tick_and_nothing_follows_it(bench: Bench, monkeypatch):
    monkeypatch.setattr("service.worker.publisher.of_another_guarantee", lambda *_: True)
    park_all(bench)
    assert bench.now().state == "running"
    with bench.database.transaction() as connection:
        assert due_steps(connection) == []
    come(bench)
    publish(bench)
    assert (bench.now().state, bench.counts()) == ("halted", (0, 0))
    assert "reserved" in bench.now().reason


@with_ticks
def test_what_would_pass_the_cap_halts_at_the_tick(bench: Bench):
    park_all(bench)
    with bench.database.transaction() as connection:
        spent = tables.spent.insert().values(publication_id=bench.identity, start=3, stop=4, amount=Decimal("0.9"))
        connection.execute(spent)
    come(bench)
    context = bench.context()
    context.audit._due["log"] = float("inf")  # it would find that out by itself
    context.ticker.publish(1)
    assert (bench.now().state, bench.counts(), waiting(bench)) == ("halted", (0, 0), [])
    assert "cap" in bench.now().reason


@with_ticks
def test_ids_are_in_the_order_of_times_also_beside_a_publication_without_ticks(bench: Bench):
    park_all(bench)
    come(bench)
    add_without_ticks(bench)
    publisher = bench.publisher()
    while publisher.step(threading.Event()):
        pass
    with bench.database.transaction() as connection:
        rows = connection.execute(select(tables.charges).order_by(tables.charges.c.id)).all()
    assert {row.publication_id for row in rows} == {1, 2}
    assert [row.charged_at for row in rows] == sorted(row.charged_at for row in rows)
    assert waiting(bench) == []


@with_ticks
def test_where_an_earlier_step_can_not_be_published_a_prompt_one_waits_and_keeps_its_bytes(bench: Bench, monkeypatch):
    park_all(bench)
    come(bench)
    add_without_ticks(bench)
    real, drawn = OutputPerturbation.release, []

    def release(self: Any, *arguments: Any) -> Any:
        drawn.append(real(self, *arguments))
        return drawn[-1]

    monkeypatch.setattr(OutputPerturbation, "release", release)
    publisher, tried = bench.publisher(), []
    with monkeypatch.context() as patched:
        patched.setattr("service.worker.publisher.AFTER_AN_ERROR_SECONDS", math.inf)
        patched.setattr(publisher._ticker, "publish", tried.append)
        publisher.step(threading.Event())
        assert not publisher.step(threading.Event()), "it is tried again later, not at once"
    assert (tried, bench.counts()) == ([1], (0, 0))
    publisher._dispatcher._retry_at.clear()
    publisher.step(threading.Event())
    with bench.database.transaction() as connection:
        assert np.array_equal(releases.parameters(connection, 2, 1), drawn[0])


@with_ticks
def test_the_tick_follows_the_record_that_was_waited_for_not_the_fit(bench: Bench):
    """Two steps whose fits end at different times, within their tick, appear at the same one."""
    with bench.database.transaction() as connection:
        now = connection.execute(select(func.clock_timestamp())).scalar_one()
        soon = connection.execute(
            text("SELECT to_timestamp(ceil(extract(epoch FROM clock_timestamp()) / 60) * 60 + 1)")
        ).scalar_one()
        connection.execute(update(tables.entries).values(numbered_at=soon))
        connection.execute(update(tables.publications).values(publish_delay=60, created_at=func.to_timestamp(0)))
        publication = publications.get(connection, bench.identity)
        ticks_of = [parked.tick_of(connection, publication, 6)[0]]
        time.sleep(0.05)
        ticks_of.append(parked.tick_of(connection, publication, 6)[0])
        connection.execute(update(tables.entries).values(numbered_at=func.to_timestamp(0)))
        late, _ = parked.tick_of(connection, publication, 6)
    assert ticks_of[0] == ticks_of[1] > late > now
    assert ticks_of[0] >= soon + timedelta(seconds=60)
    assert ticks_of[0].timestamp() % 60 == 0


@with_ticks
def test_a_tick_never_comes_before_that_of_the_step_before(bench: Bench):
    """As if the clock had been set back in between."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    park_all(bench)
    with bench.database.transaction() as connection:
        later = text("UPDATE parked SET tick = tick + interval '4 days'")
        connection.execute(later)
        connection.execute(update(tables.streams).values(records=10))
    park_all(bench)
    moments = [step.tick for step in waiting(bench)]
    assert len(moments) == 3
    assert moments == sorted(moments)


@with_ticks
def test_a_worker_that_lost_its_lease_parks_nothing(bench: Bench, monkeypatch):
    slow, real = bench.publisher(), Publisher._commit

    def sleep_first(self: Publisher, *args: Any) -> Any:
        if self is slow:
            run_out(bench.database)
            park_all(bench)
        return real(self, *args)

    monkeypatch.setattr(Publisher, "_commit", sleep_first)
    slow.step(threading.Event())
    steps = waiting(bench)
    assert [step.following_due for step in steps] == [8, 10, 12]


@with_ticks
def test_nothing_parked_is_published_on_an_older_ledger(bench: Bench):
    park_all(bench)
    come(bench)
    context = bench.context()
    context.audit.confirm()
    log = context.confirmer.log(1)
    mark = bench.files.high_water_mark(log)
    bench.files.put_high_water_mark(log, mark | {"charges": 1, "head": "0" * 64})
    context.audit._due["log"] = float("inf")  # which walks the whole ledger only every hour
    context.ticker.publish(1)
    assert bench.counts() == (0, 0)
    assert "older than what was done" in bench.stream().distrusted


@with_ticks
def test_a_step_that_follows_on_a_lost_one_is_drawn_anew(bench: Bench, monkeypatch):
    """A failover loses what was parked, and another worker draws it anew: nothing drawn on top of the lost one goes."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    first, real, drawn = bench.publisher(), Publisher._commit, []
    assert first.step(threading.Event())
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=8))

    def fail(_self: Publisher, _lease: Any, _turn: Any, step: Any) -> Any:
        drawn.append(step)
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patched, pytest.raises(DatabaseUnavailable):
        patched.setattr(Publisher, "_commit", fail)
        first.step(threading.Event())
    with bench.database.transaction() as connection:
        parked.drop(connection, bench.identity)
        connection.execute(update(tables.streams).values(records=6))
    park_all(bench)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=8))
    assert Publisher._commit is real
    first.step(threading.Event())
    new, old = (unpacked(waiting(bench)[1].content).releases, drawn[0].releases)
    assert [each.version for each in new] == [each.version for each in old]
    assert all((one.parameters != other.parameters).any() for one, other in zip(new, old, strict=True))


@with_ticks
def test_no_more_waits_than_a_worker_can_keep_in_mind(bench: Bench, monkeypatch):
    monkeypatch.setattr(parked, "MAX_WAITING", 2)
    park_all(bench)
    assert len(waiting(bench)) == 2
    come(bench)
    publish(bench)
    park_all(bench)
    assert len(waiting(bench)) == 1


@with_ticks
def test_a_publication_that_is_not_as_it_was_left_is_not_published_at_its_tick(bench: Bench):
    park_all(bench)
    come(bench)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.publications).values(worst_record=7, seal="0" * 64))
    context = bench.context()
    context.audit._due["log"] = float("inf")  # it would find that out by itself
    context.ticker.publish(1)
    assert bench.counts() == (0, 0)
    assert "not as it was left" in bench.stream().distrusted


@with_ticks
def test_a_step_whose_predecessor_has_not_come_waits(bench: Bench):
    park_all(bench)
    first, *others = waiting(bench)
    come(bench)
    with bench.database.transaction() as connection:
        later = tables.parked.c.position == first.position
        connection.execute(update(tables.parked).where(later).values(tick=func.now() + timedelta(days=1)))
    publish(bench)
    assert (bench.counts(), len(waiting(bench))) == ((0, 0), 1 + len(others))


@far_away
def test_who_hangs_while_it_publishes_at_a_tick_keeps_its_lock_for_seconds(bench: Bench):
    """The bound is that of what waits, which is a few bytes here, and not the longest of all that lock a stream."""
    park_all(bench)
    come(bench)
    with bench.database.transaction() as connection:
        assert ticks.open_ticks(connection, [1])
        (milliseconds,) = connection.execute(
            text("SELECT setting::int FROM pg_settings WHERE name = 'transaction_timeout'")
        ).one()
    assert 0 < milliseconds <= 6000
