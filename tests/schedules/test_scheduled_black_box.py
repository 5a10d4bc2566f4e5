"""BBScheduler: geometric times, whatever the doubles say, and shares that add up to the budget exactly."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.currency import Currency
from service.schedules.scheduled_black_box import ScheduledBlackBox

GROWTHS = st.fractions(Fraction(1, 100), 3, max_denominator=1000)


def share(currency, growth, i):
    """Run i's, by paper-audit.md 3.2."""
    q = 1 / (1 + growth)
    if currency is Currency.PURE:
        return growth**2 * (i + 1) * q ** (i + 2)
    return (i + 1) ** 2 * q ** (2 * i) * (1 - q**2) ** 3 / (1 + q**2)


def tail(growth, i):
    """Return what a record first included in run i keeps, pure: as paper-audit.md 3.2 has it."""
    q = 1 / (1 + growth)
    return growth**2 * q**2 * q**i * ((i + 1) / (1 - q) + q / (1 - q) ** 2)


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(Currency), GROWTHS)
def test_epsilons_add_up_to_epsilon_exactly(currency, growth):
    """Σ over the first runs and the closed tail of all others, in rationals; each share is of paper-audit.md 3.2."""
    schedule = ScheduledBlackBox(currency=currency, first=10**6, growth=growth)
    shares = [schedule.tail(i) - schedule.tail(i + 1) for i in range(40)]
    assert shares == [share(currency, growth, i) for i in range(40)]
    assert sum(shares) + schedule.tail(40) == schedule.tail(0) == 1
    if currency is Currency.PURE:
        assert [schedule.tail(i) for i in range(40)] == [tail(growth, i) for i in range(40)]


@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("growth", [Fraction(1, 20), Fraction(1, 2), Fraction(2)])
def test_the_tail_falls_to_nothing(currency, growth):
    """Without that the closed form could hide what is charged at infinity."""
    schedule = ScheduledBlackBox(currency=currency, first=1, growth=growth)
    tails = [schedule.tail(i) for i in range(0, 2000, 100)]
    assert all(later < before for before, later in pairwise(tails))
    assert tails[-1] < 1e-30


def walk(first, growth, end):
    """The algorithm run slot by slot: on each arrival, while t_i ≤ t, i += 1; the last is run. Yields (t, runs)."""
    i = 0
    for t in range(1, end):
        runs = []
        while math.ceil((1 + growth) ** i * first) <= t:
            runs.append(i)
            i += 1
        if runs:
            yield t, runs


@pytest.mark.more
@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(Currency), st.integers(1, 12), GROWTHS)
def test_it_is_the_algorithm_run_slot_by_slot(currency, first, growth):
    """Runs that fall on one time are one, for what they would have cost together."""
    schedule = ScheduledBlackBox(currency=currency, first=first, growth=growth)
    expected = dict(walk(first, growth, 60))
    got = {t: fit for t in range(60) for fit in schedule.fits(t)}
    assert got.keys() == expected.keys()
    for t, fit in got.items():
        assert (fit.start, fit.end, fit.near, fit.depth, fit.window) == (0, t, None, 0, (0, t))
        assert fit.share == sum(share(currency, growth, i) for i in expected[t])


@pytest.mark.parametrize("growth", [Fraction(1, 100), Fraction("0.123456789012345"), Fraction(1), Fraction(100)])
def test_times_are_exact_in_the_thousands_of_runs_and_at_powers_that_doubles_miss(growth):
    schedule = ScheduledBlackBox(currency=Currency.PURE, first=7, growth=growth)
    for i in (0, 1, 2, 50, 3000):
        exact = (1 + growth) ** i * 7
        t = math.ceil(exact)
        assert schedule.run_after(t - 1) <= i < schedule.run_after(t)
        assert schedule.next_time(t - 1) == t


def test_a_time_that_is_a_whole_power_is_neither_missed_nor_taken_twice():
    schedule = ScheduledBlackBox(currency=Currency.PURE, first=1, growth=Fraction(1))
    times = [0]
    for _ in range(100):
        times.append(schedule.next_time(times[-1]))
    assert times[1:] == [2**i for i in range(100)]


def test_a_warm_start_is_near_the_release_before_but_for_the_first():
    schedule = ScheduledBlackBox(currency=Currency.PURE, first=4, growth=Fraction(1), warm_start=True)
    assert [schedule.fits(t)[0].near for t in (4, 8, 16)] == [None, 0, 0]
    assert not schedule.patterns()[0].near_origin


@pytest.mark.parametrize(("first", "growth"), [(0, Fraction(1)), (1, Fraction(0))])
def test_nonsense_is_refused(first, growth):
    with pytest.raises(ValueError, match="growth"):
        ScheduledBlackBox(currency=Currency.PURE, first=first, growth=growth)
