"""The losses of what is remembered, A-GEM's projection, and a fair memory; each against its definition."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from service.learning.optimization.losses import LOSSES
from service.learning.records import Records
from service.mechanisms.lifelong.task_statistics import Place, TaskStatistics, _Means, forgotten, projected
from service.mechanisms.sufficient_statistics import deviation, spread
from service.privacy.currency import Currency
from service.privacy.noise.correlated import Blt, Toeplitz
from service.streams import feature_maps
from tests import chance

CASES = [("logistic", 2), ("softmax", 4), ("squared", 0)]
RHO = 0.0244


def learner(name="softmax", classes=4, features=3, **changed):
    return TaskStatistics(
        **{"loss": LOSSES[name], "regularization": 0.1, "intercept": True, "norm_bound": 1.0}
        | {"features": features, "classes": classes}
        | changed
    )


def means(rng, rows, columns):
    square = rng.normal(size=(columns, columns))
    return _Means(second=square @ square.T / columns, labels=rng.normal(size=(rows, columns)), pulled=0.03)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_the_losses(case):
    """By differences of R and of L, with their traces written out as in paper-audit.md 4."""
    one, rng = learner(*case), np.random.default_rng(2)
    rows, columns = one.shape
    of, encoder, classifier = means(rng, rows, columns), rng.normal(size=(columns, 2)), rng.normal(size=(rows, 2))
    gain, curvature = one.expansion

    def loss(theta, w):
        m, v, pulled = of
        n = m + pulled * np.eye(columns)
        reconstruction = (
            np.trace(n) - 2 * np.trace(theta.T @ n @ theta) + np.trace(theta.T @ n @ theta @ theta.T @ theta)
        )
        fit = curvature / 2 * np.trace(w @ theta.T @ m @ theta @ w.T) - gain * curvature * np.trace(w @ theta.T @ v.T)
        return reconstruction + fit + curvature * pulled / 2 * np.sum(w**2)

    by_encoder, by_classifier = one.gradient(encoder, classifier, of)
    for _ in range(5):
        along, across = rng.normal(size=encoder.shape), rng.normal(size=classifier.shape)
        h = 1e-5
        slope = (
            loss(encoder + h * along, classifier + h * across) - loss(encoder - h * along, classifier - h * across)
        ) / 2
        assert slope / h == pytest.approx(np.vdot(by_encoder, along) + np.vdot(by_classifier, across), rel=1e-6)


def test_the_first_encoder_reconstructs_best_of_all():
    """R of the eigenvectors is what they leave out, and nothing nearby is less; the gradient there is zero."""
    one, rng = learner(features=6), np.random.default_rng(4)
    of = means(rng, 4, 7)
    values, vectors = np.linalg.eigh(of.second)
    encoder = vectors[:, -3:]
    by_encoder, _ = one.gradient(encoder, np.zeros((4, 3)), of)
    np.testing.assert_allclose(by_encoder, 0, atol=1e-12)

    def reconstruction(theta):
        rest = np.eye(7) - theta @ theta.T
        return np.trace(rest @ of.second @ rest.T)

    assert reconstruction(encoder) == pytest.approx(values[:-3].sum())
    for _ in range(50):
        assert reconstruction(encoder + rng.normal(size=encoder.shape) * 0.05) > reconstruction(encoder)


@pytest.mark.parametrize("rank", [None, 2, 4])
def test_solving_for_both_minimises_what_is_remembered(rank):
    """Over W, for codes that are the eigenvectors: the gradient by W is zero."""
    one, rng = learner(hidden=rank), np.random.default_rng(5)
    records = Records(x=rng.normal(size=(60, 3)), y=rng.integers(0, 4, 60))
    total, slots, ridge = one.statistics(records, 64), 64, 0.02
    model = one.solve(total, slots, ridge, np.zeros(one.shape), rank=one.codes)
    second, labels = one.sums(total, slots)
    m, v = second * one.unit**2 / slots, labels * one.unit / slots
    encoder = np.linalg.eigh(m)[1][:, -(rank or 4) :]
    np.testing.assert_allclose(model @ encoder @ encoder.T, model, atol=1e-12)
    _, slope = one.gradient(encoder, model @ encoder, _Means(second=m, labels=v, pulled=ridge / one.expansion[1]))
    np.testing.assert_allclose(slope, 0, atol=1e-12)


def test_a_gradient_is_projected_only_where_it_goes_against_the_older_tasks():
    rng, rates = np.random.default_rng(0), (0.3, 2.0)

    def inner(one, other):
        return rates[0] * np.vdot(one[0], other[0]) + rates[1] * np.vdot(one[1], other[1])

    met = Counter()
    for _ in range(100):
        gradient, reference = ((rng.normal(size=(4, 2)), rng.normal(size=(3, 2))) for _ in range(2))
        direction = projected(gradient, reference, rates)
        if inner(gradient, reference) >= 0:
            assert direction is gradient
        else:
            assert inner(direction, reference) == pytest.approx(0, abs=1e-12)
            taken = [own - new for own, new in zip(gradient, direction, strict=True)]
            np.testing.assert_allclose(taken[0] * reference[1][0, 0], reference[0] * taken[1][0, 0], atol=1e-12)
        met[inner(gradient, reference) < 0] += 1
    assert min(met.values()) > 20
    nothing = (np.zeros((4, 2)), np.zeros((3, 2)))
    assert projected(gradient, nothing, rates) is gradient


def test_steps_of_a_task_make_older_ones_worse_only_by_what_they_curve():
    """Two tasks that contradict one another: without the projection the first one's loss rises nine times as far."""
    rng = np.random.default_rng(8)
    one = learner("logistic", 2, training="agem", hidden=3, ridge=1e-3)
    x = rng.normal(size=(2, 200, 3))
    first, second = (
        np.concatenate(
            (one.statistics(Records(x=x[task], y=(x[task][:, 0] > 0).astype(int) ^ task), 200), (200.0, 1.0))
        )
        for task in (0, 1)
    )
    noise = one.perturbation(Currency.ZCDP, 1e6, 200)
    start = one._descend((), (), first, 300, noise)
    of = one._means(first, noise)
    gain, curvature = one.expansion

    def loss(state):
        encoder, classifier = state
        weights = classifier @ encoder.T
        rest = np.eye(4) - encoder @ encoder.T
        fit = curvature / 2 * np.trace(weights @ of.second @ weights.T)
        return np.trace(rest @ of.second @ rest.T) + fit - curvature * gain * np.vdot(weights, of.labels)

    spared, lost = (one._descend(start, older, second, 100, noise) for older in ((first,), ()))
    assert loss(spared) < loss(start) + 0.2 * (loss(lost) - loss(start))
    assert loss(lost) > loss(start) + 0.05


@pytest.mark.more
def test_nothing_but_noise_leads_nowhere_far():
    """Also where M has no positive eigenvalue, and after a thousand tasks: what noise is in V is pulled back."""
    one, rng = learner("logistic", 2, training="agem", intercept=False, features=2), np.random.default_rng(1)
    noise = one.perturbation(Currency.ZCDP, RHO, 4)
    model, older = (), ()
    for task in range(1000):
        drawn = rng.normal(size=one.entries) * deviation(noise.noise) - 100.0 * (task < 3)
        latest = np.concatenate((drawn, (4.0, 1.0)))
        model = one._descend(model, older, latest, 5, noise)
        older = (sum(older, start=latest),)
    encoder, classifier = model
    assert np.linalg.norm(classifier @ encoder.T) < 100
    assert np.linalg.norm(encoder) < 3


def test_every_task_is_remembered_with_the_same_chance():
    """By the rule itself over many lengths of streams: draws are even, whatever the task or the draw before it."""
    drawn = [forgotten(task) for task in range(5000)]
    assert all(0 <= each <= task for task, each in enumerate(drawn))
    places = [(each + 0.5) / (task + 1) for task, each in enumerate(drawn) if task > 100]
    chance.assert_follows(places, stats.uniform)
    chance.assert_follows(np.add(places[:-1:2], places[1::2]) % 1, stats.uniform)
    chance.assert_follows(np.subtract(places[:-1:2], places[1::2]) % 1, stats.uniform)
    assert drawn[:8] == [0, 1, 0, 1, 3, 5, 4, 4] or drawn[:8] != sorted(drawn[:8])


@pytest.mark.parametrize("factor", [Blt.decaying(0.97), Toeplitz(bands=1, decay=1.0)], ids=["blt", "independent"])
def test_the_noise_of_a_sum_is_that_of_explicit_linear_algebra(factor):
    steps = 600
    column = np.eye(steps)[0]
    if isinstance(factor, Blt):
        decays, scales = np.array(factor.decays), np.array(factor.scales)
        column = np.array([1.0, *(decays ** np.arange(steps - 1.0)[:, None] @ scales)])
    lags = np.subtract.outer(np.arange(steps), np.arange(steps))
    matrix = np.where(lags >= 0, column[np.abs(lags)], 0.0)
    explicit = np.linalg.norm(np.linalg.inv(matrix).cumsum(axis=0), axis=1)
    np.testing.assert_allclose([spread(factor, each + 1) for each in range(steps)], explicit, rtol=1e-6)


def test_taking_noise_back_is_worth_what_is_told():
    """Noise of the sum of all batches for one cost (docs/mechanisms/lifelong.md)."""
    factor = learner().factor(Currency.ZCDP)
    for batches, printed in ((1, 1.34), (5, 1.71), (20, 2.08), (100, 2.97), (1000, 7.57)):
        assert float(factor.column.square) ** 0.5 * spread(factor, batches) == pytest.approx(printed, abs=0.006)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 40), st.floats(-2, 3), st.integers(0, 2**32 - 1))
def test_through_a_map_of_its_own_no_record_moves_more_either(m, log_scale, seed):
    rng, mapped = np.random.default_rng(seed), {"kind": "random_fourier", "version": 1, "features": 12, "width": 1.0}
    own = feature_maps.build(mapped | {"seed": 0}, 3)
    one = learner(features=12)
    x, y = rng.normal(size=(m, 3)) * 10**log_scale, rng.integers(0, 4, m)
    other = x.copy()
    other[0] = rng.normal(size=3) * 10**log_scale
    both = (Records(x=own(each), y=y) for each in (x, other))
    apart = np.subtract(*(one.statistics(each, m) for each in both))
    assert np.linalg.norm(apart) <= one.perturbation(Currency.ZCDP, RHO, m).sensitivity


def test_where_only_the_sum_counts_one_array_is_remembered():
    place = Place(number=9, task=4, batch=1, batches=2, start=0, end=1)
    for changed, arrays in (
        ({}, 4),
        ({"memory": 3}, 4),
        ({"training": "agem"}, 4),
        ({"training": "agem", "memory": 2}, 5),
    ):
        one = learner(**changed)
        assert one.remembers(one.perturbation(Currency.ZCDP, RHO, 8), place) == arrays
        model = 2 if one.training == "agem" else 0
        assert one.most_remembered > (arrays - model) * one.entries


@pytest.mark.parametrize("lacking", [{"memory": None}, {"intercept": False}, {"training": "agem"}])
def test_heads_of_tasks_need_what_tells_tasks_apart(lacking):
    learner(heads="per_task", memory=2)
    with pytest.raises(ValueError, match="heads of tasks need"):
        learner(heads="per_task", **({"memory": 2} | lacking))
