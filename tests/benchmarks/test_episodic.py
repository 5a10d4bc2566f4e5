"""The lines beside paper D's compute what they promise: gradients, projections, and the loss that noise has spent."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from benchmarks.episodic import Episodic, NaiveGaussian, Network, noise_multiplier, projected, renyi, spent
from benchmarks.forgetting import average_accuracy, average_forgetting, p_value
from tests import chance

RANDOM = np.random.default_rng(5)


def network():
    fresh = Network.fresh(6, 5, 3, RANDOM)
    return Network(6, 5, 3, fresh.parameters.astype(np.float64))  # so that differences tell


def loss(learner, x, y):
    """The sum of cross-entropies, written out."""
    first, second = learner.layers(learner.parameters)
    scores = np.maximum(x @ first[:-1] + first[-1], 0) @ second[:-1] + second[-1]
    return sum(math.log(np.exp(row).sum()) - row[label] for row, label in zip(scores, y, strict=True))


def some(count):
    return RANDOM.normal(size=(count, 6)), RANDOM.integers(3, size=count)


def test_a_gradient_is_the_slope_of_the_loss():
    learner, (x, y), towards = network(), some(20), RANDOM.normal(size=6 * 5 + 5 + 5 * 3 + 3)
    ends = [loss(learner.moved(sign * 1e-6 * towards), x, y) for sign in (-1, 1)]
    assert learner.gradient(x, y) @ towards == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def test_every_record_of_a_clipped_gradient_counts_for_at_most_the_clip():
    learner, (x, y) = network(), some(20)
    each = [learner.gradient(x[i : i + 1], y[i : i + 1]) for i in range(20)]
    lengths = np.array([np.linalg.norm(one) for one in each])
    clip = float(np.median(lengths))
    assert learner.gradient(x, y, clip) == pytest.approx(sum(one * min(1, clip / np.linalg.norm(one)) for one in each))


def test_only_what_goes_against_the_memory_is_taken_away():
    reference = np.array([1.0, 1.0])
    assert projected(np.array([1.0, -2.0]), reference) == pytest.approx([1.5, -1.5])
    assert projected(np.array([2.0, -1.0]), reference) == pytest.approx([2.0, -1.0])
    assert projected(np.array([1.0, 0.0]), 0 * reference) == pytest.approx([1.0, 0.0])


def test_a_gem_learns_a_task_and_does_not_forget_the_first_at_once():
    """From fresh records, parameters and orders in every run."""
    random = np.random.default_rng()
    x = random.normal(size=(8000, 6)).astype(np.float32)
    tasks = [(x, (x[:, 0] > 0).astype(np.int64)), (x, 1 + (x[:, 0] > 0).astype(np.int64) * (x[:, 1] > 0))]
    learnt = Episodic(rate=0.3).learn(Network.fresh(6, 16, 3, random), tasks, random)
    first, second = (np.mean(each.predict(x) == y) for each, (x, y) in zip(learnt, tasks, strict=True))
    chance.assert_above(first, 0.9, mean=0.983, spread=0.004, runs=300)
    chance.assert_above(second, 0.8, mean=0.957, spread=0.0095, runs=300)


@pytest.mark.parametrize(("share", "order"), [(0.1, 2), (0.1, 5), (0.3, 3)])
def test_the_renyi_divergence_is_that_of_its_definition(share, order):
    without, shifted = stats.norm(0, 1.3), stats.norm(1, 1.3)
    integral, _ = integrate.quad(
        lambda at: without.pdf(at) * ((1 - share) + share * shifted.pdf(at) / without.pdf(at)) ** order, -30, 30
    )
    assert renyi(share, 1.3, order) == pytest.approx(math.log(integral) / (order - 1), rel=1e-6)


def test_of_all_records_it_is_the_gaussians():
    assert renyi(1.0, 2.0, 8) == pytest.approx(8 / (2 * 2.0**2))


def test_noise_is_the_least_that_spends_no_more():
    noise = noise_multiplier(0.01, 100, 0.5, 1e-6)
    assert spent(0.01, noise, 100, 1e-6) <= 0.5 < spent(0.01, 0.99 * noise, 100, 1e-6)


@pytest.mark.more
def test_naive_gaussian_divides_its_promise_among_all_tasks_and_memories():
    naive = NaiveGaussian(epsilon=0.5, delta=1e-6, tasks=20, steps=50, rate=0.1)
    parts = 20 + 19  # a task's own records, and those remembered when it is learnt
    assert parts * spent(256 / 60_000, naive.multiplier(60_000), 50, 1e-6 / parts) <= 0.5
    assert parts * spent(1.0, naive.multiplier(256), 50, 1e-6 / parts) <= 0.5


def test_naive_gaussian_adds_that_noise():
    naive = NaiveGaussian(epsilon=1.0, delta=1e-6, tasks=1, steps=3, rate=1.0, batch=50)
    still = Network(6, 100, 3, np.zeros(6 * 100 + 100 + 100 * 3 + 3, np.float32))
    x, y = np.zeros((100, 6), np.float32), np.zeros(100, np.int64)
    (moved,) = naive.learn(still, [(x, y)], RANDOM)
    first = moved.layers(moved.parameters)[0][:-1]  # of which no gradient has a part, x being 0
    deviation = naive.multiplier(100) * math.sqrt(naive.steps) / 50
    chance.assert_gaussian(first, scale=deviation)


def test_accuracy_and_forgetting_are_those_of_the_paper():
    a = np.array([[0.9, 0.1, 0.1], [0.8, 0.7, 0.1], [0.5, 0.8, 0.6]])
    assert average_accuracy(a) == pytest.approx([0.9, (0.8 + 0.7) / 2, (0.5 + 0.8 + 0.6) / 3])
    assert average_forgetting(a) == pytest.approx([0.9 - 0.8, ((0.9 - 0.5) + (0.7 - 0.8)) / 2])


def test_the_p_value_is_that_of_a_paired_t_test():
    one, other = np.array([0.9, 0.8, 0.7, 0.75]), np.array([0.8, 0.75, 0.65, 0.6])
    gap = one - other
    t = gap.mean() / (gap.std(ddof=1) / math.sqrt(4))
    assert p_value(one, other) == pytest.approx(2 * stats.t.sf(abs(t), 3))
    assert p_value(one, one) == 1.0


@pytest.mark.more
def test_noise_is_found_for_the_smallest_shares_that_are_asked_for():
    assert spent(1.0, noise_multiplier(1.0, 10, 0.2 / 39, 1e-6 / 39), 10, 1e-6 / 39) <= 0.2 / 39
