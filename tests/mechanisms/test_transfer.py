"""A fit that begins at a release of another stream: its weights are taken as they are, or refused."""

import numpy as np
import pytest

from service.mechanisms.building import build
from service.mechanisms.configuration import PublicationConfiguration, Refused
from service.mechanisms.transfer import LARGEST_WEIGHT, begun_at
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
