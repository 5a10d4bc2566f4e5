"""Tasks in disjoint batches: every record in exactly one, for its whole budget; boundaries are those that were said."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.mechanisms.lifelong.tasks import Tasks


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5).map(tuple),
    st.none() | st.integers(1, 12),
    st.integers(0, 9),
)
def test_batches_follow_one_another_and_fill_the_tasks(lengths, batch, before):
    tasks, time, number = Tasks(lengths, batch, before), before, 0
    for task in range(len(lengths) + 3):
        length = lengths[min(task, len(lengths) - 1)]
        sizes = []
        while sum(sizes) < length:
            place, end = tasks.place(time), tasks.next_time(time)
            (fit,) = tasks.fits(end)
            assert (place.number, place.task, place.batch, place.start) == (number, task, len(sizes), time)
            assert all(tasks.place(record) == place for record in range(time, end))
            assert (fit.start, fit.end, fit.share, fit.role, fit.window) == (time, end, Fraction(1), "model", (0, end))
            assert not any(tasks.fits(between) for between in range(time + 1, end))
            assert {tasks.needs(record) for record in range(time, end)} == {time}
            sizes.append(end - time)
            assert place.last == (sum(sizes) == length)
            time, number = end, number + 1
        assert sum(sizes) == length, "no batch is of two tasks"
        assert len(sizes) == place.batches == -(-length // (batch or length))
        assert max(sizes) <= (batch or length)
        assert max(sizes) - min(sizes) <= 1


def test_what_is_before_the_first_task_is_a_fit_by_itself():
    tasks = Tasks((4,), 2, before=5)
    assert [tasks.next_time(after) for after in (0, 4, 5, 7)] == [5, 5, 7, 9]
    assert [tasks.needs(after) for after in (0, 4, 5, 6, 7)] == [0, 0, 5, 5, 7]
    (fit,) = tasks.fits(5)
    assert (fit.start, fit.end, fit.share, fit.role, fit.window) == (0, 5, Fraction(1), "base", (0, 5))
    assert not any(tasks.fits(time) for time in (0, 1, 4, 6))
    assert tasks.lifetime().share == 1


def test_what_every_record_costs_is_its_one_batch():
    tasks = Tasks((10, 7), 4)
    assert tasks.lifetime().share == 1
    assert [(each.records, each.when) for each in tasks.patterns()] == [
        (4, "task 1: 3 of 10 records"),
        (4, "task 2 and all that follow: 2 of 7 records"),
    ]


def test_a_task_far_ahead_is_found_at_once():
    assert Tasks((5, 3), 2).place(5 + 3 * 10**15).task == 10**15 + 1


@pytest.mark.parametrize(("lengths", "batch"), [((), None), ((3, 0), None), ((3,), 0)])
def test_nothing_is_not_a_task(lengths, batch):
    with pytest.raises(ValueError, match="tasks need"):
        Tasks(lengths, batch)


def test_every_batch_is_a_fit_by_itself_near_no_other():
    tasks = Tasks((4,), 2, before=5)
    for time in (5, 7, 9):
        (fit,) = tasks.fits(time)
        assert (fit.near, fit.depth, fit.share, fit.window) == (None, 0, 1, (0, time))
