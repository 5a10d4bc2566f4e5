"""Histograms and queries of them, by their definitions; what is known of an answer's error, and where nothing is."""

import numpy as np
import pytest

from service.learning import small_database
from service.mechanisms import histogram
from service.mechanisms.histogram import Histogram, LinearQuery
from service.privacy.noise.sparse_vector import STEPS

POINT, INTERVAL = LinearQuery.holding(np.array([2])), LinearQuery.holding(np.array([3, 1, 2, 2]))
APART, NOTHING = LinearQuery.holding(np.array([0, 2])), LinearQuery.holding(np.zeros(0, dtype=np.int64))
HALF, ANY = (LinearQuery.weighing(np.array(each)) for each in ([0, 0.5, 0.5, 0], [0, 0.5, 1.0, 0]))


@pytest.mark.parametrize(
    ("query", "classes"),
    [
        (POINT, ["points", "intervals", "all"]),
        (NOTHING, ["points", "intervals", "all"]),
        (INTERVAL, ["intervals", "all"]),
        (HALF, ["intervals", "all"]),
        (APART, ["all"]),
        (ANY, ["all"]),
    ],
)
def test_a_query_is_of_the_classes_that_hold_it(query, classes):
    assert [each for each in ("points", "intervals", "all") if query.within(each)] == classes


def test_an_answer_is_the_mean_weight():
    counts, shares = np.array([5, 7, 11, 13]), np.array([0.125, 0.25, 0.5, 0.0625])
    assert [each.count(counts) for each in (POINT, INTERVAL, NOTHING)] == [11 * STEPS, 31 * STEPS, 0]
    assert ANY.count(counts) == 7 * STEPS // 2 + 11 * STEPS
    assert [each.of(shares) for each in (POINT, INTERVAL, ANY, NOTHING)] == [0.5, 0.8125, 0.625, 0.0]
    assert LinearQuery.weighing(np.ones(4)).of(shares * 2) == 1.0


def test_a_histogram_grows_towards_an_even_one_and_moves_towards_an_answer():
    even = Histogram.uniform(4, 10)
    assert even.shares.tolist() == [0.2] * 4
    start = Histogram(shares=np.array([0.5, 0.25, 0.0, 0.125]), time=10)
    grown = start.grown(40)
    assert grown.time == 40
    np.testing.assert_allclose(grown.shares, start.shares / 4 + 0.75 / 5, rtol=1e-12)
    moved = start.moved(APART, 0.25)
    weighed = start.shares * [np.e, 1, np.e, 1]
    assert moved.time == 10
    np.testing.assert_allclose(moved.shares, weighed / (weighed.sum() + 0.125), rtol=1e-12)


def test_an_error_is_known_of_a_small_database_for_the_queries_that_it_was_chosen_for():
    model = {"queries": "intervals", "accuracy": 0.25, "candidates": 70}
    noise = {"added_to": "candidates", "scale": 0.01}
    known = small_database.error_bound(model, 0.01)
    assert known == pytest.approx(0.125 + 0.01 * np.log(70 / small_database.FAILURE))
    assert histogram.error_bound(model, noise, INTERVAL) == known
    assert histogram.error_bound(model, noise, APART) is None
    assert histogram.error_bound(model, noise | {"added_to": "query"}, INTERVAL) is None
