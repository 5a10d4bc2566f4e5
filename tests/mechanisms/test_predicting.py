"""Predictions of released models: which records a model shortens to its norm."""

import numpy as np
import pytest

from service.learning.records import are_longer
from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration
from service.mechanisms.predicting import predictions
from service.streams.feature_maps.feature_map import FeatureMap
from service.streams.schema import StreamSchema

NORM = 2.0
CONFIGURATION = {
    "mechanism": {"kind": "independent_batches", "batch": 8},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 0},
}


@pytest.mark.parametrize("classes", [2, 3])
def test_records_longer_than_the_norm_are_shortened_and_those_of_that_norm_are_not(classes):
    task = {"kind": "classification", "classes": classes}
    schema = StreamSchema.model_validate({"features": 3, "task": task, "norm_bound": NORM})
    description = build(schema, PublicationConfiguration.model_validate(CONFIGURATION)).model_description()
    rng, lengths = np.random.default_rng(31), np.repeat([0.0, 0.5, 1.0, 1.001, 7.0, 1e30], 200)
    direction = rng.normal(size=(len(lengths), 3))
    x = (NORM * lengths[:, None] * direction / np.linalg.norm(direction, axis=1)[:, None]).astype(np.float32)
    weights = np.zeros((1 if classes == 2 else classes, 4))  # one of the intercept
    own = FeatureMap(description=None, input_features=3, steps=())
    shortened = predictions(description, weights, own, x).shortened
    assert shortened is not None
    assert (shortened == (lengths > 1.0)).all()


@pytest.mark.parametrize(("loss", "certain"), [("logistic", True), ("huber_hinge", False)])
def test_only_scores_that_are_probabilities_say_how_sure_a_model_is(loss, certain):
    """A hinge's scores are no probabilities: counted as such, they would be a calibration of nothing."""
    schema = StreamSchema.model_validate({"features": 3, "task": {"kind": "classification", "classes": 2}})
    learner = CONFIGURATION["learner"] | {"loss": loss}
    publication = build(schema, PublicationConfiguration.model_validate(CONFIGURATION | {"learner": learner}))
    own = FeatureMap(description=None, input_features=3, steps=())
    predicted = predictions(publication.model_description(), np.ones((1, 4)), own, np.ones((5, 3), dtype=np.float32))
    assert (predicted.confidences is not None) == certain


def test_a_row_that_is_not_finite_is_not_shortened():
    x = np.array([[np.nan, 1.0], [np.inf, 0.0], [3.0, 4.0]])
    assert are_longer(x, 4.9).tolist() == [False, False, True]
    assert are_longer(np.full((1, 2), 1e300), 1.0).tolist() == [True], "its square is too large for a double"


def test_records_are_mapped_as_far_as_their_stream_has_not_mapped_them():
    schema = StreamSchema.model_validate(
        {"features": 3, "task": {"kind": "classification", "classes": 2}, "feature_map": {"kind": "normalize"}}
    )
    description = build(schema, PublicationConfiguration.model_validate(CONFIGURATION)).model_description()
    x, weights = np.full((5, 3), 9.0, dtype=np.float32), np.zeros((1, 4))
    nothing, everything = FeatureMap(description=None, input_features=3, steps=()), schema.mapping()
    assert not predictions(description, weights, nothing, x).shortened.any()
    assert predictions(description, weights, everything, x).shortened.all()
