"""No record moves a block's statistics further than stated, some move them nearly as far; what is solved from them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from service.learning.optimization.losses import LOSSES, Squared
from service.learning.optimization.solvers import Inaccurate
from service.learning.records import Records
from service.mechanisms.sufficient_statistics import Statistics, weights
from service.privacy import sensitivity
from service.privacy.currency import Currency
from service.privacy.noise.correlated import Tree

CASES = [("logistic", 2), ("softmax", 2), ("softmax", 3), ("softmax", 10), ("squared", 0)]
RHO = 0.0244


def learner(name, classes, features=3, **changed):
    return Statistics(
        **{"loss": LOSSES[name], "regularization": 0.1, "intercept": True, "norm_bound": 1.0}
        | {"features": features, "classes": classes}
        | changed
    )


def moved(one, first, second, n):
    """How far apart the statistics of two neighbours are, in units of the claim."""
    apart = one.statistics(first, n) - one.statistics(second, n)
    return np.linalg.norm(apart) / one.perturbation(Currency.ZCDP, RHO, n).sensitivity


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.sampled_from(CASES),
    st.integers(1, 300),
    st.floats(-1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_neighbours_never_move_statistics_further(case, m, log_scale, intercept, erase, seed):
    rng = np.random.default_rng(seed)
    one = learner(*case, intercept=intercept, norm_bound=10.0 ** rng.integers(-2, 3))
    x, y = rng.normal(size=(m, 3)) * 10**log_scale, rng.integers(0, case[1] or 5, m) - (0 if case[1] else 2)
    other_x, other_y = x.copy(), y.copy()
    other_x[0] = rng.choice([-1, 0, 1]) * x[0] + rng.choice([0.1, 1.0]) * rng.normal(size=3) * 10**log_scale
    other_y[0] = rng.integers(case[1] or 2)
    keep = slice(1 if erase else 0, None)
    assert moved(one, Records(x=x, y=y), Records(x=other_x[keep], y=other_y[keep]), m + 2) <= 1.0


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_no_sum_is_longer_than_its_rounding_is_reckoned_for(case, intercept):
    """The sum is longest where all records are alike and as long as they may be."""
    one, n = learner(*case, intercept=intercept), 500
    longest = Records(x=np.tile([100.0, 0.0, 0.0], (n, 1)), y=np.ones(n))
    largest = one.perturbation(Currency.ZCDP, RHO, n).largest
    assert largest / 2 < np.linalg.norm(one.statistics(longest, n)) <= largest


@pytest.mark.parametrize("n", [1, 1000])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_some_neighbours_come_close(case, intercept, n):
    """Found by optimisation over both records, for two of one label and for two of different ones."""
    one, low = learner(*case, features=2, intercept=intercept), -1 if case[0] == "squared" else 0

    def apart(angle, label):
        records = (
            Records(x=np.array([[np.cos(at), np.sin(at)]]), y=np.array([y])) for at, y in ((0.0, 1), (angle, label))
        )
        return -moved(one, *records, n)

    angles = np.linspace(0, np.pi, 40)
    best = min(
        optimize.minimize_scalar(apart, bounds=(max(0, at - 0.1), at + 0.1), args=(label,), method="bounded").fun
        for label in (low, 1)
        for at in [min(angles, key=lambda at: apart(at, label))]
    )
    assert 0.999 < -best <= 1.0


@pytest.mark.more
@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.tuples(*[st.integers(0, 20)] * 3), st.sampled_from([2, 3, 10]))
def test_the_sensitivity_holds_for_any_weights_and_is_attained(scaled, codes):
    """Against a search over lengths, angles and codes; shorter records and an empty slot included."""
    second, first, count = (scaled[0] + 1) / 10, scaled[1] / 10, scaled[2] / 10
    bound = sensitivity.sufficient_statistics(second=second, first=first, label=1.0, count=count, codes=codes)
    lengths, cosines = np.linspace(0, 1, 21), np.linspace(-1, 1, 201)
    one, other, cosine = np.meshgrid(lengths, lengths, cosines)
    inner = one * other * cosine
    pairs = [(1.0, 1.0, 1.0), (1.0, 1.0, -1 / (codes - 1)), (1.0, 0.0, 0.0)]  # |v|², |v'|², ⟨v, v'⟩
    if codes == 2:  # a regression's codes are any numbers between
        pairs += [(v * v, w * w, v * w) for v in (1.0, 0.7, 0.2) for w in (-0.7, 0.0, 0.5)]
    worst = 0.0
    for v, w, both in pairs:
        seconds = second**2 * (one**4 + other**4 - 2 * inner**2)
        firsts = first**2 * (one**2 + other**2 - 2 * inner)
        labels = v * one**2 + w * other**2 - 2 * both * inner
        worst = max(worst, float((seconds + firsts + labels).max()) + count**2 * (v + w - 2 * both))
    assert 0.995 * bound**2 < worst <= bound**2


@pytest.mark.more
@pytest.mark.parametrize(("features", "classes"), list(product([1, 8, 300], [0, 2, 10])))
def test_the_count_of_labels_is_free_and_the_rest_the_best_there_is(features, classes):
    best_weights, codes = weights(features, classes, intercept=True), max(classes, 2)
    parts = vars(best_weights)
    without = sensitivity.sufficient_statistics(**parts | {"count": 0.0}, codes=codes)
    assert sensitivity.sufficient_statistics(**parts, codes=codes) <= without * (1 + 1e-12)
    assert sensitivity.sufficient_statistics(**parts | {"count": best_weights.count * 1.01}, codes=codes) > without * (
        1 + 1e-6
    )

    def error(second, first):
        """Mean square of the noise in the normal equations, for weights of square length 2 and 1/4."""
        part = {"second": second, "first": first, "label": 1.0, "codes": codes}
        square = sensitivity.sufficient_statistics(**part, count=0.0) ** 2
        without, with_one = (sensitivity.moments_square(**part, count=count, alike=False) for count in (0.0, 1.0))
        free = (square - float(without)) / float(with_one - without)
        return square * (
            (features + 1) / second**2 + (codes - 1) * (features + 1 / free) + (features / 4 + 2) / first**2
        )

    best = error(best_weights.second, best_weights.first)
    for second, first in product((-0.05, 0, 0.05), (-0.05, 0, 0.05)):
        assert error(best_weights.second + second, best_weights.first + first) >= best * (1 - 2e-3)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("intercept", [False, True])
def test_without_noise_the_model_minimises_the_expansions_at_zero(case, intercept):
    """By differences of the loss itself: its gradient and curvature at zero, and a pull towards an origin."""
    one = learner(*case, norm_bound=2.0, intercept=intercept)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, 3)), rng.integers(0, case[1] or 2, 60)
    origin, ridge, slots = rng.normal(size=one.shape), 0.05, 64
    weights_solved = one.solve(one.statistics(Records(x=x, y=y), slots), slots, ridge, origin)
    rows = x * np.minimum(1, 2 / np.linalg.norm(x, axis=1, keepdims=True))
    if intercept:  # the number of slots is public, so empty ones count as records without features and without a label
        rows = np.vstack((np.hstack((rows, np.full((60, 1), 2.0))), [[0, 0, 0, 2.0]] * 4)) / np.sqrt(2)
    lines = one.shape[0]
    targets, curvature = {
        "logistic": (4.0 * y[:, None] - 2, 0.25),
        "softmax": (lines * (y[:, None] == np.arange(lines)) - 1.0, 1 / lines),
        "squared": (np.clip(y, -1, 1)[:, None], 1.0),
    }[case[0]]
    targets = np.vstack((targets, np.zeros((len(rows) - 60, lines))))
    explicit = np.linalg.solve(
        curvature * rows.T @ rows + ridge * slots * np.eye(one.shape[1]),
        curvature * rows.T @ targets + ridge * slots * origin.T,
    ).T
    np.testing.assert_allclose(weights_solved, explicit, rtol=0, atol=1e-5)  # norms are inflated by 2^-20

    def expanded(step):
        """The loss along that model's scores, in the direction of the first record."""
        scores = step * (rows[:1] @ explicit.T)
        return one.loss.derivatives(scores, y[:1])[0][0]

    h = 1e-3
    slope = (expanded(h) - expanded(-h)) / (2 * h)
    scores = (rows[:1] @ explicit.T)[0]
    assert slope == pytest.approx(-curvature * float(scores @ targets[0]), abs=1e-5)
    bend = (expanded(h) - 2 * expanded(0) + expanded(-h)) / h**2
    spread = scores - scores.mean() if case[0] == "softmax" else scores
    assert bend == pytest.approx(curvature * float(spread @ spread), abs=1e-4)


def test_a_second_moment_that_noise_made_negative_stays_within_the_ridge():
    one = learner("logistic", 2, ridge=0.1)
    wild = np.random.default_rng(1).normal(size=one.entries) * 1000
    model = one.solve(wild, 10, 0.1, np.zeros(one.shape))
    labels = wild[-4:] / np.array([1, 1, 1, one.weights.count])
    assert np.linalg.norm(model) <= 0.5 * np.linalg.norm(labels) / (0.1 * 10) * 2  # ½·‖Σ v⊗φ‖/(α·slots), φ = a/√2


def test_more_records_than_doubles_can_add_up_are_refused():
    one = learner("logistic", 2)
    assert (
        one.perturbation(Currency.ZCDP, RHO, 10**6).sensitivity
        < one.perturbation(Currency.ZCDP, RHO, 1).sensitivity * 1.001
    )
    with pytest.raises(Inaccurate, match="smaller blocks"):
        one.perturbation(Currency.ZCDP, RHO, 2**33)


def test_the_statistics_of_a_record_by_hand():
    """Features 0.6 and 0, class 1 of 3."""
    one = learner("softmax", 3, features=2)
    s, f, k = (getattr(one.weights, name) for name in ("second", "first", "count"))
    code = np.sqrt(1.5) * np.array([-1 / 3, 2 / 3, -1 / 3])
    expected = [s * 0.36, 0, f * 0.6, 0, 0, *(part for each in code for part in (0.6 * each, 0, k * each))]
    total = one.statistics(Records(x=np.array([[0.6, 0.0]]), y=np.array([1])), 5)
    np.testing.assert_allclose(total, expected, atol=1e-6)


def test_a_run_that_ends_is_followed_by_another():
    endless = learner("logistic", 2).perturbation(Currency.ZCDP, RHO, 10)
    assert [endless.place(step) for step in (0, 7, 8, 19)] == [0, 7, 8, 19]
    ending = replace(endless, factor=Tree(steps=8))
    assert [ending.place(step) for step in (0, 7, 8, 19)] == [0, 7, 0, 3]


def test_targets_count_by_their_share_of_the_bound():
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(50, 3)), rng.uniform(-1.2, 1.2, 50)
    one, four = (learner("squared", 0, loss=Squared(bound=bound)) for bound in (1.0, 4.0))
    of_one = one.statistics(Records(x=x, y=y), 50)
    np.testing.assert_allclose(four.statistics(Records(x=x, y=4 * y), 50), of_one, rtol=1e-12)
    assert np.abs(of_one).max() > 0
