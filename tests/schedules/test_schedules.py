"""What every schedule promises, checked for all of them by walking time step by step."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.loss import Kind
from service.privacy.profile import Profile
from service.schedules.continual import Continual
from service.schedules.sliding_window import SlidingWindow

KINDS = st.sampled_from(Kind)
CONTINUAL = st.builds(Continual, kind=KINDS, base=st.integers(1, 70), update_every=st.integers(1, 90))
SLIDING = st.builds(SlidingWindow, kind=KINDS, block=st.integers(1, 4), blocks=st.integers(1, 40))
ANY = CONTINUAL | SLIDING


def horizon(schedule):
    if isinstance(schedule, Continual):
        return 6 * max(schedule.base, schedule.update_every) + 60
    return schedule.block * (3 * schedule.blocks + 8)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ANY)
def test_next_time_is_the_first_time_with_fits(schedule):
    expected = None
    for time in range(horizon(schedule), -1, -1):
        if expected is not None:
            assert schedule.next_time(time) == expected
        if schedule.fits(time):
            expected = time
    assert expected is not None


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ANY)
def test_nothing_is_read_before_it_has_arrived_and_what_is_needed_is_read(schedule):
    """`needs` is the oldest record of all later fits: none goes below it, and one reaches it."""
    end = 2 * horizon(schedule)
    oldest = None
    for time in range(end, -1, -1):
        if oldest is not None and time < end // 2:
            assert schedule.needs(time) == oldest
        for fit in schedule.fits(time):
            assert 0 <= fit.start < fit.end <= time
            oldest = fit.start if oldest is None else min(oldest, fit.start)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ANY)
def test_every_fit_has_the_chain_it_starts_from_and_the_last_is_the_model(schedule):
    chain = 0
    for time in range(horizon(schedule)):
        fits = schedule.fits(time)
        for index, fit in enumerate(fits):
            assert fit.depth <= chain
            chain = fit.depth + 1
            assert 0 < fit.share <= 1
            assert (fit.role == "model") == (index == len(fits) - 1)
        if fits:
            assert schedule.window(time)[1] == time


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ANY)
def test_the_lifetime_is_exactly_the_whole_budget(schedule):
    assert schedule.lifetime().share == 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(ANY, st.integers(2**61, 2**62))
def test_far_futures_cost_no_more_to_ask_about_than_near_ones(schedule, late):
    time = schedule.next_time(late)
    assert late < time <= late + max(getattr(schedule, "update_every", 0), getattr(schedule, "block", 0), 1)
    assert schedule.fits(time)
    assert schedule.needs(late) <= time


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("base", "update_every"), [(8, 2), (16, 1), (5, 3), (6, 6), (3, 10), (1, 1), (24, 7)])
def test_a_run_charges_no_record_more_than_one_and_some_record_nearly_that(kind, base, update_every):
    """Fits up to 2^10·B, added up record by record; what later bases will add is a geometric tail."""
    schedule = Continual(kind=kind, base=base, update_every=update_every)
    end, time, ranges = base * 2**10, 0, []
    while (time := schedule.next_time(time)) <= end:
        ranges += [(fit.start, fit.end, fit.share) for fit in schedule.fits(time)]
    profile = Profile.of(ranges)
    ratio = Fraction(1, 2 ** kind.power())
    tail = schedule.unit * ratio**11 / (1 - ratio)
    assert profile.maximum() + tail == 1
    assert profile.at(schedule.lifetime().record) + tail == 1
