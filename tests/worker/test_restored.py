"""A record that was put back from an old backup is told from the newest, and nothing is published or numbered on it."""
# ruff: noqa: F811 - a fixture is another file's

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.engine import make_url

from service.ledger import high_water_mark
from service.ledger.verify import verify, verify_segments
from service.segments import files as segment_files
from service.segments.files import SegmentFiles
from service.store import numbering, streams, tables
from service.store.database import Database
from service.store.due_steps import due_steps
from service.worker.context import WorkerContext
from service.worker.leases import LeaseKeeper
from tests.conftest import World, wait_until
from tests.worker.conftest import Bench
from tests.worker.published import Bench as PublishingBench
from tests.worker.published import SteppingPublisher
from tests.worker.test_publishing import bench as publishing  # noqa: F401

Backup = Callable[[Any], Callable[[], Any]]


@pytest.fixture
def back_up(world: World) -> Iterator[Backup]:
    """Copies a bench's database as it is; what that returns gives the bench on the copy."""
    opened: list[Database] = []

    def copy(bench: Any) -> Callable[[], Any]:
        url = make_url(world.settings.migration_url)
        name = f"{url.database}_copy_{len(opened)}"
        bench.database.engine.dispose()
        admin = url.set(drivername="postgresql", username="postgres", database="postgres").render_as_string(False)
        with psycopg.connect(admin, autocommit=True) as connection:  # postgres may end a vacuum too
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", [url.database]
            )
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {url.database}")
        service = make_url(world.settings.database_url).set(database=name).render_as_string(False)
        database = Database(service)
        opened.append(database)
        settings = world.settings.model_copy(update={"database_url": service})
        return lambda: replace(bench, database=database, world=World(settings))

    yield copy
    for database in opened:
        database.close()


def write_down(bench: Any) -> None:
    WorkerContext(bench.database, bench.files, LeaseKeeper(bench.database, seconds=600.0)).audit.confirm()


def distrusted(bench: Any) -> str | None:
    with bench.database.transaction() as connection:
        return streams.get(connection, 1).distrusted


def some_more(bench: PublishingBench, records: int) -> None:
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=records))
    bench.publish_all()


def test_an_older_ledger_than_was_served_publishes_nothing(publishing: PublishingBench, back_up: Backup):
    some_more(publishing, 6)
    write_down(publishing)
    backup = back_up(publishing)
    some_more(publishing, 10)
    write_down(publishing)
    restored = backup()
    some_more(restored, 10)
    assert restored.counts() < publishing.counts()
    assert "older than what was done" in distrusted(restored)
    assert "charges" in distrusted(restored)
    with restored.database.transaction() as connection:
        assert due_steps(connection) == []
    assert any("older than what was done" in each for each in verify_segments(restored.database, restored.files))
    assert distrusted(publishing) is None
    write_down(publishing)
    assert list(verify_segments(publishing.database, publishing.files)) == []


def test_it_is_noticed_by_a_worker_that_has_looked_already(publishing: PublishingBench, back_up: Backup):
    some_more(publishing, 6)
    backup = back_up(publishing)
    publisher = backup().publisher()
    publisher._audit.look(1)
    some_more(publishing, 10)
    write_down(publishing)
    write_down(backup())
    assert "older than what was done" in distrusted(backup())
    assert not publisher.step(threading.Event())


def test_another_history_of_the_same_length_is_told(publishing: PublishingBench, back_up: Backup, tmp_path: Path):
    some_more(publishing, 6)
    backup = back_up(publishing)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(publishing.world.settings.segment_store, elsewhere)
    some_more(publishing, 10)
    write_down(publishing)
    some_more(replace(backup(), files=SegmentFiles(elsewhere)), 10)
    assert backup().counts() == publishing.counts()
    write_down(backup())
    assert "it is another one than was published from" in distrusted(backup())


OLD = b'{"records": 0, "erasures": 0, "charges": 0, "head": null'


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", OLD.replace(b"0", b'"x"', 1) + b"}", OLD + b', "releases": "0"}', OLD + b', "newer": 0}'],
)
def test_what_can_not_be_read_is_no_leave_to_publish(publishing: PublishingBench, content):
    (publishing.world.settings.segment_store / "log.witness").write_bytes(content)
    assert publishing.publisher().step(threading.Event())
    assert publishing.counts() == (0, 0)
    assert "can't be read" in distrusted(publishing)


@pytest.mark.parametrize("walked", [False, True], ids=["not walked", "walked"])
def test_a_stream_whose_id_another_one_had_is_compared_with_its_own_mark(publishing: PublishingBench, walked):
    """A worker knows the id from a database in which it was another stream's."""
    gone = high_water_mark.Mark(records=10**6, erasures=0, charges=9, head="0" * 64)
    high_water_mark.write(publishing.files, "gone", gone)
    context = publishing.context()
    context.confirmer._logs[1] = "gone"
    if walked:
        context.audit._due["gone"] = float("inf")
    publisher = SteppingPublisher(context)
    for _ in range(2):
        publisher.step(threading.Event())
    assert distrusted(publishing) is None
    assert publishing.counts()[0] > 0


def test_a_mark_that_a_power_cut_may_take_back_is_written_again(publishing: PublishingBench, monkeypatch):
    """Its folder could not be synced: the mark is there, but on disk may be the one before."""
    synced: list[Path] = []

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "not synced")

    monkeypatch.setattr(segment_files, "_sync", fail)
    some_more(publishing, 6)
    write_down(publishing)
    assert SegmentFiles(publishing.files.root).high_water_mark("log")["charges"] == publishing.counts()[0] > 0
    assert publishing.stream().confirmed_charges == 0
    monkeypatch.setattr(segment_files, "_sync", synced.append)
    write_down(publishing)
    assert publishing.stream().confirmed_charges == publishing.counts()[0]
    assert publishing.files.root in synced, "the folder is synced before the releases are shown"
    before = publishing.stream()
    for earlier in ({"confirmed_charges": 0}, {"confirmed_releases": 0}, {"marked": False}):
        with publishing.database.transaction() as connection:
            connection.execute(update(tables.streams).values(earlier))
        synced.clear()
        publishing.context().confirmer.confirm(1)
        assert publishing.files.root in synced, earlier
        assert publishing.stream() == before


@pytest.mark.parametrize("name", ["head", "newest_release"])
def test_a_row_that_is_not_of_the_newest_charge_and_release_is_written_down_nowhere(publishing: PublishingBench, name):
    some_more(publishing, 6)
    written = publishing.files.high_water_mark("log")
    with publishing.database.transaction() as connection:
        connection.execute(update(tables.streams).values({name: "0" * 64}))
    write_down(publishing)
    assert "the one that it was left with" in distrusted(publishing)
    assert publishing.files.high_water_mark("log") == written


def test_an_older_numbering_halts_and_its_newer_segments_are_not_swept(bench: Bench, back_up: Backup):
    def sealed(one: Bench, records: int) -> None:
        sealer = one.successor()
        wait_until(lambda: (sealer.step(wait_milliseconds=10), one.now().records == records)[1])

    bench.append(1)
    sealed(bench, 1)
    backup = back_up(bench)
    bench.append(2)
    sealed(bench, 2)
    write_down(bench)
    folder = bench.world.settings.segment_store / bench.stream.log
    files = {each.name for each in folder.iterdir()}
    restored = backup()
    sealer = restored.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), restored.now().halted)[1])
    assert "older than what was done" in restored.now().halted
    assert {each.name for each in folder.iterdir()} == files
    # The newest backup is found after all: it goes on by itself.
    last = bench.successor()
    wait_until(lambda: (last.step(wait_milliseconds=10), not bench.redis().hexists(bench.key("state"), "halted"))[1])
    bench.append(3)
    wait_until(lambda: (last.step(wait_milliseconds=10), bench.now().records == 3)[1])
    assert bench.values() == [1, 2, 3]


def test_files_that_were_put_together_since_are_not_swept(bench: Bench, back_up: Backup, monkeypatch):
    """The same records, charges and releases: only the folder tells that the database is an older one."""
    sealer = bench.sealer()
    for value in range(4):
        bench.append(value)
        wait_until(lambda value=value: (sealer.step(wait_milliseconds=10), bench.now().records == value + 1)[1])
    backup = back_up(bench)
    monkeypatch.setattr("service.worker.merger.MERGED_AT_ONCE", 4)
    with bench.database.transaction() as connection:
        _, newest = numbering.left(connection, bench.stream.id, 4)
    sealer._merger.merge(*sealer._held[bench.stream.log], newest)
    (file,) = (bench.world.settings.segment_store / bench.stream.log).iterdir()
    write_down(bench)
    restored = backup()
    late = restored.successor()
    wait_until(lambda: (late.step(wait_milliseconds=10), restored.now().halted or late._held)[1])
    reason = restored.now().halted or ""
    assert "of the files that the database names, 4 are missing, from 000000000000-" in reason
    assert "and 1 are there that it does not name" in reason
    assert file.exists()
    assert bench.values() == [0, 1, 2, 3]


def test_segments_that_are_older_than_the_database_are_said_to_be_missing(bench: Bench, tmp_path: Path, monkeypatch):
    """Only the segment folder, with its mark, was put back from an older backup: the database is not to blame."""
    folder, sealer = bench.world.settings.segment_store, bench.sealer()
    for value in range(4):
        bench.append(value)
        wait_until(lambda value=value: (sealer.step(wait_milliseconds=10), bench.now().records == value + 1)[1])
    write_down(bench)
    shutil.copytree(folder, tmp_path / "older")
    monkeypatch.setattr("service.worker.merger.MERGED_AT_ONCE", 4)
    with bench.database.transaction() as connection:
        _, newest = numbering.left(connection, bench.stream.id, 4)
    sealer._merger.merge(*sealer._held[bench.stream.log], newest)
    bench.append(4)
    wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().records == 5)[1])
    merged, newer = sorted(file.name for file in (folder / bench.stream.log).iterdir())
    write_down(bench)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "older", folder)
    late = bench.successor()
    wait_until(lambda: (late.step(wait_milliseconds=10), bench.now().halted)[1])
    assert f"of the files that the database names, 2 are missing, from {merged} to {newer}" in bench.now().halted
    assert "Put back the segment folder of the database's time or of a later one" in bench.now().halted
    assert "the database is older" not in bench.now().halted
    assert len(list((folder / bench.stream.log).iterdir())) == 4, "no file is deleted"


def test_an_older_numbering_is_told_by_the_log_alone(bench: Bench, back_up: Backup):
    """Where no worker had the time to write down how far it had come."""
    sealer = bench.successor()
    sealer.step(wait_milliseconds=10)
    backup = back_up(bench)
    bench.append(1)
    sealer = bench.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().records == 1)[1])
    bench.append(2)
    restored = backup()
    folder = bench.world.settings.segment_store / bench.stream.log
    late = restored.successor()
    wait_until(lambda: (late.step(wait_milliseconds=10), restored.now().halted)[1])
    assert "batch 2 came where 1 was due" in restored.now().halted
    assert len(list(folder.iterdir())) == 1, "what was numbered is not swept"


def test_all_three_from_one_backup_go_on_together(bench: Bench, back_up: Backup, tmp_path: Path):
    """Workers stopped; then the database, the segments, and last the log, to which records may come meanwhile."""
    for value in (1, 2):
        bench.append(value)
        bench.successor().step(wait_milliseconds=10)
    wait_until(lambda: (bench.successor().step(wait_milliseconds=10), bench.now().records == 2)[1])
    write_down(bench)
    backup = back_up(bench)
    folder = tmp_path / "segments of the backup"
    shutil.copytree(bench.world.settings.segment_store, folder)
    bench.append(3)
    log = [(key, bench.redis().dump(key)) for key in (bench.key("entries"), bench.key("state"))]
    bench.append(4)
    wait_until(lambda: (bench.successor().step(wait_milliseconds=10), bench.now().records == 4)[1])
    shutil.rmtree(bench.world.settings.segment_store)
    for key, content in log:
        bench.redis().restore(key, 0, content, replace=True)
    restored = replace(backup(), files=SegmentFiles(folder))
    sealer = restored.successor()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), restored.now().records == 3)[1])
    assert restored.values() == [1, 2, 3]
    assert restored.now().halted is None
    with restored.database.transaction() as connection:
        assert verify(connection).findings == []
    assert list(verify_segments(restored.database, restored.files)) == []
