"""Somebody who asks on purpose tries to tell which of two categories one record is in, as in `test_audits`.

The record is one of 20, all others are erased, so that a histogram that knows nothing gives each category too much. The
attacker asks for the first category and wants it to be as the histogram says, some times, and then for the second, and
wants that to be hard, and measured as empty. There is one hit, so that one record pays the whole cap for all of this.
"""

import numpy as np
import pytest

from service.mechanisms.histogram import LinearQuery
from service.mechanisms.interactive import opened
from tests import chance
from tests.mechanisms.linear_queries.test_linear_queries import Run, queries

RECORDS, CATEGORIES, ASKED = 20, 4, 3
RUNS = 3000
HEIGHT = 5 / RECORDS  # one record more than a histogram that knows nothing gives a category
FIRST, SECOND = (LinearQuery.holding(np.array([category])) for category in (0, 1))


def publication(privacy):
    return queries(privacy, cardinality=CATEGORIES, first=RECORDS, hits=1, accuracy=6 / 5 * HEIGHT)


def seen(mechanism, category):
    """One run: whether it went as it does more often when the record is in the first category."""
    run = Run(mechanism)
    run.arrive([category] * RECORDS)
    run.counts = np.eye(CATEGORIES, dtype=np.int64)[category]
    for _ in range(ASKED):
        if run.ask(FIRST)[1]:
            return False
    answer, hard = run.ask(SECOND)
    return hard and answer == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [{"epsilon": 2}, {"epsilon": 12, "delta": 1e-6}], ids=["pure", "zcdp"])
def test_whoever_asks_on_purpose_learns_no_more_than_is_promised(privacy):
    mechanism = publication(privacy)
    run = Run(mechanism)
    run.arrive([0] * RECORDS)
    run.hit(FIRST)
    assert opened(run.chain) is None
    assert run.worst > 0.999 * mechanism.capacity, "all of it is spent on that"
    attackers = [lambda category=category: seen(mechanism, category) for category in (0, 1)]
    chance.assert_tells_apart_no_better(*attackers, RUNS, mechanism.currency, mechanism.capacity)
