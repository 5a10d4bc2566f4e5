"""A preparation over HTTP: others name it, wait for it, and predict with its map; it ends with its release."""

import numpy as np
import pytest

from service.streams.feature_maps import steps_of
from tests import chance
from tests.api.test_feature_maps import offline
from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, wait_until

RECORDS = 200
LITTLE_NOISE = {"epsilon": 400, "delta": 1e-6}
SCALE = {"kind": "preparation", "records": RECORDS, "of": "scale"}
BATCH = {"kind": "independent_batches", "batch": 50}


def prepare(service: Service, stream: str, **more) -> str:
    body = publication(stream, SCALE, **LITTLE_NOISE | more) | {"learner": None}
    return ok(service.client().post("/v1/publications", json=body), 201)["name"]


def records(count: int = RECORDS, seed: int = 1) -> tuple[list[list[float]], list[int]]:
    """Two columns of very unlike scales; the second one alone tells the label."""
    drawn = np.random.default_rng(seed).normal(size=(count, 2))
    return (drawn * [1e4, 1e-3] + [5e4, 0]).round(6).tolist(), (drawn[:, 1] > 0).astype(int).tolist()


def get(service: Service, name: str) -> dict:
    return ok(service.client().get(f"/v1/publications/{name}"))


@pytest.mark.more
@pytest.mark.parametrize("feature_map", [None, {"kind": "standardize", "mean": 0, "scale": 2}])
def test_a_fit_waits_for_the_map_is_made_of_its_features_and_predicts_with_it(service: Service, feature_map):
    stream = service.stream(epsilon=1000, delta=1e-5, feature_map=feature_map)
    scales = prepare(service, stream)
    name = service.publish(stream, BATCH, **LITTLE_NOISE, features={"from": scales}, learner={"regularization": 0.01})
    assert get(service, name)["features"] == {"from": scales, "version": 1}
    x, y = records()
    service.post(stream, x[:150], y[:150])
    nothing = refused(service.client().get(f"/v1/publications/{name}/releases/latest"), 404, "not-found")
    assert "the plan tells" in nothing["detail"]
    service.post(stream, x[150:], y[150:])
    released = service.released(name, time=200)
    assert [each["time"] for each in released] == [50, 100, 150, 200]
    (made,) = service.released(scales, time=200)
    assert made["published_at"] <= released[0]["published_at"]
    for each in released:
        assert each["model"]["norm_bound"] == made["model"]["norm_bound"] == np.sqrt(2)
        assert steps_of(each["model"]["feature_map"]) == steps_of(made["model"]["feature_map"])
        assert each["model"]["features"] == 2

    fresh, labels = records(seed=2)
    prediction = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": fresh}))
    np.testing.assert_allclose(prediction["scores"], [offline(released[-1], each) for each in fresh], atol=1e-5)
    right = np.mean(np.array(prediction["labels"]) == labels)  # half of them, were the second column no part of a row
    chance.assert_above(right, 0.7, mean=0.935, spread=0.0147, runs=28)
    refused(service.client().post(f"/v1/publications/{scales}/predict", json={"x": fresh}), 409, "no-predictions")

    assert wait_until(lambda: get(service, scales)["state"] == "stopped")
    assert "all that it releases" in get(service, scales)["reason"]
    later = publication(stream, BATCH, epsilon=600, delta=1e-6, start=200)
    refused(service.client().post("/v1/publications", json=later | {"start": 199}), 409, "budget-exceeded")
    ok(service.client().post("/v1/publications", json=later), 201)  # nothing of the preparation is reserved there
    service.verifies(stream)


def test_whoever_waits_halts_when_the_preparation_ends_before_its_release(service: Service):
    stream = service.stream(epsilon=1000, delta=1e-5)
    scales = prepare(service, stream)
    name = service.publish(stream, BATCH, **LITTLE_NOISE, features={"from": scales})
    service.post(stream, *[each[:60] for each in records()])
    ok(service.client().delete(f"/v1/publications/{scales}"))
    wait_until(lambda: get(service, name)["state"] == "halted")
    assert scales in get(service, name)["reason"]
    again = publication(stream, BATCH, **LITTLE_NOISE, features={"from": scales})
    problem = refused(service.client().post("/v1/publications", json=again), 422, "invalid-request")
    assert problem["errors"] == [
        {
            "field": "features.from",
            "reason": f"publication {scales} has ended before it released its feature map",
        }
    ]


def test_features_come_from_a_preparation_of_the_same_stream(service: Service):
    stream, other = (service.stream(epsilon=1000, delta=1e-5) for _ in range(2))
    scales, model = prepare(service, other), service.publish(stream, BATCH, **LITTLE_NOISE)
    for name, why in ((scales, "has no publication"), (model, "releases no feature map"), ("none", "no publication")):
        body = publication(stream, BATCH, **LITTLE_NOISE, features={"from": name})
        for route in ("/v1/publications", "/v1/plan"):
            problem = refused(service.client().post(route, json=body), 422, "invalid-request")
            assert why in problem["errors"][0]["reason"]


def test_a_plan_says_when_fits_are_made_and_how_rough_scales_are(service: Service):
    stream = service.stream(epsilon=1000, delta=1e-5)
    body = publication(stream, SCALE, epsilon=1, delta=1e-6) | {"learner": None}
    plan = ok(service.client().post("/v1/plan", json=body))
    assert plan["first_releases"] == [RECORDS]
    assert "warning" in plan["scales"]
    scales = prepare(service, stream)
    plan = ok(service.client().post("/v1/plan", json=publication(stream, BATCH, features={"from": scales})))
    assert any(scales in note for note in plan["notes"])


@pytest.mark.more
def test_whitening_follows_on_the_scales_and_models_predict_with_both(service: Service):
    stream = service.stream(epsilon=1000, delta=1e-5)
    scales = prepare(service, stream, epsilon=300)
    body = publication(stream, SCALE | {"of": "whiten"}, epsilon=300, delta=1e-6) | {"learner": None}
    whitened = ok(service.client().post("/v1/publications", json=body | {"features": {"from": scales}}), 201)["name"]
    name = service.publish(
        stream, BATCH, epsilon=300, delta=1e-6, features={"from": whitened}, learner={"regularization": 0.01}
    )
    service.post(stream, *records())
    newest = service.released(name, time=200)[-1]
    assert [each["kind"] for each in steps_of(newest["model"]["feature_map"])] == ["clipped_scale", "linear"]
    fresh, _ = records(seed=2)
    answer = ok(service.client().post(f"/v1/publications/{name}/predict", json={"x": fresh}))
    np.testing.assert_allclose(answer["scores"], [offline(newest, each) for each in fresh], atol=1e-5)
    service.verifies(stream)
