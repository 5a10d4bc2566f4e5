"""The counts of a block against counting by hand, and how far one record moves them: exactly as far as is stated."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.ledger.verify.counted import change_of
from service.mechanisms.evaluation.tables import (
    BINS,
    LARGEST_SIZE,
    UNIT,
    ClassCounts,
    ErrorSums,
    described_counts,
)
from service.mechanisms.released_models import Predictions
from service.privacy.accounting.events import NoisyCounts
from service.privacy.currency import Currency
from service.privacy.noise.counts import calibrate

EMPTY = -1
LAYOUTS = [
    ClassCounts(classes=2, publications=1, bins=False),
    ClassCounts(classes=2, publications=1),
    ClassCounts(classes=3, publications=1),
    ClassCounts(classes=2, publications=2, bins=False),
    ClassCounts(classes=2, publications=2),
    ClassCounts(classes=2, publications=1, bins=False, shortened=True),
    ClassCounts(classes=2, publications=2, pairs=((0, 1),), shortened=True),
    ClassCounts(classes=2, publications=2, pairs=((0, 1),)),
]
NAMES = ["table", "bins", "3 classes", "2 tables", "2 with bins", "shortened", "all", "a pair"]


def one_record(layout, record):
    """The counts of a block that holds this record in one slot.

    record: (label, ((class, confidence, whether it is shortened), …)) or None.
    """
    label, outputs = record or (EMPTY, ((0, 0.5, True),) * layout.publications)
    predictions = [
        Predictions(labels=np.array([c]), confidences=np.array([p]), shortened=np.array([s])) for c, p, s in outputs
    ]
    return layout.count(np.array([label]), predictions)


def records(layout):
    """Every label with every prediction of every model, sure and unsure, short and long, and the empty slot."""
    lengths = (False, True) if layout.shortened else (False,)
    outputs = list(itertools.product(range(layout.classes), (1 / layout.classes, 1.0), lengths))
    return [None, *itertools.product(range(layout.classes), itertools.product(outputs, repeat=layout.publications))]


@pytest.mark.parametrize("layout", LAYOUTS, ids=NAMES)
def test_one_record_moves_the_counts_of_all_publications_as_far_as_stated_and_no_farther(layout):
    tables = [one_record(layout, record) for record in records(layout)]
    moved = [a - b for a in tables for b in tables]
    assert max(int(np.abs(each).sum()) for each in moved) == layout.change.l1
    assert max(int((each**2).sum()) for each in moved) == layout.change.squared_l2
    assert max(int((each != 0).sum()) for each in moved) == layout.change.counts
    assert max(int(np.abs(each).max()) for each in moved) == layout.change.largest


def test_the_sensitivities_are_those_of_the_statement():
    table = ClassCounts(classes=5, publications=1, bins=False).change
    both = ClassCounts(classes=5, publications=1).change
    three = ClassCounts(classes=5, publications=3).change
    errors = ErrorSums(bound=2.0, publications=1).change
    assert (table.l1, table.squared_l2) == (2, 2)
    assert (both.l1, both.squared_l2) == (4, 4)
    assert (three.l1, three.squared_l2) == (3 * 4, 3 * 4)
    assert (errors.l1, errors.squared_l2) == (2 * UNIT, 2 * UNIT**2)
    shortened = ClassCounts(classes=5, publications=3, shortened=True).change
    longer = ErrorSums(bound=2.0, publications=2, shortened=True).change
    assert (shortened.l1, shortened.squared_l2) == (3 * 5, 3 * 5)
    assert (longer.l1, longer.squared_l2) == (2 * 3 * UNIT, 2 * 3 * UNIT**2)


@pytest.mark.parametrize("layout", LAYOUTS[-2:], ids=NAMES[-2:])
def test_an_empty_slot_adds_nothing(layout):
    """Whatever the models would predict for it."""
    assert not one_record(layout, None).any()
    sure, long = np.array([0.9, np.nan, 1.0]), np.array([True, False, True])
    outputs = [Predictions(labels=np.array([1, 0, 1]), confidences=sure, shortened=long)] * 2
    others = [Predictions(labels=o.labels[1:], confidences=sure[1:], shortened=long[1:]) for o in outputs]
    for label in (EMPTY, 2, np.nan, np.inf, 0.5):
        labels = np.array([label, 0, 1])
        assert (layout.count(labels, outputs) == layout.count(labels[1:], others)).all()
    errors = ErrorSums(bound=1.0, publications=1, moments=True, shortened=True)
    none = Predictions(labels=np.zeros(2), shortened=np.ones(2, dtype=bool))
    assert not errors.count(np.array([np.nan, np.inf]), [none]).any()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(2, 5), st.integers(0, 40), st.integers(0, 2**32))
def test_tables_bins_and_pairs_are_those_of_counting_slot_by_slot(classes, n, seed):
    rng = np.random.default_rng(seed)
    layout = ClassCounts(classes=classes, publications=3, pairs=((0, 1), (0, 2), (1, 2)))
    labels = rng.integers(-1, classes, n)
    outputs = [
        Predictions(labels=rng.integers(0, classes, n), confidences=rng.uniform(1 / classes, 1, n)) for _ in range(3)
    ]
    counts = layout.count(labels, outputs)
    tables = np.zeros((3, classes, classes), dtype=int)
    bins = np.zeros((3, BINS, 2), dtype=int)
    alone = np.zeros((3, 2), dtype=int)
    for slot in range(n):
        if labels[slot] == EMPTY:
            continue
        rights = [each.labels[slot] == labels[slot] for each in outputs]
        for p, each in enumerate(outputs):
            tables[p, labels[slot], each.labels[slot]] += 1
            inside = np.abs(layout.middles() - each.confidences[slot]).argmin()
            bins[p, inside, 0 if rights[p] else 1] += 1
        alone += [[rights[a] and not rights[b], rights[b] and not rights[a]] for a, b in layout.pairs]
    for p in range(3):
        assert (layout.table(counts, p) == tables[p]).all()
        assert (layout.calibration(counts, p) == bins[p]).all()
    assert all((layout.alone(counts, pair) == alone[pair]).all() for pair in range(3))


@pytest.mark.parametrize(
    ("label", "confidence"), [(np.nan, 0.9), (1, np.nan), (np.inf, np.nan), (1, np.inf), (3, 0.9), (-1, 0.9)]
)
def test_a_prediction_that_is_no_class_or_not_finite_is_class_0_in_bin_0(label, confidence):
    layout = ClassCounts(classes=3, publications=1)
    counts = layout.count(np.array([2]), [Predictions(labels=np.array([label]), confidences=np.array([confidence]))])
    assert layout.table(counts, 0)[2, 0] == 1
    assert layout.calibration(counts, 0)[0].tolist() == [0, 1]
    assert counts.sum() == 2


def test_a_publication_without_a_model_adds_nothing_and_one_without_probabilities_fills_no_bins():
    layout = ClassCounts(classes=2, publications=2, pairs=((0, 1),))
    counts = layout.count(np.array([1, 0]), [None, Predictions(labels=np.array([1, 1]))])
    assert not layout.table(counts, 0).any()
    assert layout.table(counts, 1).tolist() == [[0, 1], [0, 1]]
    assert not layout.calibration(counts, 1).any()
    assert not layout.alone(counts, 0).any()


def test_bins_are_equal_parts_of_the_range_of_a_greatest_probability():
    layout = ClassCounts(classes=2, publications=1)
    edges = [0.5, 0.549, 0.551, 0.949, 0.951, 1.0]
    n = len(edges)
    counts = layout.count(np.zeros(n), [Predictions(labels=np.zeros(n), confidences=np.array(edges))])
    assert layout.calibration(counts, 0)[:, 0].tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 1, 2]
    assert layout.middles()[[0, -1]] == pytest.approx([0.525, 0.975])


# Regression


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(),
    st.floats(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
@example(4.0, 0.0, 0.0, 0.0, False)  # an error a little larger than the largest that counts
def test_no_record_moves_the_sums_farther_than_stated(label, predicted, second, other, long):
    layout = ErrorSums(bound=1.5, publications=2, moments=True, shortened=True)

    def sums(y, shortened):
        outputs = [Predictions(labels=np.array([value]), shortened=shortened) for value in (predicted, second)]
        return layout.count(np.array([y]), outputs)

    mine, none, another = (sums(y, np.array([long ^ (y is other)])) for y in (label, np.nan, other))
    for moved in (mine - none, mine - another):
        assert np.abs(moved).max() <= layout.change.largest
    assert (mine >= 0).all()
    assert not none.any()


def test_neighbours_attain_the_sensitivity_of_the_sums():
    """A right prediction and one that is off by 2Y or more, of every publication at once."""
    layout = ErrorSums(bound=1.5, publications=3, shortened=True)
    wrong, right = (
        layout.count(np.array([y]), [Predictions(labels=np.array([-1.5]), shortened=np.array([y > 0]))] * 3)
        for y in (1.5, -1.5)
    )
    moved = wrong - right
    assert np.abs(moved).sum() == layout.change.l1
    assert (moved**2).sum() == layout.change.squared_l2


def test_errors_are_rounded_record_by_record_and_the_largest_where_it_is_not_finite():
    layout = ErrorSums(bound=2.0, publications=1)
    labels = np.array([0.0, 1.0, -2.0, 0.5])
    outputs = Predictions(labels=np.array([1.0, np.nan, 1e300, -np.inf]))
    counts = layout.count(labels, [outputs])
    assert counts.tolist() == [UNIT // 4 + 3 * UNIT, UNIT // 16 + 3 * UNIT]
    tiny = np.full(1000, 4.0 * 0.4 / UNIT)  # less than half a unit each: nothing, however many
    assert not layout.count(tiny, [Predictions(labels=np.zeros(1000))]).any()


def test_the_shortened_are_those_of_the_slots_that_are_there_publication_by_publication():
    long = [np.array([True, True, False, True]), np.array([False, False, False, True])]
    outputs = [Predictions(labels=np.zeros(4), confidences=np.full(4, 0.9), shortened=each) for each in long]
    for layout, one in (
        (ClassCounts(classes=2, publications=2, pairs=((0, 1),), shortened=True), 1),
        (ErrorSums(bound=2.0, publications=2, moments=True, shortened=True), UNIT),
    ):
        without = replace(layout, shortened=False)
        counts = layout.count(np.array([0, 1, 1, np.nan]), outputs)
        assert [layout.shortened_by(counts, number) for number in (0, 1)] == [2 * one, 0]
        assert counts.sum() == 2 * one + without.count(np.array([0, 1, 1, np.nan]), outputs).sum()
        assert layout.shortened_by(layout.count(np.zeros(4), [None, outputs[1]]), 0) == 0, "it has no model"
        unknown = replace(outputs[0], shortened=None)
        assert layout.shortened_by(layout.count(np.zeros(4), [unknown, outputs[1]]), 0) == 0, "it shortens nothing"


def test_the_moments_are_those_of_the_target():
    layout = ErrorSums(bound=2.0, publications=1, moments=True)
    counts = layout.count(np.array([-2.0, 1.0, 7.0]), [None])
    assert counts.tolist() == [0, 0, UNIT * 0 + 3 * UNIT // 4 + UNIT, UNIT + UNIT // 4 + UNIT]


# What a release says


SUMS = [
    ErrorSums(bound=2.0, publications=3),
    ErrorSums(bound=2.0, publications=1, moments=True),
    ErrorSums(bound=2.0, publications=3, moments=True, shortened=True),
]


@pytest.mark.parametrize("layout", [*LAYOUTS, *SUMS], ids=str)
def test_a_layout_is_read_back_from_what_a_release_says(layout):
    model = layout.described() | {"of": ["name"] * layout.publications}
    assert described_counts(model) == layout


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 1},
        {"publications": 0},
        {"pairs": ((0, 0),)},
        {"pairs": ((1, 0),)},
        {"pairs": ((0, 2),)},
        {"pairs": ((0, 1), (0, 1))},
        {"classes": 1025, "bins": False, "publications": 1},
    ],
)
def test_a_layout_that_makes_no_sense_is_refused(wrong):
    assert LARGEST_SIZE == 1024**2
    with pytest.raises(ValueError, match=r"at least|pair|name fewer"):
        ClassCounts(**({"classes": 2, "publications": 2} | wrong))


@pytest.mark.parametrize("bound", [0.0, -1.0, np.inf, np.nan])
def test_a_bound_is_positive_and_finite(bound):
    with pytest.raises(ValueError, match="positive finite bound"):
        ErrorSums(bound=bound, publications=1)


def test_other_counts_are_not_read():
    with pytest.raises(ValueError, match="classes or errors"):
        described_counts({"of": ["a"], "counts": "words"})


@pytest.mark.parametrize("layout", [*LAYOUTS, *SUMS], ids=str)
def test_verify_recomputes_the_same_change_from_what_a_release_says(layout):
    model = layout.described() | {"of": [f"p{number}" for number in range(layout.publications)]}
    noise = calibrate(Currency.PURE, layout.change, charge=1.0, dimension=layout.size)
    event = NoisyCounts(noise=noise, change=layout.change)
    assert change_of(event, model, (layout.size,)) == layout.change == described_counts(model).change
