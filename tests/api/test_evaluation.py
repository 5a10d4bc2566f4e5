"""How good a model is, over HTTP: slots that are set aside, what is refused, and figures wherever releases are."""

import json

import numpy as np
import pytest

from tests.api.test_records import refused
from tests.conftest import Service, ok, wait_until
from tests.monitoring.expositions import look

EVERY, BATCH, BLOCK = 4, 40, 10
STEPS = {"kind": "noisy_gradient_descent"}
LARGE = 1000
"""An ε whose noise is 0, but for a probability far below any that a test may fail with."""


def records(start: int, stop: int) -> tuple[list[list[float]], list[int]]:
    """Labels that x tells, of evaluation slots too."""
    labels = np.arange(start, stop) // EVERY % 2
    return [[2.0 * label - 1.0, 0.5] for label in labels.tolist()], labels.tolist()


def evaluate(service: Service, stream: str, of: list[str], *, epsilon: float = LARGE, **more) -> dict:
    body = {
        "name": f"of-{stream}",
        "stream": stream,
        "mechanism": {"kind": "evaluation", "of": of, "block": BLOCK},
        "privacy": {"epsilon": epsilon, "delta": 0},
        "publish_delay": 0,
    } | more
    return ok(service.client().post("/v1/publications", json=body), 201)


@pytest.fixture(scope="module")
def evaluated(service: Service) -> tuple[str, str, str]:
    """A stream, a publication and its evaluation, after three blocks."""
    stream = service.stream(epsilon=LARGE, delta=1e-6, evaluation={"every": EVERY})
    name = service.publish(stream, {"kind": "independent_batches", "batch": BATCH}, epsilon=LARGE, delta=1e-6)
    mechanism = {"kind": "evaluation", "of": [name], "block": BLOCK, "shortened": True}
    evaluation = evaluate(service, stream, [name], mechanism=mechanism)["name"]
    for start in range(0, 120, 40):
        service.post(stream, *records(start, start + 40))
    service.reaches(evaluation, time=120)
    return stream, name, evaluation


def test_a_release_tells_how_good_each_publication_is(service: Service, evaluated):
    _, name, evaluation = evaluated
    first, second, third = service.released(evaluation, time=120)
    assert first["evaluation"][name] | {"version": None, "slots": BLOCK} == first["evaluation"][name]
    assert first["evaluation"][name]["accuracy"] is None
    for version, release in ((1, second), (2, third)):
        figures = release["evaluation"][name]
        assert (figures["version"], figures["slots"]) == (version, BLOCK)
        assert figures["accuracy"] == 1.0
        assert 0.6 < figures["low"] < figures["high"] <= 1.0, "ten records tell no more"
        assert figures["baseline"] == 0.5
        assert figures["table"] == [[5, 0], [0, 5]]
        assert figures["lift"]["estimate"] == 0.5
        assert [each["estimate"] for each in figures["recall"]] == [1.0, 1.0]
        assert figures["balanced_accuracy"]["estimate"] == 1.0
        assert 0 <= figures["calibration_error"]["estimate"] <= 1
        assert figures["shortened"]["estimate"] == 1.0, "all records are longer than norm_bound"


def test_the_record_that_it_charges_most_is_one_that_it_reads(service: Service, evaluated):
    stream, name, evaluation = evaluated
    shares = {each["name"]: each for each in ok(service.client().get(f"/v1/streams/{stream}/ledger"))["publications"]}
    assert shares[evaluation]["spent"]["record"] == EVERY - 1
    assert shares[evaluation]["lifetime"]["record"] == EVERY - 1
    assert shares[name]["spent"]["record"] == 0
    late = {"name": f"late-{stream}", "stream": stream, "start": 3 * EVERY + 1, "privacy": {"epsilon": 1, "delta": 0}}
    plan = late | {"mechanism": {"kind": "evaluation", "of": [name], "block": BLOCK}}
    assert ok(service.client().post("/v1/plan", json=plan))["lifetime"]["record"] == EVERY - 2


@pytest.mark.more
def test_publications_are_compared_on_the_same_slots(service: Service):
    """Labels flip at record 80. The first has learnt that 40 records later; the second has no newer model."""
    stream = service.stream(epsilon=LARGE, delta=1e-6, evaluation={"every": EVERY})
    often, seldom = (
        service.publish(stream, {"kind": "independent_batches", "batch": batch}, epsilon=LARGE / 2, delta=5e-7)
        for batch in (40, 80)
    )
    evaluation = evaluate(service, stream, [often, seldom])["name"]
    x, y = records(0, 160)
    service.post(stream, x, [label if place < 80 else 1 - label for place, label in enumerate(y)])
    _, alone, both, apart = (each["evaluation"] for each in service.released(evaluation, time=160))
    assert alone[often]["better_than"] == {}, "the second had no model yet"
    assert "better_than" not in alone[seldom]
    assert both[often]["better_than"][seldom]["low"] < 0 < both[often]["better_than"][seldom]["high"]
    gap = apart[often]["better_than"][seldom]
    assert (apart[often]["version"], apart[seldom]["version"]) == (3, 1)
    assert gap["estimate"] == 1.0
    assert 0 < gap["low"] < gap["high"] <= 1
    assert apart[seldom]["better_than"][often]["high"] == -gap["low"]
    newest = ok(service.client().get(f"/v1/publications/{often}"))["evaluation"]
    assert newest["better_than"] == {seldom: gap}
    assert newest["recent"]["better_than"][seldom]["estimate"] == 0.5, "of two blocks in which both had a model"


def test_lists_events_and_the_publication_tell_it_too(service: Service, evaluated):
    _, name, evaluation = evaluated
    client = service.client()
    newest = ok(client.get(f"/v1/publications/{evaluation}/releases/latest"))
    (listed, *_) = ok(client.get(f"/v1/publications/{evaluation}/releases"))["items"]
    main = listed["evaluation"][name]
    assert main == {key: newest["evaluation"][name][key] for key in main}
    assert main["accuracy"] == 1.0
    with client.stream("GET", f"/v1/publications/{evaluation}/events") as answer:
        event = next(line for line in answer.iter_lines() if line.startswith("data:"))
    assert json.loads(event.removeprefix("data:"))["evaluation"] == listed["evaluation"]
    newest_figures = ok(client.get(f"/v1/publications/{name}"))["evaluation"]
    together, lift = newest_figures.pop("recent"), newest_figures.pop("lift_over_previous")
    assert (together["blocks"], together["slots"], together["accuracy"]) == (2, 2 * BLOCK, 1.0)
    assert newest["evaluation"][name]["low"] < together["low"] < together["high"] <= 1.0, "two blocks know it better"
    assert (together["lift"]["estimate"], together["better_than"]) == (0.5, {})
    assert lift["low"] < lift["estimate"] == 0.0 < lift["high"], "both versions are always right"
    assert newest_figures == newest["evaluation"][name] | {
        "publication": evaluation,
        "release": 3,
        "time": 120,
        "drift": False,
        "worse": False,
    }
    assert ok(client.get(f"/v1/publications/{evaluation}"))["evaluation"] is None
    assert "evaluation" not in ok(client.get(f"/v1/publications/{name}/releases/latest"))


def test_the_ledger_tells_what_evaluation_slots_have_spent(service: Service, evaluated):
    stream, _, _ = evaluated
    ledger = ok(service.client().get(f"/v1/streams/{stream}/ledger"))
    shown = ok(service.client().get(f"/v1/streams/{stream}"))
    assert shown["evaluation"] == {"every": EVERY}
    for amounts in (ledger["spent"], ledger["reserved"], shown["spent"], shown["reserved"], *ledger["ranges"]):
        assert 0.99 * LARGE < amounts["epsilon"] <= LARGE, "one of the two, never the sum"
        assert amounts["evaluation"]["epsilon"] <= amounts["epsilon"]
    assert ledger["tighter"]["epsilon"] == LARGE


def test_a_stream_that_sets_nothing_aside_says_nothing_of_it(service: Service):
    stream = service.stream()
    shown = ok(service.client().get(f"/v1/streams/{stream}"))
    assert "evaluation" not in shown
    assert shown["spent"] == {"epsilon": 0.0, "delta": 0.0}
    assert "evaluation" not in ok(service.client().get(f"/v1/streams/{stream}/ledger"))["spent"]


def test_the_plan_tells_how_wide_intervals_will_be(service: Service, evaluated):
    stream, name, _ = evaluated
    body = {
        "stream": stream,
        "mechanism": {"kind": "evaluation", "of": [name], "block": 500},
        "privacy": {"epsilon": 1, "delta": 0},
    }
    plan = ok(service.client().post("/v1/plan", json=body))
    assert 0.01 < plan["accuracy"]["noise"] < 0.02
    assert 0.04 < plan["accuracy"]["population"] < 0.07


def of_what(service: Service, stream: str) -> dict[str, str]:
    """Publications of the stream and of others, by why they are refused."""
    active = {"kind": "active_learning", "batching": "fixed_window", "size": 8}
    noisy = {"kind": "noisy_gradient_descent", "loss": "logistic"}
    model = {"kind": "independent_batches", "batch": BATCH}
    return {
        "no public time": service.publish(stream, active, learner=noisy, delta=1e-6),
        "has no publication": service.publish(service.stream(), model),
        "predicts nothing": evaluate(service, stream, [service.publish(stream, model)], epsilon=1)["name"],
    }


def test_what_cannot_be_evaluated_is_refused(service: Service):
    stream = service.stream(epsilon=10, delta=1e-5, evaluation={"every": EVERY})
    wrong = of_what(service, stream) | {"publication never-made": "never-made"}
    for why, name in wrong.items():
        for path in ("plan", "publications"):
            body = {"stream": stream, "name": "refused", "privacy": {"epsilon": 1, "delta": 0}}
            body["mechanism"] = {"kind": "evaluation", "of": [name], "block": BLOCK}
            problem = refused(service.client().post(f"/v1/{path}", json=body), 422, "invalid-request")
            assert problem["errors"][0]["field"] == "mechanism.of"
            assert why in problem["errors"][0]["reason"], name


def test_a_prediction_tells_what_noise_may_have_done(service: Service, evaluated):
    _, name, _ = evaluated
    sure = {"x": [[1.0, 0.5], [-1.0, 0.5]]}
    url = f"/v1/publications/{name}/predict"
    plain = ok(service.client().post(url, json=sure))
    assert "noise" not in plain
    prediction = ok(service.client().post(f"{url}?noise=true", json=sure))
    assert prediction | {"noise": None} == plain | {"noise": None}
    noise = prediction["noise"]
    assert noise["could_flip"] == [False, False]
    for scores, low, high in zip(prediction["scores"], noise["low"], noise["high"], strict=True):
        assert all(least < score < most for score, least, most in zip(scores, low, high, strict=True))


def test_nothing_is_told_of_noise_whose_effect_nobody_knows(service: Service):
    stream = service.stream(delta=1e-5)
    name = service.publish(stream, {"kind": "online_leader", "batch": 5}, delta=1e-6, learner=STEPS)
    service.post(stream, *records(0, 5))
    service.reaches(name, time=5)
    url = f"/v1/publications/{name}/predict?noise=true"
    assert ok(service.client().post(url, json={"x": [[1.0, 0.5]]}))["noise"] is None


def prometheus(service: Service, figure: str, **labels: str) -> float | None:
    return look(service.url, service.admin_key).of(f"perennial_evaluation_{figure}", **labels)


def test_prometheus_gets_the_newest_figures_while_the_evaluation_runs(service: Service, evaluated):
    stream, name, evaluation = evaluated
    labels = {"publication": name, "evaluation": evaluation, "stream": stream}
    figures = ok(service.client().get(f"/v1/publications/{name}"))["evaluation"]
    wait_until(lambda: prometheus(service, "accuracy", **labels) is not None)
    for figure in ("accuracy", "low", "high", "baseline", "drift", "worse"):
        assert prometheus(service, figure, **labels) == figures[figure]
    assert prometheus(service, "absolute_error", **labels) is None
    ok(service.client().delete(f"/v1/publications/{evaluation}"))
    wait_until(lambda: prometheus(service, "accuracy", **labels) is None)
