"""The record map: every prepared row is within the norm bound, whatever came in."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.learning.records import CHUNK, PreparedRows, Records, prepare

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
    with pytest.raises(ValueError, match="in one slot"):
        Records(x=np.zeros((3, 2)), y=np.zeros(3), slots=np.arange(4))


def test_some_of_the_records_keep_all_that_is_known_of_each():
    known = {
        "x": np.arange(8.0).reshape(4, 2), "y": np.arange(4), "slots": np.arange(3, 7),
        "owners": np.array([0, 1, 0, 2]), "weights": np.array([0.5, 1.0, 0.5, 1.0]),
        "firsts": np.array([True, True, False, True]),
    }  # fmt: skip
    some, which = Records(**known, units=3)[np.array([2, 0])], [2, 0]
    assert all(np.array_equal(getattr(some, name), values[which]) for name, values in known.items())
    assert some.units == 3


def test_records_of_units_say_what_part_of_which_unit_each_is():
    """Otherwise a record would count in full where noise is for whole units."""
    x, y, parts = np.zeros((2, 1)), np.zeros(2), np.full(2, 0.5)
    for one_alone in ({"units": 1}, {"weights": parts}):
        with pytest.raises(ValueError, match="weights where they have units"):
            Records(x=x, y=y, **one_alone)
    with pytest.raises(ValueError, match="which records are of one unit"):
        Records(x=x, y=y, weights=parts, units=1).unit_shares()


@pytest.mark.parametrize("size", [1e30, 3e38])
def test_no_product_with_a_record_of_any_size_overflows_and_it_keeps_its_direction(size):
    x = np.array([[0.6, 0.8], [0.6 * size, 0.8 * size], [0.0, -size]], dtype=np.float32)
    prepared, finite = PreparedRows.of(x, norm_bound=1.0, intercept=False)
    assert finite.all()
    with np.errstate(all="raise"):
        scores = prepared.scores(np.array([[1.0, 0.0], [0.0, 1.0]]))
        gathered = prepared.gathered(np.ones((3, 1), dtype=np.float32))
    assert scores == pytest.approx(np.array([[0.6, 0.8], [0.6, 0.8], [0.0, -1.0]]), rel=1e-5)
    assert gathered == pytest.approx(np.array([[1.2, 0.6]]), rel=1e-5)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("features", [3, 700])
def test_products_are_those_with_the_rows(features, intercept):
    rng = np.random.default_rng(1)
    x = (2 * rng.normal(size=(300, features)) / np.sqrt(features)).astype(np.float32)
    prepared, _ = PreparedRows.of(x, norm_bound=1.0, intercept=intercept)
    doubles, slopes = prepared.astype(np.float64), rng.normal(size=(300, 4))
    weights = rng.normal(size=(4, features + intercept))
    assert np.allclose(doubles.scores(weights), prepared.rows() @ weights.T, rtol=0, atol=1e-13)
    assert np.allclose(doubles.gathered(slopes), slopes.T @ prepared.rows(), rtol=0, atol=1e-12)
    some = np.array([5, 2, 299])
    assert np.array_equal(prepared[some].rows(), prepared.rows()[some])


def test_records_that_are_not_finite_are_told_apart():
    x = np.array([[1.0, 2.0], [np.nan, 0.0], [np.inf, 0.0], [1e300, 1e300]])
    assert PreparedRows.of(x, norm_bound=1.0, intercept=True)[1].tolist() == [True, False, False, True]
