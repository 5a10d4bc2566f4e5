"""A small database over HTTP: planned, released by a schedule, charged, asked and verified."""

import numpy as np
import pytest

from service.mechanisms.histogram import LinearQuery
from tests.api.test_labels import findings
from tests.api.test_queries import ask, categorical, charges, post
from tests.conftest import Service, ok, unique, wait_until

SMALL = {"kind": "small_database", "queries": "intervals", "accuracy": 0.5}


@pytest.mark.parametrize("delta", [0, 1e-6], ids=["pure", "gaussian"])
def test_it_is_released_at_each_time_and_answers_from_the_latest(service: Service, delta):
    """By the law of its noise another answer than 0.75 has probability below 1e-100."""
    stream = categorical(service, delta=delta)
    privacy = {"epsilon": 100, "delta": delta}
    mechanism = {"kind": "scheduled_black_box", "first": 100, "accuracy": 0.5}
    body = {"name": unique("publication"), "stream": stream, "mechanism": mechanism, "learner": SMALL}
    made = ok(service.client().post("/v1/publications", json=body | {"privacy": privacy}), 201)
    assert made["plan"]["model"] | {"candidates": 495, "size": 4} == made["plan"]["model"]
    name = made["name"]
    assert service.client().post(f"/v1/publications/{name}/queries", json={"categories": [0]}).status_code == 409
    post(service, stream, [0] * 150 + [7] * 60)
    latest = f"/v1/publications/{name}/releases/latest"
    wait_until(lambda: service.client().get(latest).status_code == 200)
    wait_until(lambda: ok(service.client().get(latest))["time"] == 200)
    release = ok(service.client().get(latest))
    assert (release["version"], release["model"]["kind"], release["model"]["queries"]) == (2, "histogram", "intervals")
    assert release["noise"]["distribution"] == "exponential_mechanism"
    (shares,) = release["parameters"]["values"]
    assert [each * 4 % 1 for each in shares] == [0] * 8
    assert [(each["start"], each["end"], each["version"]) for each in charges(service, stream)] == [
        (0, 100, 1),
        (0, 200, 2),
    ]
    some, others, scattered = ask(
        service, name, [{"categories": [0, 1]}, {"weights": [1, 0, 0, 0, 0, 0, 0, 0]}, {"categories": [0, 7]}]
    )
    assert some["answer"] == 0.75
    assert (some["time"], some["measured"], some["frozen"]) == (200, False, False)
    assert 0.25 < some["error_bound"] == others["error_bound"] < 0.5
    assert scattered["error_bound"] is None
    assert findings(service, stream) == []


def test_it_is_refused_on_a_stream_of_features(service: Service):
    stream = service.stream(features=2)
    body = {"stream": stream, "mechanism": {"kind": "independent_batches", "batch": 10}, "learner": SMALL}
    refused = service.client().post("/v1/plan", json=body | {"privacy": {"epsilon": 1}})
    assert refused.status_code == 422
    assert "categorical stream" in refused.text


@pytest.mark.parametrize(
    ("query_json", "classes"),
    [
        ({"categories": [2]}, ("points", "intervals", "all")),
        ({"categories": []}, ("points", "intervals", "all")),
        ({"categories": [3, 2, 4]}, ("intervals", "all")),
        ({"categories": [2, 4]}, ("all",)),
        ({"weights": [0, 0.5, 0.5, 0]}, ("intervals", "all")),
        ({"weights": [0, 0.5, 1, 0]}, ("all",)),
        ({"weights": [0, 0.5, 0, 0]}, ("points", "intervals", "all")),
        ({"weights": [1, 0, 0, 1]}, ("all",)),
    ],
)
def test_of_which_class_a_query_is(query_json, classes):
    if "weights" in query_json:
        query = LinearQuery.weighing(np.array(query_json["weights"], dtype=np.float64))
    else:
        query = LinearQuery.holding(np.array(query_json["categories"], dtype=np.int64))
    assert tuple(each for each in ("points", "intervals", "all") if query.within(each)) == classes
