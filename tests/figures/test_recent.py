"""Figures of the newest blocks together. Noise hides what is asserted with a probability below 1e-9."""

import numpy as np

from service.figures.recent import recent
from service.mechanisms.evaluation.tables import ErrorSums
from service.privacy.accounting.events import NoisyCounts
from tests.figures.test_drift_alarms import SLOTS, block
from tests.figures.worlds import noise_of

UNKNOWN = {"recent": None, "lift_over_previous": None}


def test_blocks_are_added_up_whichever_versions_they_count():
    """Four blocks know an accuracy twice as well as one."""
    one, four = (recent([block(version, 1600) for version in range(count)], "b")["recent"] for count in (1, 4))
    assert (one["blocks"], one["slots"], four["blocks"], four["slots"]) == (1, SLOTS, 4, 4 * SLOTS)
    assert 1.8 < (one["high"] - one["low"]) / (four["high"] - four["low"]) < 2.2
    assert abs(four["accuracy"] - 0.8) < 0.02
    assert abs(four["lift"]["estimate"] - 0.3) < 0.03
    mixed = recent([block(None, 0), block(1, 1200), block(2, 1600)], "b")["recent"]
    assert mixed["blocks"] == 2, "before its first model it is counted as nothing"
    assert abs(mixed["accuracy"] - 0.7) < 0.03


def test_publications_are_compared_where_both_had_a_model():
    blocks = [block(1, 2000), block(1, 1300, other=1200), block(2, 1300, other=1200)]
    of_b, of_a = (recent(blocks, name)["recent"]["better_than"] for name in "ba")
    assert abs(of_b["a"]["estimate"] - 0.05) < 0.03, "the first block says nothing of a"
    assert of_a["b"]["estimate"] == -of_b["a"]["estimate"]
    assert recent(blocks[:1], "b")["recent"]["better_than"] == {}


def test_the_newest_version_is_compared_with_the_version_before_it_alone():
    blocks = [block(1, 1900), block(2, 1200), block(3, 1600), block(3, 1600)]
    lift = recent(blocks, "b")["lift_over_previous"]
    assert abs(lift["estimate"] - 0.2) < 0.03
    assert 0.1 < lift["low"] < lift["estimate"] < lift["high"] < 0.3
    assert recent(blocks[:1], "b")["lift_over_previous"] is None


def test_without_a_model_and_of_regressions_nothing_is_said():
    assert recent([block(1, 1600), block(None, 0)], "b") == UNKNOWN
    layout = ErrorSums(bound=1.0, publications=1)
    noise = noise_of(layout, "pure")
    model = {"of": ["a"], "versions": [1], "slots": SLOTS, **layout.described()}
    release = (model, NoisyCounts(noise=noise, change=layout.change).to_json(), np.zeros(layout.size))
    assert recent([release, release], "a") == UNKNOWN
