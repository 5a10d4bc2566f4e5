"""Paper D's algorithm gives its records away, as printed; what Perennial keeps of a task does not."""

from itertools import islice

import numpy as np
import pytest
from scipy import stats

from benchmarks import paper_d_attack as attack
from benchmarks.l2dp_ml import Batch, Parameters
from tests import chance

FEATURES, RECORDS, EPSILON = 20, 60, 0.5
RANDOM = np.random.default_rng(3)
X = RANDOM.uniform(-1, 1, (300, FEATURES))
Y = RANDOM.integers(attack.CLASSES, size=300)


def some(count):
    return list(islice(attack.pairs(X, Y, RECORDS, np.random.default_rng(4)), count))


def algorithm():
    return attack.printed(FEATURES, RECORDS, EPSILON, np.random.default_rng())


def test_gradients_are_those_of_the_printed_objective():
    printed, batch = algorithm(), Batch(x=X[:RECORDS], y=Y[:RECORDS])
    noise = printed.draw(np.random.default_rng())
    at = Parameters(encoder=RANDOM.normal(size=printed.start.encoder.shape), weights=RANDOM.normal(size=(10, 6)))
    gradient = printed.gradient(at, batch, noise)
    hidden = [np.clip(at.encoder.T @ (x + noise.inputs), -1, 1) + noise.hidden for x in batch.x]
    encoder = sum(np.outer(0.5 - (x + noise.inputs), h) for x, h in zip(batch.x, hidden, strict=True))
    assert gradient.encoder == pytest.approx(encoder)

    def objective(weights):
        scores = np.array(hidden) @ weights.T
        own = batch.y[:, None] == np.arange(10)
        return np.sum(scores / 2 - own * scores + scores**2 / 8) + np.sum(weights @ noise.sums)

    towards = RANDOM.normal(size=at.weights.shape)
    slope = (objective(at.weights + 1e-4 * towards) - objective(at.weights - 1e-4 * towards)) / 2e-4
    assert np.vdot(gradient.weights, towards) == pytest.approx(slope, rel=1e-6)


def test_from_the_second_task_on_steps_are_projected_by_the_memory():
    printed = algorithm()
    noise, (first, second) = printed.draw(RANDOM), [Batch(x=X[i::5], y=Y[i::5]) for i in (0, 1)]
    once, twice = printed.learn([[first], [second]], noise, RANDOM)
    reference, moved = printed.gradient(once, first, noise), twice.plus(-1, once)
    assert abs(moved.dot(reference)) < 1e-6 * np.sqrt(moved.dot(moved) * reference.dot(reference))
    assert printed.gradient(once, second, noise).dot(reference) > 0  # where A-GEM would not


def test_the_claim_is_all_that_theorem_2_adds_up():
    printed = algorithm()
    sensitivity, first = FEATURES * (6 + 2), printed.first_epsilon()
    by_inputs, by_hidden = (
        first * RECORDS / sensitivity,
        first * RECORDS * np.abs(printed.start.encoder).sum(axis=0).max() / (2 * sensitivity),
    )
    assert first + by_inputs + by_hidden + first == pytest.approx(EPSILON)


def test_twenty_of_twenty_neighbours_are_told_apart_and_the_record_is_read():
    """By the rank with a margin: how many times as much the wrong hypothesis leaves, as a power of ten."""
    margins, errors = [], []
    for pair in some(20):
        for which in (0, 1):
            printed, data = algorithm(), pair.data(which)
            noise = printed.draw(np.random.default_rng())
            gradient = attack.step(printed, data, np.random.default_rng())
            assert attack.told_by_inputs(data.x + noise.inputs, pair) == which
            answer, left = attack.told_by_rank(gradient.encoder, printed.start.encoder, pair)
            assert answer == int(left[0] > left[1])
            margins.append(np.log10(left[1 - which] / left[which]))
            record, label = attack.read(gradient, printed.start, pair.known)
            errors.append(np.log10(np.abs(record - pair.either[which].x[0]).max()))
            assert label == pair.either[which].y[0]
    chance.assert_above(min(margins), 0, mean=7.0, spread=0.13, runs=40)
    chance.assert_below(max(errors), np.log10(0.04), mean=-5.48, spread=0.27, runs=40)


def test_the_audit_disproves_the_printed_claim():
    """All of its guesses are right, by the margin of the test above, and so the bound is always the same."""
    assert attack.audit_printed(X, Y, EPSILON, RECORDS, runs=100) > EPSILON


@pytest.mark.more
def test_the_audit_does_not_disprove_ours_and_would_if_there_were_less_noise():
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    least = attack.audit_ours(rows, Y, EPSILON, RECORDS, runs=400)
    chance.assert_loses_no_more(least, EPSILON, false_alarm=attack.ALARM)
    loud = attack.audit_ours(rows, Y, 100 * EPSILON, RECORDS, runs=400)
    chance.assert_above(loud, EPSILON, mean=2.88, spread=0.09, runs=40)


def test_a_bound_is_that_of_clopper_and_pearson():
    always, never = np.ones(100, dtype=bool), np.zeros(100, dtype=bool)
    least = (attack.ALARM / 2) ** (1 / 100)  # the chance with which all of 100 are told by luck
    assert attack.bound(always, never, 0.0) == pytest.approx(np.log(least / (1 - least)))
    assert attack.bound(always, always, 0.0) == attack.bound(never, never, 0.0) == 0.0
    assert attack.bound(never, always, 0.0) == 0.0


def test_a_bound_is_wrong_no_more_often_than_it_says():
    """Try randomised response, which loses exactly ε: all that can be seen in 30 runs of each, with its probability."""
    count, truthful = 30, np.exp(EPSILON) / (1 + np.exp(EPSILON))
    runs = np.arange(count)
    wrong = sum(
        stats.binom.pmf(right, count, truthful) * stats.binom.pmf(false, count, 1 - truthful)
        for right in range(count + 1)
        for false in range(count + 1)
        if attack.bound(runs < right, runs < false, 0.0, alarm=0.05) > EPSILON
    )
    assert 0 < wrong < 0.05
