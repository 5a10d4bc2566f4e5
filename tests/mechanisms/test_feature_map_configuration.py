"""Feature maps of streams, as configurations name them, or refused with the reason."""

import json

import pytest
from pydantic import ValidationError

from service.mechanisms.building import build
from service.streams.schema import StreamSchema
from tests.mechanisms.test_configuration import NAN, STREAM, publication, stream

FOURIER = {"kind": "random_fourier", "features": 8}
WORDS = {"kind": "hashing", "features": 16, "tokens": "words"}
HOG = {"kind": "hog", "width": 2, "height": 2, "cell": 1, "block": 2}
STANDARDIZE = {"kind": "standardize", "mean": [0, 1, 2, 3], "scale": 2}
DIGITS = {"kind": "compose", "maps": [HOG, {"kind": "normalize"}, {"kind": "center"}, {"kind": "normalize"}]}


@pytest.mark.parametrize(
    ("feature_map", "features"),
    [
        (None, 4),
        (FOURIER, 8),
        (WORDS, 16),
        (WORDS | {"features": 3, "tokens": "categories"}, 3),
        (HOG, 32),
        (STANDARDIZE, 4),
        (DIGITS, 32),
    ],
)
def test_a_model_is_of_mapped_records_and_names_the_map(feature_map, features):
    schema = stream("feature_map", feature_map)
    built = build(schema, publication())
    assert built.learner.shape == (3, features + 1)
    assert built.plan()["model"]["shape"] == [3, features + 1]
    described = built.model_description()
    assert described["features"] == 4
    assert described["feature_map"] == json.loads(schema.model_dump_json())["feature_map"]
    assert StreamSchema.model_validate_json(schema.model_dump_json()) == schema


def test_a_map_names_its_version_and_every_setting():
    assert stream("feature_map", WORDS).mapping().description == WORDS | {
        "version": 1,
        "ngrams": [1, 1],
        "seed": 0,
    }


@pytest.mark.parametrize(
    ("feature_map", "reason"),
    [
        (HOG | {"width": 3}, "width times height must be the number of features, 4"),
        (HOG | {"block": 3}, "smaller than one block"),
        (STANDARDIZE | {"mean": [1, 2]}, "a list of 4"),
        (STANDARDIZE | {"scale": 0}, "scale"),
        (STANDARDIZE | {"mean": NAN}, "mean"),
        (FOURIER | {"features": 2**16 + 1}, "features"),
        (FOURIER | {"features": 0}, "features"),
        (FOURIER | {"width": 0}, "width"),
        (FOURIER | {"seed": -1}, "seed"),
        (FOURIER | {"seed": 2**63}, "seed"),
        (FOURIER | {"version": 2}, "version"),
        (FOURIER | {"surprise": 1}, "surprise"),
        (WORDS | {"tokens": "bytes"}, "tokens"),
        (WORDS | {"tokens": "categories", "ngrams": [1, 2]}, "ngrams"),
        (WORDS | {"ngrams": [2, 1]}, "ngrams"),
        (WORDS | {"ngrams": [1, 9]}, "ngrams"),
        (WORDS | {"tokens": "whole", "ngrams": [1, 2]}, "ngrams"),
        ({"kind": "compose", "maps": []}, "maps"),
        ({"kind": "compose", "maps": [DIGITS]}, "maps"),
        ({"kind": "compose", "maps": [FOURIER, HOG]}, "the number of features, 8"),
        ({"kind": "compose", "maps": [FOURIER, WORDS]}, "first map"),
    ],
)
def test_a_map_that_cannot_be_is_refused_with_the_reason(feature_map, reason):
    with pytest.raises(ValidationError, match=reason) as refused:
        stream("feature_map", feature_map)
    assert {error["loc"][0] for error in refused.value.errors()} == {"feature_map"}


def test_hog_of_an_image_too_large_for_its_cells_is_refused():
    big = {"features": 2**18, "task": STREAM["task"], "feature_map": HOG | {"width": 512, "height": 512}}
    with pytest.raises(ValidationError, match="more than 262144 numbers"):
        StreamSchema.model_validate(big)


def test_a_categorical_stream_has_nothing_to_map():
    with pytest.raises(ValidationError, match="no features to map"):
        StreamSchema.model_validate({"task": {"kind": "categorical", "cardinality": 9}, "feature_map": FOURIER})
