"""A whole service whose segments are in an object store, and the way there and back."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from service.cli import app
from service.segments.copying import PlaceTaken, copy
from service.segments.files import SegmentFiles
from tests.conftest import World, make_world, ok, running, used_up, wait_until
from tests.segments.objects.server import BUCKET, Faults, Server

RNG = np.random.default_rng(5)
X = RNG.uniform(-0.5, 0.5, (40, 2)).tolist()
Y = RNG.integers(0, 2, 40).tolist()


def invoked(world: World, *arguments: str, place: str) -> str:
    """The output of a command that ends well."""
    environment = {
        "PERENNIAL_DATABASE_URL": str(world.settings.database_url),
        "PERENNIAL_SEGMENT_STORE": place,
        "PERENNIAL_SEGMENT_COPIES": str(world.settings.segment_copies),
    }
    done = CliRunner().invoke(app, arguments, env=environment)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def copied(servers, tmp_path: Path):
    """A function that makes a world, and what becomes of it."""
    made = []

    def make(place: str | Path) -> World:
        made.append(make_world(servers, tmp_path, segment_copies=tmp_path / "copies", segment_store=place))
        return made[-1]

    yield make
    for each in made:
        used_up(servers, str(each.settings.database_url))


@pytest.mark.more
def test_a_service_moves_to_an_object_store_and_back(copied, server: Server, tmp_path: Path):
    """Some answers of the store fail on the way, and another machine, which has no copies, takes over."""
    server.faults = Faults(refused=0.05, forgotten=0.05, cut=0.02)
    folder, back, address = tmp_path / "segments", tmp_path / "back", f"s3://{BUCKET}/moves"
    world = copied(folder)
    with running(world.settings) as service:
        stream = service.stream()
        name = service.publish(stream, {"kind": "independent_batches", "batch": 10})
        service.post(stream, X[:20], Y[:20])
        service.reaches(name, time=20)
    for _ in range(2):  # again, as after an attempt that was stopped
        assert invoked(world, "segments", "copy", str(folder), address, place="").startswith("1 segments copied")
    shutil.rmtree(folder)
    moved = world.settings.model_copy(update={"segment_store": address})
    with running(moved) as service:
        service.post(stream, X[20:30], Y[20:30])
        service.reaches(name, time=30)
    shutil.rmtree(tmp_path / "copies")
    with running(moved) as service:
        ok(service.client().delete(f"/v1/streams/{stream}/records?start=3&end=4"), 202)
        service.post(stream, X[30:], Y[30:])
        service.reaches(name, time=40)
        shown = lambda: ok(service.client().get(f"/v1/streams/{stream}"))["erased"]  # noqa: E731
        wait_until(lambda: shown()["records"] == 1 and not shown()["waiting"])
    assert "4 charges on 1 streams: 0 findings" in invoked(world, "ledger", "verify", place=address)
    assert [*(tmp_path / "copies").rglob("*.safetensors")] == [], "no worker may run here to sweep them"
    assert "segments copied" in invoked(world, "segments", "copy", address, str(back), place="")
    assert "4 charges on 1 streams: 0 findings" in invoked(world, "ledger", "verify", place=str(back))


def test_a_copy_goes_to_the_root_of_a_volume_and_back(tmp_path: Path):
    """Its file system has a folder of its own there."""
    source, volume, back = (tmp_path / name for name in ("source", "volume", "back"))
    (source / "one").mkdir(parents=True)
    (source / "one" / "segment").write_bytes(b"records")
    (volume / "lost+found").mkdir(parents=True)
    for places in ((source, volume), (volume, back)):
        done = CliRunner().invoke(app, ["segments", "copy", *map(str, places)])
        assert (done.exit_code, "1 segments copied" in done.output) == (0, True), done.output
    assert [path.name for path in back.iterdir()] == ["one"]


def test_a_copy_goes_to_no_place_with_other_files(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    for folder, name in ((source, "one"), (target, "two")):
        (folder / name).mkdir(parents=True)
    done = CliRunner().invoke(app, ["segments", "copy", str(source), str(target)])
    assert done.exit_code == 78
    assert "give an empty one" in done.output
    done = CliRunner().invoke(app, ["segments", "copy", str(tmp_path / "none"), str(target)])
    assert (done.exit_code, "there is no folder" in done.output) == (78, True)


def of_one_stream(folder: Path) -> SegmentFiles:
    files = SegmentFiles(folder)
    files.put("one", "segment", b"records")
    files.put_high_water_mark("one", {"charges": 1})
    return files


@pytest.mark.parametrize("what", ["segment", "mark"])
def test_a_copy_goes_to_no_place_where_the_same_stream_has_come_further(tmp_path: Path, what: str):
    source, target = (of_one_stream(tmp_path / name) for name in ("source", "target"))
    if what == "segment":
        target.put("one", "later", b"records")
    else:
        target.put_high_water_mark("one", {"charges": 2})
    with pytest.raises(PlaceTaken):
        copy(source, target)


def test_a_copy_that_was_stopped_while_it_wrote_is_made_whole(tmp_path: Path):
    source, target = of_one_stream(tmp_path / "source"), SegmentFiles(tmp_path / "target")
    target.put("one", "segment", b"rec")
    assert copy(source, target) == 1
    assert (target.get("one", "segment"), target.high_water_mark("one")) == (b"records", {"charges": 1})
