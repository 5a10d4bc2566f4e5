"""Small databases: which candidates there are, how far off each is, and that some candidate is near any records."""

import itertools
import math
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.learning import small_database
from service.learning.records import Records
from service.learning.small_database import MAX_NUMBERS, SmallDatabase, error_bound
from service.privacy.currency import Currency
from service.privacy.noise.exponential import MAX_CANDIDATES
from tests import chance

QUERIES = ("points", "intervals", "all")
LEARNERS = [
    SmallDatabase(cardinality=cardinality, queries=queries, accuracy=Fraction(accuracy))
    for queries, cardinality, accuracy in [("points", 4, "0.3"), ("intervals", 5, "0.4"), ("all", 3, "0.25")]
]


def every(queries, cardinality):
    """The corners of the class of queries: their weights; a maximum over weights in [0, 1] is at a corner."""
    match queries:
        case "points":
            return np.eye(cardinality, dtype=np.int64)
        case "intervals":
            ranges = itertools.combinations(range(cardinality + 1), 2)
            return np.array([[low <= j < high for j in range(cardinality)] for low, high in ranges], dtype=np.int64)
        case "all":
            return np.array(list(itertools.product((0, 1), repeat=cardinality)), dtype=np.int64)


def candidates(learner):
    """Each multiset of m cells of N + 1, one by one."""
    multisets = itertools.combinations_with_replacement(range(learner.cardinality + 1), learner.size)
    return np.array([np.bincount(each, minlength=learner.cardinality + 1)[:-1] for each in multisets])


def records(counts):
    y = np.repeat(np.arange(len(counts)), counts)
    return Records(x=np.zeros((len(y), 0), dtype=np.float32), y=y.astype(np.int32))


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda each: each.queries)
def test_the_candidates_are_all_multisets_once(learner):
    rows = small_database._multisets(learner.cardinality, learner.size)
    assert len(rows) == learner.candidates == math.comb(learner.cardinality + learner.size, learner.size)
    assert sorted(map(tuple, rows)) == sorted(map(tuple, candidates(learner)))


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda each: each.queries)
def test_the_error_is_that_of_the_worst_query(learner):
    counts, n = np.array([7, 0, 3, 1, 5][: learner.cardinality]), 20
    weights = every(learner.queries, learner.cardinality)
    rows = small_database._multisets(learner.cardinality, learner.size)
    off = (learner.size * counts - n * rows) @ weights.T
    assert (learner.errors(counts, n) == np.abs(off).max(axis=1)).all()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(LEARNERS), st.data())
def test_one_record_moves_no_error_by_more_than_one_nth(learner, data):
    """n·m·error by at most m: replaced, erased or come to an empty slot."""
    counts = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=learner.cardinality, max_size=learner.cardinality))
    )
    n = int(counts.sum()) + data.draw(st.integers(1, 5))
    other = counts.copy()
    gone, come = data.draw(
        st.tuples(st.integers(-1, learner.cardinality - 1), st.integers(-1, learner.cardinality - 1))
    )
    if gone >= 0 and other[gone]:
        other[gone] -= 1
    if come >= 0:
        other[come] += 1
    moved = np.abs(learner.errors(counts, n) - learner.errors(other, n)).max()
    assert moved <= learner.size


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.sampled_from(LEARNERS), st.data())
def test_some_candidate_is_within_half_the_accuracy(learner, data):
    counts = np.array(
        data.draw(st.lists(st.integers(0, 50), min_size=learner.cardinality, max_size=learner.cardinality))
    )
    n = int(counts.sum()) + data.draw(st.integers(0, 50)) or 1
    assert Fraction(int(learner.errors(counts, n).min()), n * learner.size) <= learner.accuracy / 2


@pytest.mark.more
@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "a scale a third too small"])
@pytest.mark.parametrize("kind", Currency)
def test_what_is_released_follows_the_law_of_the_paper(kind, planted, monkeypatch):
    """exp(-ε·n·error/2), recomputed from the charge and from every query of the class; ε = √(8ρ) where it is a ρ."""
    learner, n, charge = LEARNERS[0], 30, 0.4
    counts = np.array([14, 3, 0, 9])
    perturbation = learner.perturbation(kind, charge, n)
    if planted:
        true = small_database.select
        monkeypatch.setattr(small_database, "select", lambda errors, rate: true(errors, rate * 3 / 2))
    epsilon = charge if kind is Currency.PURE else math.sqrt(8 * charge)
    rows = candidates(learner)
    off = np.abs((counts / n - rows / learner.size) @ every(learner.queries, learner.cardinality).T).max(axis=1)
    weights = np.exp(-epsilon * n * off / 2)
    draws = 2000
    errors = dict(zip(map(tuple, rows), off, strict=True))
    expected_errors = np.array(
        [
            errors[
                tuple(np.rint(learner.release(records(counts), n, np.zeros((1, 4)), perturbation)[0] * learner.size))
            ]
            for _ in range(draws)
        ]
    )
    cells, which = np.unique(off, return_inverse=True)
    seen = np.bincount(np.searchsorted(cells, expected_errors), minlength=len(cells))
    with chance.is_noticed() if planted else nullcontext():
        chance.assert_frequencies(seen, np.bincount(which, weights / weights.sum()))


def test_what_is_no_category_is_empty_and_a_histogram_has_room_for_empty_slots():
    learner = LEARNERS[2]
    y = np.array([0, 0, 1, -1, 3, 99], dtype=np.int32)
    perturbation = learner.perturbation(Currency.PURE, 1000.0, 12)
    released = learner.release(Records(x=np.zeros((6, 0), np.float32), y=y), 12, np.zeros((1, 3)), perturbation)
    assert released.shape == (1, 3)
    assert np.abs(released - [[2 / 12, 1 / 12, 0]]).sum() < 2 * learner.accuracy
    assert released.sum() < 0.5
    assert ((released * learner.size) % 1 == 0).all()


@pytest.mark.parametrize("queries", QUERIES)
def test_the_bound_that_a_plan_states_holds(queries):
    """But for a probability of .05."""
    learner = SmallDatabase(cardinality=4, queries=queries, accuracy=Fraction(2, 5))
    counts, n = np.array([20, 11, 4, 0]), 40
    perturbation = learner.perturbation(Currency.PURE, 2.0, n)
    weights = every(queries, 4)
    off = [
        np.abs(weights @ (counts / n - learner.release(records(counts), n, np.zeros((1, 4)), perturbation)[0])).max()
        for _ in range(200)
    ]
    bound = error_bound(learner.describe(), perturbation.noise.scale)
    chance.assert_no_more(sum(each > bound for each in off), 200, 0.05)


def test_the_limits_are_on_candidates_and_on_numbers():
    largest = SmallDatabase(cardinality=7, queries="all", accuracy=Fraction("0.2"))
    assert (
        largest.candidates
        <= MAX_CANDIDATES
        < SmallDatabase(cardinality=7, queries="all", accuracy=Fraction("0.19")).candidates
    )
    assert not largest.too_many
    many = SmallDatabase(cardinality=10**5, queries="points", accuracy=Fraction(2))
    assert many.candidates < MAX_CANDIDATES
    assert many.candidates * many.cardinality > MAX_NUMBERS
    assert many.too_many


def test_the_size_is_a_whole_number_computed_exactly():
    assert [SmallDatabase(cardinality=9, queries=q, accuracy=Fraction(Decimal("0.1"))).size for q in QUERIES] == [
        20,
        20,
        50,
    ]
