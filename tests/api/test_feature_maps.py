"""Streams with a public feature map: fitted to mapped records, and a reader computes the same from a release alone."""

import json
import math

import numpy as np
import pytest

from service.learning.optimization.losses import LOSSES
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from tests import chance
from tests.api.test_records import refused
from tests.conftest import Service, ok
from tests.learning import by_definition
from tests.streams.test_formats import MISSING

FOURIER = {"kind": "random_fourier", "features": 6, "width": 1.5, "seed": 3}
HOG = {"kind": "hog", "width": 4, "height": 4, "orientations": 4, "cell": 2, "block": 1}
DIGITS = {"kind": "compose", "maps": [HOG, {"kind": "normalize"}, {"kind": "center"}, {"kind": "normalize"}]}
CATEGORIES = {"kind": "hashing", "features": 8, "tokens": "categories"}
WORDS = {"kind": "hashing", "features": 32, "tokens": "words", "ngrams": [1, 2]}
STANDARDIZE = {"kind": "standardize", "mean": [1, 0], "scale": 1e-6}
LITTLE_NOISE = {"epsilon": 1000, "delta": 1e-6}
BLOCK = {"kind": "sliding_window", "block": 40, "blocks": 1}


def numbers(features: int) -> list[list[float]]:
    return np.random.default_rng(1).normal(size=(40, features)).round(3).tolist()


def sentences() -> list[list[str]]:
    return [[f"Fix the {part}!", f"in {place}"] for part in ("net", "disk", "clock", "Bus") for place in "abcdefghij"]


STREAMS = {
    "random_fourier": (FOURIER, numbers(3)),
    "hog": (DIGITS, numbers(16)),
    "categories": (CATEGORIES, np.random.default_rng(2).integers(0, 9, (40, 3)).tolist()),
    "text": (WORDS, sentences()),
    "standardize": (STANDARDIZE | {"scale": [0.5, 4]}, numbers(2)),
    "clipped_scale": ({"kind": "clipped_scale", "center": 0.5, "factor": [2, 0], "limit": 1}, numbers(2)),
    "linear": ({"kind": "linear", "matrix": [[1, -0.5], [0, 2], [3, 1]]}, numbers(2)),
}


def offline(release: dict, record: list) -> list[float]:
    """Probabilities, by the formulas of the documentation, from the release alone."""
    model = release["model"]
    x = by_definition.mapped(model["feature_map"], record)
    length = math.sqrt(sum(value * value for value in x))
    x = [value * min(1.0, model["norm_bound"] / length) if length else value for value in x]
    sine = model.get("intercept_scale", math.sqrt(0.5))
    x = [*(value * math.sqrt(1 - sine**2) for value in x), model["norm_bound"] * sine]
    score = sum(weight * value for weight, value in zip(release["parameters"]["values"][0], x, strict=True))
    return [1 / (1 + math.exp(score)), 1 / (1 + math.exp(-score))]


@pytest.mark.more
@pytest.mark.parametrize("name", STREAMS)
def test_predictions_follow_from_the_release_alone(service: Service, name):
    feature_map, x = STREAMS[name]
    stream = service.stream(features=len(x[0]), feature_map=feature_map, **LITTLE_NOISE)
    publication = service.publish(stream, BLOCK, **LITTLE_NOISE, learner={"regularization": 1})
    y = [row % 2 for row in range(40)]
    service.post(stream, x, y)
    (release,) = service.released(publication, time=40)
    described = ok(service.client().get(f"/v1/streams/{stream}"))["feature_map"]
    assert release["model"]["feature_map"] == described
    assert release["model"]["features"] == len(x[0])

    prediction = ok(service.client().post(f"/v1/publications/{publication}/predict", json={"x": x}))
    np.testing.assert_allclose(prediction["scores"], [offline(release, record) for record in x], atol=1e-5)

    # What was fitted are the mapped records: the noise of ε = 1000 is some thousandths long.
    mapped = np.array([by_definition.mapped(described, record) for record in x], dtype=np.float32)
    learner = OutputPerturbation(
        loss=LOSSES["logistic"],
        regularization=1,
        intercept=True,
        intercept_scale=release["model"]["intercept_scale"],
        norm_bound=1.0,
        features=mapped.shape[1],
        classes=2,
    )
    exact = learner.fit(Records(x=mapped, y=np.array(y)), 40, np.zeros(learner.shape))
    longest_noise = chance.longest_gaussian(learner.dimension, scale=release["noise"]["scale"])
    assert np.linalg.norm(np.array(release["parameters"]["values"]) - exact) < longest_noise < 0.05


@pytest.mark.parametrize(
    ("feature_map", "field"),
    [
        ({"kind": "hog", "width": 28, "height": 28}, "feature_map"),
        ({"kind": "random_fourier"}, "feature_map.features"),
        ({"kind": "magic"}, "feature_map"),
        ({"kind": "compose", "maps": [{"kind": "normalize"}, WORDS]}, "feature_map"),
    ],
)
def test_a_map_that_does_not_fit_is_refused_by_field(service: Service, feature_map, field):
    body = {"name": "never-made", "features": 16, "task": {"kind": "unlabelled"}, "budget": {"epsilon": 1, "delta": 0}}
    answer = service.client().post("/v1/streams", json=body | {"feature_map": feature_map})
    errors = refused(answer, 422, "invalid-request")["errors"]
    assert errors[0]["field"].startswith(field)
    refused(service.client().get("/v1/streams/never-made"), 404, "not-found")


def test_a_record_that_overflows_counts_as_none_and_is_refused_by_predict(service: Service):
    stream = service.stream(feature_map=STANDARDIZE, **LITTLE_NOISE)
    erased = service.stream(feature_map=STANDARDIZE, **LITTLE_NOISE)
    for each, last in ((stream, [3e38, 0]), (erased, [0, 0])):
        service.post(each, [[1e-6 * row, 0] for row in range(30)] + [last] * 10, [0, 1] * 15 + [1] * 10)
    ok(service.client().delete(f"/v1/streams/{erased}/records?start=30&end=40"), 202)
    models = []
    for each in (stream, erased):
        name = service.publish(each, BLOCK, **LITTLE_NOISE, start=0, learner={"regularization": 1})
        (release,) = service.released(name, time=40)
        models.append(np.array(release["parameters"]["values"]))
        answer = service.client().post(f"/v1/publications/{name}/predict", json={"x": [[0, 0], [3e38, 0]]})
        errors = refused(answer, 422, "invalid-records")["errors"]
        assert errors == [{"row": 1, "reason": "x: is not finite once it is mapped"}]
    # Counted as records of zeros, they would move the intercept by 0.08.
    longest_difference = chance.longest_gaussian(3, scale=math.sqrt(2) * release["noise"]["scale"])
    assert np.linalg.norm(models[0] - models[1]) < longest_difference < 0.0113


class TestTexts:
    @pytest.fixture
    def url(self, service: Service) -> str:
        return f"/v1/streams/{service.stream(features=2, feature_map=WORDS)}/records"

    def test_lines_are_taken_too(self, service: Service, url):
        body = b'{"x":["one two","red"],"y":0}\n{"x":["\\u00c9t\\u00e9",""],"y":1}\n'
        answer = service.client().post(url, content=body, headers={"Content-Type": "application/x-ndjson"})
        assert ok(answer, 202)["accepted"] == 2

    def test_arrow_is_told_what_is_read(self, service: Service, url):
        answer = service.client().post(
            url, content=b"", headers={"Content-Type": "application/vnd.apache.arrow.stream"}
        )
        assert "JSON and NDJSON" in refused(answer, 422, "invalid-records")["errors"][0]["reason"]

    @pytest.mark.parametrize(
        ("x", "reason"),
        [
            ([["a secret", "b"], ["c", 1]], (1, "x: column 1 is not a text")),
            ([["a secret"]], (0, "x: must be an array of 2 texts")),
            ([[None, "a secret"]], (0, f"x: column 0 {MISSING}")),
            ([["a secret", "x" * (2**16 + 1)]], (0, "x: column 1 is longer than 65536 characters")),
        ],
    )
    def test_what_is_no_text_is_named_and_not_repeated(self, service: Service, url, x, reason):
        for body, kind in (
            (json.dumps({"x": x, "y": [0] * len(x)}), "json"),
            ("\n".join(json.dumps({"x": row, "y": 0}) for row in x), "x-ndjson"),
        ):
            answer = service.client().post(url, content=body, headers={"Content-Type": f"application/{kind}"})
            (error,) = refused(answer, 422, "invalid-records")["errors"]
            assert (error["row"], error["reason"]) == reason
            assert "secret" not in answer.text

    def test_numbers_do_not_take_texts(self, service: Service):
        answer = service.client().post(f"/v1/streams/{service.stream()}/records", json={"x": [["a", "b"]], "y": [0]})
        assert (
            refused(answer, 422, "invalid-records")["errors"][0]["reason"]
            == "x: column 0 is a text, not a number: write numbers without quotes"
        )

    def test_an_unlabelled_stream_may_be_of_texts(self, service: Service):
        stream = service.stream(features=1, task={"kind": "unlabelled"}, feature_map=WORDS)
        answer = service.client().post(f"/v1/streams/{stream}/records", json={"x": [["one"], ["two"]]})
        assert ok(answer, 202)["accepted"] == 2


def test_a_batch_is_limited_by_what_it_becomes(service: Service):
    stream = service.stream(features=1, feature_map=FOURIER | {"features": 2**16})
    body = {"x": [[0]] * 513, "y": [0] * 513}
    for _ in range(3):  # at first its stream is not known yet: then it is read without the framework
        problem = refused(service.client().post(f"/v1/streams/{stream}/records", json=body), 413, "too-large")
        assert "at most 512 records" in problem["detail"]
    name = service.publish(stream, {"kind": "independent_batches", "batch": 5})
    service.post(stream, [[0]] * 5, [0, 1, 0, 1, 0])
    service.released(name, time=5)
    answer = service.client().post(f"/v1/publications/{name}/predict", json={"x": body["x"]})
    assert "At most 512 records" in refused(answer, 413, "too-large")["detail"]
