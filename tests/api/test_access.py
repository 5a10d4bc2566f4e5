"""Who may do what. Every route × every scope, from the OpenAPI document, so that a new route can't be forgotten."""

import httpx
import pytest

from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, Service, make_world, ok, serving, unique

OPEN = {("get", "/livez"), ("get", "/readyz"), ("get", "/metrics")}
INGEST = {("post", "/v1/streams/{stream}/records"), ("get", "/v1/streams/{stream}/entries/{entry}")}
READ = {
    ("get", "/v1/streams"),
    ("get", "/v1/streams/{stream}"),
    ("get", "/v1/streams/{stream}/ledger"),
    ("get", "/v1/streams/{stream}/ledger/charges"),
    ("post", "/v1/plan"),
    ("get", "/v1/publications"),
    ("get", "/v1/publications/{publication}"),
    ("get", "/v1/publications/{publication}/releases"),
    ("get", "/v1/publications/{publication}/releases/latest"),
    ("get", "/v1/publications/{publication}/releases/{version}"),
    ("get", "/v1/publications/{publication}/events"),
    ("post", "/v1/publications/{publication}/predict"),
}
ADMIN = {
    ("post", "/v1/keys"),
    ("get", "/v1/keys"),
    ("delete", "/v1/keys/{key}"),
    ("post", "/v1/streams"),
    ("delete", "/v1/streams/{stream}/records"),
    ("post", "/v1/streams/{stream}/resume"),
    ("get", "/v1/streams/{stream}/dead-letters"),
    ("delete", "/v1/streams/{stream}/dead-letters/{entry}"),
    ("post", "/v1/publications"),
    ("delete", "/v1/publications/{publication}"),
}


def operations(service: Service) -> set[tuple[str, str]]:
    paths = ok(service.client().get("/openapi.json"))["paths"]
    return {(method, path) for path, operations in paths.items() for method in operations}


def call(client, method: str, path: str) -> int:
    url = path.format(stream="no-such", publication="no-such", entry="1-1", version=1, key=10**9)
    return client.request(method, url, json={} if method == "post" else None).status_code


def test_every_route_has_a_scope(service: Service):
    assert operations(service) == OPEN | INGEST | READ | ADMIN


@pytest.mark.parametrize("scope", ["ingest", "read", "label", "admin"])
def test_a_key_may_do_what_its_scope_says_and_nothing_else(service: Service, scope):
    client = service.client(service.key(scope))
    allowed = {"ingest": INGEST, "read": READ, "label": set(), "admin": INGEST | READ | ADMIN}[scope]
    for method, path in operations(service) - OPEN:
        assert (call(client, method, path) != 403) == ((method, path) in allowed), (method, path)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}])
def test_without_a_valid_key_nothing_answers(service: Service, headers):
    with httpx.Client(base_url=service.url, headers=headers) as client:
        for method, path in operations(service) - OPEN:
            assert call(client, method, path) == 401, (method, path)
        assert client.get("/v1/streams").headers["www-authenticate"] == "Bearer"


def test_a_limited_key_sees_only_its_streams(service: Service):
    mine, other = service.stream(), service.stream()
    theirs = service.publish(other, {"kind": "sliding_window", "block": 5, "blocks": 1})
    ours = service.publish(mine, {"kind": "sliding_window", "block": 5, "blocks": 1})
    client = service.client(service.key("read", "ingest", streams=[mine]))
    assert [item["name"] for item in ok(client.get("/v1/streams"))["items"]] == [mine]
    assert [item["name"] for item in ok(client.get("/v1/publications"))["items"]] == [ours]
    ok(client.get(f"/v1/streams/{mine}/ledger"))
    for url in (f"/v1/streams/{other}", f"/v1/streams/{other}/ledger", f"/v1/publications/{theirs}"):
        assert client.get(url).json() == client.get(url.replace("-", "-x-", 1)).json(), "it tells that the other exists"
    assert client.post(f"/v1/streams/{other}/records", json={"x": [[1, 2]], "y": [0]}).status_code == 404


def test_a_limited_admin_can_not_make_a_wider_key(service: Service):
    client = service.client(service.key("admin", streams=[service.stream()]))
    assert client.post("/v1/keys", json={"name": unique("key"), "scopes": ["admin"]}).status_code == 403
    assert client.get("/v1/keys").status_code == 403


def test_a_key_is_shown_once_and_a_revoked_one_is_dead_at_once(service: Service):
    made = ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]}), 201)
    client = service.client(made["key"])
    ok(client.get("/v1/streams"))
    listing = service.client().get("/v1/keys?limit=1000").text
    assert made["name"] in listing
    assert made["key"] not in listing
    assert service.client().delete(f"/v1/keys/{made['id']}").status_code == 204
    assert client.get("/v1/streams").status_code == 401


def test_the_name_of_a_key_is_never_used_again(service: Service):
    asked = {"name": unique("key"), "scopes": ["read"]}
    made = ok(service.client().post("/v1/keys", json=asked), 201)
    service.client().delete(f"/v1/keys/{made['id']}")
    assert service.client().post("/v1/keys", json=asked).json()["type"] == "urn:perennial:problem:name-taken"


def test_lists_come_newest_first_in_pages(service: Service):
    names = [unique("key") for _ in range(3)]
    for name in names:
        ok(service.client().post("/v1/keys", json={"name": name, "scopes": ["read"]}), 201)
    first = ok(service.client().get("/v1/keys?limit=2"))["items"]
    rest = ok(service.client().get(f"/v1/keys?limit=1&before={first[-1]['id']}"))["items"]
    assert [item["name"] for item in first + rest] == names[::-1]


def test_the_last_admin_key_can_not_be_revoked(servers, tmp_path):
    with serving(make_world(servers, tmp_path).settings) as url:
        alone = Service(url, ADMIN_KEY, None)
        (only,) = ok(alone.client().get("/v1/keys"))["items"]
        refused(alone.client().delete(f"/v1/keys/{only['id']}"), 409, "last-admin-key")
        another = alone.key("admin")
        assert alone.client(another).delete(f"/v1/keys/{only['id']}").status_code == 204
        refused(alone.client().get("/v1/keys"), 401, "unauthenticated")
        for client in alone.clients.values():
            client.close()


@pytest.mark.parametrize("name", ["%00", "A", "a%2Fb", "%F0%9F%99%82", "a" * 64])
def test_what_is_no_name_is_not_found(service: Service, name):
    for method, path in operations(service) - OPEN:
        if "{stream}" in path or "{publication}" in path:
            url = path.replace("{stream}", name).replace("{publication}", name).format(entry="%00", version=1)
            body = {"json": {}} if method == "post" else {}
            url += "?start=0&end=1" if method == "delete" and path.endswith("/records") else ""
            assert service.client().request(method, url, **body).status_code == 404, (method, url)


def test_an_address_tells_all_that_it_answers_to(service: Service):
    answer = service.client().request("OPTIONS", "/v1/streams")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


@pytest.mark.parametrize("path", ["/v1/streams", "/v1/publications", "/v1/plan", "/v1/keys"])
def test_nobody_makes_it_read_a_large_configuration(service: Service, path):
    with httpx.Client(base_url=service.url) as stranger:
        body = b'{"name":"' + b"a" * 2**21 + b'"}'
        refused(stranger.post(path, content=body), 413, "too-large")
        refused(stranger.post(path, content=iter([body])), 413, "too-large")
