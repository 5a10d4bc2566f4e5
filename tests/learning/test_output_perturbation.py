"""No pair of neighbours moves a fit further than the sensitivity, and some move it nearly as far."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning.optimization.losses import LOSSES
from service.learning.optimization.solvers import SLACK, Inaccurate
from service.learning.output_perturbation import OutputPerturbation
from service.learning.records import Records

CASES = [("logistic", 2), ("softmax", 3), ("huber_hinge", 2), ("huber_hinge", 3)]
SQUARED = ("squared", 0)


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
    st.sampled_from([*CASES, SQUARED]),
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
    x, y = rng.normal(size=(m, 3)) * 10**log_scale, rng.integers(0, case[1] or 5, m) - (0 if case[1] else 2)
    center = rng.normal(size=one.shape) * 10**log_scale
    other_x, other_y = x.copy(), y.copy()
    other_x[0], other_y[0] = rng.choice([-1, 1]) * x[0] + 0.1 * rng.normal(size=3), rng.integers(case[1] or 2)
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


@pytest.mark.parametrize("n", [1, 16, 1000])
@pytest.mark.parametrize("classes", [2, 3])
def test_some_neighbours_come_close_huber_hinge(n, classes):
    """Every row's sign against it: each of the K slopes is 1, and the gradient of length √K·R."""
    one = learner("huber_hinge", classes)
    center = np.array([[-1e4, 0.0], [1e4, 0.0], [1e4, 0.0]])[: len(np.zeros(one.shape))]
    across = np.array([[0.01, 0.9999]]), np.array([[0.01, -0.9999]])
    first, second = (Records(x=x, y=np.array([1 if classes == 2 else 0])) for x in across)
    assert moved(one, first, second, n, center) > 0.99 * one.sensitivity(n)


@pytest.mark.parametrize("n", [1, 16, 1000])
def test_some_neighbours_come_close_squared(n):
    """A label from one end to the other, and an α so large that weights stay where they are: L is R·Y, both ways."""
    one = learner("squared", 0, alpha=1e6)
    first, second = (Records(x=np.array([[1.0, 0.0]]), y=np.array([y])) for y in (-5.0, 5.0))
    assert moved(one, first, second, n, np.zeros((1, 2))) > 0.99 * one.sensitivity(n)


def test_the_sensitivity_of_the_squared_loss_is_about_the_released_centre():
    one = learner("squared", 0, bound=2.0, alpha=0.25)
    for c in (0.0, 3.0):
        lipschitz = 2 * (2 * c + 1) * (1 + 2 / 0.25**0.5)
        expected = 2 * lipschitz / (0.25 * 100) * (1 + SLACK)
        assert one.sensitivity(100, np.array([[0.0, c]])) == pytest.approx(expected, rel=1e-5)


def test_a_centre_too_far_for_the_squared_loss_is_refused():
    with pytest.raises(Inaccurate):
        learner("squared", 0).sensitivity(100, np.array([[1e100, 0.0]]))


@pytest.mark.parametrize(("name", "classes"), CASES)
def test_the_sensitivity_is_two_l_over_alpha_n_and_the_slack(name, classes):
    one = learner(name, classes, bound=2.0, alpha=0.5)
    lipschitz = 2.0 * {"softmax": 2.0**0.5, "huber_hinge": (1 if classes == 2 else classes) ** 0.5}.get(name, 1.0)
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
