"""The rights of each scope. Every route × every scope, so that no new route is forgotten."""

import hashlib
import threading
from collections.abc import Iterator

import httpx
import pytest
import sqlalchemy
import structlog
from pydantic import SecretStr

from service.settings import Settings
from service.store import keys as stored_keys
from service.store.database import Database
from tests.api.operations import OPERATIONS
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, Service, blocked, make_world, ok, serving, unique, wait_until

OPEN = {("get", "/livez"), ("get", "/readyz")}
METRICS = {("get", "/metrics")}
INGEST = {
    ("post", "/v1/streams/{stream}/records"),
    ("get", "/v1/streams/{stream}/entries/{entry}"),
    ("get", "/v1/streams/{stream}/schema"),
}
READ = {
    ("get", "/v1/streams"),
    ("get", "/v1/streams/{stream}"),
    ("get", "/v1/streams/{stream}/ledger"),
    ("get", "/v1/streams/{stream}/ledger/charges"),
    ("post", "/v1/plan"),
    ("get", "/v1/publications"),
    ("get", "/v1/publications/{publication}"),
    ("get", "/v1/publications/{publication}/card"),
    ("get", "/v1/publications/{publication}/releases"),
    ("get", "/v1/publications/{publication}/releases/outline"),
    ("get", "/v1/publications/{publication}/releases/latest"),
    ("get", "/v1/publications/{publication}/releases/{version}"),
    ("get", "/v1/publications/{publication}/events"),
    ("post", "/v1/publications/{publication}/predict"),
    ("get", "/v1/explorer/datasets"),
    ("post", "/v1/explorer/datasets"),
    ("delete", "/v1/explorer/datasets/{dataset}"),
    ("post", "/v1/explorer/explorations"),
    ("get", "/v1/explorer/explorations"),
    ("get", "/v1/explorer/explorations/{exploration}"),
    ("get", "/v1/explorer/explorations/{exploration}/table"),
    ("delete", "/v1/explorer/explorations/{exploration}"),
    ("post", "/v1/publications/{publication}/queries"),
    ("post", "/v1/session"),
    ("get", "/v1/session"),
    ("delete", "/v1/session"),
}
LABEL = {
    ("get", "/v1/publications/{publication}/label-requests"),
    ("post", "/v1/publications/{publication}/labels"),
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
    ("get", "/v1/streams/{stream}/units/{unit}"),
    ("delete", "/v1/streams/{stream}/units/{unit}"),
    ("post", "/v1/publications"),
    ("delete", "/v1/publications/{publication}"),
}


GUARDED = [operation for operation in OPERATIONS if operation not in OPEN]
SCOPES = {
    "ingest": INGEST,
    "read": READ,
    "label": LABEL,
    "metrics": METRICS,
    "admin": INGEST | READ | LABEL | METRICS | ADMIN,
}
LINE = {
    "name": "a line",
    "mechanism": {"kind": "independent_batches", "batch": 9},
    "learner": {"kind": "output_perturbation"},
}
BODIES = {  # of a call that would do something, were the key allowed to
    "/v1/streams/{stream}/records": {"x": [[1, 2]], "y": [0]},
    "/v1/publications/{publication}/predict": {"x": [[1, 2]]},
    "/v1/explorer/explorations": {"dataset": 10**9, "lines": [LINE], "epsilons": [1]},
    "/v1/publications/{publication}/queries": {"categories": [0]},
    "/v1/publications/{publication}/labels": {"record": 0, "label": 1},
}

every_guarded_route = pytest.mark.parametrize(("method", "path"), GUARDED)


def call(client, method: str, path: str, *, stream: str = "no-such", publication: str = "no-such") -> httpx.Response:
    url = path.format(
        stream=stream,
        publication=publication,
        entry="1-1",
        version=1,
        key=10**9,
        dataset=10**9,
        exploration=10**9,
        unit="a",
    )
    url += "?start=0&end=1" if method == "delete" and path.endswith("/records") else ""
    return client.request(method, url, json=BODIES.get(path, {}) if method == "post" else None)


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    return {scope: service.key(scope) for scope in SCOPES}


@pytest.fixture(scope="module")
def stranger(service: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url) as client:
        yield client


def test_every_route_has_a_scope():
    assert set(OPERATIONS) == OPEN | INGEST | READ | LABEL | METRICS | ADMIN


@every_guarded_route
@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_may_do_what_its_scope_says_and_nothing_else(service: Service, keys, scope, method, path):
    answer = call(service.client(keys[scope]), method, path)
    if (method, path) in SCOPES[scope]:
        assert answer.status_code not in (401, 403)
    else:
        refused(answer, 403, "forbidden")


@every_guarded_route
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YTpi"}])
def test_without_a_valid_key_nothing_answers(stranger, headers, method, path):
    stranger.headers = headers
    answer = call(stranger, method, path)
    refused(answer, 401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", [path for method, path in GUARDED if method == "post"])
def test_the_key_is_looked_at_before_the_body_is_read(service: Service, keys, stranger, path):
    stranger.headers = {}
    url = path.format(stream="no-such", publication="no-such")
    body = b'{"name": ' + b" " * 2**21
    for content in (b"{", body, iter([body])):
        refused(stranger.post(url, content=content), 401, "unauthenticated")
    other = next(scope for scope, may in SCOPES.items() if ("post", path) not in may)
    refused(service.client(keys[other]).post(url, content=b"{"), 403, "forbidden")


@pytest.fixture(scope="module")
def elsewhere(service: Service) -> tuple[httpx.Client, dict[str, str]]:
    """A key that may do everything on one stream, and another stream with its publication."""
    other = service.stream()
    theirs = service.publish(other, {"kind": "sliding_window", "block": 5, "blocks": 1})
    return service.client(service.key("admin", streams=[service.stream()])), {"stream": other, "publication": theirs}


@pytest.mark.parametrize(("method", "path"), [each for each in GUARDED if "{stream}" in each[1] or "{pub" in each[1]])
def test_for_a_limited_key_other_streams_are_as_if_they_were_not(service: Service, elsewhere, method, path):
    client, names = elsewhere
    answer = call(client, method, path, **names)
    nothing = call(client, method, path)
    assert (answer.status_code, answer.json()) == (nothing.status_code, nothing.json())
    refused(answer, 404, "not-found")
    assert ok(service.client().get(f"/v1/publications/{names['publication']}"))["state"] == "running"


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


def test_a_key_that_is_limited_to_streams_gets_no_metrics(service: Service):
    stream = service.stream()
    refused(service.client(service.key("admin", streams=[stream])).get("/metrics"), 403, "forbidden")
    for scopes in (["metrics"], ["read", "metrics"]):
        body = {"name": unique("key"), "scopes": scopes, "streams": [stream]}
        answer = service.client().post("/v1/keys", json=body)
        refused(answer, 422, "invalid-request")
        assert "leave out streams, or metrics" in answer.json()["detail"]
        ok(service.client().post("/v1/keys", json=body | {"streams": None}), 201)


def test_a_session_gets_no_metrics(service: Service):
    key = service.key("read", "metrics")
    ok(service.client(key).get("/livez"))
    with httpx.Client(base_url=service.url) as browser:
        signed_in = browser.post("/v1/session", headers={"Authorization": f"Bearer {key}"})
        assert signed_in.is_success
        ok(browser.get("/v1/session"))
        for headers in ({}, {"X-Perennial-Page": "1"}):
            refused(browser.get("/metrics", headers=headers), 403, "forbidden")
    assert service.client(key).get("/metrics").status_code == 200


def test_a_limited_admin_can_not_make_a_wider_key(service: Service):
    client = service.client(service.key("admin", streams=[service.stream()]))
    assert client.post("/v1/keys", json={"name": unique("key"), "scopes": ["admin"]}).status_code == 403
    assert client.get("/v1/keys").status_code == 403


def test_a_limited_admin_can_revoke_no_key(service: Service):
    client = service.client(service.key("admin", streams=[service.stream()]))
    made = ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]}), 201)
    assert client.delete(f"/v1/keys/{made['id']}").status_code == 403
    ok(service.client(made["key"]).get("/v1/streams"))


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
    body = {"name": unique("key"), "scopes": ["read"]}
    made = ok(service.client().post("/v1/keys", json=body), 201)
    service.client().delete(f"/v1/keys/{made['id']}")
    assert service.client().post("/v1/keys", json=body).json()["type"] == "urn:perennial:problem:name-taken"


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


def test_of_two_last_admin_keys_that_revoke_each_other_one_stays(servers, tmp_path):
    """The second waits for the first to be done, and sees then that it is the last one."""
    database, outcomes = Database(make_world(servers, tmp_path).settings.database_url), []
    with database.transaction() as connection:
        made = [stored_keys.make(connection, name=name, scopes=["admin"], streams=None)[0] for name in ("one", "other")]

    def revoke_other() -> None:
        try:
            with database.transaction() as connection:
                outcomes.append(stored_keys.revoke(connection, made[1].id))
        except stored_keys.LastAdminKey as error:
            outcomes.append(error)

    with database.transaction() as connection:
        assert stored_keys.revoke(connection, made[0].id)
        other = threading.Thread(target=revoke_other)
        other.start()
        wait_until(lambda: outcomes or blocked(database))
    other.join()
    assert [type(each) for each in outcomes] == [stored_keys.LastAdminKey]
    database.close()


@pytest.mark.parametrize("name", ["%00", "A", "a%2Fb", "%F0%9F%99%82", "a" * 64])
def test_what_is_no_name_is_not_found(service: Service, name):
    for method, path in GUARDED:
        if "{stream}" in path or "{publication}" in path:
            answer = call(service.client(), method, path, stream=name, publication=name)
            assert answer.status_code == 404, (method, path)


def test_an_address_tells_all_that_it_answers_to(service: Service):
    answer = service.client().request("OPTIONS", "/v1/streams")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


@pytest.mark.parametrize("path", ["/v1/streams", "/v1/publications", "/v1/plan", "/v1/keys"])
def test_nobody_makes_it_read_a_large_configuration(service: Service, path):
    body = b'{"name":"' + b"a" * 2**21 + b'"}'
    refused(service.client().post(path, content=body), 413, "too-large")
    refused(service.client().post(path, content=iter([body])), 413, "too-large")


@pytest.mark.more
@pytest.mark.parametrize("path", sorted(path for method, path in OPERATIONS if method == "get"))
def test_head_is_get_without_its_body(service: Service, path):
    url = path.format(
        stream=service.stream(), publication="no-such", entry="1-1", version=1, exploration=10**9, unit="a"
    )
    head = service.client().head(url)
    assert head.content == b""
    got = service.client().get(url)
    changing = {"date", "content-length", "x-request-id"}  # metrics count the first request
    assert head.status_code == got.status_code
    assert {name: value for name, value in head.headers.items() if name not in changing} == {
        name: value for name, value in got.headers.items() if name not in changing
    }


def test_head_of_what_has_no_end_has_one(service: Service):
    name = service.publish(service.stream(), {"kind": "sliding_window", "block": 5, "blocks": 1})
    answer = service.client().head(f"/v1/publications/{name}/events")
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")


@pytest.mark.more
@pytest.mark.parametrize("path", ["/livez", "/v1/streams", "/v1/no-such", "/openapi.json", "/metrics"])
def test_every_answer_tells_browsers_to_do_nothing_with_it(service: Service, path):
    headers = service.client().get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "private, no-cache"
    assert "server" not in headers
    assert not {name for name in headers if name.startswith("access-control-")}  # no other site's script may read it


def test_a_new_key_is_not_kept_on_its_way(service: Service):
    answer = service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]})
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["location"] == f"/v1/keys/{ok(answer, 201)['id']}"


def test_a_request_has_an_id_of_its_own(service: Service):
    ids = [service.client().get("/livez", headers={"X-Request-ID": "mine"}).headers["x-request-id"] for _ in range(3)]
    assert len(set(ids)) == 3
    assert "mine" not in ids


def test_no_address_is_made_of_what_the_request_says_is_our_name(service: Service):
    answer = service.client().get("/v1/streams/", headers={"Host": "elsewhere.example"})
    assert "location" not in answer.headers
    refused(answer, 404, "not-found")


def test_only_hashes_of_keys_are_stored_and_looked_for(service: Service):
    secret = service.key("read")
    ok(service.client(secret).get("/v1/streams"))
    database = Database(str(service.settings.database_url))
    with database.transaction() as connection:
        rows = connection.execute(sqlalchemy.text("SELECT keys::text, hash FROM keys")).all()
    database.close()
    assert hashlib.sha256(secret.encode()).digest() in [bytes(row.hash) for row in rows]
    assert not [row for row in rows if secret in row[0] or service.admin_key in row[0]]


def test_the_environments_key_is_replaced_by_a_new_setting_and_the_log_says_so(servers, tmp_path):
    settings = make_world(servers, tmp_path).settings
    with structlog.testing.capture_logs() as lines:
        for old, new in ((None, "a" * 40), ("a" * 40, "a" * 40), ("a" * 40, "b" * 40)):
            changed = settings.model_copy(update={"admin_key": SecretStr(new)})
            with serving(changed) as url, httpx.Client(base_url=url) as client:
                ok(client.get("/v1/keys", headers={"Authorization": f"Bearer {new}"}))
                if old not in (None, new):
                    refused(client.get("/v1/keys", headers={"Authorization": f"Bearer {old}"}), 401, "unauthenticated")
    assert [line["event"] for line in lines].count("admin_key_admitted") == 2


def test_without_settings_only_this_machine_is_listened_to_and_there_is_no_key():
    settings = Settings(_env_file=None)
    assert settings.host == "127.0.0.1"
    secrets = [name for name in Settings.model_fields if name.endswith(("key", "url", "password", "secret"))]
    assert {name: getattr(settings, name) for name in secrets} == dict.fromkeys(secrets)
