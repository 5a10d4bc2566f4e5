"""Passes on a Dask cluster: the same bytes before noise with however many workers, and whatever becomes of them."""
# ruff: noqa: F811 - a fixture is another file's

from __future__ import annotations

import os
import signal
import socket
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from service.learning.optimization.sums import Partial
from service.segments.blocks import LocatedBlocks, as_stored
from service.segments.locating import locate
from service.worker import dask_blocks
from service.worker.dask_blocks import DaskBlocks
from tests.worker.test_large_fits import FEATURES, learner, opened, small  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.learning.optimization.sums import Question
    from tests.worker.published import Bench

# Dask warns where something takes longer than a second, as on a busy machine; in tests a warning is an error.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Creating scratch directories"),
    pytest.mark.skipif(not find_spec("distributed"), reason="Dask is not installed"),
]
CENTER = np.zeros((1, FEATURES + 1))


@contextmanager
def cluster(workers: int, **more: Any) -> Iterator[Any]:
    import distributed  # here, because it takes half a second

    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None, protocol="tcp", **more
    ) as made:
        yield made


def on(bench: Bench, scheduler: str, notes: list[str]) -> DaskBlocks:
    return DaskBlocks(
        files=bench.files,
        locate_range=lambda: locate(bench.database, bench.stream(), 0, 0, 250),
        mapped=as_stored,
        scheduler=scheduler,
        note=notes.append,
    )


def test_a_fit_has_the_same_bytes_on_dask_and_in_process(small: Bench, monkeypatch):
    expected, notes = learner().fit(opened(small, 0, 250), 250, CENTER), list[str]()
    monkeypatch.setattr(LocatedBlocks, "add_up", left_to_this_process)
    with cluster(2, processes=False) as made:
        blocks = on(small, made.scheduler_address, notes)
        assert np.array_equal(learner().fit(blocks, 250, CENTER), expected)
        blocks._client.close()
    assert notes == []


def left_to_this_process(_blocks: LocatedBlocks, _question: Question, left: Any) -> Partial:
    assert left == [], "Dask answers all blocks"
    return Partial()


def test_without_its_cluster_a_fit_goes_on_in_its_process(small: Bench, monkeypatch):
    monkeypatch.setattr("service.worker.dask_blocks.SECONDS_TO_CONNECT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    notes: list[str] = []
    fitted = learner().fit(on(small, nobody, notes), 250, CENTER)
    assert np.array_equal(fitted, learner().fit(opened(small, 0, 250), 250, CENTER))
    assert len(notes) == 1
    assert "left alone" in notes[0]


def test_what_fails_on_dask_is_answered_in_the_process(small: Bench, monkeypatch):
    """As where a Dask worker does not see the segments."""
    real = dask_blocks.answer
    monkeypatch.setattr(dask_blocks, "answer", lambda _, *more: real((("folder", "/nowhere"),), *more))
    notes: list[str] = []
    with cluster(1, processes=False) as made:
        blocks = on(small, made.scheduler_address, notes)
        fitted = learner().fit(blocks, 250, CENTER)
        blocks._client.close()
    assert np.array_equal(fitted, learner().fit(opened(small, 0, 250), 250, CENTER))
    assert "tasks failed" in notes[0]


def test_where_some_tasks_fail_each_block_counts_once(small: Bench, monkeypatch):
    """A block that counts twice moves the sum twice as far as the noise is for."""
    expected, notes, real = learner().fit(opened(small, 0, 250), 250, CENTER), list[str](), dask_blocks.answer

    def fail_every_other(described: Any, located: Any, mapped: Any, question: Question, blocks: Any) -> Partial:
        if blocks[0][0] // (blocks[0][1] - blocks[0][0]) % 2:
            raise OSError("this Dask worker does not see the segments")
        return real(described, located, mapped, question, blocks)

    monkeypatch.setattr(dask_blocks, "BLOCKS_OF_A_TASK", 1)
    monkeypatch.setattr(dask_blocks, "answer", fail_every_other)
    with cluster(2, processes=False) as made:
        blocks = on(small, made.scheduler_address, notes)
        fitted = learner().fit(blocks, 250, CENTER)
        blocks._client.close()
    assert np.array_equal(fitted, expected)
    assert notes
    assert all("tasks failed" in note for note in notes)


def test_where_the_cluster_breaks_in_the_middle_of_a_pass_each_block_counts_once(small: Bench, monkeypatch):
    expected, notes, answered = learner().fit(opened(small, 0, 250), 250, CENTER), list[str](), list[Any]()
    real = DaskBlocks._answers
    monkeypatch.setattr(dask_blocks, "BLOCKS_OF_A_TASK", 1)
    with cluster(1, processes=False) as made:

        def break_after_two(blocks: DaskBlocks, question: Question, groups: Any) -> Iterator[Any]:
            for group, answer in real(blocks, question, groups):
                yield group, answer
                answered.append(group)
                if len(answered) == 2:
                    made.close()

        monkeypatch.setattr(DaskBlocks, "_answers", break_after_two)
        monkeypatch.setattr(dask_blocks, "SECONDS_OF_SILENCE", 5.0)
        blocks = on(small, made.scheduler_address, notes)
        fitted = learner().fit(blocks, 250, CENTER)
        blocks._client.close()
    assert np.array_equal(fitted, expected)
    assert len(answered) >= 2
    assert len(notes) == 1
    assert "left alone" in notes[0]


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("killed", [False, True], ids=["all live", "one is killed"])
def test_a_fit_has_the_same_bytes_with_any_number_of_processes(small: Bench, workers, killed):
    expected, notes = learner().fit(opened(small, 0, 250), 250, CENTER), list[str]()
    with cluster(workers, processes=True) as made:
        blocks = on(small, made.scheduler_address, notes)
        passes, add_up = [], blocks.add_up

        def kill_before_the_second(question: Question, ranges: Any) -> Partial:
            if killed and len(passes) == 1:
                os.kill(next(iter(made.workers.values())).pid, signal.SIGKILL)
            passes.append(question)
            return add_up(question, ranges)

        blocks.add_up = kill_before_the_second  # type: ignore[method-assign]
        fitted = learner().fit(blocks, 250, CENTER)
        blocks._client.close()
    assert np.array_equal(fitted, expected)
    assert len(passes) > 2
