"""Numbering: in the log's order, each batch once, whatever dies in between; never from a log that is not the same."""

import asyncio
import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import delete, event, update

from service.ledger.verify import verify
from service.log import Appender, LogUnavailable, Position, Reader
from service.segments.files import SegmentFiles
from service.segments.locating import read_records
from service.store import leases, numbering, segments, streams, tables
from service.streams.feature_maps import build, feature_map
from service.worker import merger
from service.worker import sealer as sealing
from tests.conftest import join, run_out, wait_until
from tests.worker.conftest import Bench, new_stream
from tests.worker.published import dies_in


def test_batches_are_numbered_in_the_logs_order_and_trimmed(bench: Bench):
    bench.append(1, 2)
    bench.append(3)
    bench.sealer().step(wait_milliseconds=10)
    assert bench.values() == [1, 2, 3]
    assert bench.redis().xlen(bench.key("entries")) == 0


def test_a_range_is_read_across_segments(bench: Bench):
    sealer = bench.sealer()
    for value in range(5):
        bench.append(value, value + 0.5)
        sealer.step(wait_milliseconds=10)
    records = read_records(bench.database, bench.files, bench.now(), 1, 2, 8)
    assert records.x[:, 0].tolist() == [1.5, 2, 2.5, 3, 3.5, 4]


@pytest.mark.parametrize("step", ["write", "seal", "trim"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_loses_and_doubles_nothing(bench: Bench, monkeypatch, step, after):
    place = {"write": (SegmentFiles, "write"), "seal": (numbering, "seal"), "trim": (Reader, "trim")}[step]
    bench.append(1)
    bench.append(2)
    with dies_in(monkeypatch, *place, after=after):
        bench.sealer().step(wait_milliseconds=10)
    bench.append(3)
    successor = bench.successor()
    wait_until(lambda: (successor.step(wait_milliseconds=10), bench.now().records == 3)[1])
    assert bench.values() == [1, 2, 3]
    assert bench.redis().xlen(bench.key("entries")) == 0
    files = list((bench.world.settings.segment_store / bench.stream.log).iterdir())
    with bench.database.transaction() as connection:
        assert {file.name for file in files} == {
            each.file for each in segments.holding(connection, bench.stream.id, 0, 3)
        }


def test_a_batch_stays_in_the_log_until_its_records_are_numbered(bench: Bench, monkeypatch):
    lengths, real = [], numbering.seal

    def seal(connection, *rest):
        real(connection, *rest)
        lengths.append(bench.redis().xlen(bench.key("entries")))

    monkeypatch.setattr(numbering, "seal", seal)
    bench.append(1)
    bench.append(2)
    bench.sealer().step(wait_milliseconds=10)
    assert lengths == [2]
    assert bench.redis().xlen(bench.key("entries")) == 0


def test_what_a_crash_left_in_the_log_is_trimmed_at_once(bench: Bench, monkeypatch):
    """By whoever takes over, though nothing more comes: what is erased is to go from the log too."""
    bench.append(1)
    with dies_in(monkeypatch, Reader, "trim"):
        bench.sealer().step(wait_milliseconds=10)
    assert (bench.now().records, bench.redis().xlen(bench.key("entries"))) == (1, 1)
    bench.successor().step(wait_milliseconds=10)
    assert bench.redis().xlen(bench.key("entries")) == 0


def test_who_holds_a_stream_notices_that_its_log_is_gone(bench: Bench, monkeypatch):
    monkeypatch.setattr(sealing, "TIDY_SECONDS", 0.0)
    sealer = bench.sealer()
    bench.append(1)
    sealer.step(wait_milliseconds=10)
    bench.redis().delete(bench.key("entries"), bench.key("state"))
    sealer.step(wait_milliseconds=10)
    assert "holds nothing" in bench.now().halted


def test_a_sealer_that_lost_its_lease_commits_nothing(bench: Bench):
    asleep = bench.sealer()
    asleep.step(wait_milliseconds=10)  # takes the lease
    awake = bench.successor()
    bench.append(1)

    def taken_over() -> bool:
        awake.step(wait_milliseconds=10)
        return bench.now().records == 1

    wait_until(taken_over)
    bench.append(2)
    asleep.step(wait_milliseconds=10)
    assert bench.now().records == 1
    awake.step(wait_milliseconds=10)
    assert bench.values() == [1, 2]


def test_a_batch_is_not_numbered_under_a_lease_that_ran_out_though_nobody_took_it(bench: Bench, monkeypatch):
    """Another worker may take it at any moment, and number the same batch."""
    sealer, seal = bench.sealer(), numbering.seal
    sealer.step(wait_milliseconds=10)  # takes the lease

    def sleep_first(*args: Any, **more: Any) -> None:
        run_out(bench.database)
        seal(*args, **more)

    monkeypatch.setattr(numbering, "seal", sleep_first)
    bench.append(1)
    sealer.step(wait_milliseconds=10)
    assert bench.now().records == 0
    monkeypatch.setattr(numbering, "seal", seal)
    successor = bench.successor()

    def numbered() -> bool:
        successor.step(wait_milliseconds=10)
        return bench.now().records == 1

    wait_until(numbered)
    assert bench.values() == [1]


def test_two_sealers_at_once_number_every_batch_once(bench: Bench):
    stop = threading.Event()
    threads = [threading.Thread(target=bench.sealer().run, args=(stop,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for value in range(40):
        bench.append(value)
    wait_until(lambda: bench.now().records == 40)
    stop.set()
    for thread in threads:
        join(thread)
    assert bench.values() == list(range(40))


def halted(bench: Bench) -> str | None:
    sealer = bench.successor()

    def look() -> str | None:
        sealer.step(wait_milliseconds=10)
        return bench.now().halted

    return wait_until(look)


def test_a_flushed_log_halts_the_stream_and_takes_nothing_more(bench: Bench):
    bench.append(1)
    bench.sealer().step(wait_milliseconds=10)
    bench.redis().delete(bench.key("entries"), bench.key("state"))
    with pytest.raises(LogUnavailable, match="lost"):
        bench.append(2)
    assert "holds nothing" in halted(bench)
    assert bench.values() == [1]


def test_a_log_from_an_old_backup_halts_the_stream(bench: Bench):
    bench.append(1)
    backup = [(key, bench.redis().dump(key)) for key in (bench.key("entries"), bench.key("state"))]
    bench.append(2)
    bench.sealer().step(wait_milliseconds=10)
    for key, content in backup:
        bench.redis().restore(key, 0, content, replace=True)
    assert "older than what is numbered" in halted(bench)


def test_a_log_that_lost_accepted_batches_without_numbers_halts_the_stream_and_can_be_resumed(bench: Bench):
    """The tail of its file is gone, or a replica that lagged was promoted: nothing that has a number is missing."""
    sealer, keys = bench.sealer(), (bench.key("entries"), bench.key("state"))
    bench.append(1)
    sealer.step(wait_milliseconds=10)

    async def lose(appender: Appender) -> None:
        await bench.append_by(appender, 2)
        backup = [(key, bench.redis().dump(key)) for key in keys]
        await bench.append_by(appender, 3)
        for key, content in backup:
            bench.redis().restore(key, 0, content, replace=True)
        with pytest.raises(LogUnavailable, match="lost"):
            await bench.append_by(appender, 4)
        assert "the log lost batches 3 to 3, which were accepted" in halted(bench)
        stream = bench.now()
        resumed = await appender.resume(stream.log, Position(stream.sealed_entry, stream.sealed_sequence))
        assert resumed.lost_batches == 1
        with bench.database.transaction() as connection:
            numbering.resume(connection, stream, sequence=resumed.sequence, lost_batches=resumed.lost_batches)
        await bench.append_by(appender, 5)

    asyncio.run(bench.with_appender(lose))
    successor = bench.successor()
    wait_until(lambda: (successor.step(wait_milliseconds=10), bench.now().records == 3)[1])
    assert bench.values() == [1, 2, 5]


def test_appends_after_an_old_backup_are_not_numbered_either(bench: Bench):
    sealer = bench.sealer()
    sealer.step(wait_milliseconds=10)
    backup = [
        (key, bench.redis().dump(key))
        for key in (bench.key("entries"), bench.key("state"))
        if bench.redis().exists(key)
    ]
    bench.append(1)
    sealer.step(wait_milliseconds=10)
    bench.redis().delete(bench.key("entries"))
    for key, content in backup:
        bench.redis().restore(key, 0, content, replace=True)
    bench.append(2)
    sealer.step(wait_milliseconds=10)
    assert "came where" in bench.now().halted
    assert bench.values() == [1]


def test_a_batch_lost_in_the_middle_halts_the_stream(bench: Bench):
    bench.append(1)
    lost = bench.append(2)
    bench.append(3)
    bench.redis().xdel(bench.key("entries"), lost)
    assert "batch 3 came where 2 was due" in halted(bench)
    assert bench.values() == [1], "what came before it is numbered, and nothing after it"


def test_a_lease_that_ran_out_can_be_taken_but_not_renewed(bench: Bench):
    resource = leases.stream(bench.stream.id)
    with bench.database.transaction() as connection:
        first = leases.take(connection, resource, owner="one", seconds=600)
    with bench.database.transaction() as connection:
        assert leases.take(connection, resource, owner="two", seconds=600) is None
    run_out(bench.database)
    with bench.database.transaction() as connection, pytest.raises(leases.LeaseLost):
        leases.check(connection, first)
    with bench.database.transaction() as connection:
        second = leases.take(connection, resource, owner="two", seconds=600)
    assert second.epoch == first.epoch + 1
    with bench.database.transaction() as connection:
        assert leases.renew(connection, [first, second], seconds=600) == [first]
        with pytest.raises(leases.LeaseLost):
            leases.check(connection, first)
        leases.check(connection, second)


def test_a_lease_that_is_not_there_any_more_is_lost(bench: Bench):
    """Others delete the leases of sealers that are long dead; one that only slept is to take its share again."""
    with bench.database.transaction() as connection:
        asleep, other = (leases.appear(connection, each, primary=1, seconds=60) for each in ("asleep", "other"))
        connection.execute(delete(tables.leases).where(tables.leases.c.resource == asleep.resource))
        assert leases.renew(connection, [asleep, other], seconds=60) == [asleep]


@pytest.mark.more
def test_small_segments_become_one_and_read_the_same(bench: Bench):
    sealer = bench.sealer()
    for value in range(40):
        bench.append(value)
        sealer.step(wait_milliseconds=10)
    with bench.database.transaction() as connection:
        merged = segments.holding(connection, bench.stream.id, 0, 40)
    assert [each.stop - each.start for each in merged] == [16, 16] + [1] * 8
    assert bench.values() == list(range(40))
    assert len(list((bench.world.settings.segment_store / bench.stream.log).iterdir())) == 10


@pytest.mark.parametrize("way", ["merged", "erased", "dropped"])
def test_every_segment_that_comes_or_goes_is_in_the_sum(bench: Bench, way):
    sealer, other = bench.sealer(), replace(bench, stream=new_stream(bench.world, bench.database, "other"))
    for value in range(16 if way == "merged" else 3):
        for each in (bench, other)[: 2 if way == "erased" else 1]:
            each.append(value)
        sealer.step(wait_milliseconds=10)
    with bench.database.transaction() as connection:
        if way == "erased":
            segments.erase(connection, bench.stream.id, 1, 2)
        if way == "dropped":
            mine = update(tables.streams).where(tables.streams.c.id == bench.stream.id)
            connection.execute(mine.values(retention="needed"))
            promise = streams.promised(streams.get(connection, bench.stream.id))
            connection.execute(mine.values(promise=promise))
    successor = bench.successor()
    wait_until(lambda: (successor.step(wait_milliseconds=10), changed(bench, way))[1])
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []
    if way == "erased":
        assert other.values() == [0, 1, 2], "another stream's segments are as they were"


def changed(bench: Bench, way: str) -> bool:
    with bench.database.transaction() as connection:
        count = len(segments.holding(connection, bench.stream.id, 0, 16))
        return (
            segments.undeleted_erasures(connection, bench.stream.id) == []
            and {
                "merged": count == 1,
                "erased": True,
                "dropped": count == 0,
            }[way]
        )


def test_who_takes_its_own_lease_again_has_lost_the_one_before(bench: Bench):
    """Two threads of one worker believe that they hold it; one does."""
    resource = leases.stream(bench.stream.id)

    def take() -> leases.Lease | None:
        with bench.database.transaction() as connection:
            return leases.take(connection, resource, owner="one", seconds=60)

    first = take()
    run_out(bench.database)
    second = take()
    with bench.database.transaction() as connection:
        leases.check(connection, second)
        with pytest.raises(leases.LeaseLost):
            leases.check(connection, first)
        assert leases.renew(connection, [first, second], seconds=60) == [first]
        leases.release(connection, first)
        leases.check(connection, second)


def test_a_halted_stream_numbers_nothing_that_was_under_way(bench: Bench, monkeypatch):
    sealer, real = bench.sealer(), numbering.seal
    sealer.step(wait_milliseconds=10)
    bench.append(1)

    def halted_first(*args):
        with bench.database.transaction() as connection:
            streams.halt(connection, bench.stream.id, "why")
        real(*args)

    monkeypatch.setattr(numbering, "seal", halted_first)
    sealer.step(wait_milliseconds=10)
    assert (bench.now().records, bench.now().halted) == (0, "why")


TWICE = {"kind": "random_fourier", "version": 1, "features": 4, "width": 1.0, "seed": 0}
STANDARDIZE = {"kind": "standardize", "version": 1, "mean": 0.0, "scale": 1e-6}


def with_map(description):
    return pytest.mark.parametrize("bench", [{"feature_map": description}], indirect=True)


@with_map(TWICE)
def test_segments_hold_mapped_records(bench: Bench):
    bench.append(1, 2)
    bench.append(3)
    bench.sealer().step(wait_milliseconds=10)
    expected = build(TWICE, 1)(np.array([[1], [2], [3]], dtype=np.float32))
    assert np.array_equal(read_records(bench.database, bench.files, bench.now(), 0, 0, 3).x, expected)


@with_map(STANDARDIZE)
def test_a_record_that_overflows_keeps_its_number_and_spoils_no_other(bench: Bench):
    bench.append(1, 3e38, 2)
    bench.append(-3e38)
    bench.sealer().step(wait_milliseconds=10)
    assert bench.now().halted is None
    np.testing.assert_array_equal(bench.values(), np.array([1e6, np.nan, 2e6, np.nan], dtype=np.float32))


@with_map(TWICE)
def test_a_segment_is_no_larger_than_memory_should_hold(bench: Bench, monkeypatch):
    monkeypatch.setattr(feature_map, "MAX_VALUES", 4 * 5)  # five mapped records
    monkeypatch.setattr(merger, "MERGED_VALUES", 4 * 40)
    for value in range(60):
        bench.append(*[value] * (1 + 6 * (value == 30)))  # a batch of seven is one segment all the same
    sealer = bench.sealer()
    while bench.now().records < 66:
        sealer.step(wait_milliseconds=10)
    with bench.database.transaction() as connection:
        sealed = segments.holding(connection, bench.stream.id, 0, 66)
    assert [each.stop - each.start for each in sealed] == [5] * 6 + [7] + [5] * 5 + [4]
    expected = build(TWICE, 1)(np.array([[value] for value in [*range(30), *[30] * 7, *range(31, 60)]]))
    assert np.array_equal(read_records(bench.database, bench.files, bench.now(), 0, 0, 66).x, expected)


@pytest.mark.parametrize("most", [15, 16])
def test_segments_are_not_merged_into_more_than_memory_should_hold(bench: Bench, monkeypatch, most):
    monkeypatch.setattr(merger, "MERGED_VALUES", most)
    sealer = bench.sealer()
    for value in range(16):
        bench.append(value)
        sealer.step(wait_milliseconds=10)
    with bench.database.transaction() as connection:
        merged = segments.holding(connection, bench.stream.id, 0, 16)
    assert len(merged) == (1 if most == 16 else 16)
    assert bench.values() == list(range(16))


def test_it_asks_no_more_where_there_are_more_streams_to_wait_for(bench: Bench, monkeypatch):
    """Else a worker of hundreds of streams on which nothing comes is busy with asking."""
    sealer, statements, here = bench.sealer(), [], threading.current_thread()
    real = psycopg.Cursor.execute

    def execute(cursor, statement, *values, **options):
        if threading.current_thread() is here:
            statements.append(statement)
        return real(cursor, statement, *values, **options)

    def asks() -> int:
        sealer.step(wait_milliseconds=10)  # takes the leases
        statements.clear()
        sealer.step(wait_milliseconds=10)
        return len(statements)

    monkeypatch.setattr(psycopg.Cursor, "execute", execute)
    monkeypatch.setattr(sealing, "TIDY_SECONDS", math.inf)
    of_one = asks()
    for number in range(5):
        new_stream(bench.world, bench.database, f"other-{number}")
    assert asks() == of_one > 0


def test_leases_are_renewed_by_as_many_questions_however_many_they_are(bench: Bench):
    statements: list[str] = []
    with bench.database.transaction() as connection:
        for number in range(5):
            leases.create(connection, f"publication:{number}")
        held = [leases.take(connection, f"publication:{number}", owner="a", seconds=600) for number in range(5)]
        event.listen(
            bench.database.engine,
            "before_cursor_execute",
            lambda *event_arguments: statements.append(event_arguments[2]),
        )
        assert leases.renew(connection, held[:1], seconds=600) == []
        of_one = len(statements)
        assert leases.renew(connection, [*held, replace(held[0], epoch=7)], seconds=600) == [replace(held[0], epoch=7)]
    assert len(statements) == 2 * of_one
