"""Whole streams: intervals hold the accuracy that a version has on all records, and the alarm hears labels flip."""

import numpy as np
import pytest

from service.figures.drift import RATE
from tests import chance
from tests.figures.histories import Learnt, Setting, alarms, evaluated, main_figures, setting
from tests.figures.worlds import privacies


def missed(name, privacy, blocks, rng):
    """Return of how many blocks that had a model the interval misses the accuracy on all records of their range."""
    seen = misses = 0
    while seen < blocks:
        learnt = Learnt.of(setting(name).rearranged(rng))
        for fit, block in evaluated(learnt, privacy):
            figures = main_figures(block)
            if figures["version"] is not None and seen < blocks:
                seen += 1
                misses += not figures["low"] <= learnt.accuracy(figures["version"], *fit) <= figures["high"]
    return misses


@pytest.mark.more
@privacies
@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("weather", 24),
        *(pytest.param(each, 1000, marks=pytest.mark.long) for each in ("weather", "electricity", "digits")),
    ],
)
def test_intervals_hold_the_accuracy_of_the_version_on_all_records_of_the_range(name, blocks, privacy):
    """At least 914 of 1,000 blocks of 100 slots: 95 in 100, and chance takes 36 once in a million runs."""
    chance.assert_no_more(missed(name, privacy, blocks, np.random.default_rng(20)), blocks, 0.05)


EVERY, BLOCK, FLIPPED, RECORDS = 10, 200, 20_000, 24_000


def simulated(rng, *, flipped):
    """Return a stream of a label that x tells four times in five, until labels flip."""
    y = rng.integers(0, 2, RECORDS)
    seen = np.where(rng.random(RECORDS) < 0.8, y, 1 - y)
    x = np.stack([2.0 * seen - 1.0, rng.normal(size=RECORDS)], axis=1).astype(np.float32)
    y = np.where(flipped & (np.arange(RECORDS) >= FLIPPED), 1 - y, y)
    return Setting(x=x, y=y, every=EVERY, batch=4000, block=BLOCK)


@privacies
def test_the_alarm_fires_within_two_blocks_after_labels_flip(privacy):
    """Chance hides the fall from both blocks with a probability below 1e-9."""
    learnt = Learnt.of(simulated(np.random.default_rng(21), flipped=True))
    raised = alarms([block for _, block in evaluated(learnt, privacy)])
    first = FLIPPED // (EVERY * BLOCK)
    assert len(raised) == first + 2
    assert any(raised[first:])


@pytest.mark.long
@privacies
def test_without_a_flip_the_alarm_fires_no_more_often_than_stated(privacy):
    """In 200 streams. `test_drift` says the same of counts alone, in a hundredth of the time."""
    rng, runs, seen, blocks = np.random.default_rng(22), 200, 0, 0
    for _ in range(runs):
        raised = alarms([block for _, block in evaluated(Learnt.of(simulated(rng, flipped=False)), privacy)])
        blocks = len(raised)
        seen += any(raised)
    chance.assert_no_more(seen, runs, RATE * blocks)
