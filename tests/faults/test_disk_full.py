"""No room for log, segments and record: nothing is promised that is not kept, and it goes on when there is room."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from service.embedded import embedded_database
from service.segments.files import SegmentFiles
from service.store.database import Database
from tests.conftest import ok, publication, wait_until
from tests.faults.load import Producer, check, drained, due, set_up
from tests.faults.processes import Api, end, start_worker
from tests.faults.up import Up

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path):
    """Makes small file systems."""
    mounted = []

    def make(name: str, megabytes: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("only root can mount a small file system, and not everywhere")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all the room there is; returns what holds it."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**16))
        except OSError:
            pass
    return ballast


def test_segments_that_find_no_room_are_written_once_there_is(world, disk):
    ballast = fill(disk("segments", 1))
    api, worker = Api(world.settings), start_worker(world.settings)
    database = Database(world.settings.database_url)
    producer = Producer(api.client, "s", 0)
    with api.client() as client:
        set_up(client, ["s"], {"windows": publication("s", {"kind": "sliding_window", "block": 5, "blocks": 2})})
        producer.start()
        wait_until(lambda: len(producer.accepted) > 10)
        producer.finish()
        assert ok(client.get("/v1/streams/s"))["records"] == 0
        ballast.unlink()
        wait_until(lambda: drained(client, "s", [producer]))
        wait_until(lambda: not due(database))
    check(database, SegmentFiles(world.settings.segment_store), [producer])
    database.close()
    end(worker)
    end(api.process)


@pytest.mark.more
def test_a_full_disk_is_a_503_until_there_is_room_again(disk):
    up = Up(disk("disk", 160) / "data")
    up.start()
    publications = {"windows": publication("s", {"kind": "sliding_window", "block": 20, "blocks": 2})}
    with up.client() as client:
        set_up(client, ["s"], publications)
    producers = [Producer(up.client, "s", number, repeats=number == 0) for number in range(2)]
    for producer in producers:
        producer.start()
    wait_until(lambda: all(producer.accepted for producer in producers))
    ballast = fill(up.folder.parent)
    wait_until(lambda: all(producer.unanswered for producer in producers))

    def nothing_is_accepted() -> bool:
        fill(up.folder.parent)  # the servers may have deleted something
        accepted = [len(producer.accepted) for producer in producers]
        time.sleep(1)
        return [len(producer.accepted) for producer in producers] == accepted

    wait_until(nothing_is_accepted)
    ballast.unlink()
    up.await_ready()
    for producer in producers:
        producer.finish()
    with up.client() as client:
        wait_until(lambda: drained(client, "s", producers))
    with embedded_database(up.folder) as url:
        database = Database(url)
        wait_until(lambda: not due(database))
        check(database, SegmentFiles(up.folder / "segments"), producers)
        database.close()
    up.stop()
