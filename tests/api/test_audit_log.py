"""The log has a line for each action of an administrator, with its target and nothing else of what they sent."""

import numpy as np
import pytest
import structlog

from tests.api.test_access import ADMIN, GUARDED, call
from tests.api.test_labels import next_request, post, publish, unlabelled
from tests.conftest import Service, ok, publication, unique

ONE_BY_ONE = {"kind": "sliding_window", "block": 5, "blocks": 1}


@pytest.fixture
def lines():
    with structlog.testing.capture_logs() as captured:
        yield lambda: [line for line in captured if line["event"] == "admin_action"]


def test_every_admin_action_leaves_a_line(service: Service, lines):
    stream, name, key = unique("stream"), unique("publication"), unique("key")
    client = service.client()
    task, budget = {"kind": "classification", "classes": 2}, {"epsilon": 10, "delta": 0}
    body = {"name": stream, "features": 2, "task": task, "budget": budget}
    made = {
        ("post", "/v1/streams"): client.post("/v1/streams", json=body),
        ("post", "/v1/publications"): client.post(
            "/v1/publications", json=publication(stream, ONE_BY_ONE) | {"name": name}
        ),
        ("post", "/v1/keys"): client.post("/v1/keys", json={"name": key, "scopes": ["admin"]}),
    }
    identity = ok(made["post", "/v1/keys"], 201)["id"]
    service.post(stream, [[1, 2]], [0])
    done = made | {
        ("get", "/v1/keys"): client.get("/v1/keys?limit=1"),
        ("get", "/v1/streams/{stream}/dead-letters"): client.get(f"/v1/streams/{stream}/dead-letters"),
        ("delete", "/v1/streams/{stream}/records"): client.delete(f"/v1/streams/{stream}/records?start=0&end=1"),
        ("delete", "/v1/publications/{publication}"): client.delete(f"/v1/publications/{name}"),
        ("delete", "/v1/keys/{key}"): client.delete(f"/v1/keys/{identity}"),
    }
    assert {answer.status_code // 100 for answer in done.values()} == {2}
    done |= {  # there is nothing to do
        ("post", "/v1/streams/{stream}/resume"): client.post(f"/v1/streams/{stream}/resume"),
        ("delete", "/v1/streams/{stream}/dead-letters/{entry}"): client.delete(
            f"/v1/streams/{stream}/dead-letters/1-1"
        ),
        ("get", "/v1/streams/{stream}/units/{unit}"): client.get(f"/v1/streams/{stream}/units/somebody"),
        ("delete", "/v1/streams/{stream}/units/{unit}"): client.delete(f"/v1/streams/{stream}/units/somebody"),
    }
    by_action = {tuple(line["action"].lower().split(" ", 1)): line for line in lines()}
    assert {*done, *by_action} >= ADMIN, "what a new route does is to be tried here"
    assert by_action.keys() == done.keys()
    assert {action: line["status"] for action, line in by_action.items()} == {
        action: answer.status_code for action, answer in done.items()
    }
    assert len({line["key"] for line in by_action.values()}) == 1
    assert by_action["post", "/v1/streams"]["made"] == f"/v1/streams/{stream}"
    assert by_action["post", "/v1/publications"]["made"] == f"/v1/publications/{name}"
    assert by_action["post", "/v1/keys"]["made"] == f"/v1/keys/{identity}"
    erased = by_action["delete", "/v1/streams/{stream}/records"]
    assert (erased["target"], erased["asked"]) == ({"stream": stream}, {"start": "0", "end": "1"})
    assert by_action["delete", "/v1/publications/{publication}"]["target"] == {"publication": name}
    assert by_action["delete", "/v1/keys/{key}"]["target"] == {"key": str(identity)}
    assert by_action["get", "/v1/streams/{stream}/units/{unit}"]["target"] == {"stream": stream}


@pytest.mark.parametrize("unit", ["somebody", "12345", "some%20body"])
def test_a_unit_is_told_by_its_pseudonym(service: Service, lines, unit):
    body = {"name": unique("people"), "features": 1, "task": {"kind": "unlabelled"}, "unit": {"max_records": 1}}
    ok(service.client().post("/v1/streams", json=body | {"budget": {"epsilon": 1, "delta": 0}}), 201)
    before = len(lines())
    ok(service.client().get(f"/v1/streams/{body['name']}/units/{unit}"))
    ok(service.client().delete(f"/v1/streams/{body['name']}/units/{unit}"), 202)
    one, other = (line["target"] for line in lines()[before:])
    assert one == other
    assert len(bytes.fromhex(one["unit"])) == 16


@pytest.mark.more
@pytest.mark.parametrize("scope", ["read", "admin"])
def test_what_was_refused_is_told_too_and_nothing_else_is(service: Service, lines, scope):
    client = service.client(service.key(scope))
    before = len(lines())
    for method, path in GUARDED:
        call(client, method, path)
    logged = [(tuple(line["action"].lower().split(" ", 1)), line["status"]) for line in lines()[before:]]
    assert {action for action, _ in logged} == ADMIN
    assert len(logged) == len(ADMIN)
    assert (scope == "read") == ({status for _, status in logged} == {403})


@pytest.mark.parametrize("name", ["A%20secret", "%F0%9F%99%82", "a" * 64, "1" * 64])
def test_what_is_no_name_is_not_repeated(service: Service, lines, name):
    service.client().delete(f"/v1/publications/{name}")
    service.client().delete(f"/v1/streams/{name}/records?start={name}&end=1&{name}=1")
    first, second = lines()
    assert first["target"] == {"publication": "…"}
    assert (second["target"], second["asked"]) == ({"stream": "…"}, {"start": "…", "end": "1"})


def test_each_look_at_a_record_leaves_a_line_and_so_does_each_label(service: Service):
    stream = unlabelled(service)
    name = publish(service, stream, size=1, batching="fixed_batch", lease_seconds=1000)
    post(service, stream, np.full((1, 2), 0.125))
    key = ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["label"]}), 201)
    with structlog.testing.capture_logs() as captured:
        assert next_request(service, name, key=key["key"])["record"] == 0
        client = service.client(key["key"])
        ok(client.post(f"/v1/publications/{name}/labels", json={"record": 0, "label": 1}))
        assert client.post(f"/v1/publications/{name}/labels", json={"record": 0, "label": 1}).status_code == 409
    whose = {"publication": name, "record": 0, "key": key["id"], "log_level": "info"}
    lines = [line for line in captured if line["event"].startswith("label_")]
    assert lines == [whose | {"event": "label_asked_for"}, whose | {"event": "label_given"}]
