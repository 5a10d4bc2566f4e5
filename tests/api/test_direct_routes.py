"""Routes that are called without the framework are those that it documents, and refuse, count and time all requests."""

import json

import httpx
import pytest
from fastapi.routing import APIRoute

from service import metrics
from service.api import services
from service.api.direct_routes import _find
from service.api.routes import records, releases
from service.log import Appender, BacklogFull, IdempotencyConflict, IdempotencyFull, LogUnavailable
from tests.api.formats import as_json
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, Service, ok, serving, unique

X, Y = [[1.0, 2.0], [3.0, 4.0]], [0, 1]
ROUTES = (records.POST, releases.LATEST, releases.VERSION)


@pytest.fixture(scope="module")
def stream(service: Service) -> str:
    return service.stream()


@pytest.fixture(scope="module")
def name(service: Service) -> str:
    """A publication of another stream, with one release."""
    stream = service.stream()
    name = service.publish(stream, {"kind": "independent_batches", "batch": 2}, publish_delay=1)
    service.post(stream, X, Y)
    service.reaches(name, time=2)
    return name


def call(client: httpx.Client, route: APIRoute, stream: str, name: str, base: str = "", **headers: str):
    url = base + route.path_format.format(stream=stream, publication=name, version=1)
    return client.request(*route.methods, url, content=as_json(X, Y), headers=headers)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path_format)
def test_a_direct_route_is_the_one_that_the_framework_documents(route):
    path = route.path_format.format(stream="a", publication="a", version="1")
    for method in route.methods:
        found, params, _ = _find({"type": "http", "method": method, "path": path})
        assert found is route
        assert params == route.path_regex.match(path).groupdict()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/publications/a/releases/outline"),
        ("GET", "/v1/publications/a/releases"),
        ("GET", "/v1/publications/a/releases/"),
        ("GET", "/v1/publications/a/releases/1/"),
        ("GET", "/v1/publications//releases/latest"),
        ("POST", "/v1/publications/a/releases/latest"),
        ("POST", "/v1/streams//records"),
        ("DELETE", "/v1/streams/a/records"),
    ],
)
def test_other_routes_are_left_to_the_framework(method, path):
    assert _find({"type": "http", "method": method, "path": path}) is None


@pytest.mark.parametrize("version", ["abc", "0", "-1", "1_0", "+1", "1.0", str(2**31), "9" * 5000])
def test_what_is_no_version_is_refused_by_its_place(service: Service, name, version):
    answer = service.client().get(f"/v1/publications/{name}/releases/{version}")
    refused(answer, 422, "invalid-request")
    assert [error["field"] for error in answer.json()["errors"]] == ["path.version"]


def test_a_batch_of_too_many_records_is_refused_however_small_it_is(service: Service, stream):
    most = service.settings.max_batch_records
    body = b'{"x":[[0,0]%b],"y":[0%b]}' % (b",[0,0]" * most, b",0" * most)
    answer = service.client().post(f"/v1/streams/{stream}/records", content=body)
    refused(answer, 413, "too-large")
    assert answer.json()["detail"] == f"A batch of this stream holds at most {most} records; split it."


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BacklogFull(), 429, "backlog-full"),
        (IdempotencyConflict(), 422, "idempotency-conflict"),
        (IdempotencyFull(seconds=9, limit=3), 429, "idempotency-full"),
        (LogUnavailable("the log does not answer"), 503, "log-unavailable"),
        (ZeroDivisionError(), 500, "internal-error"),
    ],
)
def test_what_the_log_refuses_is_sent_to_it_once(service: Service, stream, name, monkeypatch, error, status, kind):
    attempts = []

    async def append(*_: object, **__: object) -> None:
        attempts.append(kind)
        raise error

    monkeypatch.setattr(Appender, "append", append)
    refused(call(service.client(), records.POST, stream, name), status, kind)
    assert attempts == [kind]


def test_requests_are_timed_under_their_routes_and_records_are_counted(service: Service, stream, name):
    def count(route: APIRoute) -> float:
        status = "202" if route is records.POST else "200"
        labels = {"method": "".join(route.methods), "route": route.path_format, "status": status}
        return metrics.API.get_sample_value("perennial_http_request_duration_seconds_count", labels) or 0

    def accepted() -> float:
        return metrics.API.get_sample_value("perennial_accepted_records_total", {"stream": stream}) or 0

    requests, before = [count(route) for route in ROUTES], accepted()
    key = unique("key")
    for _ in range(2):  # the log knows the second batch again
        for route in ROUTES:
            assert call(service.client(), route, stream, name, **{"Idempotency-Key": key}).is_success
    assert [count(route) for route in ROUTES] == [number + 2 for number in requests]
    assert accepted() == before + len(X)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path_format)
def test_each_request_counts_for_the_rate_of_its_key_and_none_is_answered_on_the_port_for_prometheus(
    service: Service, stream, name, monkeypatch, route
):
    monkeypatch.setattr(services, "SECONDS_OF_REQUESTS", 1000.0)
    run = serving(service.settings.model_copy(update={"max_key_requests": 0.01}))  # ten, and one in 100 seconds
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with run as url, httpx.Client(headers=headers) as client:
        refused(call(client, route, stream, name, run.metrics_url), 404, "not-found")
        answers = [call(client, route, stream, name, url).status_code for _ in range(20)]
        assert answers[0] in (200, 202)
        assert answers.count(429) >= 8
        refused(call(client, route, stream, name, url), 429, "too-many-requests")
        assert client.get(f"{run.metrics_url}/metrics").status_code == 200


@pytest.mark.parametrize("route", [releases.LATEST, releases.VERSION], ids=["latest", "version"])
def test_head_is_get_without_its_body(service: Service, name, route):
    url = route.path_format.format(publication=name, version=1)
    head, answer = service.client().head(url), service.client().get(url)
    assert (head.status_code, head.content) == (200, b"")
    for own in ("date", "x-request-id"):
        del head.headers[own], answer.headers[own]
    assert head.headers == answer.headers


def test_versions_may_be_cached_and_the_latest_must_be_asked_for_again(service: Service, stream, name):
    latest, version = (call(service.client(), route, stream, name) for route in (releases.LATEST, releases.VERSION))
    assert latest.headers["cache-control"] == "private, no-cache"
    assert version.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert json.loads(latest.content) == ok(version)
