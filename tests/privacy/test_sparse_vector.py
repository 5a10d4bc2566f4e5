"""An instance's answers and their cost: exactly, on a lattice so coarse that probabilities can be added up."""

from collections import Counter
from fractions import Fraction
from math import inf, log
from random import Random

import numpy as np
import pytest

from service.privacy.noise import sparse_vector
from service.privacy.noise.sparse_vector import Instance
from tests import chance

STEPS = 4
SCALE = 6.0
HEIGHT = 0.25
OPENED = 10
RUNS = 5000


@pytest.fixture(autouse=True)
def _coarse(monkeypatch):
    monkeypatch.setattr(sparse_vector, "STEPS", STEPS)


def laplace(scale, reach):
    """The probabilities of -reach … reach."""
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(z) / scale)
    return z, weights / weights.sum()


def at_least(scale, x):
    """P(Z ≥ x) for whole numbers x."""
    up = np.exp(-np.abs(x) / scale) / (1 + np.exp(-1 / scale))
    return np.where(x > 0, up, 1 - up * np.exp(-1 / scale))


def probability(values, answers, *, scale=SCALE, height=10, redrawn=False):
    """Return the probability of these answers (True: a yes) to queries this far from their guesses, in steps."""
    z, weights = laplace(scale, 400)
    each = [at_least(2 * scale, height + z - value) for value in values]
    factors = [p if yes else 1 - p for p, yes in zip(each, answers, strict=True)]
    if redrawn:
        return float(np.prod([weights @ factor for factor in factors]))
    return float(weights @ np.prod(factors, axis=0))


def loss(values, answers, **how):
    """How much likelier that is than with the neighbour that moves each query as far as it can, against its answer."""
    away = [v - STEPS if yes else v + STEPS for v, yes in zip(values, answers, strict=True)]
    return log(probability(values, answers, **how) / probability(away, answers, **how))


MANY_NOES = ([4] * 60 + [8], [False] * 60 + [True])


def test_no_answers_cost_more_than_is_charged():
    cost = float(Instance(opened=OPENED, scale=SCALE).cost)
    assert cost == pytest.approx(2 * STEPS / SCALE)
    choose = Random(7)
    for _ in range(300):
        length = choose.randrange(1, 8)
        values = [choose.randrange(0, 40) for _ in range(length)]
        moved = [value + choose.randrange(-STEPS, STEPS + 1) for value in values]
        for answers in ([False] * length, [False] * (length - 1) + [True]):
            first, second = probability(values, answers), probability(moved, answers)
            assert abs(log(first / second)) <= cost + 1e-9
    assert 0.85 * cost < loss(*MANY_NOES) <= cost, "what is charged is no more than is lost at worst"


def test_less_noise_or_another_threshold_or_a_second_yes_costs_more():
    cost = float(Instance(opened=OPENED, scale=SCALE).cost)
    assert loss(*MANY_NOES, scale=SCALE * 2 / 3) > 1.2 * cost
    assert loss(*MANY_NOES, redrawn=True) > 2 * cost
    values, answers = MANY_NOES
    assert loss([*values, 8], [*answers, True]) > 1.2 * cost


def runs(instance, counts, *, noise=None):
    """How many noes there were before the first yes, in many runs; None: there was no yes."""
    ends = Counter()
    for _ in range(RUNS):
        threshold = instance.threshold_noise()
        for number, count in enumerate(counts):
            if noise is not None:
                threshold = noise()
            if instance.is_above(instance.value(count, 2 * OPENED, 0.0), HEIGHT, threshold):
                ends[number] += 1
                break
        else:
            ends[None] += 1
    return ends


def assert_law(ends, counts):
    """Assert that the first yes may have come where it did so often."""
    values = [count // 2 for count in counts]  # of twice as many slots as the instance opened over
    places = [*range(len(counts)), None]
    law = [
        probability(values[: len(counts) if at is None else at + 1], answers)
        for at in places
        if (answers := [False] * len(counts) if at is None else [False] * at + [True])
    ]
    chance.assert_frequencies([ends[at] for at in places], law)


COUNTS = [4, 16, 0, 24, 8, 24]


def test_what_an_instance_tells_has_the_stated_law():
    assert_law(runs(Instance(opened=OPENED, scale=SCALE), COUNTS), COUNTS)


def test_noise_a_third_too_small_is_told_from_that():
    with chance.is_noticed():
        assert_law(runs(Instance(opened=OPENED, scale=SCALE * 2 / 3), COUNTS), COUNTS)


def test_a_threshold_that_is_drawn_again_for_every_comparison_is_told_from_that():
    instance = Instance(opened=OPENED, scale=SCALE)
    counts = [16] * 12
    assert_law(runs(instance, counts), counts)
    with chance.is_noticed():
        assert_law(runs(instance, counts, noise=instance.threshold_noise), counts)


def test_one_slot_moves_no_query_by_more_than_the_steps_whatever_has_arrived():
    choose, instance = Random(3), Instance(opened=OPENED, scale=SCALE)
    most = 0
    for _ in range(2000):
        slots = choose.randrange(OPENED, 4 * OPENED)
        count, guess = choose.randrange(STEPS * slots + 1), choose.random()
        other = max(0, min(STEPS * slots, count + choose.randrange(-STEPS, STEPS + 1)))
        moved = abs(instance.value(count, slots, guess) - instance.value(other, slots, guess))
        most = max(most, moved)
    assert most == STEPS
    with pytest.raises(ValueError, match="fewer"):
        instance.value(1, OPENED - 1, 0.5)


def test_costs_are_exact_and_scales_bounded(monkeypatch):
    monkeypatch.undo()
    instance = Instance(opened=1, scale=3.0)
    assert instance.cost == Fraction(2 * sparse_vector.STEPS, 3)
    for scale in (0.5, inf, 2.0**57):
        with pytest.raises(ValueError, match="scale"):
            Instance(opened=1, scale=scale)


def test_an_answer_depends_on_the_thresholds_noise_and_on_its_own():
    instance = Instance(opened=1, scale=1.0)
    far = 10**6
    assert instance.is_above(0, 0.0, -far)
    assert not instance.is_above(0, 0.0, far)
    assert instance.is_above(instance.steps(0.5) + far, 0.5, 0)
    assert not instance.is_above(instance.steps(0.5) - far, 0.5, 0)
