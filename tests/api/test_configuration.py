"""The API takes configuration as it is written, or refuses it: no name comes twice, no number is rounded."""

import json
from decimal import Decimal

import httpx
import pytest

from docs.http_reference import openapi as document
from service.store import publications, streams
from service.store.database import Database
from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, unique

WINDOW = {"kind": "sliding_window", "block": 5, "blocks": 3}
LONG = "3.99999999999999999"


def read_by_the_framework(operation: dict) -> bool:
    """Routes that take records read the body themselves; their schemas stand in the document inline."""
    return "$ref" in operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})


CONFIGURED = [
    "/v1/explorer/explorations",
    "/v1/keys",
    "/v1/plan",
    "/v1/publications",
    "/v1/publications/{publication}/labels",
    "/v1/streams",
]


@pytest.mark.more
def test_every_route_with_configuration_is_known():
    paths = document()["paths"]
    assert sorted(path for path in paths if read_by_the_framework(paths[path].get("post", {}))) == CONFIGURED
    others = {path for path, methods in paths.items() if {"put", "patch"} & methods.keys()}
    assert others == set()


every_configured_route = pytest.mark.parametrize("path", CONFIGURED)


def send(client: httpx.Client, path: str, body: bytes | str, **headers: str) -> httpx.Response:
    headers = {"Content-Type": "application/json"} | headers
    return client.post(path.format(publication="no-such"), content=body, headers=headers)


@every_configured_route
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"secret": "a-1", "secret": "a-2"}', "secret"),
        ('{"privacy": {"epsilon": 1, "delta": 0, "epsilon": 1000}}', "privacy.epsilon"),
        ('{"lines": [1, {"epsilon": 1, "\\u0065psilon": 1}]}', "lines.1.epsilon"),
        ('[{"a b": 1, "a b": 2}]', "0.…"),
    ],
)
def test_a_name_twice_is_refused_by_its_place(service: Service, path, body, field):
    problem = refused(send(service.client(), path, body), 422, "invalid-request")
    reason = "this name comes twice in its object; write it once"
    assert problem["errors"] == [{"field": field, "reason": reason}]
    assert problem["detail"] == f"{field}: {reason}"
    assert not any(value in json.dumps(problem) for value in ("a-1", "a-2", "1000"))


@every_configured_route
@pytest.mark.parametrize("digits", [LONG, "0.10000000000000001", "1e-400", "1e400"])
def test_a_number_that_would_be_rounded_is_refused_by_its_place(service: Service, path, digits):
    body = f'{{"budget": [{{"epsilon": {digits}}}]}}'
    problem = refused(send(service.client(), path, body), 422, "invalid-request")
    (error,) = problem["errors"]
    assert error["field"] == "budget.0.epsilon"
    assert "round it to at most 15 significant digits" in error["reason"]
    assert digits not in json.dumps(problem)


@every_configured_route
def test_the_key_the_size_and_the_format_are_looked_at_first(service: Service, path):
    twice = '{"a": 1, "a": 2}'
    with httpx.Client(base_url=service.url) as stranger:
        refused(send(stranger, path, twice), 401, "unauthenticated")
    wrong = service.key("read" if path in ("/v1/keys", "/v1/publications", "/v1/streams") else "ingest")
    refused(send(service.client(wrong), path, twice), 403, "forbidden")
    refused(send(service.client(), path, twice + " " * 2**20), 413, "too-large")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    refused(send(service.client(), path, twice, **form), 415, "unsupported-media-type")
    refused(send(service.client(), path, twice, **{"Content-Encoding": "gzip"}), 422, "invalid-request")


@every_configured_route
@pytest.mark.parametrize("body", ["{", '{"a": "\\x"}', b'{"a": "\xff"}', "[" * 100_000 + "]" * 100_000, "1" * 5000, ""])
def test_what_is_not_json_is_refused_as_such(service: Service, path, body):
    problem = refused(send(service.client(), path, body), 422, "invalid-request")
    assert "twice" not in problem["detail"]
    assert "significant digits" not in problem["detail"]


def test_what_is_twice_or_too_long_makes_nothing(service: Service):
    stream, key = unique("stream"), unique("key")
    schema = '"features": 2, "task": {"kind": "classification", "classes": 2}'
    for budget in ('{"epsilon": 1, "epsilon": 1000}', f'{{"epsilon": {LONG}}}'):
        body = f'{{"name": "{stream}", {schema}, "budget": {budget}}}'
        refused(send(service.client(), "/v1/streams", body), 422, "invalid-request")
    refused(service.client().get(f"/v1/streams/{stream}"), 404, "not-found")
    body = f'{{"name": "{key}", "scopes": ["read"], "scopes": ["admin"]}}'
    refused(send(service.client(), "/v1/keys", body), 422, "invalid-request")
    assert key not in {each["name"] for each in ok(service.client().get("/v1/keys?limit=1000"))["items"]}


@pytest.mark.parametrize(
    "epsilon", ['"1"', '"3.99999999999999999"', "NaN", "Infinity", "true", "null", "0.1234567890123456"]
)
def test_a_budget_is_a_number_of_at_most_15_digits(service: Service, epsilon):
    stream = service.stream()
    wanted = json.dumps(publication(stream, WINDOW) | {"privacy": {"epsilon": 0, "delta": 0}})
    body = wanted.replace('"epsilon": 0', f'"epsilon": {epsilon}')
    for path in ("/v1/plan", "/v1/publications"):
        problem = refused(send(service.client(), path, body), 422, "invalid-request")
        assert problem["errors"][0]["field"] == "privacy.epsilon"
    assert ok(service.client().get(f"/v1/streams/{stream}"))["publications"] == []


@pytest.mark.more
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        ("123.456789012345", "1.23456789012345e-100"),
        ("0.1", "1e-6"),
        ("1e0", "0.0"),
        ("1.50", "0"),
        ("1e-9", "0.999999999999999"),
        ("1000.0000", "1.0E-5"),
    ],
)
def test_a_budget_is_kept_as_it_is_written_digit_by_digit(service: Service, epsilon, delta):
    stream, name = unique("stream"), unique("publication")
    privacy = f'{{"epsilon": {epsilon}, "delta": {delta}}}'
    schema = '"features": 2, "task": {"kind": "classification", "classes": 2}'
    ok(send(service.client(), "/v1/streams", f'{{"name": "{stream}", {schema}, "budget": {privacy}}}'), 201)
    learner = '{"kind": "output_perturbation"}'
    body = f'{{"name": "{name}", "stream": "{stream}", "mechanism": {json.dumps(WINDOW)}, "learner": {learner}, '
    ok(send(service.client(), "/v1/publications", f'{body}"privacy": {privacy}}}'), 201)
    written = Decimal(epsilon), Decimal(delta)
    database = Database(service.settings.database_url)
    with database.transaction() as connection:
        for stored in (streams.find(connection, stream), publications.find(connection, name)):
            assert stored is not None
            assert (stored.epsilon, stored.delta) == written
    database.close()
    read = httpx.get(f"{service.url}/v1/publications/{name}", headers={"Authorization": f"Bearer {service.admin_key}"})
    served = json.loads(read.text, parse_float=Decimal, parse_int=Decimal)["privacy"]
    assert (served["epsilon"], served["delta"]) == written
