"""No record moves a sum of selected gradients further than stated, some do nearly; distances and steps are right."""

from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.optimization.constraint_sets import ConstraintSet
from service.learning.optimization.losses import LOSSES, HuberHinge
from service.learning.records import Records
from service.mechanisms.active_learning import active_gradient
from service.mechanisms.active_learning.active_gradient import ActiveGradient, Falling
from service.privacy.accounting import events
from service.privacy.currency import Currency
from service.privacy.noise.additive import Gaussian, SphericalLaplace, Unaffordable

SVM = HuberHinge(width=1e-6)
ORIGIN = np.zeros((1, 3))


def learner(loss=SVM, **settings):
    return ActiveGradient(
        **{
            "loss": loss,
            "regularization": 0.0,
            "intercept": False,
            "norm_bound": 1.0,
            "features": 3,
            "classes": 2,
            "law": "bernoulli",
            "epsilon_selection": 1.0,
            "threshold": Falling(initial=0.2),
            "batch": 8,
            "constraint": ConstraintSet(name="ball", radius=1.0),
        }
        | settings
    )


@pytest.fixture
def silent(monkeypatch):
    """Every sum that noise is added to, and no noise."""
    sums = []
    monkeypatch.setattr(
        active_gradient.noises, "add", lambda values, noise: sums.append(values.copy()) or values.copy()
    )
    return sums


def records(seed, count=8):
    rng = np.random.default_rng(seed)
    y = rng.choice([0.0, 1.0, np.nan], count)
    return rng.normal(size=(count, 3)) * 10.0 ** rng.uniform(-2, 2), y


def moved(one, first, second, weights, silent):
    """How far apart the sums of two neighbours are, in units of the claim."""
    spent = one.perturbation(Currency.PURE, 2.0, one.batch, ORIGIN)
    silent.clear()
    for x, y in (first, second):
        one.update(Records(x=x, y=y), one.batch, weights, ORIGIN, spent, 1)
    return np.linalg.norm(silent[0] - silent[1]) / spent.sensitivity


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.sampled_from([SVM, LOSSES["logistic"], LOSSES["huber_hinge"]]),
    st.sampled_from([None, 0.3]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_neighbours_never_move_a_sum_further(loss, clip, intercept, seed):
    rng = np.random.default_rng(seed)
    one = learner(loss, clip=clip, intercept=intercept)
    x, y = records(seed)
    other = x.copy(), y.copy()
    other[0][3], other[1][3] = rng.normal(size=3) * 100, rng.integers(0, 2)
    weights = rng.normal(size=one.shape)
    weights /= max(1.0, np.linalg.norm(weights))
    with pytest.MonkeyPatch.context() as patch:
        sums = []
        patch.setattr(active_gradient.noises, "add", lambda values, noise: sums.append(values.copy()) or values)
        origin = np.zeros(one.shape)
        spent = one.perturbation(Currency.PURE, 2.0, 8, origin)
        for change in ((x, y), other, (np.delete(x, 3, axis=0), np.delete(y, 3))):
            one.update(Records(x=change[0], y=change[1]), 8, weights, origin, spent, 1)
    assert max(np.linalg.norm(sums[0] - each) for each in sums[1:]) <= spent.sensitivity


@pytest.mark.parametrize("loss", [SVM, LOSSES["logistic"]], ids=["svm", "logistic"])
def test_some_neighbours_come_close(loss, silent):
    """Two records on the wrong side of the hyperplane that pull apart along it: by 2M (paper-audit.md 5.1)."""
    one = learner(loss, constraint=ConstraintSet(name="ball", radius=100.0))
    first, second = (np.array([[0.1, side * sqrt(0.99), 0.0]]) for side in (1, -1))
    positive = np.ones(1)
    assert moved(one, (first, positive), (second, positive), np.array([[-100.0, 0.0, 0.0]]), silent) > 0.99


@pytest.mark.parametrize("loss", [SVM, LOSSES["logistic"]], ids=["svm", "logistic"])
def test_an_update_is_that_of_mechanisms_md(loss, silent):
    """w' = Π(w - η(λ(w - c) - (1/|B|)·Σ y x 1[y<w,x><1])), by hand; with logistic slopes in the other case."""
    rng = np.random.default_rng(3)
    origin = np.array([[0.1, 0.0, -0.1]])
    ball = ConstraintSet(name="ball", radius=0.4)
    one = learner(loss, regularization=0.25, learning_rate=Falling(initial=0.7, decay=1.0), constraint=ball)
    lengths = []
    for update in (1, 2, 5):
        w = origin + rng.normal(size=(1, 3)) * 0.2
        x, y = records(update)
        total = np.zeros(3)
        for row, label in zip(x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), 2 * y - 1, strict=True):
            margin = label * (w[0] @ row)
            if not np.isnan(label):
                total += label * row * (float(margin < 1) if loss is SVM else 1 / (1 + exp(margin)))
        offset = w - 0.7 / update * (0.25 * (w - origin) - total / 8) - origin
        lengths.append(np.linalg.norm(offset))
        spent = one.perturbation(Currency.PURE, 2.0, 8, origin, update)
        updated = one.update(Records(x=x, y=y), 8, w, origin, spent, update)
        np.testing.assert_allclose(updated, origin + offset * min(1.0, 0.4 / lengths[-1]), atol=2e-6)
    assert len(silent) == 3
    assert min(lengths) < 0.4 < max(lengths), "the ball was never reached, or always"


@pytest.mark.parametrize("intercept", [False, True])
def test_a_distance_is_that_from_the_hyperplane_and_an_empty_slot_is_on_it(intercept):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5, 3)).astype(np.float32)
    one = learner(intercept=intercept)
    w = rng.normal(size=one.shape)
    slots = np.array([10, 11, 13, 14, 16])
    distances = one.distances(Records(x=x, y=np.zeros(5), slots=slots), 10, 17, w)
    rows = x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    if intercept:
        rows = np.hstack([rows, np.ones((5, 1))]) / sqrt(2)
    np.testing.assert_allclose(distances[slots - 10], np.abs(rows @ w[0]) / np.linalg.norm(w), rtol=1e-5)
    assert list(distances[[2, 5]]) == [0.0, 0.0]
    assert not one.distances(Records(x=x, y=np.zeros(5), slots=slots), 10, 17, 0 * w).any()


def test_a_record_that_is_not_finite_is_an_empty_slot():
    x = np.array([[np.nan, 0, 0], [1, 0, 0]], dtype=np.float32)
    distances = learner().distances(Records(x=x, y=np.zeros(2)), 0, 2, np.array([[1.0, 0, 0]]))
    assert list(distances) == [0.0, pytest.approx(1.0, rel=1e-5)]


def test_who_is_missing_must_be_told():
    with pytest.raises(ValueError, match="missing"):
        learner().distances(Records(x=np.ones((2, 3)), y=np.zeros(2)), 0, 3, np.ones((1, 3)))


def test_selection_stops_when_enough_are_selected():
    near = learner(epsilon_selection=1000.0)
    records = Records(x=np.zeros((9, 3)), y=np.zeros(9))
    assert near.select(records, 4, 13, np.ones((1, 3)), 1, 3) == ([4, 5, 6], 7)
    assert near.select(records, 4, 13, np.ones((1, 3)), 1) == (list(range(4, 13)), 13)


def test_slabs_and_steps_fall_with_the_updates():
    """τ = e^(-1/m) and η/t (paper E, section 4.5), and never below what exponential selection needs."""
    assert [Falling(initial=1.0, decay=1.0).at(m) for m in (1, 2, 4)] == [1.0, 0.5, 0.25]
    shrinking = learner(law="exponential", threshold=Falling(initial=0.9, decay=1.0, least=0.3))
    assert [shrinking.selection(m).threshold for m in (1, 2, 3, 100)] == [0.9, 0.45, 0.3, 0.3]
    assert shrinking.least_probability() == min(shrinking.selection(m).least() for m in range(1, 99))


@pytest.mark.parametrize("kind", list(Currency))
def test_selection_and_noise_together_cost_what_is_charged(kind):
    """ε_s + ε_g, or ε_s²/2 + ρ_g; and the noise is for 2M (paper-audit.md 5.1)."""
    charge = 2.5 if kind is Currency.PURE else 0.9
    spent = learner().perturbation(kind, charge, 8, ORIGIN)
    cost = spent.cost(kind, records=8)
    assert cost <= charge
    assert cost == pytest.approx(charge, rel=1e-9)
    assert events.from_json(spent.to_json()).cost(kind, records=8) == cost
    if kind is Currency.PURE:
        assert isinstance(spent.noise, SphericalLaplace)
        assert spent.noise.scale == pytest.approx(2 / 1.5, rel=1e-4)
    else:
        assert isinstance(spent.noise, Gaussian)
        assert spent.noise.scale == pytest.approx(2 / sqrt(2 * 0.4), rel=1e-4)


def test_selection_must_leave_something():
    with pytest.raises(Unaffordable, match="selection"):
        learner().perturbation(Currency.PURE, 1.0, 8, ORIGIN)


def test_there_is_one_hyperplane():
    with pytest.raises(ValueError, match="hyperplane"):
        learner(LOSSES["softmax"])


@pytest.mark.parametrize("count", [0, 7, 9])
def test_a_batch_is_as_large_as_its_noise_is_for(count):
    x, y = np.ones((8, 3)), np.zeros(8)
    spent = learner().perturbation(Currency.PURE, 2.0, 8, ORIGIN)
    with pytest.raises(ValueError, match="batch"):
        learner().update(Records(x=x, y=y), count, ORIGIN, ORIGIN, spent, 1)


def test_the_first_step_is_as_long_as_its_noise_or_the_ball_allows():
    """With an ε of 1 noise alone goes half the radius; with hardly any the steepest gradient goes all of it."""
    one = learner(clip=0.5, constraint=ConstraintSet(name="ball", radius=3.0))
    noisy, exact = (one.perturbation(Currency.PURE, charge, 8, ORIGIN) for charge in (2.0, 900.0))
    assert one.rate(noisy, 1) * noisy.noise.expected_norm() / 8 == pytest.approx(1.5)
    assert one.rate(exact, 1) * one.longest == pytest.approx(3.0)
    assert one.rate(exact, 4) == one.rate(exact, 1) / 2


def test_the_least_probability_is_that_of_the_first_or_of_the_last_update_there_can_be():
    slowly = learner(law="exponential", threshold=Falling(initial=0.6, decay=0.01))
    first, last = (slowly.selection(update).least() for update in (1, 2**62))
    assert first != last
    assert slowly.least_probability() == min(first, last)
