"""Whether a publication becomes worse, from releases as they are stored. Noise hides what is asserted below 1e-9."""

import numpy as np

from service.figures.drift_alarms import drift_alarms, judged
from service.figures.reported_figures import all_figures
from service.mechanisms.evaluation.tables import ClassCounts, ErrorSums
from service.mechanisms.released_models import Predictions
from service.privacy.accounting.events import NoisyCounts
from tests.figures.worlds import draw, noise_of

SLOTS = 2000
CLASSES = ClassCounts(classes=2, publications=2, bins=False)
UNKNOWN = {"drift": None, "worse": None}


def block(version, right, *, slots=SLOTS, other=None):
    """A block in which the second publication's version predicts so many of its slots right; None: it has no model.

    other: how many the first publication's model predicts right; None: it has none.
    """
    labels = np.arange(slots) % 2

    def predicted(right):
        return Predictions(labels=np.where(np.arange(slots) < right, labels, 1 - labels))

    first, second = (None if other is None else predicted(other)), (None if version is None else predicted(right))
    counts = CLASSES.count(labels, [first, second])
    noise = noise_of(CLASSES, "pure")
    versions = [None if other is None else 1, version]
    model = {"of": ["a", "b"], "versions": versions, "slots": slots, **CLASSES.described()}
    event = NoisyCounts(noise=noise, change=CLASSES.change)
    return model, event.to_json(), (counts + draw(noise, counts.shape)).astype(float)


def test_nothing_is_known_before_there_is_something_to_compare_with():
    first, second = block(None, 0), block(1, 1600)
    for blocks in ([first], [first, second], [second, first]):
        assert drift_alarms(blocks, "b") == UNKNOWN
    assert drift_alarms([second, second], "a") == UNKNOWN, "it never had a model"


def test_one_version_drifts():
    assert drift_alarms([block(1, 1600), block(1, 1600)], "b") == {"drift": False, "worse": None}
    assert drift_alarms([block(1, 1600), block(1, 800)], "b") == {"drift": True, "worse": None}


def test_blocks_of_other_sizes_are_compared_by_their_shares():
    """Erased records leave smaller blocks, and so does a number of units that differs from block to block."""
    assert drift_alarms([block(1, 800, slots=1000), block(1, 1600)], "b") == {"drift": False, "worse": None}
    assert drift_alarms([block(1, 900, slots=1000), block(1, 1000)], "b") == {"drift": True, "worse": None}
    assert drift_alarms([block(1, 400, slots=1000), block(1, 1000)], "b") == {"drift": False, "worse": None}


def test_a_version_is_worse_than_the_version_before_it_and_not_than_older_ones():
    best, good, bad = block(1, 1800), block(2, 1300), block(3, 800)
    assert drift_alarms([good, bad], "b") == {"drift": True, "worse": True}
    assert drift_alarms([best, good, good], "b") == {"drift": True, "worse": True}
    assert drift_alarms([best, block(2, 800), block(3, 1000)], "b")["worse"] is False


def test_the_newest_block_is_judged():
    (second,) = judged("figures", "stream", [block(1, 1600), block(2, 800)])
    assert (second.publication, second.evaluation, second.stream) == ("b", "figures", "stream")
    assert abs(second.accuracy - 800 / SLOTS) < 0.05
    assert second.drift


def test_of_regressions_nothing_is_said():
    layout = ErrorSums(bound=1.0, publications=1)
    noise = noise_of(layout, "pure")
    model = {"of": ["a"], "versions": [1], "slots": SLOTS, **layout.described()}
    release = (model, NoisyCounts(noise=noise, change=layout.change).to_json(), np.zeros(layout.size))
    assert drift_alarms([release, release], "a") == UNKNOWN


def test_each_publication_is_compared_with_every_other_one_by_its_name():
    figures = all_figures(*block(1, 1600, other=800))
    first, second = figures["a"], figures["b"]
    assert abs(second["better_than"]["a"]["estimate"] - 800 / SLOTS) < 0.05
    assert first["better_than"]["b"]["estimate"] == -second["better_than"]["a"]["estimate"]
    assert first["better_than"].keys() == {"b"}
