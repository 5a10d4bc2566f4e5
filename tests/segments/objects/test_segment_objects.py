"""Segments and high-water marks in an object store: nothing is lost, overwritten or believed that should not be."""

import hashlib
import os
import random
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event, Thread

import httpx
import numpy as np
import obstore
import pytest
from structlog.testing import capture_logs

from service.segments import objects as segment_objects
from service.segments.files import FilesReplaced, SegmentDamaged, SegmentFiles, StoreUnsuitable
from service.segments.objects import SegmentObjects
from service.segments.places import open_described, open_place
from service.worker import dask_blocks, main
from tests.segments.objects.server import BUCKET, Faults, Server

COLUMNS = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "y": np.arange(4, dtype=np.int32)}
MEBIBYTE = 2**20


@pytest.fixture
def address(healthy: Server) -> str:
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture
def files(address: str, tmp_path: Path) -> SegmentObjects:
    return SegmentObjects(address, tmp_path / "copies", most_bytes=MEBIBYTE)


@pytest.fixture
def elsewhere(address: str, tmp_path: Path) -> SegmentObjects:
    """The same store as seen from another machine."""
    return SegmentObjects(address, tmp_path / "elsewhere", most_bytes=MEBIBYTE)


def same(columns, start=0, stop=4) -> bool:
    return all(np.array_equal(columns[name], column[start:stop]) for name, column in COLUMNS.items())


def written(files: SegmentFiles, log: str, content: dict) -> None:
    with files.high_water_mark_lock(log):
        files.put_high_water_mark(log, content)


def test_another_machine_reads_what_was_written_and_finds_it_gone(files, elsewhere):
    name, sha256 = files.write("log", 0, 4, COLUMNS)
    assert same(elsewhere.read("log", name, sha256, 1, 3), 1, 3)
    assert set(elsewhere.read("log", name, sha256, 0, 4, only=frozenset({"y"}))) == {"y"}
    assert {path.stat().st_mode & 0o077 for path in elsewhere.root.rglob("*")} == {0}, "copies are their owner's alone"
    assert elsewhere.names("log") == {name}
    assert elsewhere.names("other") == set()
    assert elsewhere.logs() == {"log"}
    files.delete("log", name)
    files.delete("log", name)
    assert files.names("log") == set()
    assert not list(files.root.glob("log/*"))
    with pytest.raises(FileNotFoundError):
        elsewhere.check("log", name, sha256)
    with pytest.raises(FileNotFoundError):
        files.read("log", name, sha256, 0, 4)


def test_a_damaged_object_is_not_read_and_a_damaged_copy_is_mended(files, elsewhere):
    name, sha256 = files.write("log", 0, 4, COLUMNS)
    (files.root / "log" / name).write_bytes(b"other")
    assert same(files.read("log", name, sha256, 0, 4))
    content = files.get("log", name)
    files.put("log", name, content[:-1] + b"!")
    for each in (files.check, elsewhere.check):
        with pytest.raises(SegmentDamaged):
            each("log", name, sha256)
    with pytest.raises(SegmentDamaged):
        elsewhere.read("log", name, sha256, 0, 4)


def test_orphans_are_swept_unless_the_rows_are_older(files, elsewhere):
    named, orphan = (files.write("log", 0, 4, COLUMNS)[0] for _ in range(2))
    assert elsewhere.orphans("log", {named}) == [orphan]
    with pytest.raises(FilesReplaced):
        elsewhere.sweep("log", {"gone"}, {named, orphan})
    assert elsewhere.sweep("log", {named}, {named, orphan}) == [orphan]
    assert files.names("log") == {named}


def test_marks_follow_each_other_and_few_are_kept(files, elsewhere):
    assert files.high_water_mark("log") is None
    for number in range(5):
        written(files if number % 2 else elsewhere, "log", {"charges": number})
        assert files.high_water_mark("log") == elsewhere.high_water_mark("log") == {"charges": number}
    assert len(obstore.list(files._store, "log.witness/").collect()) == segment_objects.MARKS_KEPT
    assert files.logs() == {"log"}


def test_of_many_machines_that_write_a_mark_at_once_one_does(address, tmp_path):
    machines = [SegmentObjects(address, tmp_path / str(each), most_bytes=MEBIBYTE) for each in range(8)]
    started = Barrier(len(machines))

    def attempt(number: int, machine: SegmentObjects) -> bool:
        with machine.high_water_mark_lock("log"):
            started.wait()
            try:
                machine.put_high_water_mark("log", {"by": number})
            except OSError:
                return False
            return True

    with ThreadPoolExecutor(len(machines)) as pool:
        for _ in range(5):
            winners = [number for number, won in enumerate(pool.map(attempt, range(8), machines)) if won]
            assert len(winners) == 1
            assert machines[0].high_water_mark("log") == {"by": winners[0]}


@pytest.mark.parametrize("later", [1, 2, 7])
def test_who_was_overtaken_writes_nothing_that_is_believed(files, elsewhere, later):
    """Also where the number that it takes was used, and deleted, long ago."""
    with files.high_water_mark_lock("log"):
        for number in range(later):
            written(elsewhere, "log", {"charges": 10 + number})
        assert files.high_water_mark("log") == {"charges": 9 + later}  # by whatever thread of ours
        with pytest.raises(OSError, match="another machine"):
            files.put_high_water_mark("log", {"charges": 1})
    assert elsewhere.high_water_mark("log") == files.high_water_mark("log") == {"charges": 9 + later}
    written(files, "log", {"charges": 99})
    assert elsewhere.high_water_mark("log") == {"charges": 99}


def test_a_store_that_overwrites_what_is_created_once_is_refused(files, healthy):
    files.probe()
    healthy.faults.overwrites = True
    with pytest.raises(StoreUnsuitable, match="only once"):
        files.probe()


def test_a_store_that_creates_an_object_for_two_writers_at_the_same_time_is_refused(files, monkeypatch):
    created = iter([True, True])
    monkeypatch.setattr(files, "_create", lambda *_: next(created, False))
    with pytest.raises(StoreUnsuitable, match="only once"):
        files.probe()


@pytest.mark.parametrize("address", ["ftp://somewhere/else", "s3://", "file:///folder", "memory:///"])
def test_other_stores_are_refused(address, tmp_path):
    with pytest.raises(StoreUnsuitable, match="s3://BUCKET"):
        SegmentObjects(address, tmp_path, most_bytes=1)


@pytest.mark.more
def test_faults_of_the_store_only_take_time(files, elsewhere, healthy):
    healthy.faults = faults = Faults(refused=0.2, forgotten=0.2, cut=0.2)
    numbers, names = list(range(12)), set()
    for number in numbers:
        name, sha256 = _patiently(lambda at=number: files.write("log", at, at + 4, COLUMNS))
        names.add(name)
        assert _patiently(lambda of=name, sha=sha256: same(elsewhere.read("log", of, sha, 0, 4)))
        _patiently(lambda to=number: written(files, "log", {"charges": to}))
        assert _patiently(lambda: elsewhere.high_water_mark("log")) == {"charges": number}
    assert faults.failed > len(numbers)
    healthy.faults = Faults()
    assert len(names) == len(numbers)
    assert names <= files.names("log")


def _patiently(ask):
    """As a worker does: an error of the system is tried again."""
    for _ in range(100):
        try:
            return ask()
        except OSError:
            time.sleep(0.01)
    raise AssertionError("it never worked")


def test_a_store_that_is_away_is_an_error_of_the_system_that_repeats_nothing(files, healthy, monkeypatch):
    monkeypatch.setattr(segment_objects, "RETRY_SECONDS", 0)
    files = SegmentObjects(files.url, files.root, most_bytes=1)
    healthy.faults.refused = 1.0
    for ask in (files.probe, lambda: files.high_water_mark("log"), lambda: files.write("log", 0, 4, COLUMNS)):
        with pytest.raises(OSError, match="does not answer as it should") as refused:
            ask()
        assert "SlowDown" not in str(refused.value)


def test_a_bucket_that_is_not_there_is_waited_for_and_told_once(files, healthy):
    absent, stop, probes = SegmentObjects("s3://absent/x", files.root, most_bytes=1), Event(), []

    def probe() -> None:
        probes.append(1)
        if len(probes) == 3:
            httpx.put(f"{healthy.url}/absent", trust_env=False).raise_for_status()
        absent.probe()

    with capture_logs() as lines:
        main._await("segment store", probe, stop)
    away, back = lines
    assert (away["event"], back["event"]) == ("part_unavailable", "part_available")
    assert away["reason"].startswith("there is no bucket or container that PERENNIAL_SEGMENT_STORE names")


def test_copies_go_when_they_are_old_or_too_many(files):
    names = [files.write("log", number, number + 4, COLUMNS)[0] for number in range(3)]
    copies = [files.root / "log" / name for name in names]
    os.utime(copies[0], (0, time.time() - segment_objects.COPY_SECONDS - 1))
    files._drop_copies()
    assert [copy.exists() for copy in copies] == [False, True, True]
    os.utime(copies[2], (0, time.time() - segment_objects.COPY_SECONDS / 2))
    files.most_bytes = copies[1].stat().st_size
    files._drop_copies()
    assert [copy.exists() for copy in copies] == [False, True, False]
    sha256 = hashlib.sha256(files.get("log", names[2])).digest()
    files.read("log", names[2], sha256, 0, 4)
    assert [copy.exists() for copy in copies] == [False, False, True], "it makes room before it gets another"
    files.drop_copies()
    assert [copy.exists() for copy in copies] == [False, False, False]
    assert files.names("log") == set(names)


def test_copies_are_swept_again_after_an_error(files, monkeypatch):
    sweeps = []

    def sweep(*_: object) -> None:
        sweeps.append(True)
        raise InterruptedError if len(sweeps) < 3 else StopIteration

    monkeypatch.setattr(SegmentObjects, "_drop_copies", sweep)
    monkeypatch.setattr(segment_objects, "SECONDS_BETWEEN_SWEEPS", 0.0)
    with pytest.raises(StopIteration):
        files.sweep_copies()
    assert len(sweeps) == 3


def test_copies_on_a_machine_with_a_dask_worker_alone_go_too(files, monkeypatch):
    swept: list[Path] = []
    monkeypatch.setattr(SegmentObjects, "sweep_copies", lambda each: swept.append(each.root))
    monkeypatch.setattr(Thread, "start", Thread.run)
    opened = dask_blocks._opened(tuple(sorted(files.described().items())))
    assert swept == [opened.root]


def test_places_are_what_they_are_given_as(files, tmp_path):
    again = open_described(files.described())
    assert isinstance(again, SegmentObjects)
    assert (again.url, again.root, again.most_bytes) == (files.url, files.root, files.most_bytes)
    folder = open_place(tmp_path, tmp_path / "copies", most_bytes=1)
    assert type(folder) is type(open_described(folder.described())) is SegmentFiles
    assert open_described(folder.described()).root == tmp_path


@pytest.mark.more
def test_the_order_of_marks_is_kept_whoever_writes(address, tmp_path):
    """Each writes the state it read under the lock, plus what it adds; no addition is ever lost."""
    machines = [SegmentObjects(address, tmp_path / str(each), most_bytes=MEBIBYTE) for each in range(4)]
    chance = random.Random(7)

    def add(machine: SegmentObjects) -> None:
        for _ in range(4):

            def once() -> None:
                with machine.high_water_mark_lock("log"):
                    before = (machine.high_water_mark("log") or {"charges": 0})["charges"]
                    time.sleep(chance.random() / 100)
                    machine.put_high_water_mark("log", {"charges": before + 1, "by": secrets.token_hex(4)})

            _patiently(once)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, machines))
    assert machines[0].high_water_mark("log")["charges"] == 16
