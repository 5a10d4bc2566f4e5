"""An origin for MNIST from public digits: 1,797 of 8×8 pixels by 43 other people, which come with scikit-learn.

They are drawn as MNIST's were, 28×28 with their mass in the middle, each several times, turned, sheared and stretched
a little. The model without noise of those is where a private run may start: `origin` of a learner.
"""

import sys

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform, center_of_mass

from benchmarks.replay import publication
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.streams.feature_maps import FeatureMap

COPIES = 8
SIZE = 20.0  # pixels of 28: MNIST's digits fill a box of that size
LENGTH = 30.0  # norm of the origin: about that of a private model


def origin(mapped: FeatureMap) -> NDArray[np.float64]:
    """Return the origin, (10, features), for the features of MNIST's images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("the digits come with scikit-learn, which is not of the project's: pip install scikit-learn")

    digits = load_digits()
    random = np.random.default_rng(8)
    drawn = [_drawn(image / 16, random) for image in digits.images for _ in range(COPIES)]
    x = mapped(np.stack(drawn).reshape(len(drawn), -1).astype(np.float32))
    y = np.repeat(digits.target, COPIES)
    configuration = {
        "mechanism": {"kind": "independent_batches", "batch": len(y)},
        "learner": {"kind": "output_perturbation", "regularization": 1e-4, "intercept": False},
        "privacy": {"epsilon": 1},
    }
    schema = {"features": x.shape[1], "task": {"kind": "classification", "classes": 10}}
    learner = publication(schema, configuration).learner
    assert isinstance(learner, OutputPerturbation)
    model = learner.fit(Records(x=x, y=y.astype(np.int64)), len(y), np.zeros(learner.shape))
    model = model - model.mean(axis=0)  # the mean over classes changes no prediction
    return np.asarray(model * (LENGTH / np.linalg.norm(model)))


def _drawn(image: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """Return a randomly distorted image, (28, 28), with values from 0 to 1."""
    angle, shear = random.normal(0, 0.15, 2)
    turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    transform = turned @ np.array([[1, shear], [0, 1]]) @ np.diag(8 / SIZE * np.exp(random.normal(0, 0.12, 2)))
    offset = np.array(center_of_mass(image)) - transform @ np.array([13.5, 13.5])
    large = affine_transform(image, transform, offset=offset, output_shape=(28, 28), order=3)
    stroke = 1 / (1 + np.exp(-6 * (large - 0.45)))  # enlarging blurred the edges of strokes
    return np.asarray(np.clip(stroke - 1 / (1 + np.exp(6 * 0.45)), 0, 1))
