"""No pair of neighbours moves a fit further than the sensitivity, and some move it nearly as far."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.learners import OutputPerturbation
from service.learning.losses import LOSSES
from service.learning.records import Records
from service.learning.solvers import SLACK

CASES = [("logistic", 2), ("softmax", 3)]


def learner(name, classes, features=2, alpha=0.1, intercept=False, bound=1.0):
    return OutputPerturbation(
        loss=LOSSES[name],
        regularization=alpha,
        intercept=intercept,
        norm_bound=bound,
        features=features,
        classes=classes,
    )


def moved(one, first, second, n, center):
    return np.linalg.norm(one.fit(first, n, center) - one.fit(second, n, center))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.sampled_from(CASES),
    st.integers(1, 12),
    st.floats(-3, 1),
    st.floats(-1, 3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_neighbours_are_never_further_apart(case, m, log_alpha, log_scale, intercept, erase, seed):
    """Replace one record by an opposite one, or erase it; a far centre saturates the loss."""
    rng = np.random.default_rng(seed)
    one = learner(*case, features=3, alpha=10**log_alpha, intercept=intercept)
    x, y = rng.normal(size=(m, 3)) * 10**log_scale, rng.integers(0, case[1], m)
    center = rng.normal(size=one.shape) * 10**log_scale
    other_x, other_y = x.copy(), y.copy()
    other_x[0], other_y[0] = rng.choice([-1, 1]) * x[0] + 0.1 * rng.normal(size=3), rng.integers(case[1])
    keep = slice(1 if erase else 0, None)
    n = m + int(rng.integers(0, 4))
    apart = moved(one, Records(x=x, y=y), Records(x=other_x[keep], y=other_y[keep]), n, center)
    assert apart <= one.sensitivity(n, center)


@pytest.mark.parametrize("n", [1, 16, 1000])
def test_some_neighbours_come_close_logistic(n):
    """A centre far along the first axis; two records across it, both on its wrong side by a little."""
    one = learner("logistic", 2)
    center = np.array([[-1e4, 0.0]])
    across = np.array([[0.01, 0.9999]]), np.array([[0.01, -0.9999]])
    first, second = (Records(x=x, y=np.array([1])) for x in across)
    assert moved(one, first, second, n, center) > 0.99 * one.sensitivity(n)


@pytest.mark.parametrize("n", [1, 16, 1000])
def test_some_neighbours_come_close_softmax(n):
    """The same with class 1 far ahead of the label's class 0: the gradient is (e_1 - e_0) ⊗ x, of length √2·R."""
    one = learner("softmax", 3)
    center = np.array([[-1e4, 0.0], [1e4, 0.0], [-1e4, 0.0]])
    across = np.array([[0.01, 0.9999]]), np.array([[0.01, -0.9999]])
    first, second = (Records(x=x, y=np.array([0])) for x in across)
    assert moved(one, first, second, n, center) > 0.99 * one.sensitivity(n)


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_the_sensitivity_is_two_l_over_alpha_n_and_the_slack(name, classes):
    one = learner(name, classes, bound=2.0, alpha=0.5)
    lipschitz = 2.0 * (2.0**0.5 if name == "softmax" else 1.0)
    assert one.sensitivity(100) == pytest.approx(2 * lipschitz / (0.5 * 100) * (1 + SLACK), rel=1e-12)


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_records_outside_the_schema_count_as_empty(name, classes):
    one = learner(name, classes)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, classes, 20).astype(float)
    bad_x, bad_y = x.copy(), y.copy()
    bad_x[4, 1], bad_x[9, 0], bad_y[15], bad_y[16] = np.nan, np.inf, classes, np.nan
    left = np.setdiff1d(np.arange(20), [4, 9, 15, 16])
    center = np.zeros(one.shape)
    whole = one.fit(Records(x=bad_x, y=bad_y), 20, center)
    assert np.array_equal(whole, one.fit(Records(x=x[left], y=y[left]), 20, center))


def test_the_intercept_is_one_more_weight_per_row():
    assert learner("softmax", 3, features=4, intercept=True).shape == (3, 5)
    assert learner("softmax", 3, features=4, intercept=True).dimension == 15
    assert learner("logistic", 2, features=4).shape == (1, 4)


def test_shapes_that_do_not_fit_are_refused():
    one = learner("softmax", 3)
    with pytest.raises(ValueError, match="features"):
        one.fit(Records(x=np.zeros((1, 5)), y=np.zeros(1)), 1, np.zeros(one.shape))
    with pytest.raises(ValueError, match="centre"):
        one.fit(Records(x=np.zeros((1, 2)), y=np.zeros(1)), 1, np.zeros((1, 1)))
