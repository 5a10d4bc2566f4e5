"""Models of a step that ends before its last fit are charged: to drop them would tell of them for nothing."""

import contextlib

import pytest

from service.learning.solvers import Inaccurate
from tests.mechanisms.refusing import REASON, refuse
from tests.mechanisms.scheduled.test_scheduled import CASES, publication, reader


@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_what_was_drawn_is_charged_also_where_the_next_fit_is_refused(mechanism, privacy, monkeypatch):
    """A fit is refused for its centre, which may be a model that the same step has drawn: to drop that told of it."""
    schedule = publication(mechanism, privacy).schedule
    places = [place for time in range(1, 300) for place, _ in enumerate(schedule.fits(time))]
    for refused, place in enumerate(places[:20]):
        scheduled, released, chain, time, step = publication(mechanism, privacy), [], (), 0, None
        with monkeypatch.context() as patch, pytest.raises(Inaccurate) if place == 0 else contextlib.nullcontext():
            drawn = refuse(patch, refused, Inaccurate)
            while step is None or step.halts is None:
                time = scheduled.next_time(time)
                step = scheduled.step(time, chain, len(released) + 1, reader())
                chain, released = step.chain, [*released, *step.releases]
        assert len(released) == len(drawn) == refused
        assert all(each.charge > 0 for each in released)
        assert place == 0 or step.halts == REASON
