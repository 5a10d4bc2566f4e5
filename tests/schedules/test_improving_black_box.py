"""BBImprover: the law by which shares fall, and that they never come to more than the budget."""

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.currency import Currency
from service.schedules.improving_black_box import DENSE, ImprovingBlackBox

EXPONENTS = st.decimals("0.01", "0.5", places=3)
SCHEDULES = st.builds(
    ImprovingBlackBox,
    currency=st.sampled_from(Currency),
    first=st.integers(1, 10**4),
    every=st.integers(1, 10**3),
    exponent=EXPONENTS,
)


def times(schedule, count):
    moments, time = [], 0
    for _ in range(count):
        time = schedule.next_time(time)
        moments.append(time)
    return moments


def law(schedule, time):
    """The share of a run every so many records, bounded by the integral (paper-audit.md 3.3)."""
    power = 1 + float(schedule.exponent) * schedule.currency.power()
    return (schedule.first / time) ** power / (1 + schedule.first / schedule.every / (power - 1))


def test_runs_come_every_so_many_records_and_then_128_times_for_every_doubling():
    schedule = ImprovingBlackBox(currency=Currency.PURE, first=7, every=3, exponent=Decimal("0.1"))
    moments = times(schedule, DENSE + 2 * 128)
    assert moments[:DENSE] == [7 + 3 * j for j in range(DENSE)]
    assert moments[DENSE:] == [7 + 3 * j for j in (*range(256, 512, 2), *range(512, 1024, 4))]
    assert all(later - before <= max(3, (before - 7) / 128) for before, later in pairwise(moments))


@pytest.mark.more
@settings(deadline=None, derandomize=True)
@given(SCHEDULES)
def test_shares_fall_by_the_law_of_the_paper_and_use_up_what_its_bound_leaves(schedule):
    runs = times(schedule, 200)
    ratios = [float(schedule.fits(time)[0].share) / law(schedule, time) for time in runs]
    assert ratios[0] <= 1 + 1e-12
    assert ratios[0] > 0.69 or schedule.every > schedule.first
    assert all(later >= before - 1e-9 for before, later in pairwise(ratios))
    c = float(schedule.exponent) * schedule.currency.power()
    assert ratios[-1] <= 1 + c * schedule.every / schedule.first + 1e-9


@settings(deadline=None, derandomize=True, max_examples=50)
@given(SCHEDULES, st.integers(0, 2**61))
def test_what_is_left_never_grows_and_every_run_gets_some(schedule, late):
    """The one thing that privacy rests on: T is 1 at first and never rises, also as it is computed."""
    assert schedule.share_from(schedule.first) == 1
    runs = [schedule.first, *times(schedule, 3), late + schedule.first]
    for _ in range(5):
        runs.append(schedule.next_time(runs[-1]))
    runs = sorted(set(runs))
    assert all(schedule.share_from(before) > schedule.share_from(later) > 0 for before, later in pairwise(runs))


@pytest.mark.more
@pytest.mark.parametrize("currency", Currency)
def test_every_record_is_charged_what_is_left_when_it_comes(currency):
    """Followed through 3000 runs, and the closed tail of all later ones."""
    schedule = ImprovingBlackBox(currency=currency, first=5, every=2, exponent=Decimal("0.25"))
    runs = times(schedule, 3000)
    charged = Fraction(0)
    for time, before in zip(reversed(runs), [*reversed(runs[:-1]), 0], strict=True):
        charged += schedule.fits(time)[0].share
        if time in runs[:5]:
            expected = schedule.share_from(schedule.next_time(before)) - schedule.share_from(
                schedule.next_time(runs[-1])
            )
            assert charged == expected
    assert charged + schedule.share_from(schedule.next_time(runs[-1])) == schedule.lifetime().share == 1


@pytest.mark.parametrize(
    ("currency", "exponent", "share"), [(Currency.ZCDP, "0.5", 1 / 2), (Currency.PURE, "0.5", 1 - 0.5**0.5)]
)
def test_by_hand(currency, exponent, share):
    """n = every: T(2n) = 1/2 in ρ with c = 1/2, √(1/2) pure; as much as by the bound where T is 1/t."""
    schedule = ImprovingBlackBox(currency=currency, first=8, every=8, exponent=Decimal(exponent))
    assert float(schedule.fits(8)[0].share) == pytest.approx(share, rel=1e-15)
    if currency is Currency.ZCDP:
        assert law(schedule, 8) == pytest.approx(share)
        assert [fit.share for t in (16, 24) for fit in schedule.fits(t)] == pytest.approx([1 / 6, 1 / 12])


def test_a_warm_start_is_near_the_release_before_but_for_the_first():
    schedule = ImprovingBlackBox(currency=Currency.PURE, first=4, every=4, exponent=Decimal("0.5"), warm_start=True)
    assert [schedule.fits(t)[0].near for t in (4, 8, 12)] == [None, 0, 0]


@pytest.mark.parametrize("wrong", [{"first": 0}, {"every": 0}, {"exponent": Decimal(0)}])
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="improving"):
        ImprovingBlackBox(**{"currency": Currency.PURE, "first": 1, "every": 1, "exponent": Decimal("0.5")} | wrong)
