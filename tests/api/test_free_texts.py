"""A text that PostgreSQL can't hold, or no person can read, is refused by its field, wherever a client may send one."""

from typing import Any

import pytest

from tests.api.test_explorer import PATH, comparison, table
from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, unique, wait_until

NUL = "a\0b"
BATCHES = {"kind": "independent_batches", "batch": 100}
LABELLED = {"x": [[1, 2]], "y": [0]}


def stream(**more: Any) -> dict[str, Any]:
    task = {"kind": "classification", "classes": 2}
    return {"name": unique("stream"), "features": 2, "task": task, "budget": {"epsilon": 1}} | more


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/keys", {"name": NUL, "scopes": ["read"]}, "name"),
        ("/v1/keys", {"name": "a", "scopes": [NUL]}, "scopes.0"),
        ("/v1/keys", {"name": "a", "scopes": ["read"], "streams": [NUL]}, "streams.0"),
        ("/v1/streams", stream(name=NUL), "name"),
        ("/v1/streams", stream(columns=[NUL, "b"]), "columns.0.name"),
        ("/v1/streams", stream(columns=[{"name": "a", "unit": NUL}, "b"]), "columns.0.unit"),
        ("/v1/streams", stream(class_names=[NUL, "b"]), "class_names.0"),
        ("/v1/streams", stream(retention=NUL), "retention"),
        ("/v1/streams", stream(feature_map={"kind": NUL}), "feature_map"),
        ("/v1/publications", publication("a", BATCHES, name=NUL), "name"),
        ("/v1/publications", publication(NUL, BATCHES), "stream"),
        ("/v1/publications", publication("a", {"kind": NUL}), "mechanism"),
        (
            "/v1/publications",
            publication("STREAM", BATCHES, learner={"origin": {"publication": NUL, "version": 1}}),
            "learner.origin",
        ),
        ("/v1/publications", publication("a", {"kind": "evaluation", "of": [NUL]}), "mechanism"),
        (f"{PATH}/explorations", comparison(NUL), "dataset"),
    ],
)
def test_a_nul_in_a_document_is_refused_by_its_field(service: Service, path, body, field):
    if body.get("stream") == "STREAM":
        body = body | {"stream": service.stream()}
    answer = service.client().post(path, json=body)
    problem = refused(answer, 422, "invalid-request")
    assert problem["errors"][0]["field"].startswith(field)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/streams/{nul}", 404),
        ("GET", "/v1/streams/{nul}/ledger", 404),
        ("GET", "/v1/streams/{stream}/entries/{nul}", 404),
        ("GET", "/v1/streams/{stream}/units/{nul}", 200),
        ("GET", "/v1/publications/{nul}", 404),
        ("GET", "/v1/publications/{nul}/releases/latest", 404),
        ("GET", "/v1/publications/{nul}/events", 404),
        ("GET", "/v1/publications/{nul}/card", 404),
        ("GET", "/v1/streams?before={nul}", 422),
        ("GET", "/v1/publications?stream={nul}", 200),
        ("DELETE", "/v1/keys/{nul}", 422),
        ("DELETE", "/v1/publications/{nul}", 404),
        ("GET", PATH + "/explorations/{nul}", 422),
    ],
)
def test_a_nul_in_an_address_names_nothing(service: Service, path, method, status):
    name = service.stream(unit={"max_records": 3}, delta=1e-6)
    answer = service.client().request(method, path.format(nul="a%00b", stream=name))
    assert answer.status_code == status, answer.text


@pytest.mark.more
@pytest.mark.parametrize("header", ["Idempotency-Key", "Last-Event-ID", "Prefer", "If-None-Match", "Cookie"])
def test_bytes_that_are_no_text_in_a_header_fail_nothing(service: Service, header):
    """HTTP itself allows no NUL there."""
    client, stream, headers = service.client(), service.stream(), {header: b"\xff\x80"}
    entry = ok(client.post(f"/v1/streams/{stream}/records", json=LABELLED, headers=headers), 202)["entry"]
    wait_until(lambda: client.get(f"/v1/streams/{stream}/entries/{entry}").status_code == 200)
    status = 422 if header == "Last-Event-ID" else 404
    assert client.get("/v1/publications/a/events", headers=headers).status_code == status


LINE = "must be one line of text in UTF-8, without control characters"


@pytest.mark.parametrize(
    ("name", "reason"),
    [(name, LINE) for name in ("%00", "a%00b", "a%0Ab", "%7F", "a%C2%85", "a%E2%80%A8b", "%FF", "%EF%BF%BD")]
    + [("", "must have 1 or more characters"), ("a" * 81, "must have 80 characters or fewer")],
)
@pytest.mark.parametrize("kind", ["text/csv", "application/x-npz"])
def test_a_name_of_a_data_set_is_one_that_people_can_read(service: Service, name, reason, kind):
    answer = service.client().post(f"{PATH}/datasets?name={name}", content=table(9), headers={"Content-Type": kind})
    problem = refused(answer, 422, "invalid-request")
    assert problem["errors"] == [{"field": "query.name", "reason": reason}]


def test_a_name_of_a_data_set_may_be_in_any_language(service: Service):
    client, name = service.client(service.key("read")), " Größe\u202f№ 7 👩\u200d🔬.csv"
    made = client.post(f"{PATH}/datasets", content=table(), headers={"Content-Type": "text/csv"}, params={"name": name})
    assert (made.status_code, made.json()["name"]) == (201, name)


def test_a_nul_in_the_name_of_the_column_of_classes_is_no_column(service: Service):
    url = f"{PATH}/datasets?label=%00"
    answer = service.client().post(url, content=table(), headers={"Content-Type": "text/csv"})
    refused(answer, 422, "invalid-data-set")
