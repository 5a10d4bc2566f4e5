"""Each record in one fit, for its whole budget, near the release before or not."""

import pytest

from service.schedules.independent_batches import IndependentBatches


@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.parametrize("batch", [1, 4, 7])
def test_each_record_is_in_exactly_one_fit_for_the_whole_budget(batch, warm_start):
    schedule = IndependentBatches(batch=batch, warm_start=warm_start)
    read = []
    for time in range(20 * batch + 1):
        for fit in schedule.fits(time):
            assert fit.end == time
            assert fit.window == (fit.start, fit.end)
            assert (fit.share, fit.role, fit.depth) == (1, "model", 0)
            assert fit.near == (0 if warm_start and fit.start else None)
            read += range(fit.start, fit.end)
    assert read == list(range(20 * batch))


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="batch"):
        IndependentBatches(batch=0)
