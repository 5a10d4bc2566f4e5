"""Fits of more records than memory holds: they are made of blocks, in a process that could not hold all records."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from service.learning.optimization import sums
from service.learning.optimization.losses import LOSSES
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.ledger.verify import verify
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.linear import LinearMechanism
from service.mechanisms.scheduled import mechanism as scheduled
from service.segments.blocks import LocatedBlocks
from service.segments.locating import locate, read_records
from service.segments.records import Located, SegmentsMissing
from service.store import leases, releases, segments
from service.streams.schema import StreamSchema
from service.worker import fits
from tests.conftest import wait_until
from tests.worker.published import Bench, number, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.settings import Settings
    from tests.conftest import World

FEATURES = 32
LIMIT = 512 * 2**20
SCHEMA = {
    "features": FEATURES,
    "task": {"kind": "classification", "classes": 2},
    "norm_bound": 1.0,
    "feature_map": None,
}


def configuration(**mechanism: Any) -> dict[str, Any]:
    return {
        "mechanism": mechanism,
        "learner": {"kind": "output_perturbation"},
        "privacy": {"epsilon": 1, "delta": 1e-6},
    }


@contextmanager
def limited_worker(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that can't have more memory, nor can any of its processes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
    for name in ("redis_url", "database_url", "segment_store"):
        environment[f"PERENNIAL_{name.upper()}"] = str(getattr(settings, name))
    command = [sys.executable, "-m", "service", "worker"]
    process = subprocess.Popen(command, env=environment | {"PERENNIAL_METRICS_PORT": "0"})
    resource.prlimit(process.pid, resource.RLIMIT_AS, (LIMIT, LIMIT))
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def columns(records: int, seed: int) -> dict[str, Any]:
    """Records whose label depends on their features."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(records, FEATURES)).astype(np.float32)
    return {"x": x, "y": (x.sum(axis=1) > 0).astype(np.int32)}


@contextmanager
def stream_of(world: World, segment: int, count: int, **mechanism: Any) -> Iterator[Bench]:
    """A publication on a stream of so many segments of so many records."""
    with published(world, SCHEMA, configuration(**mechanism), columns(segment, 0), epsilon=2) as bench:
        for seed in range(1, count):
            number(bench.database, bench.files, bench.now().stream_id, columns(segment, seed))
        yield bench


def opened(bench: Bench, start: int, stop: int) -> LocatedBlocks:
    return LocatedBlocks(
        files=bench.files,
        locate_range=lambda: locate(bench.database, bench.stream(), 0, start, stop),
        mapped=lambda read: read,
    )


def learner() -> OutputPerturbation:
    return OutputPerturbation(
        loss=LOSSES["logistic"], regularization=0.1, intercept=True, norm_bound=1.0, features=FEATURES, classes=2
    )


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "mechanism",
    [
        {"kind": "continual", "base": 5_000_000, "update_every": 1_000_000},
        {"kind": "independent_batches", "batch": 5_000_000},
    ],
    ids=["continual", "batches"],
)
def test_five_million_records_are_fitted_within_512_mebibytes(world: World, mechanism: dict[str, Any]):
    with stream_of(world, 100_000, 50, **mechanism) as bench:
        with limited_worker(world.settings):
            wait_until(lambda: bench.counts()[0] > 0 or bench.now().state != "running", seconds=3000)
        assert (bench.now().state, bench.counts()) == ("running", (1, 1))
        with bench.database.transaction() as connection:
            assert verify(connection).findings == []


@pytest.mark.more
def test_a_fit_of_blocks_needs_less_memory_than_its_records(world: World, monkeypatch):
    """From when it asks where its records are, its process may have half as much memory more as they have."""
    segment, count = 10_000, 8
    started: list[subprocess.Popen[bytes]] = []
    real = fits.subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*arguments, **options))
        return started[-1]

    def located(*arguments: Any, **options: Any) -> Located:
        pid = started[-1].pid
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + segment * count * FEATURES * 4 // 2
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
        return locate(*arguments, **options)

    monkeypatch.setattr(fits.subprocess, "Popen", popen)
    monkeypatch.setattr(fits, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(fits, "locate", located)
    monkeypatch.setattr(fits, "command", lambda number: [sys.executable, "-m", "tests.worker.in_blocks", str(number)])
    with stream_of(world, segment, count, kind="independent_batches", batch=segment * count) as bench:
        bench.publisher().step(threading.Event())
        assert (bench.now().state, bench.counts()) == ("running", (1, 1))
        with bench.database.transaction() as connection:
            assert verify(connection).findings == []


@pytest.fixture
def small(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A stream of five segments, and blocks that begin and end inside of them."""
    monkeypatch.setattr(sums, "LEAST_BLOCK", 16)
    monkeypatch.setattr(sums, "BLOCK_VALUES", 1)
    with stream_of(world, 50, 5, kind="independent_batches", batch=10**6) as bench:
        yield bench


def test_blocks_hold_the_records_of_their_range(small: Bench):
    cuts = sums.cut(190, FEATURES)
    edge = 20 + cuts[0][1]
    with small.database.transaction() as connection:
        for erased in ((70, 120), (edge - 1, edge + 1)):  # one slot on each side of an edge, too
            segments.erase(connection, small.stream().id, *erased)
    whole = read_records(small.database, small.files, small.stream(), 0, 20, 210)
    blocks = opened(small, 20, 210)
    parts = [blocks.read(start, stop) for start, stop in cuts]
    assert (len(parts), len(whole.y)) == (12, 138)
    for name in ("x", "y", "slots"):
        assert np.array_equal(np.concatenate([getattr(each, name) for each in parts]), getattr(whole, name))


EVERY = 3
SET_ASIDE = SCHEMA | {"evaluation": {"every": EVERY}}


def deceptive(start: int, stop: int) -> dict[str, Any]:
    """Records of slots [start, stop); the labels of evaluation slots are the opposite of what x says."""
    content = columns(stop - start, start)
    evaluated = np.arange(start, stop) % EVERY == EVERY - 1
    return content | {"y": np.where(evaluated, 1 - content["y"], content["y"]).astype(np.int32)}


def test_blocks_hold_training_slots_alone(world: World, monkeypatch):
    """Blocks and segments begin at evaluation slots and at others; some of either kind were erased."""
    monkeypatch.setattr(sums, "LEAST_BLOCK", 16)
    monkeypatch.setattr(sums, "BLOCK_VALUES", 1)
    settings = configuration(kind="independent_batches", batch=10**6)
    with published(world, SET_ASIDE, settings, deceptive(0, 50), epsilon=2) as bench:
        number(bench.database, bench.files, bench.stream().id, deceptive(50, 120))
        with bench.database.transaction() as connection:
            segments.erase(connection, bench.stream().id, 70, 75)
        blocks = opened(bench, 5, 115)
        parts = [blocks.read(start, stop) for start, stop in sums.cut(blocks.slots, FEATURES)]
    expected = [slot for slot in range(5, 115) if slot % EVERY != EVERY - 1 and not 70 <= slot < 75]
    assert len(parts) > 3
    assert np.concatenate([each.slots for each in parts]).tolist() == expected
    stored = np.concatenate([deceptive(0, 50)["y"], deceptive(50, 120)["y"]])
    assert np.concatenate([each.y for each in parts]).tolist() == stored[expected].tolist()


@pytest.mark.more
def test_a_fit_of_blocks_reads_and_counts_training_slots_alone(world: World, monkeypatch):
    """Its noise is so little that the model of all slots is ten times as far away as chance can bring it."""
    batch, segment = 5000, 1000
    monkeypatch.setattr(scheduled, "LARGE_BYTES", 0)
    monkeypatch.setattr(fits, "command", lambda number: [sys.executable, "-m", "tests.worker.in_blocks", str(number)])
    settings = configuration(kind="independent_batches", batch=batch) | {"privacy": {"epsilon": 1000, "delta": 1e-6}}
    with published(world, SET_ASIDE, settings, deceptive(0, segment), epsilon=1000) as bench:
        for start in range(segment, batch, segment):
            number(bench.database, bench.files, bench.stream().id, deceptive(start, start + segment))
        bench.publisher().step(threading.Event())
        with bench.database.transaction() as connection:
            assert verify(connection).findings == []
            release = releases.find(connection, bench.identity, 1)
    assert release is not None
    mechanism = build(StreamSchema.model_validate(SET_ASIDE), PublicationConfiguration.model_validate(settings))
    assert isinstance(mechanism, LinearMechanism)
    assert isinstance(mechanism.learner, OutputPerturbation)
    assert mechanism.reads_blocks(batch)
    parts = [deceptive(start, start + segment) for start in range(0, batch, segment)]
    x, y = (np.concatenate([part[name] for part in parts]) for name in "xy")
    training = np.flatnonzero(mechanism.training.among(0, batch))
    (at_once,) = mechanism.step(batch, (), 1, lambda *_: Records(x=x[training], y=y[training], slots=training)).releases
    assert release.noise == at_once.perturbation.to_json(), "it is for as many records"
    near = 20 * release.noise["scale"]
    assert np.abs(release.parameters - at_once.parameters).max() < near
    of_all = mechanism.learner.fit(Records(x=x, y=y), batch, mechanism.origin)
    assert np.abs(of_all - at_once.parameters).max() > 10 * near


def test_a_fit_goes_on_where_files_are_put_together_while_it_reads(small: Bench):
    expected = learner().fit(opened(small, 0, 250), 250, np.zeros((1, FEATURES + 1)))
    blocks = opened(small, 0, 250)
    add_up, passes = blocks.add_up, []

    def merging(question: sums.Question, cut: Any) -> sums.Partial:
        """All files become one while the second pass reads them."""
        if len(passes) == 1:
            merge(small)
        passes.append(question)
        return add_up(question, cut)

    blocks.add_up = merging  # type: ignore[method-assign]
    assert np.array_equal(learner().fit(blocks, 250, np.zeros((1, FEATURES + 1))), expected)
    assert len(passes) > 2


def merge(bench: Bench) -> None:
    """As the sealer does with small neighbours."""
    stream = bench.stream()
    with bench.database.transaction() as connection:
        old = segments.holding(connection, stream.id, 0, stream.records)
        lease = leases.take(connection, leases.stream(stream.id), owner="test", seconds=600)
        parts = [bench.files.read(stream.log, each.file, each.sha256, 0, each.stop - each.start) for each in old]
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        file, sha256 = bench.files.write(stream.log, 0, stream.records, whole)
        new = segments.Segment(start=0, stop=stream.records, file=file, sha256=sha256)
        segments.replace(connection, lease, stream, old, [new])
        leases.release(connection, lease)
    for each in old:
        bench.files.delete(stream.log, each.file)


def test_a_fit_ends_where_records_are_erased_while_it_reads(small: Bench):
    """Else a pass could read a record that the pass before it did not."""
    blocks = opened(small, 0, 250)
    blocks.read(0, 50)
    with small.database.transaction() as connection:
        segments.erase(connection, small.stream().id, 130, 140)
    blocks.read(0, 250)
    for log in small.files.logs():
        for name in small.files.names(log):
            small.files.delete(log, name)
    with pytest.raises(SegmentsMissing, match="erased while"):
        blocks.read(0, 50)
