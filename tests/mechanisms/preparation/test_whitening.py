"""Whitening: how far a record moves the sum, which matrix follows, and that noise alone shows no direction."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from service.inputs.refused import Refused
from service.learning.records import Records
from service.mechanisms.building import build
from service.mechanisms.features import ReleasedMap
from service.streams.feature_maps import steps_of
from service.streams.schema import StreamSchema
from tests.mechanisms import contract

THREE = {"features": 3, "task": {"kind": "classification", "classes": 2}, "norm_bound": 2.0}
SCALE = {"kind": "preparation", "records": 64}
WHITEN = SCALE | {"of": "whiten"}


def prepared(records=64, delta=1e-6, released=None, epsilon=1, **stream):
    stored = contract.configured(WHITEN | {"records": records}, None, delta).stored()
    stored["privacy"]["epsilon"] = epsilon
    if released is not None:
        stored["features"] = {"from": "scales"}
    configuration = contract.configured(WHITEN, None, delta).model_validate(stored)
    return build(StreamSchema.model_validate(THREE | stream), configuration, released)


def reading(x):
    return lambda start, end: Records(x=x[start:end].astype(np.float32), y=np.zeros(len(x[start:end])))


def moments(mechanism, x):
    return mechanism.moments(mechanism.pieces(reading(x)))


def vector(moved):
    """The Frobenius norm of a symmetric matrix is this vector's."""
    return np.linalg.norm(moved)


@settings(max_examples=100, deadline=None)
@given(
    arrays.arrays(np.float32, (4, 3), elements=st.floats(width=32)),
    arrays.arrays(np.float32, 3, elements=st.floats(width=32)),
)
def test_no_record_moves_the_sum_further_than_the_noise_is_for(x, other):
    """Replaced by any other, however long or not finite, or by none."""
    mechanism = prepared(4)
    for neighbour in (np.vstack([other[None], x[1:]]), x[1:]):
        moved = moments(mechanism, x) - moments(mechanism, neighbour)
        assert vector(moved) <= mechanism.event().sensitivity


@pytest.mark.parametrize("length", [2.0, 1e30])
def test_records_that_are_orthogonal_move_it_just_as_far(length):
    first, second = np.eye(3)[:2] * length
    mechanism = prepared(4)
    moved = moments(mechanism, first[None]) - moments(mechanism, second[None])
    assert vector(moved) == pytest.approx(math.sqrt(2), rel=1e-5)
    assert mechanism.event().sensitivity == pytest.approx(math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize("delta", contract.DELTAS)
def test_it_keeps_its_promise_and_ends_with_its_release(delta):
    schema = StreamSchema.model_validate(THREE)
    mechanism, (release,) = contract.keeps_its_promise(schema, contract.configured(WHITEN, None, delta), releases=1)
    assert release.parameters.shape == (3, 3)
    assert np.array_equal(release.parameters, release.parameters.T)
    assert release.perturbation.cost(mechanism.currency, 64) <= mechanism.capacity
    assert mechanism.step(64, (), 1, contract.reader(schema)[0]).finishes


def test_both_of_two_neighbours_may_be_off_by_what_rounding_does():
    """The records are so many that it is more than the least that is reckoned with."""
    n = 10**8
    off = 2 * 2.0**-53 * n * (1024 + n / 1024 + 16)
    assert prepared(n).event().sensitivity == pytest.approx(math.sqrt(2) + 2 * off, rel=1e-5)


def correlated(records, seed=1):
    drawn = np.random.default_rng(seed).normal(size=(records, 3))
    return drawn @ np.array([[1.0, 0.9, 0.0], [0.0, 0.3, 0.0], [0.0, 0.0, 0.2]])


def test_what_it_maps_is_alike_in_size_and_uncorrelated_and_fills_the_norm():
    drawn = correlated(20_000) / 4
    (release,) = prepared(20_000, epsilon=50).step(20_000, (), 1, reading(drawn)).releases
    read = ReleasedMap.of(release.model).reading(StreamSchema.model_validate(THREE), reading(drawn))
    second = np.cov(read(0, 20_000).x.T)
    assert np.linalg.cond(np.cov(drawn.T)) > 30
    assert np.linalg.cond(second) < 3
    assert np.trace(second) == pytest.approx(3 * 1.2**2, rel=0.2)
    assert release.model["norm_bound"] == math.sqrt(3)


def test_where_slots_are_set_aside_the_norm_is_filled_by_those_that_are_read():
    """Where every second slot is, 2,000 of them are 1,000 records."""
    noisy = prepared(1000).measured(prepared(1000).pieces(reading(correlated(1000))))
    halved = prepared(2000, evaluation={"every": 2}).matrix(noisy)
    np.testing.assert_allclose(halved, prepared(1000).matrix(noisy), rtol=1e-9)


def test_noise_alone_shows_no_direction():
    """Without the floor, directions of hardly any noise would become thousands of times as long as others."""
    mechanism = prepared(64, epsilon=0.01)
    for _ in range(20):
        matrix = mechanism.matrix(mechanism.measured(mechanism.pieces(reading(np.zeros((64, 3))))))
        assert np.isfinite(matrix).all()
        assert np.linalg.cond(matrix) < 6  # √(1 + 30), and noise is no longer than 30 floors: chances far below 1e-6


def test_the_map_follows_from_what_is_released_alone():
    mechanism = prepared()
    for _ in range(20):
        (release,) = mechanism.step(64, (), 1, reading(correlated(64))).releases
        described = release.model["feature_map"]
        assert np.allclose(described["matrix"], mechanism.matrix(release.parameters), rtol=1e-8)


def test_it_follows_on_the_scales_that_it_names():
    schema = StreamSchema.model_validate(THREE)
    x = correlated(4096) * [1e4, 1.0, 1e-3]
    scaled = build(schema, contract.configured(SCALE | {"records": 4096, "rule": 2}, None, 1e-6))
    (scales,) = scaled.step(4096, (), 1, reading(x)).releases
    released = ReleasedMap.of(scales.model)
    mechanism = prepared(4096, released=released)
    assert mechanism.plan() == prepared(4096, released=None, norm_bound=math.sqrt(3)).plan()
    (release,) = mechanism.step(4096, (), 1, released.reading(schema, reading(x))).releases
    whole = ReleasedMap.of(release.model)
    assert [each["kind"] for each in steps_of(whole.description)] == ["clipped_scale", "linear"]
    assert np.linalg.cond(np.cov(whole.reading(schema, reading(x))(0, 4096).x.T)) < 10


@pytest.mark.parametrize(
    ("stream", "more", "why"),
    [
        ({"features": None, "task": {"kind": "categorical", "cardinality": 3}}, {}, "no features to prepare"),
        ({"features": 129}, {}, "at most 128 features are whitened"),
        ({"unit": {"max_records": 3}}, {}, "on a stream with units a matrix is learnt of records"),
        ({}, {"rule": 2}, "is a setting of scale"),
    ],
)
def test_what_cannot_be_whitened_is_refused(stream, more, why):
    with pytest.raises(Refused, match=why):
        build(StreamSchema.model_validate(THREE | stream), contract.configured(WHITEN | more, None, 1e-6))


def test_a_plan_warns_where_directions_are_mostly_noise():
    assert "warning" in prepared(64).plan()["whitening"]
    assert "warning" not in prepared(100_000).plan()["whitening"]
