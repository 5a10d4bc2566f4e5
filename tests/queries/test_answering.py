"""Answers beside a real record: what a hard query writes, and that nothing else is ever told of one."""

import threading
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from sqlalchemy import Table, delete, text, update
from sqlalchemy.engine import make_url

from service.ledger import high_water_mark, open_entry
from service.ledger.verify import arrivals
from service.mechanisms.histogram import LinearQuery
from service.mechanisms.linear_queries.mechanism import LinearQueries
from service.publishing.confirmation import Confirmer
from service.queries import answering, instances
from service.queries.answering import Answer, Answerer
from service.settings import Settings
from service.store import publications, releases, segments, streams, tables
from service.store.database import Database
from service.store.rows import Rows
from tests.conftest import World, join, run_out
from tests.queries.asking import (
    ALPHA,
    CATEGORIES,
    EVERY,
    Bench,
    by_hand,
    easy,
    make_bench,
    share,
    with_records,
)


def test_a_hard_query_is_measured_and_an_easy_one_writes_nothing(bench: Bench):
    first, again = bench.ask(bench.answerer(), share(0), share(0))
    assert first.answer == pytest.approx(0.75, abs=0.01)
    assert again.answer == pytest.approx(0.75, abs=ALPHA)
    assert (first.measured, first.frozen, first.time) == (True, False, 40)
    assert first.error_bound < 0.01 < again.error_bound < ALPHA
    assert bench.now().version == 1
    assert [(each["start"], each["end"], each["version"]) for each in bench.charges()] == [
        (0, 20, None),
        (20, 40, None),
        (0, 40, 1),
        (0, 40, None),
    ]
    bench.all_is_well()


def test_an_answer_that_was_lost_after_its_commit_is_paid_for_and_its_threshold_gone(bench: Bench, monkeypatch):
    answerer, noise = bench.answerer(), bench.open().noise
    bench.ask(answerer, share(2))

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(answering._log, "info", killed)  # the first thing after the commit
        with pytest.raises(Killed):
            bench.ask(answerer, share(0))
    assert (bench.now().version, len(bench.charges())) == (1, 4)
    assert bench.open().noise != noise
    run_out(bench.database)
    assert bench.ask(bench.another(), share(0))[0].answer == pytest.approx(0.75, abs=ALPHA)
    assert bench.now().version == 2, "the instance that followed is closed, and it is not measured a second time"
    bench.all_is_well()


def test_a_threshold_is_the_same_for_every_process_and_after_every_start(bench: Bench):
    noise = bench.open().noise
    for _ in range(3):
        answerer = bench.answerer()
        bench.ask(answerer, share(2))
        assert answerer._held[bench.now().promise].state.open.noise == noise
    bench.arrive(0)
    bench.count_in()
    assert bench.open().noise == noise
    assert (bench.open().paid, bench.now().position) == (41, 41)


def test_records_that_arrive_between_comparison_and_commit_pay_and_are_not_counted(bench: Bench, monkeypatch):
    answerer = bench.answerer()
    true = instances.open_leased_entry

    def hold(*args, **more):
        with monkeypatch.context() as patch:
            patch.setattr(instances, "open_leased_entry", true)
            bench.arrive(*[5] * 10)
            bench.count_in()
        return true(*args, **more)

    monkeypatch.setattr(instances, "open_leased_entry", hold)
    (answer,) = bench.ask(answerer, share(0))
    monkeypatch.undo()
    assert answer.answer == pytest.approx(0.75, abs=0.01)
    assert answer.time == 40
    ranges = [(each["start"], each["end"], each["version"]) for each in bench.charges()]
    assert ranges == [(0, 20, None), (20, 40, None), (40, 50, None), (0, 40, 1), (0, 50, None)]
    assert (bench.open().instance.opened, bench.open().paid) == (40, 50)
    bench.all_is_well()
    assert bench.ask(answerer, share(5))[0].time == 50


def test_records_whose_charge_is_not_confirmed_are_not_compared(bench: Bench, monkeypatch):
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 0.0)
    answerer = bench.answerer()
    assert bench.ask(answerer, share(2))[0].measured
    with monkeypatch.context() as patch:
        patch.setattr(Confirmer, "_confirm", lambda *_: None)
        bench.arrive(*[5] * 10)
        bench.count_in()
        assert not bench.ask(answerer, share(2))[0].measured
    bench.publisher._confirmer.confirm(bench.now().stream_id)
    assert bench.ask(answerer, share(2))[0].measured


def test_what_is_erased_counts_no_more(bench: Bench):
    answerer = bench.answerer()
    assert bench.ask(answerer, EVERY)[0].answer == pytest.approx(1, abs=ALPHA)
    with bench.database.transaction() as connection:
        segments.erase(connection, bench.now().stream_id, 0, 30)
    assert bench.ask(answerer, share(0))[0].answer == pytest.approx(0, abs=ALPHA)
    assert bench.ask(answerer, share(1))[0].answer == pytest.approx(0.25, abs=ALPHA)
    bench.all_is_well()


def test_when_the_budget_is_spent_answers_go_on_and_say_so(bench: Bench):
    answerer = bench.answerer()
    hard = [share(0), LinearQuery.weighing(np.array([0, 1, 0, 0, 0, 0.5])), share(2, 3), share(1), share(4), share(5)]
    while bench.open() is not None:
        bench.ask(answerer, *hard)
        bench.arrive(*[3] * 40)
        bench.count_in()
    assert bench.now().version == 4
    charged, position = bench.charges(), bench.now().position
    bench.arrive(*[3] * 40)
    bench.count_in()
    (answer,) = bench.ask(answerer, share(3))
    assert (answer.measured, answer.frozen, answer.error_bound) == (False, True, None)
    assert (answer.time, bench.charges()) == (position + 40, charged), "records come, and pay nothing"
    state = answerer._held[bench.now().promise].seen()
    assert not replace(state, confirmed=False).frozen, "nobody sees yet what closed the last instance"
    worst = Fraction(bench.now().worst_amount)
    assert 0.999 * 1000 < worst <= 1000
    bench.all_is_well()


def test_of_a_publication_that_ended_the_histogram_answers_on(bench: Bench):
    answerer = bench.answerer()
    bench.ask(answerer, share(0))
    before = bench.now()
    with bench.database.transaction() as connection:
        open_entry(connection, before).end("stopped")
    charged = bench.charges()
    for process in (answerer, bench.another()):
        (answer,) = bench.ask(process, share(1))
        assert (answer.measured, answer.frozen, answer.time) == (False, True, 40)
        assert replace(process._held[before.promise].seen(), confirmed=False).frozen
    assert bench.charges() == charged
    bench.all_is_well()


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        (tables.parts, update(tables.parts).values(content=bytes(40))),
        (tables.parts, delete(tables.parts)),
        (tables.memories, delete(tables.memories)),
    ],
    ids=["another threshold", "none", "no digest"],
)
def test_with_a_threshold_that_is_not_as_it_was_left_nothing_is_compared(bench: Bench, table, changed):
    with bench.database.transaction() as connection:
        connection.execute(changed.where(table.c.publication_id == bench.identity))
    (answer,) = bench.ask(bench.answerer(), share(0))
    assert (answer.measured, answer.frozen) == (False, True)
    bench.arrive(0)
    bench.count_in()
    assert bench.now().state == "halted"


def test_while_something_is_known_against_it_nothing_is_compared(bench: Bench):
    answerer, now = bench.answerer(), bench.now()
    held = answerer._keep(now)

    def compares(table: Table, anew: bool, **values: object) -> bool:
        identity = now.id if table is tables.publications else now.stream_id
        with bench.database.transaction() as connection:
            connection.execute(update(table).where(table.c.id == identity).values(values))
        if anew:  # the answerer remembers what never changes
            held.forget_records()
        return bench.ask(answerer, share(2))[0].measured

    other = now.obligations | {"charging": {"when": "release"}}
    forged = {
        "obligations": other,
        "obligations_digest": publications.obligations_digest(replace(now, obligations=other)),
    }
    true = {"obligations": now.obligations, "obligations_digest": now.obligations_digest}
    assert compares(tables.streams, False, distrusted=None)
    for table, wrong, right in (
        (tables.streams, {"distrusted": "for a test"}, {"distrusted": None}),
        (tables.publications, {"plan": {}}, {"plan": now.plan}),
        (tables.publications, forged, true),
    ):
        anew = table is tables.publications
        assert not compares(table, anew, **wrong), wrong
        assert compares(table, anew, **right)


def test_with_a_threshold_from_a_backup_nothing_is_compared_even_before_a_worker_looks(bench: Bench):
    """A query was hard by it, and the ledger has forgotten that: the mark, written by a worker since, has not."""
    with bench.database.transaction() as connection:
        stream = streams.get(connection, bench.now().stream_id)
        mark = high_water_mark.marks(connection, [stream])[stream.log]
    for written, compared in ((mark, True), (replace(mark, charges=mark.charges + 2, head="0" * 64), False)):
        high_water_mark.write(bench.files, stream.log, written)
        (answer,) = bench.ask(bench.answerer(), share(2))
        assert (answer.measured, answer.frozen) == (compared, not compared)
    charged = bench.charges()
    assert not bench.ask(bench.answerer(), share(0))[0].measured
    assert bench.charges() == charged


@pytest.mark.parametrize("against", ["its mark", "a finding"])
def test_what_is_found_against_it_while_a_query_is_measured_stops_the_commit(bench: Bench, monkeypatch, against):
    true = LinearQueries.measure

    def measure(self, *args):
        with bench.database.transaction() as connection:
            stream = streams.get(connection, bench.now().stream_id)
            if against == "a finding":
                streams.distrust(connection, stream, "for a test")
            else:
                mark = high_water_mark.marks(connection, [stream])[stream.log]
                high_water_mark.write(bench.files, stream.log, replace(mark, charges=mark.charges + 2, head="0" * 64))
        return true(self, *args)

    monkeypatch.setattr(LinearQueries, "measure", measure)
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 0.0)
    charged, identity, answerer = bench.charges(), bench.now().stream_id, bench.answerer()
    for _ in range(2):
        assert not bench.ask(answerer, share(0))[0].measured
    assert (bench.charges(), bench.now().version) == (charged, 0)
    with bench.database.transaction() as connection:  # others look at all streams
        connection.execute(update(tables.streams).where(tables.streams.c.id == identity).values(distrusted=None))
    monkeypatch.undo()
    bench.ask(answerer, share(2))
    assert bench.now().version == (against == "a finding"), "its threshold has answered, whatever came between"


def test_before_the_first_records_are_there_nobody_knows_anything(settings: Settings, database: Database):
    bench = make_bench(settings, database)
    bench.arrive(*[0] * 19)
    bench.count_in()
    (answer,) = bench.ask(bench.answerer(), share(0))
    assert answer == Answer(answer=pytest.approx(1 / 7), measured=False, frozen=False, time=0, error_bound=None)
    assert bench.charges() == []
    bench.all_is_well()


@pytest.mark.more
@pytest.mark.parametrize("privacy", [{"epsilon": 3, "delta": 0}, {"epsilon": 3, "delta": 1e-5}], ids=["pure", "zcdp"])
def test_many_processes_and_a_worker_at_once_charge_what_a_walk_by_hand_finds(settings, database, privacy, seed):
    """Noise is not small here: what is hard is up to chance."""
    choose = Random(seed)
    bench = make_bench(settings, database, privacy=privacy, hits=8, accuracy=0.3)
    stop = threading.Event()
    problems: list[BaseException] = []

    def ask(answerer: Answerer, seed: int) -> None:
        mine = Random(seed)
        try:
            while not stop.is_set():
                bench.ask(answerer, *[share(mine.randrange(CATEGORIES)) for _ in range(20)])
        except BaseException as problem:
            problems.append(problem)
            raise

    askers = [
        threading.Thread(target=ask, args=(answerer, choose.random()))
        for answerer in (bench.another(), bench.another())
        for _ in range(2)
    ]
    for thread in askers:
        thread.start()
    for _ in range(6):
        bench.arrive(*[choose.choice([0, 0, 0, 1, 5]) for _ in range(choose.randrange(1, 15))])
        bench.count_in()
    stop.set()
    for thread in askers:
        join(thread)
    assert problems == []
    bench.all_is_well()
    by_hand(bench)


CHARGES = tables.charges


TAMPERED = {
    "is not what each record owes": [
        update(CHARGES).where(CHARGES.c.id == 1).values(epsilon=1.0),
        update(CHARGES).where(CHARGES.c.id == 2).values(start=21),
        update(CHARGES).where(CHARGES.c.id == 5).values(start=41),
        update(CHARGES).where(CHARGES.c.id == 4).values(stop=39),
    ],
    "had not paid for its instance": [
        delete(CHARGES).where(CHARGES.c.id == 2),
        delete(CHARGES).where(CHARGES.c.id == 5),
        text("UPDATE releases SET noise = replace(noise::text, '\"opened\": 40', '\"opened\": 99')::json"),
    ],
    "not all of its records have paid": [update(tables.publications).values(position=43)],
    "closed another instance": [
        text("UPDATE releases SET noise = jsonb_set(noise::jsonb, '{instance,scale}', '5')::json WHERE version = 1")
    ],
    "the release that it paid for is missing": [text("DELETE FROM releases WHERE version = 2")],
    "for no instance": [
        text("UPDATE releases SET noise = jsonb_set(noise::jsonb, '{next}', 'null')::json WHERE version = 1")
    ],
}


def test_whoever_does_not_believe_the_ledger_finds_records_that_did_not_pay(world: World, monkeypatch):
    """As a superuser could change it, who then makes every hash right again."""
    monkeypatch.setattr(answering, "SECONDS_TO_CONFIRM", 0.0)  # nobody would, before records are counted in
    url = make_url(world.settings.migration_url).set(username="postgres").render_as_string(False)
    database = Database(url)
    bench = with_records(make_bench(world.settings, database))
    bench.ask(bench.answerer(), share(0))
    bench.arrive(0, 1)
    bench.count_in()
    bench.ask(bench.answerer(), share(1))
    assert bench.now().version == 2
    with database.transaction() as connection:
        assert list(arrivals.instances(Rows(connection), publications.get(connection, bench.identity))) == []
    for finding, changes in TAMPERED.items():
        for changed in changes:
            with database.engine.connect() as connection:  # nothing of it is committed
                connection.execute(text("SET LOCAL session_replication_role = replica"))
                for table in tables.APPEND_ONLY:
                    connection.execute(text(f"ALTER TABLE {table.name} DISABLE TRIGGER append_only"))
                assert connection.execute(changed).rowcount
                instances = list(arrivals.instances(Rows(connection), publications.get(connection, bench.identity)))
                assert any(finding in each for each in instances), (str(changed), instances)
    database.close()


def test_only_records_from_its_start_on_count_and_pay(settings: Settings, database: Database):
    bench = make_bench(settings, database, start=20)
    bench.arrive(*[5] * 20)
    with_records(bench)
    first, other = bench.ask(bench.answerer(), share(0), share(5))
    assert (first.answer, other.answer) == (pytest.approx(0.75, abs=0.01), pytest.approx(0, abs=ALPHA))
    assert (first.time, other.time) == (60, 60)
    ranges = [(each["start"], each["end"], each["version"]) for each in bench.charges()]
    assert ranges[:4] == [(20, 40, None), (40, 60, None), (20, 60, 1), (20, 60, None)]
    with bench.database.transaction() as connection:
        assert releases.find(connection, bench.identity, 1).window == (20, 60)
    bench.all_is_well()


def test_any_released_histogram_answers_and_says_that_nothing_was_measured(bench: Bench):
    bench.ask(bench.answerer(), share(0))
    with bench.database.transaction() as connection:
        release = releases.find(connection, bench.identity, 1)
    one, all_of_them = answering.from_release(release, [share(0), EVERY])
    assert one == Answer(answer=release.parameters[0, 0], measured=False, frozen=False, time=40, error_bound=None)
    assert all_of_them.answer == pytest.approx(release.parameters.sum())


def test_a_release_says_all_it_takes_to_answer_elsewhere(bench: Bench):
    bench.ask(bench.answerer(), share(0))
    bench.arrive(*[1] * 40)
    bench.count_in()
    (answer,) = bench.ask(bench.answerer(), share(2))
    with bench.database.transaction() as connection:
        release = releases.find(connection, bench.identity, 1)
    assert release.model == {"kind": "histogram", "cardinality": CATEGORIES, "growth": "uniform"}
    (shares,) = release.parameters
    here = (release.time * shares[2] + (80 - release.time) / (CATEGORIES + 1)) / 80
    assert easy(answer, here)
