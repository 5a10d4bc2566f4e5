"""An erased record counts as nothing from then on, and its bytes go from segments and log, whatever dies meanwhile."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.ledger.verify import verify_segments
from service.log import Reader
from service.segments.files import SegmentFiles
from service.segments.locating import read_records
from service.store import erasing, leases, segments, streams
from service.worker import sealer as sealing
from service.worker.sweeper import Sweeper
from tests.conftest import run_out, wait_until
from tests.worker.conftest import Bench
from tests.worker.published import Crash, crash_at


@pytest.fixture
def sealed(bench: Bench) -> Bench:
    """Six records in three segments."""
    sealer = bench.sealer()
    for value in (11, 12, 13):
        bench.append(value, value + 0.5, label=1)
        sealer.step(wait_milliseconds=10)
    return bench


def erase(bench: Bench, start: int, stop: int) -> None:
    with bench.database.transaction() as connection:
        erasing.erase(connection, bench.stream.id, start, stop)


def waiting(bench: Bench) -> list[tuple[int, int]]:
    with bench.database.transaction() as connection:
        return [(start, stop) for _, start, stop in segments.undeleted_erasures(connection, bench.stream.id)]


def finish(bench: Bench) -> None:
    """By a sealer that comes later, as soon as it gets the lease."""
    sealer = bench.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), not waiting(bench))[1])


def kept_bytes(bench: Bench) -> bytes:
    folder = bench.world.settings.segment_store / bench.stream.log
    return b"".join(file.read_bytes() for file in folder.iterdir())


def kept_labels(bench: Bench) -> list[int]:
    with bench.database.transaction() as connection:
        held = segments.holding(connection, bench.stream.id, 0, 6)
    read = [bench.files.read(bench.stream.log, each.file, each.sha256, 0, each.stop - each.start) for each in held]
    return [label for columns in read for label in columns["y"].tolist()]


def check(bench: Bench) -> None:
    assert bench.values() == [11, 13, 13.5]
    assert waiting(bench) == []
    stored = kept_bytes(bench)
    for value in (11.5, 12, 12.5):
        assert np.float32(value).tobytes() not in stored
    for value in (11, 13, 13.5):
        assert np.float32(value).tobytes() in stored
    assert kept_labels(bench) == [1, 0, 0, 0, 1, 1]
    assert list(verify_segments(bench.database, bench.files)) == []


def test_erased_records_contribute_nothing_and_their_bytes_go(sealed: Bench):
    erase(sealed, 1, 2)
    erase(sealed, 2, 4)
    assert sealed.values() == [11, 13, 13.5], "from the moment it was asked"
    with sealed.database.transaction() as connection:
        assert segments.undeleted_erasures(connection, sealed.stream.id + 1) == [], "another stream's sealer has none"
    for start in (0, 1, 2, 3):  # wherever a fit's range begins
        records = read_records(sealed.database, sealed.files, sealed.now(), start, 0, 5 - start)
        assert (records.x[:, 0].tolist(), len(records.y)) == ([11, 13][start > 0 :], 1 + (start == 0)), start
    finish(sealed)
    check(sealed)


STEPS = {
    "write": (SegmentFiles, "write"),
    "replace": (segments, "replace"),
    "delete": (SegmentFiles, "delete"),
    "forget": (Reader, "forget"),
    "mark": (segments, "mark_deleted"),
}


@pytest.mark.more
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_of_erasing_is_made_good(sealed: Bench, monkeypatch, step, after):
    """At the second of the two segments, where there is one for each."""
    erase(sealed, 1, 4)
    with monkeypatch.context() as patched:
        crash_at(patched, *STEPS[step], calls=2 if step in ("write", "replace", "delete") else 1, after=after)
        sealer = sealed.successor()

        def crashed() -> bool:
            try:
                sealer.step(wait_milliseconds=10)
            except Crash:
                return True
            return False

        wait_until(crashed)
    assert sealed.values() == [11, 13, 13.5]
    finish(sealed)
    check(sealed)
    folder = sealed.world.settings.segment_store / sealed.stream.log
    with sealed.database.transaction() as connection:
        assert {file.name for file in folder.iterdir()} == segments.files_of(connection, sealed.stream.id)


@pytest.mark.parametrize("step", ["replace", "mark_deleted"])
def test_who_was_overtaken_neither_replaces_segments_nor_calls_bytes_deleted(sealed: Bench, monkeypatch, step):
    """Another has the lease since the sealer began, and finds all as it was before that step."""
    erase(sealed, 1, 4)
    asleep, real, before = sealed.successor(), getattr(segments, step), []

    def overtaken(connection, *rest):
        with sealed.database.transaction() as other:
            run_out(sealed.database)
            assert leases.take(other, leases.stream(sealed.stream.id), owner="another", seconds=60)
            before.extend(segments.holding(other, sealed.stream.id, 0, 6))
        real(connection, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(segments, step, overtaken)
        wait_until(lambda: (asleep.step(wait_milliseconds=10), before)[1])
    with sealed.database.transaction() as connection:
        assert segments.holding(connection, sealed.stream.id, 0, 6) == before
    assert waiting(sealed) == [(1, 4)]
    finish(sealed)
    check(sealed)


@pytest.mark.parametrize("way", ["seal", "erase"])
def test_who_wakes_after_bytes_were_erased_leaves_no_file_that_holds_them(sealed: Bench, monkeypatch, way):
    """It hung before it wrote a file; its successor numbered, erased and swept meanwhile."""
    if way == "seal":
        sealed.append(14, 14.5)
    else:
        erase(sealed, 1, 2)
    asleep, real, woke = sealed.successor(), SegmentFiles.write, []

    def write(*given):
        monkeypatch.setattr(SegmentFiles, "write", real)
        sealer = sealed.successor()
        wait_until(lambda: (sealer.step(wait_milliseconds=10), sealed.now().records == (8 if way == "seal" else 6))[1])
        erase(sealed, 0, sealed.now().records)
        wait_until(lambda: (sealer.step(wait_milliseconds=10), not waiting(sealed))[1])
        woke.append(True)
        return real(*given)

    monkeypatch.setattr(SegmentFiles, "write", write)
    wait_until(lambda: (asleep.step(wait_milliseconds=10), woke)[1])
    assert np.float32(14.5 if way == "seal" else 11).tobytes() not in kept_bytes(sealed)


def test_a_file_that_a_worker_wrote_too_late_before_it_died_goes_with_what_is_erased(sealed: Bench):
    sealer = sealed.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), sealer._held)[1])
    values = {"x": np.array([[12], [12.5]], dtype=np.float32), "y": np.ones(2, dtype=np.int32)}
    sealed.files.write(sealed.stream.log, 2, 4, values)
    erase(sealed, 1, 4)
    wait_until(lambda: (sealer.step(wait_milliseconds=10), not waiting(sealed))[1])
    check(sealed)


def test_erasing_again_changes_nothing(sealed: Bench):
    erase(sealed, 1, 4)
    erase(sealed, 2, 4)
    assert waiting(sealed) == [(1, 4)]
    finish(sealed)
    before = kept_bytes(sealed)
    erase(sealed, 1, 4)
    assert waiting(sealed) == []
    assert kept_bytes(sealed) == before
    erase(sealed, 0, 6)
    assert waiting(sealed) == [(0, 1), (4, 6)], "only what is not erased yet"
    with sealed.database.transaction() as connection:
        assert segments.erased(connection, sealed.stream.id, 0, 6) == [(0, 6)]
        assert segments.erased(connection, sealed.stream.id, 2, 5, deleted=True) == [(2, 4)]
    assert sealed.values() == []


def test_a_halted_stream_erases_too(sealed: Bench):
    with sealed.database.transaction() as connection:
        streams.halt(connection, sealed.stream.id, "why")
    erase(sealed, 1, 4)
    finish(sealed)
    check(sealed)
    assert sealed.now().halted == "why"


def test_a_halted_streams_log_forgets_what_is_numbered(sealed: Bench, monkeypatch):
    """As one that came back from an older copy, or that was not trimmed because its server was away."""
    sealer = sealed.successor()
    with monkeypatch.context() as patched:
        patched.setattr(Reader, "trim", lambda *_: None)
        sealed.append(14, 14.5)
        wait_until(lambda: (sealer.step(wait_milliseconds=10), sealed.now().records == 8)[1])
    waits = sealed.append(15)
    with sealed.database.transaction() as connection:
        streams.halt(connection, sealed.stream.id, "why")
    erase(sealed, 6, 8)
    finish(sealed)
    assert [entry.decode() for entry, _ in sealed.redis().xrange(sealed.key("entries"))] == [waits]


def test_a_halted_stream_keeps_files_that_nobody_knows(sealed: Bench, monkeypatch):
    """If its database is an old one, they may be the only ones that hold what was numbered since."""
    monkeypatch.setattr(sealing, "TIDY_SECONDS", 0.0)
    unknown, _ = sealed.files.write(sealed.stream.log, 6, 7, {"x": np.ones((1, 1), dtype=np.float32)})
    with sealed.database.transaction() as connection:
        streams.halt(connection, sealed.stream.id, "why")
    erase(sealed, 1, 4)
    sealer = sealed.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), np.float32(12).tobytes() not in kept_bytes(sealed))[1])
    assert waiting(sealed) == [(1, 4)], "and it does not say that all is gone"
    before = sealed.files.names(sealed.stream.log)
    assert unknown in before
    with monkeypatch.context() as patched:
        looks = []
        patched.setattr(Sweeper, "orphans", lambda *_: looks.append(True) or [unknown])
        wait_until(lambda: (sealer.step(wait_milliseconds=10), len(looks) > 3)[1])
    assert sealed.files.names(sealed.stream.log) == before, "nor is any segment written anew at every look"


def test_the_log_is_asked_to_forget_before_bytes_are_called_deleted(sealed: Bench, monkeypatch):
    in_log, real = [], Reader.forget

    def forget(self):
        in_log.append(waiting(sealed))
        return real(self)

    monkeypatch.setattr(Reader, "forget", forget)
    erase(sealed, 1, 4)
    finish(sealed)
    assert in_log[:1] == [[(1, 4)]]


def test_a_log_that_could_not_forget_is_asked_again(sealed: Bench, monkeypatch):
    """As where its server is busy writing its file for another reason."""
    answers: list[bool] = []

    def forget(_: Reader) -> bool:
        answers.append(len(answers) == 2)
        return answers[-1]

    erase(sealed, 1, 4)
    sealer = sealed.successor()
    monkeypatch.setattr(Reader, "forget", forget)
    wait_until(lambda: (sealer.step(wait_milliseconds=10), not waiting(sealed))[1])
    for _ in range(3):
        sealer.step(wait_milliseconds=0)
    assert answers == [False, False, True], "until it did, and no more"


def test_the_logs_own_file_forgets_what_was_erased(bench: Bench):
    value = np.float32(-1.2345678e-21)
    server = Path(bench.world.settings.redis_url.removeprefix("unix://")).parents[1] / "valkey"

    def in_the_log() -> bool:
        files = [file for file in server.rglob("*") if file.is_file()]
        try:
            return any(value.tobytes() * 40 in file.read_bytes() for file in files)
        except FileNotFoundError:  # the server has just put another in its place
            return in_the_log()

    bench.append(*[value] * 40)
    assert in_the_log()
    sealer = bench.sealer()
    sealer.step(wait_milliseconds=10)
    erase(bench, 0, 40)

    def forgotten() -> bool:
        sealer.step(wait_milliseconds=10)
        return not in_the_log()

    wait_until(forgotten)
    assert value.tobytes() not in kept_bytes(bench)


def test_erased_bytes_that_came_back_are_found(sealed: Bench):
    erase(sealed, 1, 4)
    run_out(sealed.database)
    with sealed.database.transaction() as connection:
        mine = leases.take(connection, leases.stream(sealed.stream.id), owner="test", seconds=60)
        (erasure, _, _), *_ = segments.undeleted_erasures(connection, sealed.stream.id)
        segments.mark_deleted(connection, mine, [erasure])
    findings = list(verify_segments(sealed.database, sealed.files))
    assert [each.split(": ")[1].split(",")[0] for each in findings] == [
        "records 1 to 2 were erased",
        "records 2 to 4 were erased",
    ]


def test_labels_of_erased_records_that_came_back_are_found(sealed: Bench):
    erase(sealed, 1, 2)
    run_out(sealed.database)
    stream = sealed.now()
    with sealed.database.transaction() as connection:
        mine = leases.take(connection, leases.stream(stream.id), owner="test", seconds=60)
        (old,) = segments.holding(connection, stream.id, 1, 2)
        columns = sealed.files.read(stream.log, old.file, old.sha256, 0, 2)
        columns["x"][1] = 0
        file, sha256 = sealed.files.write(stream.log, old.start, old.stop, columns)
        segments.replace(connection, mine, stream, [old], [replace(old, file=file, sha256=sha256)])
        ((erasure, _, _),) = segments.undeleted_erasures(connection, stream.id)
        segments.mark_deleted(connection, mine, [erasure])
    (finding,) = verify_segments(sealed.database, sealed.files)
    assert "records 1 to 2 were erased, and are still in" in finding
