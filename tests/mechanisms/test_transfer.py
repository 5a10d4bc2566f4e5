"""A fit that begins at a release of another stream: its weights are taken as they are, or refused."""

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.transfer import LARGEST_WEIGHT, begun_at, named_origin
from service.streams.schema import StreamSchema

STREAM = StreamSchema.model_validate({"features": 2, "task": {"kind": "classification", "classes": 2}})
PUBLICATION = PublicationConfiguration.model_validate(
    {
        "mechanism": {"kind": "continual", "base": 64, "update_every": 16},
        "learner": {"kind": "output_perturbation", "intercept_scale": 0.3},
        "privacy": {"epsilon": 1},
    }
)


def test_weights_up_to_the_largest_are_an_origin_and_longer_ones_are_refused():
    model = build(STREAM, PUBLICATION).model_description()
    weights = np.array([[LARGEST_WEIGHT, -LARGEST_WEIGHT, 0.5]])
    assert begun_at(STREAM, PUBLICATION, model, weights).learner.origin == (tuple(weights[0].tolist()),)
    for wrong in (np.nextafter(LARGEST_WEIGHT, np.inf), np.nan):
        with pytest.raises(Refused, match="weights beyond"):
            begun_at(STREAM, PUBLICATION, model, np.array([[wrong, 0.0, 0.0]]))


def configured(mechanism: dict, **learner: object) -> PublicationConfiguration:
    return PublicationConfiguration.model_validate(
        {"mechanism": mechanism, "learner": learner, "privacy": {"epsilon": 1, "delta": 1e-6}}
    )


def test_an_origin_in_a_simplex_may_be_a_release():
    """Zeros are not in it, so that a publication without its origin can't be built."""
    leader = {"kind": "online_leader", "batch": 16, "constraint": "simplex", "radius": 1.0}
    publication = configured(leader, kind="noisy_gradient_descent")
    model = build(STREAM, PUBLICATION).model_description()
    weights = [[0.5, 0.25, 0.25]]
    assert begun_at(STREAM, publication, model, np.array(weights)).learner.origin == ((0.5, 0.25, 0.25),)
    for wrong, message in (([[0.5, 0.25, 0.0]], "simplex"), ([[0.5, np.nan, 0.0]], "weights beyond")):
        with pytest.raises(Refused, match=message):
            begun_at(STREAM, publication, model, np.array(wrong))


def test_weights_of_the_streams_features_are_no_origin_behind_an_encoder():
    """It makes as many features as the stream has, of the same length: the numbers fit, and mean something else."""
    pytest.importorskip("jax", reason="the extra `deep` is not installed")
    encoder = {"kind": "dense", "records": 8, "layers": [3, 2]}
    publication = configured({"kind": "lifelong", "task_size": 16, "encoder": encoder}, kind="output_perturbation")
    model = build(STREAM, PUBLICATION).model_description()
    with pytest.raises(Refused, match="own features"):
        begun_at(STREAM, publication, model, np.zeros((1, 3)))


def test_models_of_tasks_are_no_origin():
    """A model and the scores of one task are as many rows as the softmax of two classes has."""
    lifelong = {"kind": "lifelong", "task_size": 16, "heads": "per_task", "memory": 2}
    model = build(STREAM, configured(lifelong, kind="output_perturbation")).model_description()
    publication = configured({"kind": "independent_batches", "batch": 16}, kind="output_perturbation", loss="softmax")
    with pytest.raises(Refused, match="per_task"):
        begun_at(STREAM, publication, model, np.zeros((2, 3)))


def test_an_origin_names_a_release_unless_it_is_numbers_or_there_is_none():
    batches = {"kind": "independent_batches", "batch": 64}
    named = {"publication": "days", "version": 3}
    of_release, of_numbers = (
        configured(batches, kind="output_perturbation", origin=origin) for origin in (named, [[0.5, 0.0, 0.0]])
    )
    release = named_origin(of_release)
    assert release is not None
    assert release.model_dump() == named
    assert named_origin(of_numbers) is named_origin(PUBLICATION) is None
