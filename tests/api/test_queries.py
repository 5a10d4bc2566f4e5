"""Linear queries over HTTP: asked of a categorical stream, answered, charged and released."""

import json
import random

import httpx
import numpy as np
import pytest
from safetensors.numpy import load

from service.api.routes.queries import read_queries
from service.streams.batches import InvalidRecords
from tests.api.test_mutations import mutated
from tests.conftest import Service, ok, serving, unique, wait_until

CATEGORIES = 8


def categorical(service: Service, *, epsilon: float = 100, delta: float = 0, **more) -> str:
    task = {"kind": "categorical", "cardinality": CATEGORIES}
    body = {"name": unique("stream"), "task": task, "budget": {"epsilon": epsilon, "delta": delta}} | more
    return ok(service.client().post("/v1/streams", json=body), 201)["name"]


def publish(service: Service, stream: str, *, epsilon: float = 100, delta: float = 0, **settings) -> str:
    mechanism = {"kind": "linear_queries", "first": 100, "hits": 3, "accuracy": 0.3} | settings
    body = {"name": unique("publication"), "stream": stream, "mechanism": mechanism}
    body |= {"privacy": {"epsilon": epsilon, "delta": delta}}
    return ok(service.client().post("/v1/publications", json=body), 201)["name"]


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


@pytest.mark.more
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


@pytest.fixture(scope="module")
def answering(service: Service) -> str:
    """A publication with records, whose noise is a hundredth of one of them."""
    stream = categorical(service, epsilon=1000)
    publication = publish(service, stream, epsilon=1000)
    post(service, stream, [0] * 60 + [1] * 40)
    counted(service, publication, 100)
    return publication


def refused(service: Service, publication: str, body, status: int = 422):
    answer = service.client().post(f"/v1/publications/{publication}/queries", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_one_is_answered_by_one_and_a_list_by_a_list(service: Service, answering):
    weights = [0.5, 0.5, 0, 0, 0, 0, 0, 0]
    one = ask(service, answering, {"weights": weights})
    many = ask(service, answering, [{"weights": weights}, {"categories": [0, 1]}, {"categories": [1, 1, 0]}])
    assert [set(each) for each in many] == [set(one)] * 3
    assert [each["answer"] for each in many] == pytest.approx([0.5, 1, 1], abs=0.3)
    assert ask(service, answering, []) == []


def test_what_is_wrong_is_said_by_its_place(service: Service, answering):
    good, wrong = {"categories": [0]}, "must be an object with either"
    for query, reason in [
        ({"weights": [1, 0]}, "must be 8, one for each category"),
        ({"weights": [2, 0, 0, 0, 0, 0, 0, 0]}, "must lie within [0, 1]"),
        ({"weights": [-0.1, 0, 0, 0, 0, 0, 0, 0]}, "must lie within [0, 1]"),
        ({"weights": [[1], [0], [0], [0], [0], [0], [0], [0]]}, "an array of numbers"),
        ({"weights": [True, 0, 0, 0, 0, 0, 0, 0]}, "an array of numbers"),
        ({"weights": "all"}, "an array of numbers"),
        ({"weights": None}, "an array of numbers"),
        ({"categories": [8]}, "must lie within 0 … 7"),
        ({"categories": [-1]}, "must lie within 0 … 7"),
        ({"categories": [0.5]}, "an array of whole numbers"),
        ({"categories": [2**63]}, "an array of whole numbers"),
        ({"categories": [[1]]}, "an array of whole numbers"),
        ({"categories": [0], "weights": [0] * 8}, wrong),
        ({"colour": [0]}, wrong),
        ({}, wrong),
        (3, wrong),
        (None, wrong),
        ([good], wrong),
    ]:
        problem = refused(service, answering, [good, query, good])
        (error,) = problem["errors"]
        assert error["row"] == 1
        assert reason in error["reason"]
    for body in ("x", 5, None):
        assert refused(service, answering, body)["errors"][0]["row"] is None
    for content in (b"{", b'{"categories": [0], "categories": [1]}', b'[{"weights": [], "weights": []}]'):
        answer = service.client().post(f"/v1/publications/{answering}/queries", content=content)
        assert answer.status_code == 422


def by_the_letter(body: bytes) -> list | None:
    """The queries of a body, by the letter of the documentation; None: it is not right."""

    def once(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def number(value) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1

    def category(value) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < CATEGORIES

    def query(value) -> bool:
        if not isinstance(value, dict) or len(value) != 1:
            return False
        ((name, listed),) = value.items()
        if name == "weights":
            return isinstance(listed, list) and len(listed) == CATEGORIES and all(map(number, listed))
        return name == "categories" and isinstance(listed, list) and all(map(category, listed))

    try:
        document = json.loads(body.decode(), object_pairs_hook=once)
    except (ValueError, RecursionError):
        return None
    queries = document if isinstance(document, list) else [document]
    return queries if all(map(query, queries)) else None


def test_mutated_queries_are_read_by_the_letter_or_refused(seed):
    choose, right = random.Random(seed), 0
    for _ in range(3000):
        weights = [choose.choice([0, 1, 0.25, 1e-3]) for _ in range(CATEGORIES)]
        queries = [{"weights": weights}, {"categories": choose.sample(range(CATEGORIES), 3)}][: choose.randint(1, 2)]
        body = json.dumps(choose.choice([queries, queries[0]])).encode()
        body = mutated(body, choose) if choose.random() < 0.9 else body
        expected = by_the_letter(body)
        try:
            parsed, _ = read_queries(body, CATEGORIES)
        except InvalidRecords:
            assert expected is None, body
            continue
        assert expected is not None, body
        assert len(parsed) == len(expected), body
        for query, item in zip(parsed, expected, strict=True):
            listed = item.get("weights") or [float(each in item["categories"]) for each in range(CATEGORIES)]
            assert query.of(np.eye(CATEGORIES)[3]) == pytest.approx(listed[3], abs=2**-20)
        right += 1
    assert right > 300


def test_what_is_too_large_or_of_another_format_is_refused(service: Service, answering):
    path = f"/v1/publications/{answering}/queries"
    assert refused(service, answering, [{"categories": []}] * 10_001, 413)["type"].endswith("too-large")
    assert service.client().post(path, content=b"[" + b" " * 2**20 + b"]").status_code == 413
    assert service.client().post(path, content=b"x", headers={"Content-Type": "text/plain"}).status_code == 415


def test_where_nothing_is_counted_nothing_is_asked_and_a_histogram_predicts_nothing(service: Service, answering):
    models = service.publish(service.stream(), {"kind": "independent_batches", "batch": 4})
    assert refused(service, models, {"categories": [0]}, 409)["type"].endswith("no-queries")
    ask(service, answering, {"categories": [0]})
    answer = service.client().post(f"/v1/publications/{answering}/predict", json={"x": [[1.0]]})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:perennial:problem:no-predictions")


def test_a_histogram_is_a_release_like_any_other(service: Service):
    stream = categorical(service, epsilon=1000)
    publication = publish(service, stream, epsilon=1000)
    post(service, stream, [2] * 100)
    counted(service, publication, 100)
    path = f"/v1/publications/{publication}"
    ask(service, publication, {"categories": [2]})
    release = service.client().get(f"{path}/releases/latest", headers={"Accept": "application/vnd.safetensors"})
    assert release.headers["ETag"].startswith('"1.safetensors.1.')
    weights = load(release.content)["weights"]
    assert weights.shape == (1, CATEGORIES)
    assert weights[0, 2] > 0.5
    with service.client().stream("GET", f"{path}/events") as events:
        lines = events.iter_lines()
        assert "id: 1" in (next(lines), next(lines), next(lines))
    ledger = ok(service.client().get(f"/v1/streams/{stream}/ledger"))
    assert ledger["publications"][0]["lifetime"]["record"] == 0
    assert ledger["spent"]["epsilon"] <= 1000
    info = ok(service.client().get(path))
    assert info["learner"] is None
    assert info["plan"]["first_instance"]["opened"] == 100


def test_without_its_segments_nothing_is_compared_and_the_answer_says_why(service: Service):
    stream = categorical(service, epsilon=1000)
    publication = publish(service, stream, epsilon=1000)
    post(service, stream, [2] * 100)
    elsewhere = service.settings.model_copy(update={"segment_store": service.settings.segment_store / "elsewhere"})
    counted(service, publication, 100)
    with serving(elsewhere) as url:

        def refuses():
            answer = httpx.post(
                f"{url}/v1/publications/{publication}/queries",
                json={"categories": [2]},
                headers={"Authorization": f"Bearer {service.admin_key}"},
            )
            return answer if answer.status_code != 200 else None

        answer = wait_until(refuses)  # once the other process has given its lease back
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:perennial:problem:segments-unavailable")


def test_a_plan_warns_where_there_will_be_too_few_records_and_refuses_nothing(service: Service):
    stream = categorical(service, epsilon=1)
    mechanism = {"kind": "linear_queries", "first": 50, "accuracy": 0.1}
    body = {"stream": stream, "mechanism": mechanism, "privacy": {"epsilon": 1}}
    plan = ok(service.client().post("/v1/plan", json=body))
    assert plan["records_needed"][0]["records"] > 10**5
    assert "more records" in plan["warning"]
    ok(service.client().post("/v1/publications", json=body | {"name": unique("publication")}), 201)
