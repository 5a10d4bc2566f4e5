"""Projections are what they are by definition: in the set, and no other point of it is nearer."""

from typing import get_args

import numpy as np
import pytest

from service.learning.optimization.constraint_sets import ConstraintSet, Name

ORIGIN = np.array([[0.5, 0.25, 0.0], [0.0, 0.75, 0.0]])
RADIUS = 1.5


def members(name, rng):
    """Points all over the set, drawn without any projection."""
    for _ in range(200):
        direction = rng.normal(size=ORIGIN.shape)
        if name == "ball":
            yield ORIGIN + RADIUS * rng.uniform() * direction / np.linalg.norm(direction)
        elif name == "box":
            yield ORIGIN + RADIUS * rng.choice([-1.0, 1.0], ORIGIN.shape)
        elif name == "l1_ball":
            corner = np.zeros(ORIGIN.size)
            corner[rng.integers(ORIGIN.size)] = RADIUS * rng.choice([-1.0, 1.0])
            yield ORIGIN + corner.reshape(ORIGIN.shape)
        else:
            yield RADIUS * rng.dirichlet(np.full(ORIGIN.size, 0.3)).reshape(ORIGIN.shape)


def inside(name, weights):
    offset = weights - ORIGIN
    return {
        "ball": np.linalg.norm(offset) <= RADIUS + 1e-12,
        "box": np.abs(offset).max() <= RADIUS + 1e-12,
        "l1_ball": np.abs(offset).sum() <= RADIUS + 1e-12,
        "simplex": weights.min() >= 0 and abs(weights.sum() - RADIUS) <= 1e-12,
    }[name]


@pytest.mark.parametrize("name", get_args(Name))
def test_a_projection_is_the_nearest_point_of_the_set(name):
    """It is, if and only if no point of the set lies on the far side of it."""
    constraint, rng = ConstraintSet(name=name, radius=RADIUS), np.random.default_rng(0)
    everywhere = list(members(name, rng))
    for size in (0.1, 1.0, 10.0, 1e6, 1e20):
        for _ in range(20):
            weights = ORIGIN + size * rng.normal(size=ORIGIN.shape)
            nearest = constraint.project(weights, ORIGIN)
            assert inside(name, nearest)
            assert all(np.vdot(weights - nearest, other - nearest) <= 1e-9 * size for other in everywhere)
            assert np.linalg.norm(nearest) <= constraint.farthest(ORIGIN) + 1e-12
            assert constraint.holds(nearest, ORIGIN)
            assert constraint.holds(weights, ORIGIN) == inside(name, weights)


@pytest.mark.parametrize("name", get_args(Name))
def test_what_is_in_the_set_stays(name):
    constraint = ConstraintSet(name=name, radius=RADIUS)
    for weights in members(name, np.random.default_rng(1)):
        np.testing.assert_allclose(constraint.project(weights, ORIGIN), weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", get_args(Name))
def test_no_point_of_the_set_is_lower_along_a_slope_than_the_lowest(name):
    constraint, rng = ConstraintSet(name=name, radius=RADIUS), np.random.default_rng(2)
    everywhere = list(members(name, rng))
    for _ in range(20):
        slope = rng.normal(size=ORIGIN.shape)
        lowest = constraint.lowest(slope, ORIGIN)
        assert inside(name, lowest)
        assert all(np.vdot(slope, lowest) <= np.vdot(slope, other) + 1e-12 for other in everywhere)
        far = constraint.project(ORIGIN - 1e9 * slope, ORIGIN)  # nearly there
        assert np.vdot(slope, far) == pytest.approx(np.vdot(slope, lowest), rel=1e-5)
    assert inside(name, constraint.lowest(np.zeros_like(ORIGIN), ORIGIN))


@pytest.mark.parametrize("radius", [1e-6, 1.0, 1e6])
def test_what_is_out_by_no_more_than_rounding_is_in_the_set(radius):
    constraint, origin = ConstraintSet(name="box", radius=radius), np.zeros(3)
    edge = np.array([radius, 0.0, 0.0])
    assert constraint.holds(edge * (1 + 1e-10), origin)
    assert not constraint.holds(edge * (1 + 1e-8), origin)
