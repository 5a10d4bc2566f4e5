"""Paper D's tasks are learnt by the very mechanism, from statistics that are counted once for all lines."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import paper_d, results
from benchmarks.paper_d import Once, Stream, Task
from service.learning.records import Records
from service.mechanisms.lifelong.encoder_pass import EncoderPass
from tests import chance

RECORDS = 10_000  # so many that noise decides nothing
CENTRES = 2 + np.random.default_rng(6).normal(size=(4, 8))  # in common with those of another task is their middle

ALL_RIGHT = {"mean": 1.0, "spread": 0.003, "runs": 130}
"""The mean of every accuracy here, in so many runs: there was no other. The spread is more than there was.

Without noise, scores of classes that are known are 140 of their spreads or more from those of the wrong ones, and
scores of those that are unknown 20 (in 300 runs).
"""


def task(number):
    """Records of two of four classes, far apart."""
    random = np.random.default_rng(number)
    y = random.integers(2 * number, 2 * number + 2, size=RECORDS + 100)
    x = (CENTRES[y] + 0.1 * random.normal(size=(RECORDS + 100, 8))).astype(np.float32)
    return Task(x=lambda: x[:RECORDS], y=y[:RECORDS], test_x=lambda: x[RECORDS:], test_y=y[RECORDS:])


def stream():
    return Stream(
        classes=4,
        maps=({"kind": "normalize"},),
        tasks=[task(number) for number in range(2)],
        hidden=8,
        rate=0.1,
        naive_rate=0.1,
        naive_steps=2,
    )


def test_a_line_of_ours_learns_one_task_after_another():
    """And of a task that it has seen nothing of, it knows nothing."""
    a = paper_d.lifelong(Once(stream()), paper_d.WITHOUT_NOISE, 0.0)
    assert a.shape == (2, 2)
    chance.assert_above(a[0, 0], 0.95, **ALL_RIGHT)
    chance.assert_below(a[0, 1], 0.7, **ALL_RIGHT | {"mean": 0.0})
    chance.assert_above(a[1].min(), 0.95, **ALL_RIGHT)


@pytest.mark.parametrize("line", [paper_d.JOINT, paper_d.STEPS, paper_d.HEADS, paper_d.APART])
def test_every_line_of_ours_runs_with_noise(line):
    chance.assert_above(paper_d.lifelong(Once(stream()), line, 100.0)[1].mean(), 0.5, **ALL_RIGHT)


@pytest.mark.more
@pytest.mark.parametrize("line", [paper_d.LEARNT, paper_d.BEGUN])
def test_an_encoder_is_learnt_from_what_no_task_counts(line, monkeypatch):
    pytest.importorskip("jax", reason="the extra `deep` is not installed")
    seen = []
    release = EncoderPass.release
    monkeypatch.setattr(
        EncoderPass, "release", lambda self, records, *more: seen.append(records) or release(self, records, *more)
    )
    encoder = {"kind": "dense", "layers": [6], "records": 50}
    a = paper_d.with_encoder(replace(stream(), encoder=encoder), line, 100.0)
    assert a.shape == (2, 2)
    chance.assert_above(a[0, 0], 0.9, **ALL_RIGHT)
    chance.assert_above(a[1].mean(), 0.5, **ALL_RIGHT)
    (taught,) = seen
    np.testing.assert_array_equal(taught.y, task(0).y[: 50 if line == paper_d.LEARNT else 1])


def test_what_is_counted_once_is_what_the_learner_counts(tmp_path, monkeypatch):
    seen = []
    once = Once(stream(), tmp_path)
    counting = once.statistics
    monkeypatch.setattr(once, "statistics", lambda learner, number: seen.append(learner) or counting(learner, number))
    paper_d.lifelong(once, paper_d.JOINT, 1.0)
    first = task(0)
    x = first.x()
    rows = Records(x=x / np.linalg.norm(x, axis=1, keepdims=True), y=first.y)
    assert len(seen) == 2
    assert counting(seen[0], 0) == pytest.approx(seen[0].statistics(rows, RECORDS), rel=1e-5)
    assert Once(stream(), tmp_path).statistics(seen[0], 0) == pytest.approx(counting(seen[0], 0))  # from the file


@pytest.mark.more
def test_baselines_run_on_the_same_tasks():
    assert paper_d.network(stream(), paper_d.AGEM, 0.0).shape == (2, 2)
    assert paper_d.network(stream(), paper_d.NAIVE, 1.0).shape == (2, 2)


@pytest.mark.more
def test_results_are_shown_beside_what_the_paper_prints(capsys, tmp_path):
    a = np.array([[0.9, 0.0], [0.8, 0.7]])
    path = tmp_path / "found.jsonl"
    for run, (line, accuracy) in enumerate(
        [(paper_d.JOINT, a)] * 2 + [(paper_d.NAIVE, a - 0.1), (paper_d.NAIVE, a / 2)]
    ):
        results.append(path, ("split_mnist", run, line, 0.5), accuracy=accuracy.tolist())
    paper_d.table(path)
    shown = capsys.readouterr().out
    assert "| lifelong | 0.5 | 2 | 0.750 | 0.750–0.750 | 0.100 |" in shown
    assert "| printed: L2DP-ML (NOT private) | 0.5 | – | 0.735 | – | 0.056 |" in shown
    paper_d.plots(path, tmp_path)
    assert (tmp_path / "paper_d-split_mnist.svg").stat().st_size
