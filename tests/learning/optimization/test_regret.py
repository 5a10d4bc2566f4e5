"""Regret is what its definition says, and the best fixed point is the best by brute force, as nearly as certified."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest

from service.learning.optimization import regret
from service.learning.optimization.constraint_sets import ConstraintSet, Name
from service.learning.optimization.losses import LOSSES
from service.learning.optimization.regret import Hindsight, Uncertified
from service.learning.records import PreparedRows

RECORDS = 30
CASES = [("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3), ("squared", 0)]
SMALL, LARGE = 0.4, 20.0  # a radius at which the set binds, and one at which only the simplex does


def hindsight(case=("logistic", 2), name="ball", radius=SMALL, **settings):
    """A problem of two weights, or of three for three classes."""
    rng, loss, shape = np.random.default_rng(5), LOSSES[case[0]], (1, 2) if case[1] < 3 else (3, 1)
    x = rng.normal(size=(RECORDS, shape[1]))
    y = (x[:, 0] + rng.normal(size=RECORDS) > 0.3).astype(int) + (rng.uniform(size=RECORDS) < 0.2) * (case[1] == 3)
    origin = np.linspace(0.2, -0.1, math.prod(shape)).reshape(shape)
    if name == "simplex":
        origin = np.full(shape, radius / origin.size)
    constraint = ConstraintSet(name=name, radius=radius)
    game = {"loss": loss, "x": PreparedRows.as_they_are(x), "y": y, "constraint": constraint, "origin": origin}
    return Hindsight(**game, **settings)


def total(game, weights, start=0, end=RECORDS):
    """Σ f_i, of all records at once."""
    losses, _, _ = game.loss.derivatives(game.x.x[start:end] @ weights.T, game.y[start:end])
    return losses.sum() + (end - start) * game.strong_convexity / 2 * np.sum((weights - game.origin) ** 2)


def brute(game, records=RECORDS):
    """The least Σ f_i on ever finer grids, each around the best point of the one before."""
    middle, width = game.origin, 2 * game.constraint.radius
    steps = [np.reshape(each, middle.shape) for each in itertools.product((-1, 0, 1), repeat=middle.size)]
    for _ in range(25):
        points = [game.constraint.project(middle + width * step, game.origin) for step in steps]
        middle = min([middle, *points], key=lambda weights: total(game, weights, end=records))
        width *= 0.65
    return total(game, middle, end=records)


@pytest.mark.more
@pytest.mark.parametrize("convexity", [0.0, 0.3])
@pytest.mark.parametrize("name", get_args(Name))
@pytest.mark.parametrize("case", CASES)
def test_the_best_fixed_point_is_that_of_brute_force(case, name, convexity):
    game = hindsight(case, name, strong_convexity=convexity)
    least, best = brute(game), game.best(RECORDS)
    assert game.constraint.holds(best.weights, game.origin)
    assert best.loss == pytest.approx(total(game, best.weights), rel=1e-12)
    assert best.gap <= RECORDS * game.precision
    assert best.loss - best.gap - 1e-9 <= least <= best.loss + 1e-4


@pytest.mark.more
@pytest.mark.parametrize("name", get_args(Name))
@pytest.mark.parametrize("precision", [0.3, 0.01])
def test_what_is_certified_of_a_bad_point_is_true(name, precision):
    """A gap is only worth something if the least loss is within it also where the search has stopped early."""
    for case, radius, convexity in itertools.product(CASES, (SMALL, LARGE), (0.0, 0.3)):
        game = hindsight(case, name, radius, strong_convexity=convexity, precision=precision)
        exact, rough = hindsight(case, name, radius, strong_convexity=convexity, precision=1e-5), game.best(RECORDS)
        least = exact.best(RECORDS)
        assert rough.loss - rough.gap <= least.loss + 1e-9
        assert rough.loss >= least.loss - least.gap - 1e-9


def test_a_set_that_does_not_bind_has_the_best_point_of_all():
    game = hindsight(radius=LARGE, strong_convexity=0.3, precision=1e-9)
    best = game.best(RECORDS)
    offset = best.weights - game.origin
    _, slopes, _ = game.loss.derivatives(game.x.scores(best.weights), game.y)
    np.testing.assert_allclose(game.x.gathered(slopes) / RECORDS + 0.3 * offset, 0, atol=1e-4)


def test_regret_is_what_was_lost_less_what_the_best_point_of_each_prefix_loses():
    game = hindsight(("squared", 0), "l1_ball", strong_convexity=0.3)
    rng = np.random.default_rng(1)
    starts, after = [0, 4, 5, 11, 25], [3, 4, 9, 12, 20, 30]
    models = [game.constraint.project(rng.normal(size=(1, 2)), game.origin) for _ in starts]
    regrets = game.regret(zip(starts, models, strict=True), after)
    assert [each.records for each in regrets] == after
    for each in regrets:
        played = [models[np.searchsorted(starts, i, side="right") - 1] for i in range(each.records)]
        lost = sum(total(game, weights, i, i + 1) for i, weights in enumerate(played))
        least = brute(game, each.records)
        assert each.value - 1e-4 <= lost - least <= each.value + each.gap + 1e-9
        assert each.gap <= each.records * game.precision


def test_the_best_fixed_point_has_no_regret():
    game = hindsight(name="simplex", strong_convexity=0.3)
    best = game.best(RECORDS)
    (regret,) = game.regret([(0, best.weights)], [RECORDS])
    assert regret.value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", get_args(Name))
def test_who_follows_the_leader_without_noise_regrets_no_more_than_is_known(name):
    """(L + μD)²/(2μ)·(1 + ln T) for one record a step (Hazan, Agarwal and Kale 2007)."""
    game, convexity = hindsight(name=name, strong_convexity=0.3), 0.3
    weights, sums, plays = game.origin, np.zeros((1, 2)), []
    for i in range(RECORDS):
        plays.append((i, weights))
        _, slopes, _ = game.loss.derivatives(game.x[i : i + 1].scores(weights), game.y[i : i + 1])
        sums += game.x[i : i + 1].gathered(slopes)
        weights = game.constraint.project(game.origin - sums / (convexity * (i + 1)), game.origin)
    steepest = game.x.norms().max() + convexity * 2 * math.sqrt(2) * SMALL
    for each in game.regret(plays, [1, 2, 5, 15, RECORDS]):
        assert each.value + each.gap <= steepest**2 / (2 * convexity) * (1 + math.log(each.records))


def test_what_is_no_sequence_of_models_is_refused():
    game = hindsight()
    one = game.origin
    for plays in ([(1, one)], [(0, one), (5, one), (5, one)], [(0, one), (7, one), (3, one)]):
        with pytest.raises(ValueError, match="must start at record 0"):
            game.regret(plays, [10])
    for after in ([0, 3], [3, 3], [5, 2], [RECORDS + 1]):
        with pytest.raises(ValueError, match="rising"):
            game.regret([(0, one)], after)
    with pytest.raises(ValueError, match="no 31 records"):
        game.best(31)


def test_a_point_that_is_not_proved_is_not_returned(monkeypatch):
    monkeypatch.setattr(regret, "MAX_STEPS", 2)
    with pytest.raises(Uncertified, match="1e-09"):
        hindsight(precision=1e-9).best(RECORDS)
