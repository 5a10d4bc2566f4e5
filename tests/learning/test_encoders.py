"""An encoder is what its module says, layer by layer; and a public map: a record's features are its own."""

import json
from math import prod, sqrt

import numpy as np
import pytest

from service.learning import encoders
from service.learning.encoders import INTO
from tests.learning.by_definition import normals

DENSE = {"kind": "dense", "version": 1, "layers": [4, 3], "norm_bound": 2.0}
CONVOLUTIONAL = {
    "kind": "convolutional",
    "version": 1,
    "width": 9,
    "height": 8,
    "channels": [2, 3],
    "kernel": 3,
    "norm_bound": 2.0,
}
CASES = {"dense": (DENSE, 6), "convolutional": (CONVOLUTIONAL, 72)}


@pytest.fixture(params=CASES)
def case(request):
    description, features = CASES[request.param]
    return description, encoders.build(description, features)


def layers_by_definition(description, encoder, weights, x):
    """Code of one record, number by number."""
    length = sqrt(sum(value * value for value in x))
    scale = INTO * sqrt(len(x)) / 2.0 * min(1.0, 2.0 / length)
    numbers, taken = [scale * value for value in x], iter(weights)
    for layer in encoder.layers:
        matrix = [[next(taken) for _ in range(layer.units)] for _ in range(layer.inputs)]
        bias = [next(taken) for _ in range(layer.units)]
        if description["kind"] == "dense":
            parts = [numbers]
        else:
            image = np.reshape(numbers, (layer.height, layer.width, layer.channels))
            parts = [
                image[row : row + 3, column : column + 3].ravel().tolist()
                for row in range(0, layer.height - 2, 2)
                for column in range(0, layer.width - 2, 2)
            ]
        numbers = [
            np.tanh(sum(value * line[unit] for value, line in zip(part, matrix, strict=True)) + bias[unit])
            for part in parts
            for unit in range(layer.units)
        ]
    return np.array(numbers), np.array(list(taken)).reshape(-1, len(numbers))


def test_features_are_codes_at_length_1_and_scores_those_of_the_head(case):
    description, encoder = case
    rng = np.random.default_rng(1)
    weights, x = rng.normal(size=encoder.dimension(5)), rng.normal(size=(3, encoder.input_features))
    rows, finite = encoder.rows(x)
    features, scores = encoder(weights[None, :], x.astype(np.float32)), encoder.scores(weights, rows)
    assert finite.all()
    assert features.shape == (3, encoder.features)
    for number, record in enumerate(x.tolist()):
        code, head = layers_by_definition(description, encoder, weights, record)
        np.testing.assert_allclose(features[number], code / np.linalg.norm(code), atol=1e-5)
        np.testing.assert_allclose(scores[number], head @ code, atol=1e-5)


def test_its_sizes_are_those_of_smaller_and_smaller_images():
    encoder = encoders.build(CONVOLUTIONAL, 72)
    assert [(layer.size, layer.inputs) for layer in encoder.layers] == [((4, 3), 9), ((1, 1), 18)]
    assert encoder.features == 3
    assert encoder.dimension(10) == 10 * 2 + 19 * 3 + 10 * 3


def test_it_is_built_again_from_what_it_says(case):
    description, encoder = case
    read_back = json.loads(json.dumps(encoder.described()))
    assert read_back == description
    assert encoders.build(read_back, encoder.input_features) == encoder


def test_what_it_begins_with_is_public_and_the_same_everywhere(case):
    _, encoder = case
    initial, at = encoder.initial(2), 0
    assert len(initial) == encoder.dimension(2)
    for number, layer in enumerate(encoder.layers):
        count = layer.inputs * layer.units
        normal, _ = normals(layer.inputs, layer.units, number)
        drawn = np.reshape(normal, (layer.units, layer.inputs)).T / sqrt(layer.inputs)
        np.testing.assert_allclose(initial[at : at + count], drawn.ravel(), atol=1e-12)
        assert not initial[at + count : at + count + layer.units].any()
        at += count + layer.units
    assert not initial[at:].any()


def test_a_record_has_the_same_features_whoever_is_beside_it(case):
    _, encoder = case
    rng = np.random.default_rng(2)
    weights, x = rng.normal(size=encoder.dimension(0)), rng.normal(size=(50, encoder.input_features))
    other = np.where(np.arange(50)[:, None] == 20, 1e30, x)
    other[30] = np.nan
    features, changed = encoder(weights, x), encoder(weights, other)
    same = ~np.isin(np.arange(50), (20, 30))
    np.testing.assert_array_equal(features[same], changed[same])
    assert np.isfinite(changed[20]).all()
    assert np.isnan(changed[30]).all()


def test_weights_without_bounds_make_features_without_bounds_of_nobody():
    """Noise may be as large as it likes: a code is NaN or within [-1, 1], nothing is raised, and a NaN is no record."""
    encoder = encoders.build(DENSE, 6)
    x = np.random.default_rng(3).normal(size=(20, 6))
    features = encoder(np.full(encoder.dimension(0), 1e300), x)
    assert (np.abs(features[np.isfinite(features)]) <= 1.0).all()
    assert not encoder(np.zeros(encoder.dimension(0)), x).any()


@pytest.mark.parametrize(
    ("description", "features", "why"),
    [
        (CONVOLUTIONAL, 73, "width times height must be the number of features, 73"),
        (CONVOLUTIONAL | {"channels": [2, 3, 4]}, 72, "smaller than the kernel"),
        (DENSE | {"version": 2}, 6, "no version 2"),
        (DENSE | {"layers": [800, 800]}, 6, "at most 524288 weights"),
        (CONVOLUTIONAL | {"width": 700, "height": 700, "channels": [1]}, 490_000, "smaller images"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(description, features, why):
    with pytest.raises(ValueError, match=why):
        encoders.build(description, features)


def test_a_head_counts_among_the_weights():
    assert encoders.build(DENSE, 6).features == 3
    with pytest.raises(ValueError, match="head"):
        encoders.build(DENSE, 6, 200_000)


def test_the_places_of_a_convolution_cover_what_it_multiplies():
    layer = encoders.Convolution(width=7, height=5, channels=2, units=1, kernel=3)
    assert layer.index.shape == (layer.positions, layer.inputs) == (prod(layer.size), 18)
    assert layer.index[0].tolist() == [0, 1, 2, 3, 4, 5, 14, 15, 16, 17, 18, 19, 28, 29, 30, 31, 32, 33]
    assert sorted(set(layer.index.ravel())) == list(range(70))
