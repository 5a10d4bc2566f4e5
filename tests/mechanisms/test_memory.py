"""No record makes anything that reads it need more memory: else one could end a step where memory is short."""

import numpy as np
import pytest

from service.learning import encoders
from service.learning.optimization.constraint_sets import ConstraintSet
from service.learning.optimization.losses import LOSSES
from service.learning.records import Records
from service.mechanisms.active_learning.active_gradient import ActiveGradient, Falling
from service.mechanisms.building import build
from service.mechanisms.predicting import predictions
from service.mechanisms.timing import BYTES_AT_LEAST, fit_cost
from service.streams.feature_maps.feature_map import FeatureMap
from service.streams.schema import StreamSchema
from tests.held import most_held
from tests.mechanisms import contract

N, D = 20_000, 100
OUTPUT = {"kind": "output_perturbation"}
SCHEMA = StreamSchema.model_validate({"features": D, "task": {"kind": "classification", "classes": 2}})


def evaluated(x):
    """Predict a block of slots."""
    described = build(SCHEMA, contract.configured({"kind": "independent_batches", "batch": 8}, OUTPUT, 0))
    stored = FeatureMap(description=None, input_features=D, steps=())
    return predictions(described.model_description(), np.ones((1, D + 1)), stored, x)


def selected(x):
    """Compute how far slots are from a hyperplane."""
    learner = ActiveGradient(
        loss=LOSSES["logistic"],
        regularization=0.0,
        intercept=True,
        norm_bound=1.0,
        features=D,
        classes=2,
        law="bernoulli",
        epsilon_selection=1.0,
        threshold=Falling(initial=0.2),
        batch=8,
        constraint=ConstraintSet(name="ball", radius=1.0),
    )
    return learner.distances(Records(x=x, y=np.zeros(N), slots=np.arange(N)), 0, N, np.ones((1, D + 1)))


def whitened(x):
    """Add up second moments."""
    settings = {"kind": "preparation", "records": N, "of": "whiten"}
    return build(SCHEMA, contract.configured(settings, None, 1e-6)).moments([x])


def encoded(x):
    """Make features."""
    encoder = encoders.build({"kind": "dense", "version": 1, "layers": [3], "norm_bound": 1.0}, D)
    return encoder(encoder.initial(0), x)


@pytest.mark.parametrize("reads", [evaluated, selected, whitened, encoded])
def test_no_record_makes_a_step_hold_more(reads):
    plain = np.full((N, D), 0.1, dtype=np.float32)
    long, empty = plain.copy(), plain.copy()
    long[7], empty[7] = 1e30, np.nan
    reads(plain)  # what is made once
    most = most_held(reads, plain) + BYTES_AT_LEAST
    for x in (long, empty):
        before = x.copy()
        assert most_held(reads, x) <= most
        assert np.array_equal(x, before, equal_nan=True)


def test_a_block_holds_little_beside_its_records():
    x = np.full((N, D), 0.1, dtype=np.float32)
    assert most_held(evaluated, x) < x.nbytes


def test_a_plan_reckons_with_what_is_as_long_as_the_weights():
    """Without any record hardly more is held than the noise takes; one record is enough for a solver to search."""
    task, n = {"kind": "classification", "classes": 16}, 40
    schema = StreamSchema.model_validate({"features": 1024, "task": task})
    learner = OUTPUT | {"regularization": 1e-3}
    mechanism = build(schema, contract.configured({"kind": "independent_batches", "batch": n}, learner, 1e-6))
    x, y = np.random.default_rng(1).normal(size=(n, 1024)).astype(np.float32), np.arange(n, dtype=np.int32) % 16
    planned = fit_cost(mechanism.obligations().fit, n).bytes
    assert planned / 2 < held_by_a_step(mechanism, x, y) <= planned
    x[1:] = np.nan
    assert held_by_a_step(mechanism, x, y) <= planned


def held_by_a_step(mechanism, x, y):
    n = len(y)
    return x.nbytes + most_held(mechanism.step, n, (), 1, lambda *_: Records(x=x, y=y, slots=np.arange(n)))
