"""Counting the slots of units when they are numbered: exactly once, whatever dies or comes at the same time."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import func, select, text

from service import metrics
from service.ledger.verify import unit_counts, verify, verify_segments
from service.log import Appender, Reader
from service.privacy.accounting.groups import UnitBound
from service.publishing.units import erase_unit
from service.segments.files import SegmentFiles
from service.segments.locating import read_records
from service.store import erasing, numbering, segments, streams, tables, units
from service.streams.units import UnitState, UnitStates, counting_slots, pseudonym
from service.worker import counting
from service.worker import sealer as sealing
from tests.conftest import join, wait_until
from tests.streams.test_units import counted_by_definition
from tests.worker.conftest import Bench
from tests.worker.published import dies_in

BOUND = {"max_records": 3, "min_separation": 2}
pytestmark = pytest.mark.parametrize("bench", [{"unit": BOUND}], indirect=True)


def secret(bench: Bench) -> bytes:
    with bench.database.transaction() as connection:
        return streams.secret_of_units(connection, bench.stream)


def append(bench: Bench, *units: int, content: float = 7.0) -> None:
    """Append a batch, a record of each unit; x and y say that there was one."""
    columns = {
        "x": np.full((len(units), 1), content, dtype=np.float32),
        "y": np.ones(len(units), dtype=np.int32),
        "unit": np.array(units, dtype=np.object_),
    }

    async def append() -> None:
        appender = Appender(bench.world.settings.redis_url, max_batches=1000, max_bytes=10**7)
        await appender.append(
            bench.stream.log, bench.stream.layout.encode(columns, secret(bench)), len(units), idempotency=None
        )
        await appender.close()

    asyncio.run(append())


def stored(bench: Bench) -> dict[str, np.ndarray]:
    """Return all columns of the stream's segments."""
    with bench.database.transaction() as connection:
        holding = segments.holding(connection, bench.stream.id, 0, bench.now().records)
    parts = [bench.files.read(bench.stream.log, each.file, each.sha256, 0, each.stop - each.start) for each in holding]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check(bench: Bench, pattern: list[int]) -> None:
    """Check that just those slots count that the law says, that the others are empty, and that the table says it."""
    expected = counted_by_definition(bench.stream.parsed_schema.unit.bound, pattern)
    columns = stored(bench)
    assert set(np.flatnonzero(columns["counts"]).tolist()) == expected
    present = [float(slot in expected) for slot in range(len(pattern))]
    assert columns["x"][:, 0].tolist() == [7.0 * each for each in present]
    assert columns["y"].tolist() == present
    with bench.database.transaction() as connection:
        rows = {bytes(row.pseudonym): row for row in connection.execute(select(tables.units))}
    for unit in set(pattern):
        slots = [slot for slot in sorted(expected) if pattern[slot] == unit]
        row = rows[pseudonym(secret(bench), unit)]
        assert (row.counted, row.last) == (len(slots), slots[-1])


PATTERN = [1, 1, 2, 1, 3, 1, 2, 1, 1, 2, 2, 2, 3, 3, 3]


def sealed(bench: Bench, pattern: list[int], size: int) -> None:
    sealer = bench.sealer()
    for start in range(0, len(pattern), size):
        append(bench, *pattern[start : start + size])
        sealer.step(wait_milliseconds=10)


@pytest.mark.parametrize("size", [1, 4, 15])
def test_slots_count_by_the_order_of_their_units_however_they_come(bench: Bench, size):
    before = metrics.OVER_BOUND.labels("s")._value.get()
    sealed(bench, PATTERN, size)
    check(bench, PATTERN)
    over = len(PATTERN) - len(counted_by_definition(bench.stream.parsed_schema.unit.bound, PATTERN))
    assert metrics.OVER_BOUND.labels("s")._value.get() - before == over


@pytest.mark.more
def test_merged_segments_keep_whose_slots_are_and_which_count(bench: Bench):
    pattern = [each % 5 for each in range(40)]
    sealed(bench, pattern, 1)
    with bench.database.transaction() as connection:
        assert connection.scalar(select(func.count()).select_from(tables.segments)) < 40
    check(bench, pattern)


@pytest.mark.parametrize("step", ["count", "write", "seal", "trim"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_counts_no_slot_twice(bench: Bench, monkeypatch, step, after):
    places = {
        "count": (counting, "counted"),
        "write": (SegmentFiles, "write"),
        "seal": (numbering, "seal"),
        "trim": (Reader, "trim"),
    }
    append(bench, *PATTERN[:8])
    with dies_in(monkeypatch, *places[step], after=after):
        bench.sealer().step(wait_milliseconds=10)
    append(bench, *PATTERN[8:])
    successor = bench.successor()
    wait_until(lambda: (successor.step(wait_milliseconds=10), bench.now().records == len(PATTERN))[1])
    check(bench, PATTERN)


def test_two_sealers_at_once_count_every_slot_once(bench: Bench):
    stop = threading.Event()
    threads = [threading.Thread(target=bench.sealer().run, args=(stop,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    pattern = [each % 3 for each in range(20)]
    for unit in pattern:
        append(bench, unit)
    wait_until(lambda: bench.now().records == 20)
    stop.set()
    for thread in threads:
        join(thread)
    check(bench, pattern)


def test_a_sealer_that_lost_its_lease_counts_nothing(bench: Bench):
    asleep = bench.sealer()
    asleep.step(wait_milliseconds=10)
    awake = bench.successor()
    append(bench, 1, 2)
    wait_until(lambda: (awake.step(wait_milliseconds=10), bench.now().records == 2)[1])
    append(bench, 1, 1)
    asleep.step(wait_milliseconds=10)
    assert bench.now().records == 2
    awake.step(wait_milliseconds=10)
    check(bench, [1, 2, 1, 1])


def close(bench: Bench, unit: int) -> None:
    with bench.database.transaction() as connection:
        erasing.close_unit(connection, bench.stream.id, pseudonym(secret(bench), unit))


@pytest.mark.parametrize("when", ["before", "while"])
def test_no_slot_of_an_erased_unit_counts_though_it_is_erased_while_it_is_counted(bench: Bench, monkeypatch, when):
    append(bench, 1, 2)
    sealer = bench.sealer()
    sealer.step(wait_milliseconds=10)
    append(bench, 2, 1, 2, 1)
    if when == "before":
        close(bench, 1)
    else:
        real = SegmentFiles.write

        def write(*args):
            monkeypatch.setattr(SegmentFiles, "write", real)
            close(bench, 1)
            return real(*args)

        monkeypatch.setattr(SegmentFiles, "write", write)
    wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().records == 6)[1])
    assert stored(bench)["counts"].tolist() == [1, 1, 0, 0, 1, 0]
    with bench.database.transaction() as connection:
        known = segments.files_of(connection, bench.stream.id)
    assert bench.files.names(bench.stream.log) == known, "no file is left in which the unit's records count"


def test_a_unit_that_was_never_there_can_be_erased(bench: Bench):
    close(bench, 9)
    sealed(bench, [9, 1, 9, 9], 4)
    assert stored(bench)["counts"].tolist() == [0, 1, 0, 0]


def test_a_unit_is_counted_as_erased_once_however_often_it_is_erased(bench: Bench):
    """With and without records; a ledger where this number is another one does not verify, and its stream stops."""
    sealed(bench, PATTERN, 15)
    for unit, number in ((1, 1), (1, 1), (9, 2), (9, 2), (2, 3), (1, 3)):
        erase_unit(bench.database, bench.files, bench.now(), pseudonym(secret(bench), unit))
        assert bench.now().units_erased == number
        assert verified(bench) == recounted(bench) == []


def test_a_fit_reads_a_units_records_as_parts_of_one_by_the_pattern(bench: Bench):
    """The second slot of unit 1 is erased: the first one still weighs a half, and n stays."""
    sealed(bench, [1, 2, 2, 1, 3, 3], 6)  # slots 2 and 5 are too near
    assert read_records(bench.database, bench.files, bench.now(), 0, 0, 6).firsts.tolist() == [True, True, False, True]
    with bench.database.transaction() as connection:
        erasing.erase(connection, bench.stream.id, 3, 4)
    for _ in range(2):
        records = read_records(bench.database, bench.files, bench.now(), 0, 0, 6)
        assert records.slots.tolist() == [0, 1, 4]
        assert records.weights.tolist() == [0.5 - 2**-54, 1.0, 1.0]
        assert records.units == 3
        assert records.pattern.counting.tolist() == [True, True, False, True, True, False], "erased or not"
        bench.successor().step(wait_milliseconds=10)  # deletes the bytes
    assert stored(bench)["counts"].tolist() == [1, 1, 0, 1, 1, 0]
    with bench.database.transaction() as connection:
        erasing.erase(connection, bench.stream.id, 0, 1)
    rest = read_records(bench.database, bench.files, bench.now(), 0, 0, 6)
    assert (rest.slots.tolist(), rest.firsts.tolist()) == ([1, 4], [True, True])
    part = read_records(bench.database, bench.files, bench.now(), 1, 1, 4)
    assert (part.slots.tolist(), part.weights.tolist(), part.units) == ([3], [1.0], 2)


def test_a_secret_that_is_lost_is_not_made_anew(bench: Bench):
    with bench.database.transaction() as connection:
        connection.execute(tables.unit_secrets.update().values(secret=bytes(32)))
    with pytest.raises(streams.SecretLost):
        secret(bench)
    with bench.database.transaction() as connection:
        connection.execute(tables.unit_secrets.delete())
    with pytest.raises(streams.SecretLost):
        secret(bench)


def test_a_streams_promise_holds_the_digest_of_its_secret(bench: Bench):
    stream = bench.now()
    assert streams.promised(stream) == stream.promise
    assert streams.promised(replace(stream, unit_secret_digest="0" * 64)) != stream.promise


def test_counts_that_somebody_changed_are_found(bench: Bench):
    sealed(bench, PATTERN, 15)
    for change, finding in (
        (tables.units.update().values(counted=4), "a unit has more counting records"),
        (tables.units.update().values(last=15), "or one that is not there"),
        (tables.units.update().values(erased=True), "3 units are erased, not 0"),
        (tables.unit_secrets.update().values(secret=bytes(32)), "the secret of its units is lost"),
    ):
        with bench.database.engine.connect() as connection, connection.begin() as transaction:
            assert verify(connection, isolated=False).findings == []
            connection.execute(change)
            assert [each for each in verify(connection, isolated=False).findings if finding in each]
            transaction.rollback()


def verified(bench: Bench) -> list[str]:
    with bench.database.transaction() as connection:
        return verify(connection).findings


def recounted(bench: Bench) -> list[str]:
    return list(verify_segments(bench.database, bench.files))


def deleted(bench: Bench) -> bool:
    """Return whether the bytes of all that was erased are gone."""
    with bench.database.transaction() as connection:
        return connection.scalar(select(func.bool_and(tables.erasures.c.deleted_at.is_not(None))))


@pytest.mark.more
@pytest.mark.parametrize("at_once", [1, 2**18])
def test_who_verifies_counts_all_slots_anew(bench: Bench, monkeypatch, at_once):
    """However segments were merged, units were erased, and by how many walks."""
    monkeypatch.setattr(unit_counts, "UNITS_AT_ONCE", at_once)
    pattern = [each % 5 for each in range(40)]
    sealed(bench, pattern[:20], 1)
    assert recounted(bench) == []
    erase_unit(bench.database, bench.files, bench.now(), pseudonym(secret(bench), 3))
    sealed(bench, pattern[20:], 5)
    erase_unit(bench.database, bench.files, bench.now(), pseudonym(secret(bench), 7))
    assert recounted(bench) == []
    sealer = bench.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), deleted(bench))[1])
    assert recounted(bench) == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE units SET counted = counted - 1 WHERE counted = 3",
        "UPDATE units SET last = last - 1 WHERE counted = 3",
        "DELETE FROM units WHERE counted = 3",
        "INSERT INTO units VALUES (1, decode(repeat('07', 16), 'hex'), 1, 0, false)",
        "UPDATE units SET pseudonym = decode(repeat('07', 16), 'hex') WHERE counted = 3 AND last = 5",
    ],
    ids=["fewer", "earlier", "gone", "nobody", "another"],
)
def test_a_unit_that_could_count_more_often_is_found(bench: Bench, change):
    sealed(bench, PATTERN, 15)
    assert recounted(bench) == []
    with bench.database.transaction() as connection:
        assert connection.execute(text(change)).rowcount
    assert [each for each in recounted(bench) if "counting records" in each]


def test_slots_that_count_against_the_order_of_their_units_are_found(bench: Bench, monkeypatch):
    """They were counted by another bound, and the table agrees with the segments."""
    with monkeypatch.context() as patched:
        wider = UnitBound(max_records=9)
        patched.setattr(counting, "counting_slots", lambda _, *more: counting_slots(wider, *more))
        sealed(bench, [1, 2, 1, 2, 1, 2, 1, 2], 4)
    wrong = ["stream s: record 6 counts, or does not, against the order of its unit's records"]
    assert recounted(bench) == wrong
    with bench.database.transaction() as connection:
        connection.execute(text("UPDATE units SET erased = true"))
    assert recounted(bench) == wrong, "of an erased unit slots may be missing, and none be too many"


def test_a_unit_whose_state_is_gone_is_not_begun_again(bench: Bench, monkeypatch):
    """Nor is one begun twice: nothing is numbered by a state that is not there."""
    sealed(bench, [1, 2], 2)
    for change in ("gone", "unknown"):
        with monkeypatch.context() as patched:
            true = units.write
            if change == "unknown":
                patched.setattr(units, "read", lambda *these: (0, UnitStates.of([UnitState()] * len(these[-1]))))

            def losing(connection, *more, change=change, true=true):
                if change == "gone":
                    connection.execute(text("DELETE FROM units"))
                true(connection, *more)

            patched.setattr(units, "write", losing)
            append(bench, 1, 2, 1, 2)
            bench.successor().step(wait_milliseconds=10)
        assert bench.now().records == 2
    assert recounted(bench) == []


def test_slots_that_are_dropped_while_they_are_counted_are_no_finding(bench: Bench, monkeypatch):
    """A sealer drops slots that nobody needs any more. `verify` counts the slots that are left."""
    sealed(bench, PATTERN, 5)
    real = unit_counts.PatternReader._piece

    def dropped(reader, start, stop):
        with bench.database.transaction() as connection:
            connection.execute(tables.segments.delete().where(tables.segments.c.stop <= 5))
        return real(reader, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(unit_counts.PatternReader, "_piece", dropped)
        assert recounted(bench) == []
    with bench.database.transaction() as connection:
        assert segments.kept_from(connection, bench.stream.id) == 5
        connection.execute(text("UPDATE units SET last = 9 WHERE last = (SELECT max(last) FROM units)"))
    assert [each for each in recounted(bench) if "counting records" in each]


def test_a_walk_says_so_where_it_cannot_count(bench: Bench):
    sealed(bench, PATTERN, 15)
    (path,) = (bench.world.settings.segment_store / bench.stream.log).iterdir()
    path.unlink()
    assert "stream s: its units can't be counted, since a segment is missing or damaged" in recounted(bench)


@pytest.mark.parametrize("dies", [False, True], ids=["", "the sealer dies before it asks"])
def test_the_log_holds_no_content_of_records_over_the_bound_for_long(bench: Bench, monkeypatch, dies):
    """Also of those whose sealer died: the next one does not know of them."""
    secret_content = np.frombuffer(b"\x17\x2a\x5b\x3e", np.float32)

    def is_in_the_log() -> bool:
        with bench.redis() as redis:
            settings = redis.config_get("dir", "appenddirname")
        folder = Path(settings["dir"]) / settings["appenddirname"]
        try:
            return any(secret_content.tobytes() in file.read_bytes() for file in folder.iterdir())
        except FileNotFoundError:  # it was written anew meanwhile
            return True

    append(bench, *[1] * 6)
    append(bench, 1, content=secret_content[0])
    assert is_in_the_log()
    first = bench.sealer()
    wait_until(lambda: (first.step(wait_milliseconds=10), bench.now().records == 7)[1])
    assert stored(bench)["counts"].tolist()[-1] == 0
    assert is_in_the_log(), "its server is not asked for each batch"
    monkeypatch.setattr(sealing, "FORGET_SECONDS", 0.0)
    if not dies:
        append(bench, 1)
    sealer = bench.successor() if dies else first
    wait_until(lambda: (sealer.step(wait_milliseconds=10), not is_in_the_log())[1])
