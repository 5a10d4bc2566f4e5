"""Solvers without a certificate: no neighbours move them further than counted, some nearly as far, and they arrive."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.optimization import descent
from service.learning.optimization.descent import GradientDescent, PermutationSGD, random_places
from service.learning.optimization.losses import LOSSES, Squared
from service.learning.optimization.solvers import SLACK, Exact, Inaccurate
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records
from service.streams.units import contributions
from tests import chance

SATURATED = [("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3)]
CASES = [*SATURATED, ("squared", 0)]


def learner(case, solver, features=2, alpha=0.1, bound=1.0):
    return OutputPerturbation(
        loss=LOSSES[case[0]],
        regularization=alpha,
        intercept=False,
        norm_bound=bound,
        features=features,
        classes=case[1],
        solver=solver,
    )


def some_labels(case, rng, m=None):
    return rng.integers(0, case[1], m) if case[1] else rng.normal(size=m)


class Positions:
    """The same permutations of the slots for two neighbours: `slots` says in which slot each record present is."""

    def __init__(self, seed, slots):
        self.random, self.slots = np.random.default_rng(seed), slots

    def __call__(self, rows, total):
        assert rows == len(self.slots)
        return self.random.permutation(total)[self.slots]


def psgd(passes, batch, seed, slots):
    return PermutationSGD(passes=passes, batch=batch, places=Positions(seed, slots))


def neighbours(case, rng, n, empty, features=3):
    """Records in some of n slots, and the same with one of them replaced or erased: (records, their slots) twice."""
    m = max(1, n - empty)
    slots = np.sort(rng.choice(n, m, replace=False))
    scale = 10 ** rng.uniform(-1, 2)
    x, y = rng.normal(size=(m, features)) * scale, some_labels(case, rng, m)
    i = rng.integers(m)
    if rng.random() < 0.3:
        left = np.arange(m) != i
        return (Records(x=x, y=y), slots), (Records(x=x[left], y=y[left]), slots[left])
    other_x, other_y = x.copy(), y.copy()
    other_x[i], other_y[i] = rng.choice([-1, 1]) * x[i] + 0.1 * rng.normal(size=features), some_labels(case, rng)
    return (Records(x=x, y=y), slots), (Records(x=other_x, y=other_y), slots)


def apart(case, solver_for, pair, n, center, alpha):
    """How far two neighbours' models are apart, as a part of the sensitivity."""
    models = []
    for records, slots in pair:
        one = learner(case, solver_for(slots), features=records.x.shape[1], alpha=alpha)
        models.append(one.fit(records, n, center))
    return np.linalg.norm(models[0] - models[1]) / one.sensitivity(n, center)


PROBLEMS = (
    st.sampled_from(CASES),
    st.integers(1, 14),
    st.integers(0, 5),
    st.floats(-3, 2),
    st.floats(-2, 3),
    st.integers(0, 2**32 - 1),
)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(*PROBLEMS, st.integers(1, 6), st.integers(1, 9))
def test_permutation_sgd_never_moves_further(case, n, empty, log_alpha, log_center, seed, passes, batch):
    rng = np.random.default_rng(seed)
    pair = neighbours(case, rng, n, empty)
    center = rng.normal(size=(LOSSES[case[0]].rows(case[1]), 3)) * 10**log_center
    assert apart(case, lambda slots: psgd(passes, batch, seed, slots), pair, n, center, 10**log_alpha) <= 1


@settings(deadline=None, derandomize=True, max_examples=120)
@given(*PROBLEMS, st.integers(1, 60))
def test_gradient_descent_never_moves_further(case, n, empty, log_alpha, log_center, seed, steps):
    rng = np.random.default_rng(seed)
    pair = neighbours(case, rng, n, empty)
    center = rng.normal(size=(LOSSES[case[0]].rows(case[1]), 3)) * 10**log_center
    assert apart(case, lambda _: GradientDescent(steps=steps), pair, n, center, 10**log_alpha) <= 1


FAR = {
    ("logistic", 2): [[-1e4, 0.0]],
    ("softmax", 3): [[-1e4, 0.0], [1e4, 0.0], [-1e4, 0.0]],
    ("huber_hinge", 2): [[-1e4, 0.0]],
    ("huber_hinge", 3): [[-1e4, 0.0], [1e4, 0.0], [1e4, 0.0]],
}


def adversaries(case, n):
    """Records that a far centre has all on the wrong side, so that their gradients do not change; one looks away.

    For the squared loss: labels at both ends, and α so large that weights hardly move.
    """
    slots = np.arange(n)
    if case[0] == "squared":
        x, y, other_y = np.tile([0.9999, 0.0], (n, 1)), np.ones(n), np.ones(n)
        other_y[n // 2] = -1
        return ((Records(x=x, y=y), slots), (Records(x=x, y=other_y), slots)), np.zeros((1, 2)), 1e4
    x = np.tile([0.01, 0.9999], (n, 1))
    other = x.copy()
    other[n // 2] = [0.01, -0.9999]
    y = np.full(n, 1 if len(FAR[case]) == 1 else 0)
    return ((Records(x=x, y=y), slots), (Records(x=other, y=y), slots)), np.array(FAR[case]), 0.5


@pytest.mark.more
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("n", "passes", "batch"), [(1, 400, 1), (16, 20, 1), (12, 20, 4), (100, 30, 7), (64, 1, 1)])
def test_some_neighbours_move_permutation_sgd_nearly_as_far(case, n, passes, batch):
    pair, center, alpha = adversaries(case, n)
    part = apart(case, lambda slots: psgd(passes, batch, 1, slots), pair, n, center, alpha)
    assert 0.9 < part <= 1


@pytest.mark.more
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("steps", [1, 3, 10, 1000])
def test_some_neighbours_move_gradient_descent_nearly_as_far(case, steps):
    pair, center, alpha = adversaries(case, 10)
    assert 0.98 < apart(case, lambda _: GradientDescent(steps=steps), pair, 10, center, alpha) <= 1


def test_counting_steps_anew_in_every_pass_would_be_seen(monkeypatch):
    """A check of these tests: with step sizes that start again, a record moves a model further than that."""
    pair, center, _ = adversaries(CASES[0], 4)
    solver = PermutationSGD(
        passes=20, batch=1, places=lambda *_: np.array([0, 1, 3, 2])
    )  # the one that differs is last
    assert apart(CASES[0], lambda _: solver, pair, 4, center, 0.1) <= 1
    anew = lambda steps, start: zip(itertools.cycle(range(start, start + 4)), steps, strict=False)  # noqa: E731
    monkeypatch.setattr(descent, "enumerate", anew, raising=False)
    assert apart(CASES[0], lambda _: solver, pair, 4, center, 0.1) > 1.3


@pytest.mark.more
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_three_solvers_agree(case):
    """Gradient descent arrives at the certified minimiser; permutation SGD at it to within what its last step can."""
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(300, 3)), some_labels(case, rng, 300)
    records, center = Records(x=x, y=y), rng.normal(size=learner(case, Exact(), 3).shape)
    models = {
        solver: learner(case, solver, 3).fit(records, 300, center)
        for solver in (Exact(), GradientDescent(steps=2000), PermutationSGD(passes=60, batch=10))
    }
    exact, descended, stochastic = models.values()
    sensitivity = learner(case, Exact(), 3).sensitivity(300, center)
    assert np.linalg.norm(descended - exact) <= SLACK / 2 * sensitivity  # τ/α, and a descent that has arrived
    # E‖w_T - w*‖² ≤ G²/(α²T) for steps 1/(αt) and gradients of length ≤ G = 2L; three times its root.
    one = learner(case, Exact(), 3)
    assert np.linalg.norm(stochastic - exact) <= 3 * 2 * one.setting(center).lipschitz / (0.1 * np.sqrt(60 * 30))


@pytest.mark.parametrize("solver", [GradientDescent(steps=9), PermutationSGD(passes=3, batch=4)], ids=lambda s: s.name)
def test_with_every_record_erased_it_is_the_centre_itself(solver):
    one = learner(CASES[1], solver)
    center = np.arange(6.0).reshape(3, 2)
    assert np.array_equal(one.fit(Records(x=np.empty((0, 2)), y=np.empty(0)), 10, center), center)


@pytest.mark.parametrize(
    ("n", "batch", "expected"),
    [
        (12, 4, (3, 4)),
        (13, 4, (4, 4)),
        (33, 32, (2, 17)),
        (5, 32, (1, 5)),
        (7, 1, (7, 1)),
        (10**6 + 1, 32, (31251, 32)),
    ],
)
def test_every_slot_has_a_place_and_padding_is_little(n, batch, expected):
    steps, size = PermutationSGD(passes=1, batch=batch).batches(n)
    assert (steps, size) == expected
    assert size <= batch
    assert n <= steps * size < n + steps


def test_each_pass_reads_every_record_once_in_batches():
    solver = PermutationSGD(passes=3, batch=4)
    batches = list(solver._order(np.arange(9), records=14))
    assert len(batches) == 3 * 4
    assert max(map(len, batches)) <= 4
    passes = [np.concatenate(batches[i : i + 4]) for i in (0, 4, 8)]
    assert all(sorted(each) == list(range(9)) for each in passes)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("solver", ["gradient_descent", "psgd", "exact"])
def test_copies_of_a_record_in_the_slots_of_one_unit_are_that_record(case, solver):
    """Also where units are not numbered without gaps, and one of their slots is empty: it has its part."""
    rng = np.random.default_rng(11)
    x, y, n = rng.normal(size=(6, 2)), some_labels(case, rng, 6), 7
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    center = rng.normal(size=(LOSSES[case[0]].rows(case[1]), 2))
    places = Positions(3, np.arange(6)), Positions(3, np.arange(6))
    if solver == "psgd":
        alone, copied = (PermutationSGD(passes=3, batch=2, places=each) for each in places)
    else:
        alone = copied = GradientDescent(steps=20) if solver == "gradient_descent" else Exact()
    whole = learner(case, alone, alpha=0.5).fit(Records(x=x, y=y), n, center)
    owners = rng.permutation(np.repeat(np.arange(6), [1, 2, 3, 1, 4, 5]))
    copies = Records(
        x=x[owners], y=y[owners], weights=contributions(owners), units=n, owners=np.array([0, 1, 3, 4, 8, 9])[owners]
    )
    one = learner(case, copied, alpha=0.5)
    np.testing.assert_allclose(one.fit(copies, n, center), whole, atol=1e-3 * one.sensitivity(n, center))


def test_all_records_of_a_unit_enter_the_same_step():
    owners = np.repeat([0, 1, 2, 3, 4], 40)
    for batch in PermutationSGD(passes=5, batch=2)._order(owners, records=7):
        assert len(batch) % 40 == 0
        assert len(set(owners[batch])) <= 2


def test_more_units_than_were_counted_are_refused():
    x, y, owners = np.zeros((4, 2)), np.zeros(4, dtype=int), np.array([0, 0, 1, 2])
    of_units = Records(x=x, y=y, weights=contributions(owners), units=2, owners=owners)
    for solver in (PermutationSGD(passes=1, batch=4), Exact()):
        with pytest.raises(ValueError, match="more records"):
            learner(CASES[0], solver).fit(of_units, 2, np.zeros((1, 2)))


def test_places_are_uniform():
    """All 12 injections of two records into four places."""
    drawn = [tuple(random_places(2, 4)) for _ in range(6000)]
    counts = [drawn.count(pair) for pair in itertools.permutations(range(4), 2)]
    chance.assert_frequencies(counts, [1 / 12] * 12)


def test_the_sum_is_divided_by_the_public_size_whoever_is_there():
    """One record in one of four slots weighs a quarter, as with three empty ones."""
    solver, center = PermutationSGD(passes=1, batch=4), np.zeros((1, 2))
    x, y = np.array([[1.0, 0.0]]), np.array([1])
    one = learner(CASES[0], solver)
    moved = one.fit(Records(x=x, y=y), 4, center)
    assert moved[0, 0] == pytest.approx(0.5 / 4 / (0.25 + 0.1), rel=1e-5)


@pytest.mark.parametrize("solver", [GradientDescent(steps=9), PermutationSGD(passes=3, batch=4)], ids=lambda s: s.name)
def test_a_computed_iterate_is_as_near_the_exact_one_as_counted(solver):
    """The same steps in 64-bit mantissas, written down a second time; a far centre makes the rounding show."""
    rng = np.random.default_rng(8)
    x, y, n, alpha, center = rng.normal(size=(20, 2)), rng.integers(0, 2, 20), 20, 0.1, np.array([[3e11, -4e11]])
    x /= np.linalg.norm(x, axis=1, keepdims=True) * 1.01
    places = Positions(3, np.arange(n))
    if solver.name == "psgd":
        solver = PermutationSGD(passes=3, batch=4, places=places)
    one = learner(CASES[0], solver)
    computed = one.fit(Records(x=x, y=y), n, center)
    wide = np.longdouble
    w, c, rows, signs = (np.asarray(a, dtype=wide) for a in (center, center, x, 2 * y - 1))
    beta = wide(0.25) + wide(alpha)
    again = Positions(3, np.arange(n))
    t = 0
    for _ in range(9 if solver.name == "gradient_descent" else 3):
        if solver.name == "psgd":
            order = again(n, n)
            steps = [np.flatnonzero(order // 4 == batch) for batch in range(5)]
        else:
            steps = [np.arange(n)]
        for batch in steps:
            t += 1
            eta = min(1 / beta, 1 / (wide(alpha) * t)) if solver.name == "psgd" else 2 / (beta + wide(alpha))
            margins = signs[batch] * (rows[batch] @ w[0])
            slopes = -signs[batch] * (1 - np.tanh(margins / 2)) / 2
            gradient = (slopes @ rows[batch])[None] / (4 if solver.name == "psgd" else n) + wide(alpha) * (w - c)
            w = w - eta * gradient
    counted = (one.sensitivity(n, center) - one.sensitivity(n)) / 2  # nearly all: but for the least that is counted
    assert 0.0 < float(np.linalg.norm(computed - w)) <= counted


@pytest.mark.parametrize("solver", [GradientDescent(steps=9), PermutationSGD(passes=3, batch=4)], ids=lambda s: s.name)
def test_what_doubles_cannot_follow_is_refused_from_public_numbers_alone(solver):
    with pytest.raises(Inaccurate, match="double precision"):
        learner(CASES[0], solver).sensitivity(100, np.array([[1e15, 0.0]]))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_sensitivities_are_the_formulas(case):
    lipschitz, smoothness = {
        ("logistic", 2): (1.0, 0.25),
        ("softmax", 3): (2**0.5, 0.5),
        ("huber_hinge", 2): (1.0, 1.0),
        ("huber_hinge", 3): (3**0.5, 1.0),
        ("squared", 0): (1 + 1 / 0.1**0.5, 1.0),  # with c = 0 and R = Y = 1
    }[case]
    full = 2 * lipschitz / (0.1 * 100)
    step = 2 / (smoothness + 2 * 0.1)
    for solver, expected in [  # 100 slots in batches of at most 33 are 4 of 25; of at most 3, 34 of 3
        (GradientDescent(steps=5), full * (1 - (1 - step * 0.1) ** 5)),
        (GradientDescent(steps=10**5), full),
        (PermutationSGD(passes=1, batch=10), full),
        (PermutationSGD(passes=50, batch=1), full),
        (PermutationSGD(passes=3, batch=33), full),
        (PermutationSGD(passes=3, batch=60), full),
        (PermutationSGD(passes=3, batch=3), full * 100 / 102),
    ]:
        sensitivity = learner(case, solver).sensitivity(100)
        assert sensitivity == pytest.approx(expected, rel=3e-5)
        if expected == full:
            assert sensitivity >= full


def test_the_squared_loss_grows_with_the_centre():
    """L = R·(R·‖c‖ + Y)·(1 + R/√α), and iterates stay in the ball of radius (R·‖c‖ + Y)/√α for which that is."""
    one = learner(CASES[-1], GradientDescent(steps=10**5), bound=2.0)
    center = np.array([[3.0, 4.0]])
    lipschitz = 2 * (2 * 5 + 1) * (1 + 2 / 0.1**0.5)
    assert one.setting(center).lipschitz == pytest.approx(lipschitz, rel=1e-5)
    assert one.sensitivity(100, center) == pytest.approx(2 * lipschitz / (0.1 * 100), rel=1e-5)


@pytest.mark.parametrize("solver", [GradientDescent(steps=9), PermutationSGD(passes=3, batch=4)], ids=lambda s: s.name)
def test_iterates_never_leave_the_ball_in_which_the_loss_is_lipschitz(solver, monkeypatch):
    """Records that all pull the same way, in a ball that was made a hundred times too small to see it."""
    monkeypatch.setattr(Squared, "at_most", lambda self, scores, rows: 0.5 * (0.01 * (scores + self.bound)) ** 2)
    one = learner(CASES[-1], solver, alpha=1e-3)
    records = Records(x=np.tile([1.0, 0.0], (20, 1)), y=np.ones(20))
    radius = one.setting().reach
    assert np.linalg.norm(one.fit(records, 20, np.zeros((1, 2)))) == pytest.approx(radius)


def test_more_records_than_slots_are_refused():
    with pytest.raises(ValueError, match="more records than slots"):
        learner(CASES[0], PermutationSGD(passes=1, batch=2)).fit(
            Records(x=np.ones((3, 2)), y=np.ones(3)), 2, np.zeros((1, 2))
        )


def test_an_iterate_is_pulled_back_from_wherever_it_leaves_the_ball():
    setting = learner(CASES[-1], GradientDescent(steps=9)).setting()
    center, beyond = np.zeros((1, 2)), np.array([[1.01 * setting.reach, 0.0]])
    assert np.linalg.norm(descent._projected(setting, center, beyond)) <= setting.reach * (1 + 1e-12)


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.7, 1e-3])
def test_a_step_is_never_longer_than_what_brings_points_together(alpha):
    setting = learner(CASES[0], GradientDescent(steps=9), alpha=alpha).setting()
    assert descent._step(setting) <= 2 / (Fraction(setting.loss.smoothness(1.0)) + 2 * Fraction(alpha))
