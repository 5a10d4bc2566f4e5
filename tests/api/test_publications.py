"""Streams, publications and plans: what is refused and why, and that a refusal changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from service.ledger import admission
from service.store import streams
from service.store.database import Database
from tests.api.test_records import refused
from tests.conftest import Service, blocked, ok, publication, unique, wait_until

WINDOW = {"kind": "sliding_window", "block": 5, "blocks": 3}
CONTINUAL = {"kind": "continual", "base": 8, "update_every": 4}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Upper"},
        {"name": ""},
        {"name": "a" * 64},
        {"features": 0},
        {"features": "2"},
        {"features": True},
        {"task": {"kind": "classification", "classes": 1}},
        {"task": {"kind": "other"}},
        {"norm_bound": 0},
        {"norm_bound": "1"},
        {"budget": {"epsilon": 0, "delta": 0}},
        {"budget": {"epsilon": -1, "delta": 0}},
        {"budget": {"epsilon": 1, "delta": 1}},
        {"budget": {"epsilon": True, "delta": 0}},
        {"budget": None},
        {"retention": "some"},
        {"feature_map": {"kind": "hog"}},
        {"surprise": 1},
    ],
)
def test_a_bad_stream_is_refused_and_its_name_stays_free(service: Service, change):
    good = {
        "name": unique("stream"),
        "features": 2,
        "task": {"kind": "classification", "classes": 2},
        "norm_bound": 1.0,
        "feature_map": None,
        "retention": "keep",
        "budget": {"epsilon": 1, "delta": 1e-6},
    }
    errors = refused(service.client().post("/v1/streams", json=good | change), 422, "invalid-request")["errors"]
    assert all(error["field"].startswith(next(iter(change))) for error in errors)
    answer = service.client().post("/v1/streams", json=good)
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/streams/{good['name']}"
    assert refused(service.client().post("/v1/streams", json=good), 409, "name-taken")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"mechanism": {"kind": "nonsense"}}, "mechanism"),
        ({"mechanism": {"kind": "lifelong"}}, "mechanism"),
        ({"mechanism": WINDOW | {"block": 0}}, "mechanism"),
        ({"mechanism": WINDOW | {"blocks": 2.5}}, "mechanism"),
        ({"mechanism": CONTINUAL | {"shares": "unfair"}}, "mechanism"),
        ({"learner": {"kind": "output_perturbation", "loss": "squared"}}, "learner"),
        ({"learner": {"kind": "output_perturbation", "regularization": 0}}, "learner"),
        ({"learner": {"kind": "output_perturbation", "solver": "magic"}}, "learner"),
        ({"learner": {"kind": "output_perturbation", "origin": [[0, 0]]}}, "learner"),
        ({"privacy": {"epsilon": 1, "delta": 1e-6}}, "privacy.delta"),
        ({"privacy": {"epsilon": 0, "delta": 0}}, "privacy.epsilon"),
        ({"start": -1}, "start"),
        ({"start": 1.5}, "start"),
    ],
)
def test_a_bad_publication_is_refused_by_field_and_reserves_nothing(service: Service, change, field):
    stream = service.stream(delta=0)
    body = publication(stream, WINDOW) | change
    errors = refused(service.client().post("/v1/publications", json=body), 422, "invalid-request")["errors"]
    assert errors[0]["field"].startswith(field)
    described = ok(service.client().get(f"/v1/streams/{stream}"))
    assert (described["reserved"]["epsilon"], described["publications"]) == (0, [])


@pytest.mark.parametrize(
    ("mechanism", "learner", "cap", "draws"),
    [
        ({"kind": "independent_batches", "batch": 5}, "output_perturbation", 27.725887, 1),
        ({"kind": "independent_batches", "batch": 5}, "objective_perturbation", 27.03274, 2),
        ({"kind": "online_leader", "batch": 5}, "noisy_gradient_descent", 16.635532, 65536),
    ],
)
def test_pure_epsilon_is_capped_where_draws_would_add_more_than_two_to_the_minus_sixty(
    service: Service, mechanism, learner, cap, draws
):
    stream = service.stream(epsilon=1000)
    above = publication(stream, mechanism, epsilon=round(cap + 1e-6, 6), learner={"kind": learner})
    for path in ("plan", "publications"):
        problem = refused(service.client().post(f"/v1/{path}", json=above), 422, "invalid-request")
        assert problem["errors"][0]["field"] == "privacy.epsilon"
        assert f"at most {cap} here" in problem["errors"][0]["reason"]
    assert ok(service.client().get(f"/v1/streams/{stream}"))["publications"] == []
    under = publication(stream, mechanism, epsilon=cap, learner={"kind": learner})
    plan = ok(service.client().post("/v1/plan", json=under))
    assert plan["guarantee"]["sampling"]["draws"] == draws
    assert 0.999998 * 2**-60 < plan["guarantee"]["sampling"]["delta"] <= 2**-60
    ok(service.client().post("/v1/publications", json=under), 201)


def test_logistic_needs_two_classes(service: Service):
    stream = service.stream(classes=3)
    body = publication(stream, WINDOW, learner={"loss": "logistic"})
    assert "softmax" in refused(service.client().post("/v1/plan", json=body), 422, "invalid-request")["detail"]


def test_a_body_that_is_not_json_is_told_so(service: Service):
    for url in ("/v1/streams", "/v1/publications", "/v1/plan", "/v1/keys"):
        refused(service.client().post(url, data={"name": "a"}), 415, "unsupported-media-type")
        refused(service.client().post(url, content=b"{"), 422, "invalid-request")


def test_a_plan_needs_no_name(service: Service):
    body = publication(service.stream(), WINDOW)
    del body["name"]
    ok(service.client().post("/v1/plan", json=body))
    refused(service.client().post("/v1/publications", json=body), 422, "invalid-request")


def test_unknown_names_are_404(service: Service):
    refused(service.client().post("/v1/publications", json=publication("no-such", WINDOW)), 404, "not-found")
    refused(service.client().post("/v1/plan", json=publication("no-such", WINDOW)), 404, "not-found")
    for url in ("/v1/streams/no-such", "/v1/publications/no-such", "/v1/publications/no-such/releases"):
        refused(service.client().get(url), 404, "not-found")
    refused(service.client().delete("/v1/publications/no-such"), 404, "not-found")


def test_publications_add_up_against_the_stream_and_the_one_too_many_is_told_the_numbers(service: Service):
    stream = service.stream(epsilon=1)
    # Decimals: 0.1 + 0.2 + 0.7 is 1, not a little more.
    for epsilon in (0.1, 0.2, 0.7):
        service.publish(stream, WINDOW, epsilon=epsilon)
    body = publication(stream, CONTINUAL, epsilon=0.001)
    problem = refused(service.client().post("/v1/publications", json=body), 409, "budget-exceeded")
    assert problem["spent"]["epsilon"] == 0
    assert problem["reserved"]["epsilon"] == 1
    assert problem["asked"]["epsilon"] == 0.001
    assert problem["left"]["epsilon"] == 0
    assert ok(service.client().get(f"/v1/streams/{stream}"))["reserved"]["epsilon"] == 1


def test_of_two_at_the_same_moment_the_budget_holds_one(service: Service, monkeypatch):
    """The second waits for the first, and finds what that has reserved."""
    stream, checked = service.stream(epsilon=1), []
    real, database = admission.check, Database(str(service.settings.database_url))

    def check(*args: Any) -> None:
        real(*args)
        checked.append(None)
        wait_until(lambda: len(checked) == 2 or blocked(database))

    def ask(_: int) -> int:
        return service.client().post("/v1/publications", json=publication(stream, WINDOW, epsilon=0.6)).status_code

    monkeypatch.setattr(admission, "check", check)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(ask, range(2))) == [201, 409]
    assert ok(service.client().get(f"/v1/streams/{stream}"))["reserved"]["epsilon"] == 0.6
    database.close()


def test_deltas_add_up_too(service: Service):
    stream = service.stream(epsilon=10, delta=2e-6)
    for _ in range(2):
        service.publish(stream, WINDOW, delta=1e-6)
    body = publication(stream, WINDOW, delta=1e-9)
    refused(service.client().post("/v1/publications", json=body), 409, "budget-exceeded")
    assert ok(service.client().get(f"/v1/streams/{stream}"))["reserved"] == {"epsilon": 2, "delta": 2e-6}


def test_a_plan_reserves_nothing_and_is_the_plan_of_the_publication(service: Service):
    stream = service.stream(epsilon=1)
    body = publication(stream, CONTINUAL)
    plan = ok(service.client().post("/v1/plan", json=body))
    mine = [line["what"] for line in plan.pop("measured")["lines"] if line["this"]]
    assert mine == ["cumulative (`continual`, `equal`), output perturbation"]
    assert plan.pop("timing")["publish_delay"] == 0
    assert plan.pop("notes")
    assert ok(service.client().get(f"/v1/streams/{stream}"))["reserved"]["epsilon"] == 0
    made = ok(service.client().post("/v1/publications", json=body), 201)
    assert made["plan"] == plan
    assert plan["lifetime"]["epsilon"] == 1


def test_stopping_gives_back_what_is_unspent(service: Service):
    stream = service.stream(epsilon=1, delta=1e-6)
    pure = service.publish(stream, {"kind": "sliding_window", "block": 5, "blocks": 1}, epsilon=0.5)
    gaussian = service.publish(stream, {"kind": "continual", "base": 5, "update_every": 5}, epsilon=0.5, delta=1e-6)
    service.post(stream, [[1, 0]] * 12, [0, 1] * 6)
    service.reaches(pure, time=10)
    service.reaches(gaussian, time=10)
    for name in (pure, gaussian):
        stopped = ok(service.client().delete(f"/v1/publications/{name}"))
        assert stopped["state"] == "stopped"
        assert ok(service.client().delete(f"/v1/publications/{name}")) == stopped
    # Old records: pure was charged all it may be, Gaussian keeps its whole cap where it charged anything.
    again = publication(stream, WINDOW, epsilon=0.01, start=5)
    refused(service.client().post("/v1/publications", json=again), 409, "budget-exceeded")
    # Records that nobody charged have everything again.
    service.publish(stream, WINDOW, epsilon=1, delta=1e-6)


def test_an_earlier_start_reads_what_is_already_there(service: Service):
    stream = service.stream()
    service.post(stream, [[1, 0]] * 11, [0] * 11)
    name = service.publish(stream, {"kind": "sliding_window", "block": 5, "blocks": 1}, start=0)
    assert [release["fit"] for release in service.released(name, time=10)] == [
        {"start": 0, "end": 5},
        {"start": 5, "end": 10},
    ]


def test_without_a_start_it_begins_with_the_next_record(service: Service):
    stream = service.stream()
    service.post(stream, [[1, 0]] * 3, [0] * 3)
    name = service.publish(stream, {"kind": "sliding_window", "block": 5, "blocks": 1})
    assert ok(service.client().get(f"/v1/publications/{name}"))["start"] == 3
    service.post(stream, [[1, 0]] * 5, [0] * 5)
    assert service.released(name, time=8)[0]["fit"] == {"start": 3, "end": 8}


@pytest.mark.parametrize(
    "change", [{"task": {"kind": "canary"}}, {"task": {"kind": [31415.5]}}, {"canary canary": 1}, {"c" * 100: 1}]
)
def test_a_refused_configuration_is_not_repeated(service: Service, change):
    good = {"name": unique("s"), "features": 2, "task": {"kind": "unlabelled"}, "budget": {"epsilon": 1, "delta": 0}}
    text = service.client().post("/v1/streams", json=good | change).text
    assert not any(canary in text for canary in ("canary", "31415.5", "c" * 41))


def test_streams_and_publications_come_in_pages(service: Service):
    streams = [service.stream() for _ in range(3)]
    names = [service.publish(streams[0], WINDOW) for _ in range(3)]
    for kind, wanted in (("streams", streams), ("publications", names)):
        first = ok(service.client().get(f"/v1/{kind}?limit=2"))["items"]
        rest = ok(service.client().get(f"/v1/{kind}?limit=1&before={first[-1]['id']}"))["items"]
        assert [item["name"] for item in first + rest] == wanted[::-1]
        refused(service.client().get(f"/v1/{kind}?before=x"), 422, "invalid-request")
        refused(service.client().get(f"/v1/{kind}?limit=0"), 422, "invalid-request")


def test_a_publication_that_goes_on_no_more_is_due_never_and_says_why(service: Service):
    stream = service.stream()
    name, other = (service.publish(stream, WINDOW) for _ in range(2))

    def shows(publication: str) -> tuple[str, str | None, int | None]:
        shown = ok(service.client().get(f"/v1/publications/{publication}"))
        return shown["state"], shown["reason"], shown["due"]

    assert shows(name) == ("running", None, 15)
    ok(service.client().delete(f"/v1/publications/{other}"))
    with closing(Database(str(service.settings.database_url))) as database:
        for why in ("charge 1: its hash is another", None):
            with database.transaction() as connection:
                streams.distrust(connection, streams.find(connection, stream), why)
            if why is not None:
                assert shows(name) == ("halted", f"the ledger of its stream does not verify: {why}", None)
            assert shows(other) == ("stopped", None, None)
    assert shows(name) == ("running", None, 15)
