"""Errors that a normal person understands: which field it is, what it must be, and what to do. No value comes back."""

import json
import math
import re
from typing import Any

import pytest
from pydantic import TypeAdapter

from service.api.routes.publications import PlanRequest
from service.api.routes.streams import StreamRequest
from service.inputs.words import EXAMPLES, _annotated
from service.learning.registry import LEARNERS
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.registry import MECHANISMS
from service.streams.schema import StreamSchema
from tests.api.formats import WRITERS
from tests.api.test_records import refused
from tests.conftest import Service, ok, publication, unique
from tests.inputs import mistakes
from tests.inputs.mistakes import LEADER, SECRET
from tests.mechanisms import cases

BATCHES = {"kind": "independent_batches", "batch": 100}
DESCENT = {"kind": "noisy_gradient_descent"}


def wrong(service: Service, path: str, body: Any) -> tuple[str, str]:
    """Return the field and the reason of the first error, and see that the answer repeats nothing secret."""
    answer = service.client().post(path, json=body)
    problem = refused(answer, 422, "invalid-request")
    assert SECRET not in answer.text
    first = problem["errors"][0]
    assert problem["detail"].startswith(f"{first['field']}: {first['reason']}")
    return first["field"], first["reason"]


@pytest.mark.parametrize(("change", "field", "reason"), mistakes.OF_PUBLICATIONS)
def test_a_mistake_in_a_publication_is_explained(service: Service, change, field, reason):
    body = publication(service.stream(), BATCHES) | change
    sentence = wrong(service, "/v1/publications", body)
    assert (sentence[0], reason in sentence[1]) == (field, True), sentence
    assert wrong(service, "/v1/plan", body) == sentence


@pytest.mark.parametrize(("change", "field", "reason"), mistakes.OF_STREAMS)
def test_a_mistake_in_a_stream_is_explained(service: Service, change, field, reason):
    good = {"name": unique("stream"), "features": 2, "task": {"kind": "classification", "classes": 2}}
    sentence = wrong(service, "/v1/streams", good | {"budget": {"epsilon": 1}} | change)
    assert (sentence[0], reason in sentence[1]) == (field, True), sentence


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        ("/v1/keys", {"scopes": "read"}, "scopes"),
        ("/v1/explorer/explorations", {"lines": [{"mechanism": LEADER | {"bach": 1}}]}, "lines.0.mechanism.bach"),
        ("/v1/explorer/explorations", {"epsilons": [0]}, "epsilons.0"),
        ("/v1/plan", [], "body"),
        ("/v1/plan", 7, "body"),
    ],
)
def test_fields_are_named_as_they_are_written(service: Service, path, change, field):
    problem = refused(service.client().post(path, json=change), 422, "invalid-request")
    assert field in {error["field"] for error in problem["errors"]}


@pytest.mark.parametrize(
    ("start", "end", "field", "reason"),
    [
        (0, 9, "query.end", "must be at most 3, the number of records numbered so far"),
        (2, 2, "query.start", "must be less than end"),
    ],
)
def test_a_range_that_can_not_be_erased_is_explained(service: Service, start, end, field, reason):
    stream = service.stream()
    service.post(stream, [[0.0, 0.0]] * 3, [0, 1, 0])
    answer = service.client().delete(f"/v1/streams/{stream}/records", params={"start": start, "end": end})
    problem = refused(answer, 422, "invalid-request")
    assert problem["errors"] == [{"field": field, "reason": reason}]
    assert problem["detail"] == "Give start < end within the records numbered so far, [0, 3)."


def test_a_long_idempotency_key_is_explained(service: Service):
    path, key = f"/v1/streams/{service.stream()}/records", SECRET * 20
    answer = service.client().post(path, json={"x": [[0, 0]], "y": [0]}, headers={"Idempotency-Key": key})
    errors = refused(answer, 422, "invalid-request")["errors"]
    assert errors == [{"field": "header.idempotency-key", "reason": "must have 1 to 255 characters"}]


def test_of_many_mistakes_a_hundred_are_explained(service: Service):
    body = {f"batch-{number}": 1 for number in range(5000)}
    problem = refused(service.client().post("/v1/plan", json=body), 422, "invalid-request")
    assert len(problem["errors"]) == 100


@pytest.mark.parametrize("headers", [{"Content-Type": "text/csv"}, {"Content-Encoding": "gzip"}])
def test_a_body_that_no_route_reads_is_told_which_it_reads(service: Service, headers):
    answer = service.client().post("/v1/keys", content=b"{}", headers={"Content-Type": "application/json"} | headers)
    refused(answer, 415, "unsupported-media-type")


DIGITS = "9" * 5000
DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("streams", f'{{"x": {DIGITS}}}', "without numbers of thousands of digits"),
        ("streams", DEEP, "that is not deeply nested"),
        ("streams/{stream}/records", f'{{"x": [[{DIGITS}, 1]], "y": [0]}}', "has a number of too many digits."),
        ("streams/{stream}/records", DEEP, "the body is nested too deeply."),
        ("streams/{stream}/records", '{"x": [], "x": []}', "the body is not JSON, in UTF-8 and with each name once."),
        ("streams/{stream}/records", '{"x": "\xff"}', "the body is not JSON, in UTF-8 and with each name once."),
        ("streams/{stream}/records\n", f'{{"x": [{DIGITS}, 1], "y": 0}}', "has a number of too many digits; send one"),
        ("streams/{stream}/records\n", DEEP, "is nested too deeply; send one"),
    ],
)  # fmt: skip
def test_json_that_is_too_much_is_not_called_none(service: Service, path, body, reason):
    kind = "application/x-ndjson" if path.endswith("\n") else "application/json"
    address = f"/v1/{path.strip()}".format(stream=service.stream())
    answer = service.client().post(address, content=body.encode("latin-1"), headers={"Content-Type": kind})
    assert (answer.status_code, reason in answer.json()["detail"]) == (422, True), answer.text


REGISTERED = {"mechanism": MECHANISMS.example, "learner": LEARNERS.example}


@pytest.mark.parametrize(("name", "example"), (EXAMPLES | REGISTERED).items())
def test_every_example_would_be_taken(name, example):
    models = (PlanRequest, StreamRequest, PublicationConfiguration)
    known = {field: info for model in models for field, info in model.model_fields.items()}
    if name == "encoder":
        document = {"kind": "lifelong", "task_size": 9, "encoder": json.loads(example)}
        name, value = "mechanism", document
    else:
        value = json.loads(example)
    info = known[name]
    TypeAdapter(_annotated(info), config=None).validate_python(value)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "a" "b": 1}', "not JSON from character 14 on (line 1, column 14)"),
        ('{\n  "name": ' + SECRET + "}", "not JSON from character 13 on (line 2, column 11)"),
        ('{"name": "a"', "the JSON ends too early: close each quote, bracket and brace"),
    ],
)
def test_what_is_not_json_is_shown_by_its_place(service: Service, body, reason):
    headers = {"Content-Type": "application/json"}
    for path in ("/v1/streams", "/v1/plan", f"/v1/streams/{service.stream()}/records"):
        kind = "invalid-records" if path.endswith("records") else "invalid-request"
        answer = service.client().post(path, content=body, headers=headers)
        problem = refused(answer, 422, kind)
        assert reason in problem["errors"][0]["reason"]
        assert SECRET not in answer.text
        assert problem["errors"][0].get("field", "body") == "body"


@pytest.fixture(scope="module")
def published(service: Service) -> tuple[str, str]:
    """A stream of two features and a publication with a release."""
    stream = service.stream()
    name = service.publish(stream, BATCHES | {"batch": 4})
    service.post(stream, [[0.1, 0.2]] * 4, [0, 1, 0, 1])
    service.reaches(name, time=4)
    return stream, name


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        ([[1, 2, 3]], "x: must be an array of 2 numbers"),
        ([1, 2], '"x" must be a list of records, which are lists themselves: send one record as "x": [[…]]'),
        ([[1, "2"]], "x: column 1 is a text, not a number: write numbers without quotes"),
        (
            [[1, None]],
            "x: column 1 is missing (null or NaN): fill it in with a public constant, or leave the whole rec",
        ),
    ],
)
def test_records_to_predict_and_to_append_are_explained(service: Service, published, x, reason):
    stream, name = published
    body = service.client().post(f"/v1/publications/{name}/predict", json={"x": x})
    predict = refused(body, 422, "invalid-records")
    assert reason in predict["errors"][0]["reason"]
    assert "stored" not in predict["detail"]
    for y in (0, [0]):
        sent = service.client().post(f"/v1/streams/{stream}/records", json={"x": x, "y": y})
        problem = refused(sent, 422, "invalid-records")
        assert problem["detail"].endswith("Nothing was stored.")
        if y == [0] or isinstance(x[0], int):
            assert reason in problem["errors"][0]["reason"]


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("value", [None, math.nan])
@pytest.mark.parametrize("column", ["x", "y"])
def test_missing_values_are_explained_in_every_format(service: Service, published, form, value, column):
    media_type, write = WRITERS[form]
    x, y = ([[1.0, value]], [1.0]) if column == "x" else ([[1.0, 2.0]], [value])
    body, headers = write(x, y), {"Content-Type": media_type}
    answer = service.client().post(f"/v1/streams/{published[0]}/records", content=body, headers=headers)
    where = "x: column 1" if column == "x" else "y:"
    (error,) = refused(answer, 422, "invalid-records")["errors"]
    advice = "fill it in with a public constant, or leave the whole record out"
    assert error == {"row": 0, "reason": f"{where} is missing (null or NaN): {advice}"}


def test_a_stored_stream_with_an_idle_map_goes_on(service: Service):
    """As older versions stored one whose map was given no numbers."""
    stream = service.stream(feature_map={"kind": "standardize", "mean": 0})
    stored = {"kind": "standardize", "version": 1, "mean": 0, "scale": 1}
    assert ok(service.client().get(f"/v1/streams/{stream}"))["feature_map"] == stored
    task = {"kind": "classification", "classes": 2}
    older = StreamSchema.model_validate({"features": 2, "task": task, "feature_map": {"kind": "standardize"}})
    assert older.model_dump(mode="json")["feature_map"] == stored
    name = service.publish(stream, BATCHES | {"batch": 2})
    service.post(stream, [[0.1, 0.2]] * 2, [0, 1])
    service.reaches(name, time=2)


def notes(service: Service, mechanism: dict[str, Any], privacy: dict[str, Any], **more: Any) -> list[str]:
    shape = {name: more.pop(name) for name in ("features", "classes") if name in more}
    stream = service.stream(**{"features": 20, "delta": 1e-5} | shape)
    return ok(service.client().post("/v1/plan", json=publication(stream, mechanism, **more) | {"privacy": privacy}))[
        "notes"
    ]


@pytest.mark.parametrize("mechanism", [BATCHES, {"kind": "continual", "base": 100, "update_every": 50}, LEADER])
def test_a_plan_without_delta_says_so_and_what_one_would_bring(service: Service, mechanism):
    learner = DESCENT if mechanism is LEADER else {}
    sentence = notes(service, mechanism, {"epsilon": 1}, learner=learner)[0]
    assert "delta was left out, so it is 0: the guarantee is pure epsilon" in sentence
    assert "such as 1e-6, brings Gaussian noise" in sentence
    assert "this one has 21" in sentence
    for delta in (0, 1e-6):
        assert not any(
            "left out" in note for note in notes(service, mechanism, {"epsilon": 1, "delta": delta}, learner=learner)
        )


HOPELESS = [
    (BATCHES, {}, {"epsilon": 1e-6}),
    (BATCHES, {}, {"epsilon": 1e-6, "delta": 1e-6}),
    (BATCHES, DESCENT, {"epsilon": 1e-6, "delta": 1e-6}),
    (BATCHES, {"kind": "objective_perturbation"}, {"epsilon": 1e-6}),
    (LEADER, DESCENT, {"epsilon": 1e-6}),
    *cases.of_families("HOPELESS").values(),
]  # fmt: skip


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "learner", "privacy"), HOPELESS)
def test_a_plan_says_where_noise_drowns_every_model(service: Service, mechanism, learner, privacy):
    assert sum(note.startswith("Hopeless: ") for note in notes(service, mechanism, privacy, learner=learner)) == 1
    works = {"epsilon": 1} | ({"delta": 1e-6} if "delta" in privacy else {})
    sentence = notes(service, mechanism, works, learner=learner)[-1]
    assert "opeless" not in sentence
    percent = re.search(r"is about ([0-9.]+) % of the most", sentence)
    assert percent is not None
    assert 0.1 < float(percent[1]) < 90


def test_a_long_noise_of_a_model_that_works_does_not_alarm(service: Service):
    """As measured in docs/choosing.md: its accuracy is .94, and its noise is 570 long."""
    privacy = {"epsilon": 1, "delta": 1e-6}
    (note,) = notes(service, LEADER | {"batch": 512}, privacy, learner=DESCENT, features=1764, classes=10)
    assert note.startswith("In a score, the noise of each step is about ")
    assert "opeless" not in note


def test_notes_are_no_part_of_what_is_stored(service: Service):
    made = ok(service.client().post("/v1/publications", json=publication(service.stream(), BATCHES)), 201)
    assert "notes" not in made["plan"]
