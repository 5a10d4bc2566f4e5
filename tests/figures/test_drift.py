"""The alarm: soon after labels flip, and no more often than stated where nothing does."""

import numpy as np
import pytest

from service.figures.drift import MEMORY, RATE, has_fallen
from service.figures.figures import BlockCounts
from service.figures.intervals import CountLaw
from service.mechanisms.evaluation.tables import ClassCounts
from service.mechanisms.released_models import Predictions
from service.privacy.currency import Currency
from service.privacy.noise.counts import CountNoise
from tests import chance
from tests.figures.worlds import draw, noise_of, privacies, world

EVERY, BLOCK, FLIPPED, RECORDS = 10, 200, 20_000, 32_000
LAYOUT = ClassCounts(classes=2, publications=1, bins=False)


def alarms(layout, counts, noise, slots, rate=RATE):
    """Return by block whether it raised an alarm when it was the newest."""
    counted = CountLaw(noise=noise, slots=slots)
    blocks = blocks_of(counts, slots)
    return [has_fallen(layout, blocks[: end + 1], counted, rate=rate) for end in range(len(blocks))]


def blocks_of(counts, slots):
    return [BlockCounts(slots, each) for each in counts]


def streamed(rng, *, flipped, accuracy=0.8):
    """A block's counts after another: of a model that learnt before the labels flipped, on every EVERY-th record."""
    slots = np.arange(EVERY - 1, RECORDS, EVERY)
    labels = rng.integers(0, 2, len(slots))
    predicted = np.where(rng.random(len(slots)) < accuracy, labels, 1 - labels)
    labels = np.where(flipped & (slots >= FLIPPED), 1 - labels, labels)
    parts = np.split(np.arange(len(slots)), len(slots) // BLOCK)
    return np.stack([LAYOUT.count(labels[part], [Predictions(labels=predicted[part])]) for part in parts])


@privacies
def test_labels_that_flip_raise_an_alarm_within_two_blocks(privacy):
    """Chance hides the fall from both blocks with a probability below 1e-9."""
    noise = noise_of(LAYOUT, privacy)
    counts = streamed(np.random.default_rng(1), flipped=True)
    raised = alarms(LAYOUT, (counts + draw(noise, counts.shape)).astype(float), noise, BLOCK)
    first = FLIPPED // (EVERY * BLOCK)
    assert any(raised[first : first + 2])


@pytest.mark.more
@pytest.mark.parametrize("privacy", ["pure", pytest.param("gaussian", marks=pytest.mark.long)])  # the next has both
def test_without_a_flip_no_more_often_than_stated(privacy):
    """In 200 streams of 16 blocks. Streams are counted, since neighbouring blocks are compared with the same ones."""
    rng, noise, runs = np.random.default_rng(2), noise_of(LAYOUT, privacy), 200
    counts = np.stack([streamed(rng, flipped=False) for _ in range(runs)])
    noisy = (counts + draw(noise, counts.shape)).astype(float)
    blocks = counts.shape[1]
    seen = sum(any(alarms(LAYOUT, each, noise, BLOCK)) for each in noisy)
    chance.assert_no_more(seen, runs, RATE * blocks)


@pytest.mark.more
@privacies
@pytest.mark.parametrize("accuracy", [0.5, 0.8, 0.99])
def test_a_block_alarms_falsely_with_at_most_the_stated_probability(privacy, accuracy):
    """At a rate that is large enough to be seen in a simulation, also where the models grow better."""
    rng, layout, runs, rate = np.random.default_rng(3), ClassCounts(classes=2, publications=1, bins=False), 400, 0.1
    noise = noise_of(layout, privacy)
    before = world(2, accuracy).tables(runs * 3, 100, rng).reshape(runs, 3, 4)
    newest = world(2, min(0.99, accuracy + 0.02)).tables(runs, 100, rng).reshape(runs, 1, 4)
    for counts in (before, np.concatenate((before[:, 1:], newest), axis=1)):
        noisy = (counts + draw(noise, counts.shape)).astype(float)
        counted = CountLaw(noise=noise, slots=100)
        seen = sum(has_fallen(layout, blocks_of(each, 100), counted, rate=rate) for each in noisy)
        chance.assert_no_more(seen, runs, rate)


def test_one_block_alone_is_no_fall_and_old_blocks_are_forgotten():
    layout = ClassCounts(classes=2, publications=1, bins=False)
    counted = CountLaw(noise=noise_of(layout, "pure"), slots=1000)
    good, bad = blocks_of(np.array([[490.0, 10.0, 10.0, 490.0], [250.0, 250.0, 250.0, 250.0]]), 1000)
    assert not has_fallen(layout, [bad], counted)
    assert has_fallen(layout, [good, bad], counted)
    assert not has_fallen(layout, [bad, good], counted)
    many = CountLaw(noise=noise_of(layout, "pure"), slots=100_000)
    oldest, others = (BlockCounts(100_000, 100 * block.counts) for block in (good, bad))
    assert has_fallen(layout, [oldest, *[others] * MEMORY], many), "the oldest block that is compared with"
    assert not has_fallen(layout, [good, *[bad] * (MEMORY + 1)], counted)


def test_an_alarm_is_as_rare_as_it_is_asked_to_be():
    """A fall by 5 in 100 of 1,000 records happens by chance, in a thousand blocks: here noise is next to nothing."""
    quiet = CountLaw(noise=CountNoise(currency=Currency.PURE, scale=1e-3, dimension=4), slots=1000)
    before, newest = blocks_of(np.array([[425.0, 75.0, 75.0, 425.0], [400.0, 100.0, 100.0, 400.0]]), 1000)
    assert has_fallen(LAYOUT, [before, newest], quiet, rate=0.05)
    assert not has_fallen(LAYOUT, [before, newest], quiet)
