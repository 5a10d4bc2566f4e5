"""Paper E's lines have the same ε, labels count when they are asked for, and what is there is not run again."""

import argparse
import json
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import paper_e, paper_e_lines
from benchmarks.paper_e_lines import BALLS, EPSILON, Found, Line, Models, Order
from service.mechanisms.active_learning.active_gradient import ActiveGradient
from service.mechanisms.active_learning.mechanism import ActiveLearning
from service.privacy.currency import Currency


def order(records=300):
    """Two classes far apart."""
    random = np.random.default_rng(5)
    y = random.integers(0, 2, size=2 * records)
    x = (np.array([-1.0, 1.0])[y, None] * [0.6, 0.2, 0.1] + 0.1 * random.normal(size=(2 * records, 3))).astype(
        np.float32
    )
    return Order(x=x[:records], y=y[:records], test_x=x[records:], test_y=y[records:])


LINES = [line for line in paper_e_lines.lines(BALLS[1]) if line.size in (0, 20)]


@pytest.mark.more
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_line_runs_and_counts_labels(line):
    """No coin comes out either way with probability above 0.87: 300 do not all come out alike (once in 1e18 runs)."""
    data = order()
    outcome = line.run(data)
    assert len(outcome.labels) == len(outcome.error) == len(outcome.at)
    assert all(before <= after for before, after in pairwise([0, *outcome.labels]))
    assert all(labels <= records for labels, records in zip(outcome.labels, outcome.at, strict=True))
    if line.name == "passive, without noise (NOT private)":
        assert outcome.labels == outcome.at
        assert outcome.error[-1] < 0.05
    if "NOT private" not in line.name and line.name.startswith("fixed"):
        assert 0 < outcome.labels[-1] < len(data.y)


def test_what_a_record_loses_is_the_same_whether_it_is_selected_or_not(monkeypatch):
    spent, update = [], ActiveGradient.update

    def seen(self, records, count, weights, origin, perturbation, number):
        spent.append((perturbation.noise.charge(perturbation.sensitivity), perturbation.cost(Currency.PURE, records=1)))
        return update(self, records, count, weights, origin, perturbation, number)

    monkeypatch.setattr(ActiveGradient, "update", seen)
    for line in LINES:
        if line.name in ("passive", "fixed_batch, exponential, shrinking", "fixed_window, bernoulli"):
            line.run(order())
            updates, total = zip(*spent, strict=True)
            spent.clear()
            assert max(total) <= 2 * EPSILON
            assert min(updates) > (1.99 if line.name == "passive" else 0.99) * EPSILON


def test_a_model_is_judged_from_when_it_is_there_and_labels_from_when_they_are_asked_for():
    data = order(100)
    mechanism = paper_e_lines.active(3, 20, 2.0)
    assert isinstance(mechanism, ActiveLearning)
    right = np.array([[0.6, 0.2, 0.1, 0.0]])
    outcome = paper_e_lines.judged(mechanism, Models(requested=[0, 9, 10, 59], released=[(60, right)]), data)
    at = dict(zip(outcome.at, zip(outcome.labels, outcome.error, strict=True), strict=True))
    assert at[10][0] == 2
    assert at[20][0] == at[50][0] == 3
    assert at[50][1] > 0.3  # zero tells no classes apart
    assert at[60] == (4, 0.0)


def test_between_two_marks_errors_lie_on_a_line():
    outcome = Found(records=100, labels=[10, 20, 20, 40], error=[0.4, 0.2, 0.2, 0.1])
    assert [paper_e.after_labels(outcome, labels) for labels in (15, 30, 40)] == pytest.approx([0.3, 0.15, 0.1])
    assert np.isnan(paper_e.after_labels(outcome, 41))


def test_what_is_there_is_not_run_again_and_is_shown(tmp_path, monkeypatch, capsys):
    ran = []

    def once(name):
        def run(data):
            ran.append(name)
            return Found(records=len(data.y), labels=list(range(17)), error=[0.5] * 16 + [0.25 + 0.1 * len(ran)])

        return Line(name=name, size=20, run=run)

    monkeypatch.setattr(paper_e, "lines", lambda _: [once("passive"), once("fixed_batch, bernoulli")])
    monkeypatch.setattr(paper_e, "ordered", lambda *_: order(50))
    path = tmp_path / "found.jsonl"
    options = argparse.Namespace(results=path, orders=2, streams=["elec2"], sizes=[20], radii=[1.0])
    paper_e.measure(options)
    assert ran == ["passive", "fixed_batch, bernoulli"] * 2
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    paper_e.measure(options)
    assert len(ran) == 5
    assert json.loads(path.read_text().splitlines()[-1])["cell"] == ["elec2", 1, 1.0, "fixed_batch, bernoulli", 20]
    capsys.readouterr()
    paper_e.table(path)
    shown = capsys.readouterr().out
    assert "1 of 1 private lines are more than two standard errors worse" in shown
    assert "| elec2 | 20 |  |  |  |  | +0.150 ± 0.050 |" in shown  # 0.45 - 0.35 and 0.75 - 0.55
    assert "| passive |  |  |  | 0.450 ± 0.100 (16) |" in shown
    assert "| passive | 20 | 2 | 16 | – |" in shown
