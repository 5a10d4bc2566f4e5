"""Models of a step that ends before its last fit are charged: to drop them would tell of them for nothing."""

import contextlib

import pytest

from service.learning.optimization.solvers import Inaccurate
from tests.mechanisms.refusing import REASON, refuse
from tests.mechanisms.scheduled.test_scheduled import CASES, publication, reader


@pytest.mark.more
@pytest.mark.parametrize(("mechanism", "privacy"), CASES)
def test_what_was_drawn_is_charged_also_where_the_next_fit_is_refused(mechanism, privacy, monkeypatch):
    """A fit is refused for its centre, which may be a model that the same step has drawn: to drop that told of it."""
    scheduled, released, chain, time, refused = publication(mechanism, privacy), [], (), 0, 0
    while refused < 20:
        time = scheduled.next_time(time)
        for place, _ in enumerate(scheduled.schedule.fits(time)):
            step = None
            with monkeypatch.context() as patch, pytest.raises(Inaccurate) if place == 0 else contextlib.nullcontext():
                drawn = refuse(patch, place, Inaccurate)
                step = scheduled.step(time, chain, len(released) + 1, reader())
            assert len(drawn) == place
            if place:
                assert len(step.releases) == place
                assert all(each.charge > 0 for each in step.releases)
                assert step.halts == REASON
        step = scheduled.step(time, chain, len(released) + 1, reader())
        chain, released, refused = step.chain, [*released, *step.releases], refused + place + 1
        assert step.halts is None
