"""An answer from memory is the application's, header by header, and counts and is refused as that one."""

import time
from collections.abc import Callable

import httpx
import pytest

from service import metrics
from service.api import newest_models, services
from service.api.auth import known_keys
from service.api.ready_releases import Ready, ReadyReleases
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, Service, ok, serving, unique, wait_until

BATCHES = {"kind": "independent_batches", "batch": 2}
TYPES = ("application/json", "application/vnd.safetensors")


@pytest.fixture
def ready(monkeypatch) -> list[Ready]:
    """All answers from memory, as they are made."""
    monkeypatch.setattr(newest_models, "MOST_SECONDS", 1000.0)
    made: list[Ready] = []
    find = ReadyReleases._find

    def noted(self: ReadyReleases, scope: dict) -> Ready | None:
        if (answer := find(self, scope)) is not None:
            made.append(answer)
        return answer

    monkeypatch.setattr(ReadyReleases, "_find", noted)
    return made


@pytest.fixture(scope="module")
def url(service: Service) -> str:
    """Where the releases are of a publication that has one, with ticks."""
    stream = service.stream()
    name = service.publish(stream, BATCHES, publish_delay=1)
    service.post(stream, [[1, 0], [0, 1]], [0, 1])
    service.reaches(name, time=2)
    return f"/v1/publications/{name}/releases"


def from_memory(ready: list[Ready], get: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until the answer comes from memory."""

    def answer() -> httpx.Response | None:
        before, got = len(ready), get()
        return got if len(ready) > before else None

    return wait_until(answer)


@pytest.mark.parametrize("accept", TYPES)
@pytest.mark.parametrize("which", ["latest", "1"])
def test_it_is_what_the_application_answers(service: Service, url, ready, which, accept):
    def get(**headers: str) -> httpx.Response:
        return service.client().get(f"{url}/{which}", headers={"Accept": accept} | headers)

    tag = get().headers["etag"]
    for condition, status in (({}, 200), ({"If-None-Match": tag}, 304), ({"If-None-Match": '"x"'}, 200)):
        answer = from_memory(ready, lambda condition=condition: get(**condition))
        before = len(ready)
        whole = get(Prefer="handling=lenient", **condition)
        assert len(ready) == before
        assert answer.status_code == whole.status_code == status
        assert answer.content == whole.content
        own, same = dict(answer.headers), dict(whole.headers)
        assert own.pop("x-request-id") != same.pop("x-request-id")
        assert {**own, "date": ""} == {**same, "date": ""}


def test_versions_may_be_cached_and_the_latest_must_be_asked_for_again(service: Service, url, ready):
    client = service.client()
    version, latest = (from_memory(ready, lambda of=of: client.get(f"{url}/{of}")) for of in ("1", "latest"))
    assert version.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert latest.headers["cache-control"] == "private, no-cache"


def test_it_is_timed_under_its_route(service: Service, url, ready):
    def count(route: str) -> float:
        labels = {"method": "GET", "route": f"/v1/publications/{{publication}}/releases/{route}", "status": "200"}
        return metrics.API.get_sample_value("perennial_http_request_duration_seconds_count", labels) or 0

    for of, route in (("1", "{version}"), ("latest", "latest")):
        versions, before = [], count(route)
        from_memory(ready, lambda of=of, versions=versions: versions.append(of) or service.client().get(f"{url}/{of}"))
        assert count(route) == before + len(versions)


def test_a_key_of_another_stream_or_scope_gets_nothing_from_memory(service: Service, url, ready):
    from_memory(ready, lambda: service.client().get(f"{url}/1"))
    elsewhere = service.client(service.key("read", streams=[service.stream()]))
    ingester = service.client(service.key("ingest"))
    for of in ("1", "1", "latest"):  # at first its key is not known yet
        refused(elsewhere.get(f"{url}/{of}"), 404, "not-found")
        refused(ingester.get(f"{url}/{of}"), 403, "forbidden")


def test_a_revoked_key_reads_nothing_after_the_stated_time(service: Service, url, ready):
    made = ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]}), 201)
    client = service.client(made["key"])
    from_memory(ready, lambda: [client.get(f"{url}/1") for _ in range(2)][1])  # the first makes the key known
    assert service.client().delete(f"/v1/keys/{made['id']}").status_code == 204
    over = time.monotonic() + known_keys.KEY_CACHE_SECONDS
    wait_until(lambda: time.monotonic() > over)
    for of in ("1", "latest"):
        refused(client.get(f"{url}/{of}"), 401, "unauthenticated")


def test_it_counts_for_the_rate_of_its_key_and_not_on_the_port_for_prometheus(
    service: Service, url, ready, monkeypatch
):
    monkeypatch.setattr(services, "SECONDS_OF_REQUESTS", 1000.0)
    monkeypatch.setattr(newest_models, "MOST_SECONDS", 1000.0)  # so that only the port decides
    run = serving(service.settings.model_copy(update={"max_key_requests": 0.01}))  # ten, and one in 100 seconds
    with run as address, httpx.Client(base_url=address, headers={"Authorization": f"Bearer {ADMIN_KEY}"}) as client:
        ok(client.get(f"{url}/1"))
        refused(client.get(f"{run.metrics_url}{url}/1"), 404, "not-found")
        assert not ready
        answers = [client.get(f"{url}/1").status_code for _ in range(40)]
        assert ready
        assert answers.count(200) < 20
        assert set(answers) == {200, 429}


def test_a_version_that_is_not_there_yet_is_never_unchanged(service: Service, url, ready):
    """A cache would else keep it."""
    from_memory(ready, lambda: service.client().get(f"{url}/1"))
    refused(service.client().get(f"{url}/2", headers={"If-None-Match": "*"}), 404, "not-found")


def test_of_tags_in_several_lines_each_counts(service: Service, url, ready):
    tag = from_memory(ready, lambda: service.client().get(f"{url}/1")).headers["etag"]
    lines = [("If-None-Match", tag), ("If-None-Match", '"other"')]
    assert service.client().get(f"{url}/1", headers=lines).status_code == 304
