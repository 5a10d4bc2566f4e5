"""Promises of every schedule, checked for all of them by walking time step by step."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.currency import Currency
from service.schedules.black_box import BlackBox
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.independent_batches import IndependentBatches
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow

KINDS = st.sampled_from(Currency)
MULTI = st.builds(MultiResolution, currency=KINDS, base=st.integers(1, 30))
CONTINUAL = st.builds(
    Continual,
    currency=KINDS,
    base=st.integers(1, 70),
    update_every=st.integers(1, 90),
    shares=st.sampled_from(["equal", "paper", "improving"]),
)
SLIDING = st.builds(
    SlidingWindow,
    currency=KINDS,
    block=st.integers(1, 4),
    blocks=st.integers(1, 40),
    shares=st.sampled_from(["equal", "paper"]),
    warm_up=st.booleans(),
)
INDEPENDENT = st.builds(IndependentBatches, batch=st.integers(1, 50), warm_start=st.booleans())
SCHEDULED = st.builds(
    ScheduledBlackBox,
    currency=KINDS,
    first=st.integers(1, 50),
    growth=st.fractions(Fraction(1, 100), 3, max_denominator=100),
    warm_start=st.booleans(),
)
IMPROVING = st.builds(
    ImprovingBlackBox,
    currency=KINDS,
    first=st.integers(1, 50),
    every=st.integers(1, 20),
    exponent=st.decimals("0.01", "0.5", places=2),
    warm_start=st.booleans(),
)
ANY = MULTI | CONTINUAL | SLIDING | INDEPENDENT | SCHEDULED | IMPROVING


def horizon(schedule):
    match schedule:
        case MultiResolution():
            return 8 * schedule.base
        case Continual():
            return 6 * max(schedule.base, schedule.update_every) + 60
        case SlidingWindow():
            return schedule.block * (3 * schedule.blocks + 8)
        case IndependentBatches():
            return 5 * schedule.batch
        case ScheduledBlackBox():
            return int(schedule.first * (1 + schedule.growth) ** 3) + 20
        case ImprovingBlackBox():
            return schedule.first + 6 * schedule.every


@pytest.mark.more
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


@pytest.mark.more
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
            assert fit.near is None or 0 <= fit.near < chain
            chain = fit.depth + 1
            assert 0 < fit.share <= 1
            assert fit.window[0] <= fit.start < fit.end <= fit.window[1] == time
            assert fit.role == "model" or index < len(fits) - 1
            assert fit.role != "model" or index == len(fits) - 1 or isinstance(schedule, MultiResolution)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ANY)
def test_the_lifetime_is_exactly_the_whole_budget_or_says_why_not(schedule):
    lifetime = schedule.lifetime()
    assert 0 < lifetime.share <= 1
    assert (lifetime.share == 1) == (lifetime.note is None)
    if getattr(schedule, "shares", None) != "paper":
        assert lifetime.share == 1


@settings(deadline=None, derandomize=True, max_examples=100)
@given(ANY)
def test_a_plan_shows_fits_that_are_made(schedule):
    """Each pattern, records and share, at the latest when a few epochs or windows have passed."""
    patterns = {(pattern.records, pattern.share) for pattern in schedule.patterns()}
    time = 0
    for _ in range(3000):
        time = schedule.next_time(time)
        patterns -= {(fit.end - fit.start, fit.share) for fit in schedule.fits(time)}
        if not patterns:
            break
    assert not patterns
    assert all(pattern.what and pattern.when for pattern in schedule.patterns())


@settings(deadline=None, derandomize=True, max_examples=60)
@given(ANY, st.integers(2**61, 2**62))
def test_far_futures_cost_no_more_to_ask_about_than_near_ones(schedule, late):
    time = schedule.next_time(late)
    steps = ("update_every", "block", "base", "batch", "every")
    step = next((getattr(schedule, name) for name in steps if hasattr(schedule, name)), 0)
    if isinstance(schedule, ScheduledBlackBox):
        step = late * schedule.growth + 1
    elif isinstance(schedule, ImprovingBlackBox):
        step += late / 128
    assert late < time <= late + step
    assert schedule.fits(time)
    assert schedule.needs(late) <= time


EVERY = [
    *(MultiResolution(currency=currency, base=5) for currency in Currency),
    *(
        Continual(currency=currency, base=base, update_every=every, shares=shares)
        for currency in Currency
        for shares in ("equal", "paper", "improving")
        for base, every in ((8, 2), (7, 3), (3, 10), (1, 1))
    ),
    *(
        SlidingWindow(currency=currency, block=2, blocks=blocks, shares=shares, warm_up=warm_up)
        for currency in Currency
        for shares in ("equal", "paper")
        for warm_up in (False, True)
        for blocks in (7, 10)
    ),
    *(IndependentBatches(batch=4, warm_start=warm_start) for warm_start in (False, True)),
    *(
        ScheduledBlackBox(currency=currency, first=first, growth=Fraction(growth))
        for currency in Currency
        for first, growth in ((10, "0.5"), (1, "0.07"), (3, "1"))
    ),
    *(
        ImprovingBlackBox(currency=currency, first=first, every=every, exponent=Decimal(exponent))
        for currency in Currency
        for first, every, exponent in ((10, 5, "0.5"), (1, 1, "0.1"))
    ),
]


def still_to_come(schedule, end):
    """Return what the infinitely many fits after `end`, just past a base at 2^n·B, charge each record before it."""
    match schedule:
        case MultiResolution():
            return schedule.lifetime().share / 2 ** ((end // schedule.base).bit_length() * schedule.currency.power())
        case Continual():
            return schedule.rule.bases((end // schedule.base).bit_length())
        case BlackBox():
            return schedule.share_from(schedule.next_time(end))
    return 0


@pytest.mark.more
@pytest.mark.parametrize("schedule", EVERY, ids=repr)
def test_a_run_charges_no_record_more_than_the_lifetime_and_its_record_exactly_that(schedule):
    """Every fit up to a large base, added up record by record, and the closed tail of the later ones."""
    end, time, ranges = 2**10 * getattr(schedule, "base", 1), 0, []
    while (time := schedule.next_time(time)) <= end:
        ranges += [(fit.start, fit.end, fit.share) for fit in schedule.fits(time)]
    profile, lifetime = ChargesByRecord.of(ranges), schedule.lifetime()
    assert profile.maximum() + still_to_come(schedule, end) == lifetime.share <= 1
    assert profile.at(lifetime.record) + still_to_come(schedule, end) == lifetime.share


WALKED = [
    MultiResolution(currency=Currency.ZCDP, base=5),
    Continual(currency=Currency.PURE, base=8, update_every=2, shares="equal"),
    Continual(currency=Currency.ZCDP, base=7, update_every=3, shares="improving"),
    SlidingWindow(currency=Currency.PURE, block=2, blocks=10, shares="equal", warm_up=True),
    IndependentBatches(batch=4, warm_start=False),
    ScheduledBlackBox(currency=Currency.ZCDP, first=1, growth=Fraction("0.07")),
    ImprovingBlackBox(currency=Currency.PURE, first=10, every=5, exponent=Decimal("0.5")),
]


@pytest.mark.more
@pytest.mark.parametrize("steps", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "schedule", [each if each in WALKED else pytest.param(each, marks=pytest.mark.long) for each in EVERY], ids=repr
)
def test_one_record_walked_through_so_many_steps_is_charged_its_lifetime(schedule, steps):
    """Issue 4: the ledger's figure is that of following the worst record. (No stream has 2^62 records.)"""
    record, charged, time = schedule.lifetime().record, Fraction(0), 0
    for _ in range(steps):
        if (following := schedule.next_time(time)) > 2**62:
            break
        time = following
        for fit in schedule.fits(time):
            if fit.start <= record < fit.end:
                charged += fit.share
    assert charged + still_to_come(schedule, time) == schedule.lifetime().share
