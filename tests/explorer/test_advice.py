"""Advice on a public sample: what it measures, recommends and prints, and which files it refuses."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from service.cli import app
from service.explorer import advice as advising
from service.explorer.advice import advise, candidates, releases, stream_of
from service.explorer.report import report
from service.explorer.sample import Sample, Unusable, read_sample
from service.inputs.refused import Refused
from service.mechanisms.admission import admit
from service.mechanisms.configuration import AskedPublication, StreamBudget
from service.mechanisms.linear import predict
from service.streams.schema import NewStreamSchema

HEADER = "cost,kind,weight"


def made(records=800):
    """Two columns of unlike scales, of which the first one tells the label."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(records, 2)) * [1e4, 1e-2] + [5e4, 0.0]
    return Sample(x=x, y=(x[:, 0] > 5e4).astype(np.int64), columns=("cost", "weight"), classes=("no", "yes"))


@pytest.fixture
def file(tmp_path):
    sample = made()
    rows = [f"{cost!r},{sample.classes[y]},{weight!r}" for (cost, weight), y in zip(sample.x, sample.y, strict=True)]
    path = tmp_path / "sample.csv"
    path.write_text("\n".join([HEADER, *rows]).replace("np.float64(", "").replace(")", ""))
    return path


def test_a_sample_is_what_its_file_holds(file):
    sample, expected = read_sample(file, "kind"), made()
    np.testing.assert_array_equal(sample.x, expected.x)
    np.testing.assert_array_equal(sample.y, expected.y)
    assert (sample.columns, sample.classes) == (expected.columns, expected.classes)


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    path = tmp_path / "sample.csv"
    path.write_text("x,y\n" + "".join(f"1,{each}\n" for each in (10, 9, 2, 1) * 100))
    assert read_sample(path, "y").classes == ("1", "2", "9", "10")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["x,z"] + ["1,2"] * 400, "no column y"),
        (["x,y"] + ["1,2"] * 399 + ["1"], "line 401 has 1 values"),
        (["x,y"] + ["1,2", "one,2"] * 200, "line 3: column x is not a finite number"),
        (["x,y"] + ["1,2", "nan,2"] * 200, "line 3: column x is not a finite number"),
        (["x,y", "1,2", "1,3"], "at least 400 are needed"),
        (["x,y"] + ["1,2"] * 400, "the label has 1 values"),
        (["x,y"] + [f"1,{each}" for each in range(400)], "the label has 400 values"),
        (["y"] + ["1", "2"] * 200, "no column beside the label"),
        ([], "the file is empty"),
    ],
)
def test_a_file_that_no_advice_can_be_given_on_is_refused_with_what_to_do(tmp_path, lines, why):
    path = tmp_path / "sample.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(Unusable, match=why):
        read_sample(path, "y")


def test_columns_are_scaled_by_the_sample_and_constants_stay():
    sample = made()
    mapped = stream_of(Sample(x=np.c_[sample.x, np.ones(800)], y=sample.y, columns=tuple("abc"), classes=("0", "1")))
    assert mapped["feature_map"]["scale"] == [pytest.approx(1e4, rel=0.1), pytest.approx(0.01, rel=0.1), 1.0]
    assert mapped["feature_map"]["mean"][2] == 1.0


def mapped(column):
    """Return a column of a sample as its stream's records have it."""
    sample = Sample(x=np.c_[made().x, column], y=made().y, columns=tuple("abc"), classes=("no", "yes"))
    schema = NewStreamSchema.model_validate(json.loads(json.dumps(stream_of(sample))))
    return schema.mapping()(sample.x.astype(np.float32))[:, 2]


@pytest.mark.parametrize("constant", [1234567.8, 0.12345678, -987.65432, 20261126.0, 1e12, -3e38, 5e-9, 0.0])
def test_a_constant_column_hides_no_other(constant):
    assert np.abs(mapped(np.full(800, constant))).max() < 0.01


@pytest.mark.parametrize(
    ("mean", "deviation"),
    [(1013.25, 0.01), (1.7635e9, 5e3), (1.7635e12, 2e7), (0, 5e8), (-3e9, 1e9), (1e30, 1e29), (1e-3, 1e-8), (0, 1e-9)],
)
def test_a_column_of_any_size_becomes_one_of_size_one(mean, deviation):
    """Times in seconds and milliseconds, incomes, concentrations."""
    normal = np.random.default_rng(2).normal(size=800)
    column = mapped(mean + deviation * (normal - normal.mean()) / normal.std())
    assert column.std() == pytest.approx(1.0, rel=0.05)
    assert abs(column.mean()) < 0.05


def test_a_stream_takes_the_labels_of_the_sample():
    """Numbers 0, 1, … need no names."""
    x, y = made().x, made().y
    for classes, names in ((("no", "yes"), ["no", "yes"]), (("1", "2"), ["1", "2"]), (("0", "1"), None)):
        schema = NewStreamSchema.model_validate(stream_of(Sample(x=x, y=y, columns=tuple("ab"), classes=classes)))
        assert schema.to_store().get("class_names") == names
    unnameable = Sample(x=x, y=y, columns=tuple("ab"), classes=(" no", "yes"))
    assert "class_names" not in stream_of(unnameable)


@pytest.mark.more
def test_the_best_candidate_comes_first_and_what_it_prints_can_be_posted():
    sample = made()
    advice = advise(sample, epsilon=100, delta=1e-6, runs=1)
    assert [each.score for each in advice.measured] == sorted([e.score for e in advice.measured], reverse=True)
    assert advice.best.score > 0.7 > max(advice.baselines.values())  # at so large an ε there is hardly any noise
    assert advice.loss == max(each.without_noise for each in advice.measured) - advice.best.score or not advice.loss
    assert advice.publication["mechanism"] == advice.best.candidate.mechanism
    stream, publication = json.loads(json.dumps([advice.stream, advice.publication]))
    budget = StreamBudget.model_validate(stream.pop("budget")).budget
    assert budget.in_rho
    del stream["name"], publication["name"], publication["stream"]
    configuration = AskedPublication.model_validate(publication).configuration(budget)
    assert admit(NewStreamSchema.model_validate(stream), configuration).plan()
    assert f"Recommended: {advice.best.candidate.title}" in report(advice)


def test_the_best_mean_score_with_noise_is_recommended_whatever_is_best_without(monkeypatch):
    """The first candidate can't run, the second has one good run of two, and all others are better with noise."""
    places = {each.title: place for place, each in enumerate(candidates(50))}
    promises = []

    def scores(_, candidate, epsilon, delta, sample):
        promises.append((epsilon, delta))
        place = places[candidate.title]
        if place == 0:
            raise Refused("batch", "too large")
        if epsilon == advising.HARDLY_ANY_NOISE:
            return np.full(4, 1 - place / 100)
        return np.full(4, 0.5 + place / 100 if place > 1 else 0.99 * (len(promises) % 2))

    monkeypatch.setattr(advising, "_scores", scores)
    advice = advise(made(), epsilon=2, delta=1e-5, runs=2)
    assert [places[each.candidate.title] for each in advice.measured] == [*range(len(places) - 1, 0, -1)]
    assert [each.score for each in advice.measured][-1] == pytest.approx(0.495)
    assert max(each.without_noise for each in advice.measured) == 0.99
    assert set(promises) == {(2, 1e-5), (advising.HARDLY_ANY_NOISE, 1e-5)}
    assert advice.publication["privacy"] == {"epsilon": 2, "delta": 1e-5}
    assert advice.stream["budget"] == {"epsilon": 2, "delta": 1e-5, "accounting": "zcdp"}
    assert [each.partition(":")[0] for each in advice.left_out] == [min(places, key=places.get)]


def test_a_score_is_known_to_two_standard_deviations(monkeypatch):
    """With 16 records, half of them predicted rightly: 2 · 0.5 / √16."""
    monkeypatch.setattr(advising, "_scores", lambda *_: np.tile([0.0, 1.0], 8))
    advice = advise(made(), epsilon=1, delta=1e-6, runs=1)
    assert {each.margin for each in advice.measured} == {0.25}
    assert "accuracy 0.500 ± 0.250" in report(advice)


def test_a_regression_is_judged_by_r_squared():
    """At so large an ε its models tell most of a label that is one of two columns, and a bit of noise."""
    sample = made()
    regression = Sample(x=sample.x, y=(sample.x[:, 0] - 5e4) / 1e4 / 4, columns=sample.columns, bound=1.0)
    advice = advise(regression, epsilon=100, delta=1e-6, batch=60, runs=1)
    assert advice.stream["task"] == {"kind": "regression", "bound": 1.0}
    assert {"always the commonest class"}.isdisjoint(advice.baselines)
    assert 0.5 < advice.best.without_noise <= 1.0
    assert f"R² {advice.best.score:.3f}" in report(advice)
    configuration = AskedPublication.model_validate(
        {name: advice.publication[name] for name in ("mechanism", "learner", "privacy")}
    ).configuration(StreamBudget.model_validate(advice.stream["budget"]).budget)
    schema = {name: each for name, each in advice.stream.items() if name not in ("name", "budget")}
    assert admit(NewStreamSchema.model_validate(schema), configuration).plan()


def test_candidates_release_after_every_batch():
    offered = list(candidates(60))
    assert len({each.title for each in offered}) == len(offered)
    assert {"window_statistics", "online_leader", "independent_batches"} == {e.mechanism["kind"] for e in offered}
    assert {e.mechanism.get("batch", e.mechanism.get("block")) for e in offered} == {60}


def test_only_what_forgets_is_measured_where_that_is_asked():
    advice = advise(made(), epsilon=1, delta=1e-6, runs=1, forget=True)
    assert {each.candidate.mechanism["kind"] for each in advice.measured} == {"window_statistics"}


def test_each_record_is_judged_by_the_model_before_it_which_has_not_seen_it(monkeypatch):
    sample, times, judged = made(), [], []

    def noted(*given):
        for release, upcoming in releases(*given):
            times.append(release.time)
            yield release, upcoming

    monkeypatch.setattr(advising, "releases", noted)
    monkeypatch.setattr(advising, "predict", lambda *given: judged.append(given[2]) or predict(*given))
    advise(sample, epsilon=1, delta=1e-6, runs=1, forget=True)
    assert len(times) == len(judged) > 10
    ends = [end if end > time else len(sample.x) for time, end in zip(times, [*times[1:], 0], strict=True)]
    for time, end, x in zip(times, ends, judged, strict=True):
        np.testing.assert_array_equal(x, sample.x[time:end])


def test_a_batch_larger_than_a_quarter_of_the_sample_is_refused():
    with pytest.raises(Refused, match="a larger sample or a smaller batch"):
        advise(made(), epsilon=1, delta=1e-6, batch=300, runs=1)


def test_the_command_prints_json_alone_and_words_beside_it(file):
    run = CliRunner().invoke(app, ["advise", str(file), "--label", "kind", "--runs", "1"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["publication"]["privacy"] == {"epsilon": 1.0, "delta": 1e-6}
    assert "Recommended: " in run.stderr
    assert "hardly any noise (NOT private)" in run.stderr


def test_the_command_says_what_is_wrong_with_a_file(file, tmp_path):
    for path, why in ((tmp_path / "none.csv", "can't read"), (file, "no column price")):
        run = CliRunner().invoke(app, ["advise", str(path), "--label", "price"])
        assert run.exit_code != 0
        assert why in run.stderr


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--epsilon=nan", "epsilon: must be a finite number"),
        ("--delta=nan", "delta: must be a finite number"),
        ("--epsilon=0.1234567890123456789", "epsilon: must have at most 15 significant digits"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_budget(file, option, why):
    run = CliRunner().invoke(app, ["advise", str(file), "--label", "kind", option])
    assert isinstance(run.exception, SystemExit)
    assert why in run.stderr
