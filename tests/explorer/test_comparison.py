"""A comparison's runs and its figures of the models: against the definitions, on made-up data."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.explorer import comparison as compared
from service.explorer.comparison import Cell, Comparison, cells, mechanism, run
from service.explorer.datasets import Dataset
from service.explorer.scores import SCORES, score
from service.learning.optimization.solvers import Inaccurate
from service.learning.records import Records
from service.mechanisms.configuration import Refused
from service.mechanisms.mechanism import Step
from tests import chance

LINES = [
    {
        "name": "windows",
        "mechanism": {"kind": "sliding_window", "block": 20, "blocks": 3},
        "learner": {"kind": "output_perturbation"},
    },
    {
        "name": "online",
        "mechanism": {"kind": "online_leader", "batch": 16},
        "learner": {"kind": "noisy_gradient_descent"},
        "delta": 1e-6,
    },
]


def comparison(**more):
    return Comparison.model_validate({"dataset": "weather", "lines": LINES, "epsilons": [1, 1000]} | more)


def data(records=500, classes=2):
    random = np.random.default_rng(3)
    y = random.integers(0, classes, records)
    x = np.eye(classes)[y] + random.normal(0, 0.05, (records, classes))
    return Dataset(x=x.astype(np.float32), y=y, names=tuple(map(str, range(classes))))


def test_scores_of_two_classes_are_those_of_the_positive_one():
    """tp 3, fn 1, fp 2, tn 4."""
    truth = np.array([1] * 4 + [0] * 6)
    predicted = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])
    expected = (7 / 10, 3 / 5, 3 / 4, 4 / 6, 6 / 9, (3 * 4 - 2 * 1) / np.sqrt(5 * 4 * 6 * 5))
    assert score(truth, predicted, 2) == pytest.approx(dict(zip(SCORES, expected, strict=True)), abs=1e-6)


def test_scores_of_more_classes_are_means_and_a_class_that_never_came_counts_nothing():
    truth, predicted = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 1])
    scores = score(truth, predicted, 4)
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["precision"] == pytest.approx((1 + 2 / 4) / 4)
    assert scores["recall"] == pytest.approx((1 / 2 + 1) / 4)
    assert scores["specificity"] == pytest.approx((1 + 1 / 3 + 1 + 1) / 4, abs=1e-6)
    assert score(truth, truth, 3)["mcc"] == 1
    assert score(truth, np.zeros(5, dtype=int), 3)["mcc"] == 0


def test_every_line_runs_without_noise_once_and_with_each_epsilon_as_often_as_asked():
    every_cell = cells(comparison(runs=3))
    assert every_cell[:2] == [Cell(line=0, epsilon=None, run=0), Cell(line=1, epsilon=None, run=0)]
    assert {(each.line, each.epsilon, each.run) for each in every_cell[2:]} == {
        (line, epsilon, number) for line in (0, 1) for epsilon in (1.0, 1000.0) for number in range(3)
    }
    assert len(every_cell) == 2 + 12


@pytest.mark.more
@pytest.mark.parametrize("line", [0, 1])
def test_without_noise_it_learns_and_with_much_it_does_not(line):
    """With eight classes noise alone gets all of them right with probability 8^-8, with two it often would."""
    progress = []
    clean, loud = (
        run(
            comparison(epsilons=[1000, 0.001]),
            Cell(line=line, epsilon=epsilon, run=0),
            data(classes=8),
            progress.append,
        )
        for epsilon in (None, 0.001)
    )
    assert clean["scores"]["accuracy"] > 0.99
    assert loud["scores"]["accuracy"] < 0.99
    assert progress
    assert 0 < min(progress) <= max(progress) <= 1
    times = [time for time, _ in clean["curve"]]
    assert times == sorted(set(times))
    assert times[0] <= 100
    assert times[-1] > 380, "four of five records of 500 are learned from"
    assert times == [time for time, _ in loud["curve"]]


def test_held_out_records_are_never_learned_from():
    """Every fifth record has another label than all the others like it."""
    clean = data()
    y = clean.y.copy()
    y[4::5] = 1 - y[4::5]
    result = run(comparison(), Cell(line=0, epsilon=None, run=0), Dataset(x=clean.x, y=y, names=clean.names))
    assert result["scores"]["accuracy"] < 0.01


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_no_record_that_is_judged_has_a_say_in_any_model(monkeypatch, epsilon, shuffle):
    """Neither in what is released nor in what is fitted without noise; a record is told by its first feature."""
    made = data(100)
    made = Dataset(x=np.column_stack((np.arange(100), made.x)).astype(np.float32), y=made.y, names=made.names)
    learned, judged, true = set(), set(), compared.predict

    def records(x, y, **more):
        learned.update(x[:, 0].tolist())
        return Records(x=x, y=y, **more)

    def predict(description, parameters, x):
        judged.update(x[:, 0].tolist())
        return true(description, parameters, x)

    monkeypatch.setattr(compared, "Records", records)
    monkeypatch.setattr(compared, "predict", predict)
    for line in (0, 1):
        assert run(comparison(shuffle=shuffle), Cell(line=line, epsilon=epsilon, run=1), made)["scores"]
    assert len(judged) == 20
    assert len(learned) >= 60
    assert not judged & learned


@pytest.mark.more
def test_noise_is_fresh_in_every_run_and_the_order_is_the_data_s_own_unless_asked():
    cell = Cell(line=1, epsilon=1.0, run=0)
    curves = [run(comparison(), cell, data(classes=8))["curve"] for _ in range(2)]
    others = np.mean([one != other for one, other in zip(*curves, strict=True)])
    chance.assert_above(others, 0.5, mean=0.985, spread=0.026, runs=62)
    quiet = Cell(line=0, epsilon=None, run=0)
    assert run(comparison(), quiet, data(60)) == run(comparison(), quiet, data(60))
    sorted_by_class = Dataset(x=data().x[np.argsort(data().y)], y=np.sort(data().y), names=("a", "b"))
    own, shuffled = (run(comparison(shuffle=each), quiet, sorted_by_class) for each in (False, True))
    assert own["scores"]["accuracy"] < 0.9 < shuffled["scores"]["accuracy"]


def test_each_run_has_an_order_of_its_own_if_any_is_asked_for():
    quiet = [Cell(line=0, epsilon=None, run=number) for number in (0, 0, 1)]
    by_chance = Dataset(x=data(200).x, y=np.roll(data(200).y, 1), names=("a", "b"))
    one, again, other = (run(comparison(shuffle=True), cell, by_chance) for cell in quiet)
    assert one == again != other


def test_a_run_has_its_own_epsilon_and_one_without_noise_the_largest(monkeypatch):
    """At a small one not every line can run, but the comparison with it stays."""
    epsilons = []

    def releases(publication, *_):
        epsilons.append(publication.privacy.epsilon)
        return iter(())

    monkeypatch.setattr(compared, "releases", releases)
    for epsilon in (1.0, 1000.0, None):
        run(comparison(), Cell(line=0, epsilon=epsilon, run=0), data(80))
    assert epsilons == [1, 1000, 1000]


def test_a_line_ends_where_a_publication_would_halt():
    """It shows what came before, and no model that the service would not release."""
    models = [SimpleNamespace(role="model", time=time) for time in (10, 20)]
    steps = iter([Step(releases=(models[0],), chain=()), Step(releases=(models[1],), chain=(), halts="no more")])
    publication = SimpleNamespace(
        next_time=lambda time: time + 10, taken_at=lambda due, _: due, step=lambda *_: next(steps)
    )
    shown = compared.releases(publication, None, 50)
    assert next(shown) == (models[0], 20)
    with pytest.raises(Inaccurate, match="no more"):
        next(shown)


@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_a_line_whose_first_model_needs_more_records_says_so(epsilon):
    """With 80 records 64 are learned from: the first window has 60 of them, the first batch would have 65."""
    lines = [LINES[0], {**LINES[1], "mechanism": {"kind": "online_leader", "batch": 65}}]
    early, late = (run(comparison(lines=lines), Cell(line=line, epsilon=epsilon, run=0), data(80)) for line in (0, 1))
    assert "problem" not in early
    assert (late["curve"], late["scores"]) == ([], None)
    assert "64 records" in late["problem"]


def test_a_line_that_cannot_stand_is_refused_by_its_number():
    lines = [LINES[0], {**LINES[0], "learner": {"kind": "noisy_gradient_descent"}}]
    with pytest.raises(Refused) as refused:
        mechanism(comparison(lines=lines), 1, 1.0, data().shape)
    assert refused.value.path == "lines.1.learner.kind"


@pytest.mark.parametrize(
    ("setting", "value"), [("features", 7), ("encoder", {"kind": "dense", "records": 50, "layers": [3]})]
)
def test_a_line_with_features_of_its_own_is_refused(setting, value):
    lifelong = {"kind": "lifelong", "task_size": 100, setting: value}
    lines = [{"name": "a", "mechanism": lifelong, "learner": {"kind": "output_perturbation"}, "delta": 1e-6}]
    with pytest.raises(Refused) as refused:
        mechanism(comparison(lines=lines), 0, 1.0, data().shape)
    assert refused.value.path == f"lines.0.mechanism.{setting}"
