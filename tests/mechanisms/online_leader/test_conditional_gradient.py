"""The oracles keep the two promises that the certificate needs, and the certificate bounds what is really left."""

import numpy as np
import pytest

from service.learning.optimization.constraint_sets import ConstraintSet
from service.mechanisms.online_leader.conditional_gradient import Pursuit

SHAPE = (3, 4)
RADIUS = 1.5
ORIGIN = np.full(SHAPE, RADIUS / 12)
NAMES = ("simplex", "l1_ball", "box")


def pursuit(name, convexity=0.5):
    return Pursuit(constraint=ConstraintSet(name=name, radius=RADIUS), origin=ORIGIN, convexity=convexity)


@pytest.mark.parametrize("name", NAMES)
def test_no_point_of_the_set_nearby_is_better_than_the_oracles_and_that_is_not_far(name):
    one, rng = pursuit(name), np.random.default_rng(0)
    constraint = one.constraint
    for radius in (0.0, 1e-3, 0.1, 0.5, 10.0):
        for _ in range(40):
            weights = constraint.project(ORIGIN + 3 * rng.normal(size=SHAPE) * rng.uniform(), ORIGIN)
            gradient = rng.normal(size=SHAPE)
            best = one.oracle(weights, radius, gradient)
            assert constraint.holds(best, ORIGIN)
            assert np.linalg.norm(best - weights) <= one.reach * radius + 1e-12
            for push in (0.01, 0.1, 1.0, 10.0, 1000.0):  # the best points nearby, up to where they are cut off
                other = constraint.project(weights - push * gradient, ORIGIN)
                other = weights + (other - weights) * min(1.0, radius / max(np.linalg.norm(other - weights), 1e-300))
                assert np.vdot(gradient, best) <= np.vdot(gradient, other) + 1e-9


def test_an_oracle_moves_first_what_costs_most():
    """Before what the weights leave of the radius, which costs nothing."""
    one = Pursuit(constraint=ConstraintSet(name="l1_ball", radius=1.0), origin=np.zeros((1, 2)), convexity=0.5)
    moved = one.oracle(np.array([[0.5, 0.0]]), 0.1 / np.sqrt(2), np.array([[0.2, -0.1]]))
    np.testing.assert_allclose(moved, [[0.3, 0.0]], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_to_the_leader_is_never_more_than_certified(name):
    one, rng = pursuit(name), np.random.default_rng(1)
    weights, apart, sums = ORIGIN, np.zeros(1), np.zeros(SHAPE)
    drift = rng.normal(size=SHAPE)
    for step in range(200):
        estimate = drift + rng.normal(size=SHAPE)
        weights, apart = one.step(weights, apart, sums, estimate, step)
        sums = sums + estimate
        beta = 0.5 * (step + 1 + one.head_start)
        middle = ORIGIN - sums / beta
        leader = one.constraint.project(middle, ORIGIN)
        left = beta / 2 * (np.sum((weights - middle) ** 2) - np.sum((leader - middle) ** 2))
        assert one.constraint.holds(weights, ORIGIN)
        assert left <= apart[0] * (1 + 1e-9) + 1e-12
    assert np.linalg.norm(weights - ORIGIN) > 0.5 * np.linalg.norm(leader - ORIGIN) > 0.1


@pytest.mark.parametrize("apart", [0.0, 0.02, 50.0])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_certified_is_the_smaller_of_two_bounds_less_what_a_move_gains(name, apart):
    """H̄ = H + ‖g + μ(w - c)‖·(√(2H/β_(t-1)) + ‖c_t - c_(t-1)‖), or the gap; then (1 - 1/(4κ²))·H̄."""
    one, rng, step = pursuit(name), np.random.default_rng(3), 7
    weights = one.constraint.project(ORIGIN + 0.1 * rng.normal(size=SHAPE), ORIGIN)
    before, estimate = rng.normal(size=SHAPE), 0.1 * rng.normal(size=SHAPE)
    older, newer = (0.5 * (each + 4 * one.reach**2) for each in (step, step + 1))
    moved = np.linalg.norm((before + estimate) / newer - before / older)
    grown = apart + np.linalg.norm(estimate + 0.5 * (weights - ORIGIN)) * (np.sqrt(2 * apart / older) + moved)
    gradient = newer * (weights - ORIGIN) + before + estimate
    gap = np.vdot(gradient, weights - one.constraint.lowest(gradient, ORIGIN))
    stepped, left = one.step(weights, np.array([apart]), before, estimate, step)
    bound = min(grown, gap)
    assert left == pytest.approx((1 - 1 / (4 * one.reach**2)) * bound, rel=1e-5)
    towards = one.oracle(weights, np.sqrt(2 * bound / newer), gradient)
    np.testing.assert_allclose(stepped, weights + (towards - weights) / (2 * one.reach**2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_leader_that_is_reached_and_stays_is_certified_to_be_reached(name):
    one, nothing = pursuit(name), np.zeros(SHAPE)
    moved, left = one.step(ORIGIN, np.zeros(1), nothing, nothing, 1)
    assert left == [0.0]
    np.testing.assert_array_equal(moved, ORIGIN)
