"""The way in: a batch is taken whole or refused whole, and what got a 202 is numbered once, in order."""

import concurrent.futures
import json

import numpy as np
import pytest

from service.worker import sealer
from tests.conftest import Service, ok, publication, unique, wait_until

VALID = {"x": [[1, 2.5], [-3, 0]], "y": [0, 1]}


def refused(answer, status: int, kind: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["type"] == f"urn:perennial:problem:{kind}"
    assert {"title", "status", "detail"} <= problem.keys()
    return problem


def numbered(service: Service, stream: str) -> int:
    return ok(service.client().get(f"/v1/streams/{stream}"))["records"]


def test_batches_are_numbered_from_zero_in_the_order_they_were_accepted(service: Service):
    stream = service.stream()
    assert service.post(stream, **VALID) == (0, 2)
    assert service.post(stream, [[0, 0]], [1]) == (2, 3)
    assert numbered(service, stream) == 3


def test_an_unknown_entry_is_not_found(service: Service):
    answer = service.client().get(f"/v1/streams/{service.stream()}/entries/1-1")
    refused(answer, 404, "not-found")


@pytest.mark.more
@pytest.mark.parametrize(
    ("body", "row", "reason"),
    [
        ('{"x":[[1,2],[NaN,2]],"y":[0,1]}', 1, "x: column 0 is missing (null or NaN)"),
        ('{"x":[[1,Infinity]],"y":[0]}', 0, "x: column 1 is not finite as a 32-bit float"),
        ('{"x":[[1,1e308]],"y":[0]}', 0, "x: column 1 is not finite as a 32-bit float"),
        ('{"x":[[1,1e400]],"y":[0]}', 0, "x: column 1 is not finite as a 32-bit float"),
        ('{"x":[[1,"2"]],"y":[0]}', 0, "x: column 1 is a text, not a number"),
        ('{"x":[[1,true]],"y":[0]}', 0, "x: column 1 is not a number"),
        ('{"x":[[1,null]],"y":[0]}', 0, "x: column 1 is missing (null or NaN)"),
        ('{"x":[[1,[2]]],"y":[0]}', 0, "x: column 1 is not a number"),
        ('{"x":[[1,2],[1]],"y":[0,1]}', 1, "x: must be an array of 2 numbers"),
        ('{"x":[[1,2,3],[1]],"y":[0,1]}', 0, "x: must be an array of 2 numbers"),
        ('{"x":[1,2],"y":[0,1]}', None, '"x" must be a list of records'),
        ('{"x":[[1,2]],"y":[2]}', 0, "y: must be a whole number from 0 to 1"),
        ('{"x":[[1,2]],"y":[-1]}', 0, "y: must be a whole number from 0 to 1"),
        ('{"x":[[1,2]],"y":[0.5]}', 0, "y: must be a whole number from 0 to 1"),
        ('{"x":[[1,2]],"y":[true]}', 0, "y: is not a number"),
        ('{"x":[[1,2]],"y":[0,1]}', None, "lengths differ"),
        ('{"x":[],"y":[]}', None, "at least one record"),
        ('{"x":[[1,2]]}', None, '"y" must be an array'),
        ('{"x":[[1,2]],"y":[0],"z":[1]}', None, "only"),
        ("[[1,2]]", None, "must be an object"),
        ('{"x":[[1,2]],"y":[0]', None, "not JSON"),
        ("", None, "not JSON"),
        ("[" * 100_000, None, "nested too deeply"),
        ('{"x":' + "[" * 900 + "]" * 900 + ',"y":[0]}', 0, "x: must be an array of 2 numbers"),
    ],
)
def test_a_bad_batch_is_refused_with_row_and_reason_and_changes_nothing(service: Service, body, row, reason):
    stream = service.stream()
    answer = service.client().post(f"/v1/streams/{stream}/records", content=body)
    errors = refused(answer, 422, "invalid-records")["errors"]
    assert (errors[0]["row"], reason in errors[0]["reason"]) == (row, True), errors
    assert service.post(stream, **VALID) == (0, 2), "the refused batch took numbers"


def test_a_refusal_repeats_no_value(service: Service):
    body = json.dumps({"x": [[987654.25, "a secret"], [1, 2]], "y": [424242, 1]})
    answer = service.client().post(f"/v1/streams/{service.stream()}/records", content=body)
    assert answer.status_code == 422
    assert not any(value in answer.text for value in ("987654", "secret", "424242"))


def test_numbers_in_unusual_but_valid_notation_are_taken(service: Service):
    stream = service.stream()
    body = '{"y":[1.0,0e0],"x":[[123456789012345678901234567890,-0.0],[1E-400,5e-1]]}'
    assert ok(service.client().post(f"/v1/streams/{stream}/records", content=body), 202)["accepted"] == 2


@pytest.mark.parametrize(
    ("task", "good", "bad"),
    [
        ({"kind": "regression", "bound": 2.0}, {"x": [[1, 2]], "y": [99.5]}, {"x": [[1, 2]], "y": ["a"]}),
        ({"kind": "unlabelled"}, {"x": [[1, 2]]}, {"x": [[1, 2]], "y": [0]}),
        ({"kind": "categorical", "cardinality": 3}, {"y": [2, 0]}, {"y": [3]}),
    ],
)
def test_every_task_has_its_own_columns(service: Service, task, good, bad):
    features = {} if task["kind"] == "categorical" else {"features": 2}
    body = {"name": unique("stream"), "task": task, "budget": {"epsilon": 1, "delta": 0}} | features
    stream = ok(service.client().post("/v1/streams", json=body), 201)["name"]
    url = f"/v1/streams/{stream}/records"
    ok(service.client().post(url, json=good), 202)
    refused(service.client().post(url, json=bad), 422, "invalid-records")


def test_other_formats_are_refused_as_such(service: Service):
    url = f"/v1/streams/{service.stream()}/records"
    body = json.dumps(VALID).encode()
    answer = service.client().post(url, content=body, headers={"Content-Type": "text/csv"})
    refused(answer, 415, "unsupported-media-type")
    assert "application/vnd.apache.arrow.stream" in answer.headers["accept-post"]


def test_too_large_is_413_with_and_without_a_declared_length(service: Service):
    url = f"/v1/streams/{service.stream()}/records"
    body = b" " * (service.settings.max_body_bytes + 1)
    refused(service.client().post(url, content=body), 413, "too-large")
    refused(service.client().post(url, content=iter([body])), 413, "too-large")


class TestIdempotency:
    def send(self, service: Service, stream: str, body: dict, key: str):
        return service.client().post(f"/v1/streams/{stream}/records", json=body, headers={"Idempotency-Key": key})

    def test_the_same_request_again_gets_the_first_answer_and_is_stored_once(self, service: Service):
        stream = service.stream()
        first, again = (ok(self.send(service, stream, VALID, "a"), 202) for _ in range(2))
        assert first == again
        assert service.post(stream, **VALID) == (2, 4)

    def test_another_body_is_refused(self, service: Service):
        stream = service.stream()
        ok(self.send(service, stream, VALID, "a"), 202)
        refused(self.send(service, stream, {"x": [[1, 1]], "y": [1]}, "a"), 422, "idempotency-conflict")

    def test_a_refused_request_does_not_use_up_its_key(self, service: Service):
        stream = service.stream()
        refused(self.send(service, stream, {"x": [], "y": []}, "a"), 422, "invalid-records")
        ok(self.send(service, stream, VALID, "a"), 202)

    def test_streams_and_api_keys_do_not_share_it(self, service: Service):
        one, other = service.stream(), service.stream()
        mine = ok(self.send(service, one, VALID, "a"), 202)
        ok(self.send(service, other, VALID, "a"), 202)
        url, headers = f"/v1/streams/{one}/records", {"Idempotency-Key": "a"}
        theirs = ok(service.client(service.key("ingest")).post(url, json=VALID, headers=headers), 202)
        assert mine["entry"] != theirs["entry"]
        wait_until(lambda: numbered(service, one) == 4)

    def test_many_at_once_store_one_batch(self, service: Service):
        stream = service.stream()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: self.send(service, stream, VALID, "a"), range(24)))
        assert {answer.status_code for answer in answers} <= {202, 409}
        assert len({answer.json()["entry"] for answer in answers if answer.status_code == 202}) == 1
        assert service.post(stream, **VALID) == (2, 4)


@pytest.mark.more
def test_many_producers_at_once_lose_and_double_nothing(service: Service):
    stream = service.stream(features=1)
    url = f"/v1/streams/{stream}/records"

    def produce(producer: int) -> list[str]:
        client = service.client()
        return [
            ok(client.post(url, json={"x": [[producer * 1000 + i]] * (i % 3 + 1), "y": [0] * (i % 3 + 1)}), 202)[
                "entry"
            ]
            for i in range(25)
        ]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        entries = [entry for each in pool.map(produce, range(4)) for entry in each]
    total = 4 * sum(i % 3 + 1 for i in range(25))
    wait_until(lambda: numbered(service, stream) == total)
    ranges = [ok(service.client().get(f"/v1/streams/{stream}/entries/{entry}")) for entry in entries]
    covered = np.zeros(total, dtype=int)
    for each in ranges:
        covered[each["start"] : each["end"]] += 1
    assert (covered == 1).all()
    in_log_order = sorted(
        zip(entries, ranges, strict=True), key=lambda pair: [int(part) for part in pair[0].split("-")]
    )
    starts = [each["start"] for _, each in in_log_order]
    assert starts == sorted(starts)


def test_erased_records_stay_numbered_and_must_exist(service: Service):
    stream = service.stream()
    service.post(stream, **VALID)
    url = f"/v1/streams/{stream}/records"
    assert ok(service.client().delete(f"{url}?start=0&end=1"), 202) == {"start": 0, "end": 1}
    assert numbered(service, stream) == 2
    assert ok(service.client().delete(f"{url}?start=0&end=1"), 202) == {"start": 0, "end": 1}

    def ledger_entry() -> dict:
        return ok(service.client().get(f"/v1/streams/{stream}"))["erased"]

    wait_until(lambda: ledger_entry()["waiting"] == 0)
    assert ledger_entry() == {"records": 1, "waiting": 0, "ranges": [{"start": 0, "end": 1}]}
    for query in ("start=0&end=3", "start=1&end=1", "start=-1&end=1", "start=0"):
        refused(service.client().delete(f"{url}?{query}"), 422, "invalid-request")


def test_what_no_publication_can_want_again_is_dropped_and_told(service: Service, monkeypatch):
    monkeypatch.setattr(sealer, "TIDY_SECONDS", 0.05)
    stream = service.stream(retention="needed")
    name = service.publish(stream, {"kind": "independent_batches", "batch": 2})

    def stored_range() -> dict:
        return ok(service.client().get(f"/v1/streams/{stream}"))["kept"]

    assert stored_range() == {"start": 0, "needed": [{"publication": name, "start": 0}]}
    for _ in range(2):
        service.post(stream, [[1, 0]] * 3, [0, 1, 0])
    service.reaches(name, time=6)
    wait_until(lambda: stored_range() == {"start": 6, "needed": [{"publication": name, "start": 6}]})
    body = publication(stream, {"kind": "independent_batches", "batch": 2}, start=5)
    answer = refused(service.client().post("/v1/publications", json=body), 422, "invalid-request")
    assert answer["errors"] == [{"field": "start", "reason": "must be at least 6"}]
    later = service.publish(stream, {"kind": "independent_batches", "batch": 4}, start=6)
    service.post(stream, [[1, 0]] * 3, [0, 1, 0])
    service.reaches(name, time=8)
    assert {each["publication"]: each["start"] for each in stored_range()["needed"]} == {name: 8, later: 6}
    assert stored_range()["start"] == 6, "the other one still wants it"
