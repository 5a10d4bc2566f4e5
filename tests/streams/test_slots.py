"""Evaluation slots against counting them one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.streams.slots import EvaluationSlots

PERIODS = st.integers(1, 9)
STARTS = st.integers(0, 60)
LENGTHS = st.integers(0, 60)
quick = settings(deadline=None, derandomize=True, max_examples=150)


def evaluated(period, start, stop):
    """The definition, slot by slot."""
    return [slot for slot in range(start, stop) if slot % period == period - 1]


@quick
@given(PERIODS, STARTS, LENGTHS)
def test_a_range_is_split_into_evaluation_and_training_slots(period, start, length):
    slots, stop = EvaluationSlots(period=period), start + length
    expected = evaluated(period, start, stop)
    assert slots.in_range(start, stop).tolist() == expected
    assert slots.training_in_range(start, stop).tolist() == sorted(set(range(start, stop)) - set(expected))
    assert slots.evaluation(start, stop) == len(expected)
    assert slots.training(start, stop) == length - len(expected)
    assert [slot for slot in range(start, stop) if slots.includes(slot)] == expected
    assert np.flatnonzero(slots.among(np.arange(start, stop))).tolist() == [slot - start for slot in expected]


@quick
@given(st.integers(2, 9), STARTS)
def test_the_first_slot_of_a_kind_from_one_on(period, start):
    slots, near = EvaluationSlots(period=period), range(start, start + period)
    assert slots.first_from(start, evaluation=True) == evaluated(period, start, start + period)[0]
    assert slots.first_from(start, evaluation=False) == next(slot for slot in near if not slots.includes(slot))


@quick
@given(PERIODS, LENGTHS)
def test_the_least_n_is_that_of_the_worst_alignment(period, length):
    slots = EvaluationSlots(period=period)
    counts = {slots.training(start, start + length) for start in range(2 * period)}
    assert slots.least_training(length) == min(counts)
    assert max(counts) - min(counts) <= 1, "alignment changes n by at most one"


@quick
@given(PERIODS, st.integers(0, 2**62))
def test_numbers_and_slots_are_inverse_also_far_out(period, number):
    slots = EvaluationSlots(period=period)
    assert slots.includes(slots.slot(number))
    assert slots.before(slots.slot(number)) == number
    assert slots.before(slots.slot(number) + 1) == number + 1
    if period > 1:
        assert not slots.includes(slots.training_slot(number))
        assert slots.training_before(slots.training_slot(number)) == number


@quick
@given(PERIODS, STARTS, LENGTHS, LENGTHS)
def test_counts_of_neighbouring_ranges_add_up(period, start, first, second):
    slots, middle = EvaluationSlots(period=period), start + first
    whole = slots.training(start, middle + second)
    assert whole == slots.training(start, middle) + slots.training(middle, middle + second)


def test_a_period_is_positive_and_one_leaves_nothing_for_training():
    with pytest.raises(ValueError, match="at least 1"):
        EvaluationSlots(period=0)
    assert EvaluationSlots(period=1).training(3, 50) == 0
    with pytest.raises(ValueError, match="no training slot"):
        EvaluationSlots(period=1).training_slot(0)
