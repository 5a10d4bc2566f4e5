"""Linear queries over HTTP: asked of a categorical stream, answered, charged and released."""

import numpy as np
import pytest

from tests.conftest import Service, ok, unique, wait_until

CATEGORIES = 8


def categorical(service: Service, *, epsilon: float = 100, delta: float = 0, **more) -> str:
    task = {"kind": "categorical", "cardinality": CATEGORIES}
    asked = {"name": unique("stream"), "task": task, "budget": {"epsilon": epsilon, "delta": delta}} | more
    return ok(service.client().post("/v1/streams", json=asked), 201)["name"]


def publish(service: Service, stream: str, *, epsilon: float = 100, delta: float = 0, **settings) -> str:
    mechanism = {"kind": "linear_queries", "first": 100, "hits": 3, "accuracy": 0.3} | settings
    asked = {"name": unique("publication"), "stream": stream, "mechanism": mechanism}
    asked |= {"privacy": {"epsilon": epsilon, "delta": delta}}
    return ok(service.client().post("/v1/publications", json=asked), 201)["name"]


def post(service: Service, stream: str, categories: list[int]) -> int:
    """Posts records; the number of all once they are numbered."""
    path = f"/v1/streams/{stream}"
    entry = ok(service.client().post(f"{path}/records", json={"y": categories}), 202)["entry"]
    wait_until(lambda: service.client().get(f"{path}/entries/{entry}").status_code == 200)
    return ok(service.client().get(path))["records"]


def ask(service: Service, publication: str, queries):
    return ok(service.client().post(f"/v1/publications/{publication}/queries", json=queries))


def counted(service: Service, publication: str, time: int):
    """Waits until queries are about so many records."""
    wait_until(lambda: ask(service, publication, {"categories": []})["time"] >= time)


def charges(service: Service, stream: str) -> list[dict]:
    return ok(service.client().get(f"/v1/streams/{stream}/ledger/charges?limit=1000"))["items"][::-1]


@pytest.mark.parametrize("delta", [0, 1e-6])
def test_a_hard_query_is_measured_charged_and_released(service: Service, delta):
    stream = categorical(service, delta=delta)
    publication = publish(service, stream, delta=delta)
    releases = f"/v1/publications/{publication}/releases"
    before = ask(service, publication, {"categories": [0]})
    assert before == {
        "answer": pytest.approx(1 / 9),
        "measured": False,
        "frozen": False,
        "time": 0,
        "error_bound": None,
    }
    post(service, stream, [0] * 150 + [1] * 50)
    counted(service, publication, 200)
    answer = ask(service, publication, {"weights": [1, 0, 0, 0, 0, 0, 0, 0]})
    assert answer["measured"]
    assert answer["answer"] == pytest.approx(0.75, abs=0.15)
    assert answer["error_bound"] < 0.15
    release = ok(service.client().get(f"{releases}/latest"))
    assert (release["version"], release["role"], release["time"]) == (1, "model", 200)
    assert release["model"] == {"kind": "histogram", "cardinality": CATEGORIES, "growth": "uniform"}
    (shares,) = release["parameters"]["values"]
    assert len(shares) == CATEGORIES
    assert np.isclose(shares[0], answer["answer"], atol=0.25)
    opened, arrived, measured, reopened = charges(service, stream)
    assert [each["version"] for each in (opened, arrived, measured, reopened)] == [None, None, 1, None]
    ranges = [(each["start"], each["end"]) for each in (opened, arrived, measured, reopened)]
    assert ranges == [(0, 100), (100, 200), (0, 200), (0, 200)]
    assert release["charge"] == measured
    assert ok(service.client().post(f"/v1/publications/{publication}/predict", json={"x": []}), 409)
