"""Which records, settings and runs the figures of comparisons and of advice are of."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from service.explorer import __main__ as process
from service.explorer import advice as advising
from service.explorer import comparison as compared
from service.explorer.advice import advise
from service.explorer.comparison import Cell, mechanism, run
from service.explorer.datasets import read_csv
from service.explorer.report import report
from service.explorer.sample import Sample
from service.learning.records import Records
from service.privacy.noise.additive import Unaffordable
from tests.explorer.test_comparison import comparison, data

QUIET = Cell(line=0, epsilon=None, run=0)


def release(time, window=(0, 1), fit=(0, 1)):
    return SimpleNamespace(time=time, window=window, fit=fit, parameters=np.zeros((1, 3)))


def test_a_line_has_the_norm_and_the_features_of_its_comparison():
    made = mechanism(comparison(norm_bound=2.0, feature_map={"kind": "normalize"}), 0, 1.0, data().shape)
    assert made.learner.norm_bound == 2.0
    assert made.feature_map.description["kind"] == "normalize"


def test_without_noise_it_is_fitted_to_the_records_that_the_release_stands_for(monkeypatch):
    """A release of many batches may be made of the last one alone."""
    fitted, true = [], compared._without_noise
    monkeypatch.setattr(compared, "releases", lambda *_: iter([(release(40, (5, 40), (30, 40)), 100)]))
    monkeypatch.setattr(compared, "_without_noise", lambda made, of: fitted.append(len(of.y)) or true(made, of))
    assert run(comparison(), QUIET, data(80))["curve"]
    assert fitted == [35]


def test_fits_without_noise_are_the_same_in_any_unit():
    x, y = data(80).x, data(80).y
    one, two = (
        compared._without_noise(mechanism(comparison(norm_bound=b), 0, 1.0, data().shape), Records(x=b * x, y=y))
        for b in (1.0, 2.0)
    )
    np.testing.assert_allclose(2.0 * two, one, rtol=1e-3)


def test_a_release_that_is_followed_at_the_next_checkpoint_is_not_shown(monkeypatch):
    """Every 1.6th of 64 records is one: 10, 11, 13, 14, 16, …"""
    monkeypatch.setattr(
        compared, "releases", lambda *_: iter([(release(10), 15), (release(15), 16), (release(16), 99)])
    )
    assert [time for time, _ in run(comparison(), Cell(line=0, epsilon=1.0, run=0), data(80))["curve"]] == [10, 16]


def test_a_line_that_no_noise_can_protect_says_so(monkeypatch):
    def unaffordable(*_):
        raise Unaffordable("no noise is as large")

    monkeypatch.setattr(compared, "releases", unaffordable)
    assert run(comparison(), QUIET, data(80))["problem"] == "no noise is as large"


def test_a_process_runs_what_is_not_done_yet(monkeypatch):
    ran, lines = [], []
    packed = data(60).packed()
    request = {"comparison": comparison().model_dump(mode="json"), "done": [0, 2, 3], "size": len(packed)}
    given = io.BytesIO(json.dumps(request).encode() + b"\n" + packed)
    monkeypatch.setattr(process.sys, "argv", ["explorer", "0"])
    monkeypatch.setattr(process.sys, "stdin", SimpleNamespace(buffer=given))
    monkeypatch.setattr(process, "gc", SimpleNamespace(freeze=lambda: None))
    monkeypatch.setattr(process, "_until_the_input_ends", lambda: None)
    monkeypatch.setattr(process, "_tell", lines.append)
    monkeypatch.setattr(process, "run", lambda _, cell, *__: ran.append(cell) or {})
    process.main()
    assert [each["cell"] for each in lines] == [1, 4, 5]
    assert ran[0] == Cell(line=1, epsilon=None, run=0)


def test_classes_are_numbered_in_the_order_of_their_names():
    """Class 1 is the positive one, in whatever order records come."""
    for names in (("no", "yes"), ("yes", "no")):
        made = read_csv("".join(f"{row},{names[row % 2]}\n" for row in range(10)).encode())
        assert made.names == ("no", "yes")
        assert made.y.tolist() == [names[row % 2] == "yes" for row in range(10)]


def advised(monkeypatch, scores):
    """Return advice on labels of which each is another than the one before, and three of four records count."""
    monkeypatch.setattr(advising, "_scores", scores)
    y = np.tile([0, 1, 0, 2], 200)
    x = np.random.default_rng(1).normal(size=(800, 1))
    return advise(Sample(x=x, y=y, columns=("a",), classes=("0", "1", "2")), epsilon=1, delta=1e-6, runs=1)


def test_what_needs_no_model_is_said_where_no_model_is_better(monkeypatch):
    def scores(_, candidate, epsilon, *__):
        if candidate.title == first:
            raise Unaffordable("no noise is as large")
        return np.full(4, 0.9 if epsilon == advising.HARDLY_ANY_NOISE else 0.4)

    first = next(advising.candidates(50)).title
    advice = advised(monkeypatch, scores)
    assert dict(advice.baselines) == {"the label before": 0.0, "always the commonest class": 0.5}
    assert advice.left_out == (f"{first}: no noise is as large",)
    words = report(advice)
    assert f"left out: {first}: no noise is as large" in words
    assert "privacy is expected to cost 50.0 points of accuracy" in words
    assert "Without any model, always the commonest class has 0.500" in words
    assert "Without any model" not in report(advised(monkeypatch, lambda *_: np.full(4, 0.6)))


def test_a_batch_is_no_larger_than_memory_should_hold(monkeypatch):
    monkeypatch.setattr(advising, "MAX_BATCH", 40)
    mechanism_of = advised(monkeypatch, lambda *_: np.zeros(4)).publication["mechanism"]
    assert 40 in mechanism_of.values()


@pytest.mark.parametrize("most", [3, 16])
def test_only_so_many_records_are_predicted(monkeypatch, most):
    judged, true = [], compared.predict
    monkeypatch.setattr(compared, "MAX_JUDGED", most)
    monkeypatch.setattr(compared, "predict", lambda *given: judged.append(len(given[2])) or true(*given))
    run(comparison(), QUIET, data(80))
    assert set(judged) == {most}
