"""A publication that begins where a release of another stream stands."""

import pytest

from tests.api.test_records import refused
from tests.conftest import Service, ok, publication

BATCHES = {"kind": "independent_batches", "batch": 20}
LEARNER = {"kind": "output_perturbation", "regularization": 1.0}
X, Y = [[1, 0.5], [-1, -0.5]] * 20, [1, 0] * 20


@pytest.fixture
def source(service: Service) -> str:
    """A publication with two releases."""
    name = service.publish(service.stream(), BATCHES, epsilon=5, learner=LEARNER)
    stream = ok(service.client().get(f"/v1/publications/{name}"))["stream"]
    service.post(stream, X, Y)
    service.reaches(name, time=40)
    return name


def parameters(service: Service, name: str, version: int) -> list:
    return ok(service.client().get(f"/v1/publications/{name}/releases/{version}"))["parameters"]["values"]


def configuration(stream: str, source: str, **more: object) -> dict:
    origin = {"publication": source, "version": 2}
    return publication(stream, BATCHES, epsilon=1, learner=LEARNER | {"origin": origin} | more)


def ledger(service: Service, stream: str) -> dict:
    return ok(service.client().get(f"/v1/streams/{stream}/ledger"))


@pytest.mark.more
def test_it_begins_at_the_weights_of_the_release_and_costs_neither_stream_anything(service: Service, source):
    theirs = ok(service.client().get(f"/v1/publications/{source}"))["stream"]
    before, stream = ledger(service, theirs), service.stream()
    made = ok(service.client().post("/v1/publications", json=configuration(stream, source)), 201)
    assert made["learner"]["origin"] == parameters(service, source, 2)
    assert made["learner"]["intercept_scale"] == 0.3
    assert ledger(service, stream)["reserved"]["epsilon"] == 1
    service.post(stream, X[:20], Y[:20])
    service.reaches(made["name"], time=20)
    assert ledger(service, stream)["spent"]["epsilon"] == 1
    assert ledger(service, theirs) == before


def test_another_release_of_the_source_changes_nothing(service: Service, source):
    made = ok(service.client().post("/v1/publications", json=configuration(service.stream(), source)), 201)
    stream = ok(service.client().get(f"/v1/publications/{source}"))["stream"]
    service.post(stream, X[:20], Y[:20])
    service.reaches(source, time=60)
    assert ok(service.client().get(f"/v1/publications/{made['name']}"))["learner"] == made["learner"]


@pytest.mark.parametrize(
    ("stream", "learner", "message"),
    [
        ({"classes": 3}, {}, "classes"),
        ({"features": 3}, {}, "features"),
        ({"norm_bound": 2.0}, {}, "norm_bound"),
        ({"feature_map": {"kind": "normalize"}}, {}, "feature_map"),
        ({}, {"intercept": False}, "intercept"),
        ({}, {"intercept_scale": 0.5}, "has 0.3"),
    ],
)
def test_a_release_whose_weights_would_mean_something_else_is_refused(
    service: Service, source, stream, learner, message
):
    here = service.stream(**stream)
    problem = refused(
        service.client().post("/v1/publications", json=configuration(here, source, **learner)), 422, "invalid-request"
    )
    assert message in problem["detail"]


def test_a_release_that_is_not_there_or_may_not_be_seen_is_refused(service: Service, source):
    here = service.stream()
    limited = service.client(service.key("read", streams=[here]))
    for client, request in (
        (service.client(), configuration(here, "nobody")),
        (
            service.client(),
            configuration(here, source) | {"learner": LEARNER | {"origin": {"publication": source, "version": 3}}},
        ),
        (limited, configuration(here, source)),
    ):
        problem = refused(client.post("/v1/plan", json=request), 422, "invalid-request")
        assert "no such release" in problem["detail"]
