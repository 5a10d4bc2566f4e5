"""People who sign in with a browser: what its cookie is, what it opens, and how it ends."""

import hashlib
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
import sqlalchemy
from pydantic import SecretStr

from service.api.auth import known_keys
from service.api.auth.credentials import PAGE_HEADER, SESSION_COOKIE
from service.api.notifier import Notifier
from service.store import keys, sessions
from service.store.database import Database
from tests.api.test_labels import post, publish, unlabelled
from tests.api.test_records import refused
from tests.conftest import HANG_SECONDS, Service, make_world, ok, serving, wait_until

PAGE = {PAGE_HEADER: "1"}


@pytest.fixture
def visitor(service: Service) -> Iterator[httpx.Client]:
    """A browser without a key, as far as cookies go."""
    with httpx.Client(base_url=service.url) as client:
        yield client


def sign_in(client: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return client.post("/v1/session", headers={"Authorization": f"Bearer {key}"} | headers)


def test_a_cookie_that_no_script_reads_and_no_other_site_sends(service: Service, visitor):
    key = service.key("read")
    answer = sign_in(visitor, key)
    assert ok(answer, 201)["streams"] is None
    assert answer.headers["cache-control"] == "no-store"
    name_and_value, *attributes = answer.headers["set-cookie"].split("; ")
    assert name_and_value.startswith(f"{SESSION_COOKIE}=prs_")
    assert key not in answer.headers["set-cookie"]
    assert {each.lower() for each in attributes} == {"httponly", "samesite=strict", "path=/", "max-age=43200"}
    assert "; Secure" in sign_in(visitor, key, Origin="https://perennial.example").headers["set-cookie"]


def test_a_session_may_look_and_do_nothing_else_whatever_its_key_may(service: Service, visitor):
    stream = service.stream()
    sign_in(visitor, service.admin_key)
    assert stream in [each["name"] for each in ok(visitor.get("/v1/streams?limit=1000"))["items"]]
    refused(visitor.get("/v1/keys"), 403, "forbidden")
    refused(visitor.delete(f"/v1/streams/{stream}/records?start=0&end=1", headers=PAGE), 403, "forbidden")
    records = {"x": [[0, 1]], "y": [1]}
    refused(visitor.post(f"/v1/streams/{stream}/records", json=records, headers=PAGE), 403, "forbidden")
    refused(visitor.post("/v1/session", headers=PAGE), 403, "forbidden")


def test_it_may_label_where_its_key_says_so_and_from_our_pages_alone(service: Service, visitor):
    """To get a record also keeps it from others for a while, so the right to read is not enough."""
    stream = unlabelled(service)
    publication = publish(service, stream)
    post(service, stream, np.ones((4, 2)))
    path, label = f"/v1/publications/{publication}", {"record": 0, "label": 1}
    for key in (service.key("read"), service.admin_key):
        sign_in(visitor, key)
        refused(visitor.get(f"{path}/label-requests", headers=PAGE), 403, "forbidden")
        refused(visitor.post(f"{path}/labels", json=label, headers=PAGE), 403, "forbidden")
        assert ok(visitor.get(path, headers=PAGE))["labels"] is None
    sign_in(visitor, service.key("read", "label"))
    refused(visitor.get(f"{path}/label-requests"), 403, "forbidden")
    refused(visitor.post(f"{path}/labels", json=label), 401, "unauthenticated")
    body = ok(visitor.get(f"{path}/label-requests", headers=PAGE | {"Prefer": "wait=60"}))
    ok(visitor.post(f"{path}/labels", json=label | {"record": body["record"]}, headers=PAGE))
    assert ok(visitor.get(path, headers=PAGE))["labels"]["answered"] == 1
    records = {"x": [[0, 1]]}
    refused(visitor.post(f"/v1/streams/{stream}/records", json=records, headers=PAGE), 403, "forbidden")


def test_what_is_more_than_looking_needs_a_page_of_ours(service: Service, visitor):
    """A browser lets no page of another origin add the header: it asks us first, and we do not answer that."""
    sign_in(visitor, service.key("read"))
    for method, path in (("POST", "/v1/plan"), ("DELETE", "/v1/session")):
        refused(visitor.request(method, path), 401, "unauthenticated")
    refused(visitor.post("/v1/plan", json={}, headers=PAGE), 422, "invalid-request")
    preflight = {"Origin": "http://127.0.0.1:3000", "Access-Control-Request-Headers": PAGE_HEADER}
    body = visitor.options("/v1/session", headers=preflight | {"Access-Control-Request-Method": "DELETE"})
    refused(body, 405, "method-not-allowed")
    assert not [name for name in body.headers if name.startswith("access-control-")]


def test_it_sees_the_streams_of_its_key_alone(service: Service, visitor):
    mine, other = service.stream(), service.stream()
    assert ok(sign_in(visitor, service.key("read", streams=[mine])), 201)["streams"] == [mine]
    assert [each["name"] for each in ok(visitor.get("/v1/streams"))["items"]] == [mine]
    refused(visitor.get(f"/v1/streams/{other}"), 404, "not-found")


def test_a_key_that_may_not_read_cannot_sign_in(service: Service, visitor):
    refused(sign_in(visitor, service.key("ingest")), 403, "forbidden")
    refused(sign_in(visitor, "wrong"), 401, "unauthenticated")
    assert not visitor.cookies


def test_its_secret_is_no_key_and_a_key_is_no_session(service: Service, visitor):
    key = service.key("read")
    sign_in(visitor, key)
    secret = visitor.cookies[SESSION_COOKIE]
    ok(visitor.get("/v1/session"))
    visitor.cookies.clear()
    refused(visitor.get("/v1/streams", headers={"Authorization": f"Bearer {secret}"}), 401, "unauthenticated")
    visitor.cookies.set(SESSION_COOKIE, key)
    refused(visitor.get("/v1/streams"), 401, "unauthenticated")


def test_signing_out_ends_it_for_whoever_kept_the_cookie(service: Service, visitor):
    sign_in(visitor, service.key("read"))
    secret = visitor.cookies[SESSION_COOKIE]
    assert visitor.delete("/v1/session", headers=PAGE).status_code == 204
    assert SESSION_COOKIE not in visitor.cookies
    visitor.cookies.set(SESSION_COOKIE, secret)
    refused(visitor.get("/v1/session"), 401, "unauthenticated")


def test_signing_out_ends_it_where_it_is_remembered_and_no_notification_comes(service: Service, visitor, monkeypatch):
    sign_in(visitor, service.key("read"))
    monkeypatch.setattr(known_keys, "KEY_CACHE_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(Notifier, "_call", lambda *_: None)
    ok(visitor.get("/v1/session"))
    secret = visitor.cookies[SESSION_COOKIE]
    assert visitor.delete("/v1/session", headers=PAGE).status_code == 204
    visitor.cookies.set(SESSION_COOKIE, secret)
    refused(visitor.get("/v1/session"), 401, "unauthenticated")


def test_a_revoked_key_is_dead_where_it_is_remembered_and_no_notification_comes(service: Service, monkeypatch):
    monkeypatch.setattr(known_keys, "KEY_CACHE_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(Notifier, "_call", lambda *_: None)
    key = ok(service.client().post("/v1/keys", json={"name": "of-a-thief", "scopes": ["read"]}), 201)
    ok(service.client(key["key"]).get("/v1/streams"))
    assert service.client().delete(f"/v1/keys/{key['id']}").status_code == 204
    refused(service.client(key["key"]).get("/v1/streams"), 401, "unauthenticated")


def test_it_ends_with_its_key_and_in_time(service: Service, visitor):
    key = ok(service.client().post("/v1/keys", json={"name": "of-a-visitor", "scopes": ["read"]}), 201)
    sign_in(visitor, key["key"])
    ok(visitor.get("/v1/session"))
    assert service.client().delete(f"/v1/keys/{key['id']}").status_code == 204
    refused(visitor.get("/v1/session"), 401, "unauthenticated")
    sign_in(visitor, service.key("read"))
    hash_of_it = hashlib.sha256(visitor.cookies[SESSION_COOKIE].encode()).digest()
    database = Database(str(service.settings.database_url))
    with database.transaction() as connection:
        table = connection.execute(sqlalchemy.text("SELECT hash, sessions::text FROM sessions")).all()
        assert hash_of_it in [bytes(row.hash) for row in table]
        assert not [row for row in table if visitor.cookies[SESSION_COOKIE] in row[1]]
        connection.execute(
            sqlalchemy.text("UPDATE sessions SET expires_at = now() WHERE hash = :hash"), {"hash": hash_of_it}
        )
    database.close()
    wait_until(lambda: visitor.get("/v1/session").status_code == 401)  # it may be remembered for two seconds


def test_its_secret_stands_for_its_key_until_its_time_is_over(servers, tmp_path):
    database = Database(make_world(servers, tmp_path).settings.database_url)
    with database.transaction() as connection:
        key, _ = keys.make(connection, name="key", scopes=["read"], streams=None)
        secret = sessions.begin(connection, key.id)
        assert sessions.find(connection, secret) == key
    with database.transaction() as connection:
        connection.execute(sqlalchemy.text("UPDATE sessions SET expires_at = now()"))
        assert sessions.find(connection, secret) is None
    database.close()


def test_of_one_key_there_are_only_so_many(service: Service, monkeypatch, visitor):
    monkeypatch.setattr(sessions, "MOST", 2)
    key, secrets_given = service.key("read"), []
    for _ in range(3):
        sign_in(visitor, key)
        secrets_given.append(visitor.cookies[SESSION_COOKIE])
    answers = []
    for secret in secrets_given:
        visitor.cookies.set(SESSION_COOKIE, secret)
        answers.append(visitor.get("/v1/session").status_code)
    assert answers == [401, 200, 200]


def test_it_ends_when_the_environments_key_is_replaced(servers, tmp_path):
    settings = make_world(servers, tmp_path).settings
    before = serving(settings.model_copy(update={"admin_key": SecretStr("a" * 40)}))
    with before as url, httpx.Client(base_url=url) as client:
        sign_in(client, "a" * 40)
        secret = client.cookies[SESSION_COOKIE]
    with serving(settings.model_copy(update={"admin_key": SecretStr("b" * 40)})) as url:
        refused(httpx.get(f"{url}/v1/session", cookies={SESSION_COOKIE: secret}), 401, "unauthenticated")


def test_following_ends_with_the_session(service: Service, visitor):
    name = service.publish(service.stream(), {"kind": "sliding_window", "block": 5, "blocks": 1})
    sign_in(visitor, service.key("read"))
    with visitor.stream("GET", f"/v1/publications/{name}/events") as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        with httpx.Client(base_url=service.url, cookies=dict(visitor.cookies)) as elsewhere:
            assert elsewhere.delete("/v1/session", headers=PAGE).status_code == 204
        service.post(ok(service.client().get(f"/v1/publications/{name}"))["stream"], [[0.0, 1.0]] * 5, [0, 1, 0, 1, 1])
        assert not [line for line in lines if line.startswith("id:")]
