"""The record map: every prepared row is within the norm bound, whatever came in."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.learning.records import CHUNK, Records, prepare

BOUNDS = st.floats(1e-6, 1e6)


def exact_square(row):
    return sum((Fraction(float(value)) ** 2 for value in row), Fraction(0))


@settings(deadline=None, derandomize=True)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 9)),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    BOUNDS,
    st.booleans(),
)
def test_no_row_is_longer_than_the_bound_in_exact_arithmetic(x, bound, intercept):
    for row in prepare(x, norm_bound=bound, intercept=intercept):
        assert exact_square(row) <= Fraction(bound) ** 2


@settings(deadline=None, derandomize=True)
@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 9)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    ),
    BOUNDS,
    st.booleans(),
)
def test_nor_for_doubles_of_any_size(x, bound, intercept):
    for row in prepare(x, norm_bound=bound, intercept=intercept):
        assert np.isfinite(row).all()
        assert exact_square(row) <= Fraction(bound) ** 2


def test_short_rows_stay_and_long_rows_are_scaled_to_the_bound():
    x = np.array([[0.3, 0.4], [3.0, 4.0]])
    rows = prepare(x, norm_bound=1.0, intercept=False)
    assert np.array_equal(rows[0], x[0])
    assert rows[1] == pytest.approx([0.6, 0.8], rel=2e-6)


def test_the_intercept_is_one_more_coordinate_of_the_bound_and_all_shrink_by_root_two():
    rows = prepare(np.array([[3.0, 4.0]]), norm_bound=2.0, intercept=True)
    assert rows[0] == pytest.approx(np.array([1.2, 1.6, 2.0]) / np.sqrt(2), rel=2e-6)


def test_every_row_is_mapped_by_itself():
    x = np.random.default_rng(0).normal(size=(2 * CHUNK + 7, 3)).astype(np.float32)
    together = prepare(x, norm_bound=1.0, intercept=True)
    alone = np.vstack([prepare(row[None], norm_bound=1.0, intercept=True) for row in x[:: CHUNK // 2]])
    assert np.array_equal(together[:: CHUNK // 2], alone)


def test_no_records_is_a_data_set_too():
    assert prepare(np.empty((0, 3)), norm_bound=1.0, intercept=True).shape == (0, 4)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="records are x"):
        Records(x=np.zeros((3, 2)), y=np.zeros(4))
