"""How many fits read one record at most: counted record by record on short streams."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.mechanisms.lifelong.tasks import Tasks
from service.privacy.currency import Currency
from service.schedules import continual, improving_black_box, multi_resolution, scheduled_black_box
from service.schedules.continual import Continual
from service.schedules.improving_black_box import ImprovingBlackBox
from service.schedules.multi_resolution import MultiResolution
from service.schedules.scheduled_black_box import ScheduledBlackBox
from service.schedules.sliding_window import SlidingWindow
from tests.schedules.test_schedules import ANY

BOUNDED = (continual, improving_black_box, multi_resolution, scheduled_black_box)


def counted(schedule, records):
    """The most fits that read any one record, up to so many records."""
    reads, time = [0] * records, 0
    while (time := schedule.next_time(time)) <= records:
        for fit in schedule.fits(time):
            for record in range(fit.start, fit.end):
                reads[record] += 1
    return max(reads, default=0)


@pytest.mark.more
@settings(max_examples=150, deadline=None)
@given(ANY | st.builds(Tasks, st.lists(st.integers(1, 20), min_size=1, max_size=3).map(tuple)), st.integers(1, 400))
def test_no_record_is_in_more_fits(schedule, records):
    with pytest.MonkeyPatch.context() as patch:
        for module in BOUNDED:
            patch.setattr(module, "MAX_RECORDS", records)
        assert counted(schedule, records) <= schedule.most_fits()


@pytest.mark.parametrize("warm_up", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7, 12, 15, 31])
def test_some_record_of_a_sliding_window_is_in_so_many(blocks, warm_up):
    schedule = SlidingWindow(currency=Currency.PURE, block=2, blocks=blocks, warm_up=warm_up)
    assert counted(schedule, 12 * blocks) == schedule.most_fits()


@pytest.mark.parametrize(
    ("schedule", "records"),
    [
        (MultiResolution(currency=Currency.PURE, base=3), 200),
        (Continual(currency=Currency.PURE, base=4, update_every=2), 300),
        (Continual(currency=Currency.PURE, base=8, update_every=50), 300),
        (ScheduledBlackBox(currency=Currency.PURE, first=20, growth=Fraction(1, 10)), 500),
        (ImprovingBlackBox(currency=Currency.PURE, first=3, every=1, exponent=Decimal("0.25")), 900),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, int) else str(each),
)
def test_some_record_is_in_so_many(schedule, records, monkeypatch):
    for module in BOUNDED:
        monkeypatch.setattr(module, "MAX_RECORDS", records)
    assert counted(schedule, records) == schedule.most_fits()
