"""Names of columns and classes over HTTP: sent with records, told with releases, predictions and label requests."""

import json

import httpx
import pytest

from tests.api.test_labels import give, next_request, post, publish, unlabelled
from tests.api.test_records import refused
from tests.conftest import Service, ok
from tests.conftest import publication as publication_json

COLUMNS = [{"name": "temp", "unit": "°C", "range": [-30, 50]}, {"name": "wind"}]
CLASSES = ["dry", "rain"]
NAMES = {"columns": ["temp", "wind"], "class_names": CLASSES}
SECRET = "zebra-crossing-7319"


def weather(index: int) -> dict:
    return {"x": {"wind": index % 7 / 10, "temp": 30 * (-1) ** index}, "y": CLASSES[index % 2]}


@pytest.fixture(scope="module")
def published(service: Service) -> tuple[str, str]:
    """A stream with names, sent as NDJSON by name, and a publication with a release."""
    stream = service.stream(columns=COLUMNS, class_names=CLASSES)
    mechanism = {"kind": "independent_batches", "batch": 200}
    publication = service.publish(stream, mechanism, epsilon=9)
    body = "\n".join(json.dumps(weather(index)) for index in range(200))
    headers = {"Content-Type": "application/x-ndjson"}
    ok(service.client().post(f"/v1/streams/{stream}/records", content=body, headers=headers), 202)
    service.reaches(publication, time=200)
    return stream, publication


def test_a_stream_says_its_names(service: Service, published):
    stream, _ = published
    described = ok(service.client().get(f"/v1/streams/{stream}"))
    assert (described["columns"], described["class_names"]) == (COLUMNS, CLASSES)
    assert described["feature_map"] == {"kind": "standardize", "version": 1, "mean": [10, 0], "scale": [40, 1]}
    plain = ok(service.client().get(f"/v1/streams/{service.stream()}"))
    assert not {"columns", "class_names"} & plain.keys()


def test_who_sends_records_may_read_what_a_record_is(service: Service, published):
    stream, _ = published
    key = service.key("ingest", streams=[stream])
    schema = ok(service.client(key).get(f"/v1/streams/{stream}/schema"))
    assert schema["columns"] == COLUMNS
    assert "budget" not in schema
    assert service.client(key).get(f"/v1/streams/{stream}").status_code == 403
    assert service.client(key).get(f"/v1/streams/{service.stream()}/schema").status_code == 404


def test_a_release_says_the_names(service: Service, published):
    _, publication = published
    model = ok(service.client().get(f"/v1/publications/{publication}/releases/latest"))["model"]
    assert {name: model[name] for name in NAMES} == NAMES


def predicted(service: Service, publication: str, x) -> httpx.Response:
    return service.client().post(f"/v1/publications/{publication}/predict", json={"x": x})


def test_predictions_are_by_name(service: Service, published):
    _, publication = published
    cold, warm = {"wind": 0.3, "temp": -30}, {"temp": 30, "wind": 0.3}
    prediction = ok(predicted(service, publication, [cold, warm]))
    assert prediction["label_names"] == [CLASSES[label] for label in prediction["labels"]] == ["rain", "dry"]
    assert prediction["class_names"] == CLASSES
    assert prediction == ok(predicted(service, publication, [[-30, 0.3], [30, 0.3]]))
    problem = refused(predicted(service, publication, [cold | {SECRET: 1}]), 422, "invalid-records")
    assert 'its columns are "temp", "wind"' in problem["detail"]
    assert SECRET not in str(problem)


def test_an_unknown_name_in_a_batch_says_which_there_are(service: Service, published):
    stream, _ = published
    path = f"/v1/streams/{stream}/records"
    answer = service.client().post(path, json={"x": [[1, 2], {"temp": 1, "wind": 2}], "y": ["dry", SECRET]})
    problem = refused(answer, 422, "invalid-records")
    assert problem["errors"] == [{"row": 1, "reason": 'y: is no class of this stream: its classes are "dry", "rain"'}]


def test_people_label_by_class_name(service: Service):
    stream = unlabelled(service, columns=["height", "width"], class_names=["cat", "dog"])
    publication = publish(service, stream)
    post(service, stream, [[1, 2], [3, 4], [5, 6], [7, 8]])
    body = next_request(service, publication)
    assert (body["columns"], body["class_names"]) == ([{"name": "height"}, {"name": "width"}], ["cat", "dog"])
    problem = refused(give(service, publication, body["record"], SECRET), 422, "invalid-request")
    assert problem["errors"][0] == {
        "field": "label",
        "reason": 'is no class of this stream: its classes are "cat", "dog"',
    }
    assert give(service, publication, body["record"], "dog").status_code == 200
    assert give(service, publication, next_request(service, publication)["record"], 0).status_code == 200


def test_a_map_that_mixes_columns_takes_their_names_from_label_requests(service: Service):
    fourier = {"kind": "random_fourier", "features": 4, "seed": 0, "width": 1.0}
    stream = unlabelled(service, columns=["height", "width"], feature_map=fourier)
    publication = publish(service, stream)
    post(service, stream, [[1, 2], [3, 4], [5, 6], [7, 8]])
    body = next_request(service, publication)
    assert not {"columns", "class_names"} & body.keys()
    problem = refused(give(service, publication, body["record"], "dog"), 422, "invalid-request")
    assert problem["detail"].startswith("label: must be a whole number, without quotes")


@pytest.mark.parametrize(
    ("norm_bound", "sentence"),
    [
        (1.0, "is at most 2 long, and norm_bound is 1: longer records are shortened to it"),
        (2.0, None),
        (5.0, "is at most 2 long: a norm_bound of 5 only adds noise, and 2 is enough."),
    ],
)
def test_a_plan_compares_norm_bound_with_public_ranges(service: Service, norm_bound, sentence):
    columns = [{"name": f"c{number}", "range": [0, 10]} for number in range(4)]
    stream = service.stream(features=4, columns=columns, norm_bound=norm_bound)
    body = publication_json(stream, {"kind": "independent_batches", "batch": 100})
    notes = ok(service.client().post("/v1/plan", json=body))["notes"]
    assert [sentence in note for note in notes if note.startswith("A record within")] == (
        [] if sentence is None else [True]
    )
