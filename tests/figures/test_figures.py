"""Figures of released counts: what they say without noise, and that their intervals hold the truth with it."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from service.figures.figures import BlockCounts, ClassFigures, ErrorFigures, added_up, rise
from service.figures.intervals import CountLaw
from service.mechanisms.evaluation.tables import UNIT, ClassCounts, ErrorSums
from service.mechanisms.released_models import Predictions
from service.privacy.currency import Currency
from service.privacy.noise.counts import CountNoise
from tests import chance
from tests.figures.worlds import DATA, PRIVACY, draw, figures, noise_of, privacies, released, world

QUIET = CountNoise(currency=Currency.PURE, scale=1e-3, dimension=1)
RUNS, SLOTS = 1000, 100


def assert_held(missed, runs=RUNS, rate=0.05):
    """missed: how many intervals did not hold it, by figure."""
    for seen in missed.values():
        chance.assert_no_more(seen, runs, rate)


# Without noise


def test_without_noise_they_are_what_they_are_called():
    table = np.array([[50, 10, 0], [5, 20, 0], [1, 4, 10]])
    layout = ClassCounts(classes=3, publications=1, bins=False)
    exact = figures(layout, table.ravel().astype(float), QUIET, 100)
    assert exact.accuracy(0).estimate == 0.8
    assert [exact.recall(0, label).estimate for label in range(3)] == pytest.approx([50 / 60, 20 / 25, 10 / 15])
    assert exact.balanced_accuracy(0).estimate == pytest.approx((50 / 60 + 20 / 25 + 10 / 15) / 3)
    assert exact.commonest(0).estimate == 0.6
    assert exact.lift(0).estimate == pytest.approx(0.2)
    for each in (exact.accuracy(0), exact.commonest(0), exact.lift(0)):
        assert each.block.low == pytest.approx(each.estimate)
        assert each.block.high == pytest.approx(each.estimate)
        assert each.population.low < each.estimate - 0.05 < each.estimate + 0.05 < each.population.high


def test_without_noise_a_class_of_one_record_has_a_recall():
    layout = ClassCounts(classes=2, publications=1, bins=False)
    block = figures(layout, np.array([1.0, 0, 0, 5]), QUIET, 6).recall(0, 0).block
    assert (block.low, block.high) == (pytest.approx(1.0), pytest.approx(1.0))


def test_an_end_that_must_hold_for_all_classes_at_once_is_as_much_less_often_missed():
    """The greatest of K lower ends is too great as soon as one of them is: each may be so a K-th as often."""
    table = np.array([[50, 10, 0], [5, 20, 0], [1, 4, 10]])
    layout = ClassCounts(classes=3, publications=1, bins=False)
    exact = figures(layout, table.ravel().astype(float), QUIET, 100)
    third = replace(exact.counted, error=exact.counted.error / 3)
    assert exact.commonest(0).population.low == third.share(60.0, 3).population.low
    assert exact.lift(0).population.high == third.difference(30.0, 10.0, 4).population.high
    loud = figures(layout, table.ravel().astype(float), replace(QUIET, scale=2.0), 100)
    third = replace(loud.counted, error=loud.counted.error / 3)
    assert loud.lift(0).block.high == third.difference(30.0, 10.0, 4).block.high


def test_publications_are_compared_by_their_pair_where_it_was_counted_and_else_by_their_tables():
    labels = np.array([0] * 50 + [1] * 50)
    first, second = labels.copy(), labels.copy()
    first[:20], second[:15], second[-1] = 1, 1, 0  # 80 and 84 right, 5 by the second alone and 1 by the first
    outputs = [Predictions(labels=first), Predictions(labels=second)]
    widths = []
    for pairs in ((), ((0, 1),)):
        layout = ClassCounts(classes=2, publications=2, bins=False, pairs=pairs)
        compared = figures(layout, layout.count(labels, outputs).astype(float), QUIET, 100)
        assert compared.better(1, 0).estimate == pytest.approx(0.04)
        assert compared.better(0, 1).estimate == pytest.approx(-0.04)
        widths.append(compared.better(1, 0).population.high - compared.better(1, 0).population.low)
    loose = compared.counted.difference(84.0, 80.0, 4).population
    assert widths[0] < 0.7 * (loose.high - loose.low), "both are right about most, and differ about few of these"
    assert widths[1] < 0.7 * widths[0], "a pair says more than two tables"


def test_calibration_is_the_mean_gap_of_the_bins():
    layout = ClassCounts(classes=2, publications=1)
    n = 200
    sure = np.where(np.arange(n) < 100, layout.middles()[9], layout.middles()[2])
    labels = np.where(np.arange(n) % 4 == 0, 1, 0)  # a quarter wrong, whatever the confidence
    counts = layout.count(labels, [Predictions(labels=np.zeros(n), confidences=sure)])
    error = figures(layout, counts.astype(float), QUIET, n).calibration_error(0)
    assert error.estimate == pytest.approx((abs(0.75 - sure[0]) + abs(0.75 - sure[-1])) / 2, abs=1e-3)
    assert error.block.low <= error.estimate <= error.block.high + 1e-9


def test_blocks_are_added_up_with_their_noise():
    layout = ClassCounts(classes=2, publications=1, bins=False)
    blocks = [BlockCounts(100, np.array([40.0, 10, 10, 40])), BlockCounts(50, np.array([10.0, 15, 15, 10]))]
    counts, together = added_up(blocks, CountLaw(noise=QUIET, slots=100))
    assert (together.slots, together.blocks) == (150, 2)
    assert ClassFigures(layout=layout, counts=counts, counted=together).accuracy(0).estimate == pytest.approx(2 / 3)


# With noise


@pytest.mark.more
@privacies
@pytest.mark.parametrize(
    ("classes", "accuracy"),
    [
        (2, 0.95),
        *(pytest.param(k, a, marks=pytest.mark.long) for k in (2, 7) for a in (0.5, 0.8, 0.95, 0.99)),
    ],
)
def test_of_a_thousand_blocks_of_100_slots_the_intervals_hold_each_figure(privacy, classes, accuracy):
    """At least 914 those of shares and of bounds, which are exact; at least 904 those that are nearly so."""
    rng, truth = np.random.default_rng([classes, int(100 * accuracy)]), world(classes, accuracy)
    tables = truth.tables(RUNS, SLOTS, rng)
    exact, nearly = Counter(accuracy=0), Counter(recall=0)

    def note(kinds, name, figure, block, population):
        kinds[f"{name} of the block"] += block is not None and not figure.block.holds(block)
        kinds[f"{name} of the population"] += not figure.population.holds(population)

    for table, estimated in zip(tables, released(tables, privacy), strict=True):
        sums, right = table.sum(axis=1), np.diag(table)
        note(exact, "accuracy", estimated.accuracy(0), right.sum() / SLOTS, truth.accuracy)
        note(exact, "commonest", estimated.commonest(0), sums.max() / SLOTS, truth.cells.sum(axis=1).max())
        note(nearly, "lift", estimated.lift(0), (right.sum() - sums.max()) / SLOTS, truth.lift)
        note(nearly, "recall", estimated.recall(0, 0), right[0] / sums[0] if sums[0] else None, truth.recalls[0])
        balanced = (right / sums).mean() if sums.all() else None
        note(nearly, "balanced accuracy", estimated.balanced_accuracy(0), balanced, truth.recalls.mean())
    assert_held(exact)
    assert_held(nearly, rate=0.06)


@privacies
def test_the_lift_over_a_version_before_is_held(privacy):
    rng, before, now = np.random.default_rng(5), world(2, 0.8), world(2, 0.9)
    first, second = before.tables(RUNS, SLOTS, rng), now.tables(RUNS, SLOTS, rng)
    missed = Counter()
    pairs = zip(released(first, privacy), released(second, privacy), first, second, strict=True)
    for old, new, a, b in pairs:
        figure = rise(new.accuracy(0), old.accuracy(0))
        missed["block"] += not figure.block.holds((np.trace(b) - np.trace(a)) / SLOTS)
        missed["population"] += not figure.population.holds(now.accuracy - before.accuracy)
    assert_held(missed, rate=0.06)


@pytest.mark.more
@privacies
@pytest.mark.parametrize("pairs", [(), ((0, 1),)], ids=["tables", "pair"])
def test_who_is_better_is_held_and_two_equal_models_are_seldom_taken_for_different(privacy, pairs):
    rng = np.random.default_rng(7)
    layout = ClassCounts(classes=2, publications=2, bins=False, pairs=pairs)
    noise, runs = noise_of(layout, privacy), 600
    labels = rng.integers(0, 2, (runs, SLOTS))
    wrong = rng.random((runs, SLOTS)) < 0.1
    outputs = [np.where(wrong ^ (rng.random((runs, SLOTS)) < 0.05), 1 - labels, labels) for _ in range(2)]
    counts = np.stack(
        [
            layout.count(y, [Predictions(labels=a), Predictions(labels=b)])
            for y, a, b in zip(labels, *outputs, strict=True)
        ]
    )
    missed = Counter()
    for index, each in enumerate((counts + draw(noise, counts.shape)).astype(float)):
        figure = figures(layout, each, noise, SLOTS).better(1, 0)
        gap = (outputs[1][index] == labels[index]).mean() - (outputs[0][index] == labels[index]).mean()
        missed["block"] += not figure.block.low - 1e-9 <= gap <= figure.block.high + 1e-9
        missed["population"] += not figure.population.holds(0.0)
        missed["said better"] += figure.population.low > 0
    assert_held(missed, runs, rate=0.06)


@privacies
@pytest.mark.parametrize("off", [0.0, 0.15])
def test_the_calibration_error_is_held(privacy, off):
    """Take a model that is right as often as it says, and one that is right less often."""
    rng, layout, runs, slots = np.random.default_rng(9), ClassCounts(classes=2, publications=1), 500, 500
    noise, middles = noise_of(layout, privacy), layout.middles()
    bins = rng.integers(0, 10, (runs, slots))
    right = rng.random((runs, slots)) < np.clip(middles[bins] - off, 0, 1)
    outputs = [
        np.stack([np.bincount(b[r], minlength=10), np.bincount(b[~r], minlength=10)], axis=1)
        for b, r in zip(bins, right, strict=True)
    ]
    counts = np.zeros((runs, layout.size), dtype=np.int64)
    counts[:, 4:] = np.stack(outputs).reshape(runs, -1)
    missed = Counter()
    for each, exact in zip((counts + draw(noise, counts.shape)).astype(float), outputs, strict=True):
        figure = figures(layout, each, noise, slots).calibration_error(0)
        gap = np.abs(exact[:, 0] * (1 - middles) - exact[:, 1] * middles).sum() / slots
        missed["block"] += not figure.block.holds(gap)
        missed["population"] += not figure.population.holds(off)
    assert_held(missed, runs)


@privacies
@pytest.mark.parametrize("layout", [ClassCounts(classes=2, publications=1), ErrorSums(bound=1.0, publications=1)])
def test_the_share_of_shortened_records_is_held(privacy, layout):
    rng, runs, slots, share, missed = np.random.default_rng(29), 300, 200, 0.3, Counter()
    layout = replace(layout, shortened=True)
    noise, long = noise_of(layout, privacy), rng.random((runs, slots)) < share
    labels = np.zeros(slots)
    counts = np.stack([layout.count(labels, [Predictions(labels=labels, shortened=each)]) for each in long])
    kind = ClassFigures if isinstance(layout, ClassCounts) else ErrorFigures
    for each, exact in zip((counts + draw(noise, counts.shape)).astype(float), long.mean(axis=1), strict=True):
        figure = kind(layout=layout, counts=each, counted=CountLaw(noise=noise, slots=slots)).shortened(0)
        missed["block"] += not figure.block.holds(exact)
        missed["population"] += not figure.population.holds(share)
    assert_held(missed, runs)


# Regression


def regression(shape, rng):
    """Targets, and predictions of them with a slope that is too small."""
    y = np.clip(rng.normal(0.1, 0.4, shape), -1, 1)
    return y, 0.7 * y + rng.normal(0, 0.1, shape)


def error_figures(y, predicted, privacy, *, moments=True, error=0.05):
    layout = ErrorSums(bound=1.0, publications=1, moments=moments)
    noise = noise_of(layout, privacy)
    counts = np.stack([layout.count(a, [Predictions(labels=b)]) for a, b in zip(y, predicted, strict=True)])
    noisy = (counts + draw(noise, counts.shape)).astype(float)
    counted = CountLaw(noise=noise, slots=y.shape[1], error=error)
    return [ErrorFigures(layout=layout, counts=each, counted=counted) for each in noisy]


@pytest.mark.more
@privacies
def test_errors_and_r_squared_are_held(privacy):
    rng, runs, missed = np.random.default_rng(11), 300, Counter()
    y, predicted = regression((runs, 500), rng)
    truth = _errors(*regression(500_000, rng))
    for labels, outputs, estimated in zip(y, predicted, error_figures(y, predicted, privacy), strict=True):
        all_found = estimated.absolute_error(0), estimated.squared_error(0), estimated.r_squared(0)
        for number, (figure, block) in enumerate(zip(all_found, _errors(labels, outputs), strict=True)):
            missed[f"{number} of the block"] += figure is not None and not figure.block.holds(block)
            missed[f"{number} of the population"] += figure is not None and not figure.population.holds(truth[number])
    assert_held(missed, runs)


def _errors(y, predicted):
    """The mean of |e|, that of e², and R²."""
    return np.abs(y - predicted).mean(), ((y - predicted) ** 2).mean(), 1 - ((y - predicted) ** 2).mean() / y.var()


def test_r_squared_needs_the_moments_and_a_target_that_varies():
    y, predicted = regression((1, 20_000), np.random.default_rng(12))
    (without,) = error_figures(y, predicted, "pure", moments=False)
    (few,) = error_figures(y[:, :10], predicted[:, :10], "gaussian")
    (many,) = error_figures(y, predicted, "pure", error=chance.FALSE_ALARM)
    assert without.r_squared(0) is None
    assert few.r_squared(0) is None
    assert many.r_squared(0).block.low < _errors(y[0], predicted[0])[2] < many.r_squared(0).block.high
    assert many.r_squared(0).population.low > 0.5


# Real data


def blocks_of(name):
    """A simple model's predictions for the second half of a data set, in blocks of 100 records that are drawn anew."""
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs {name}.npz in PERENNIAL_DATA_DIR")
    with np.load(path) as data:
        rng = np.random.default_rng(13)
        rows = np.sort(rng.choice(len(data["y"]), 12_000, replace=False))
        x, y = data["X"][rows].astype(float), data["y"][rows].astype(int)
    if name == "mnist":
        x, _ = x[:, ::7] / 255.0, None
    x = (x - x[:6000].mean(axis=0)) / (x[:6000].std(axis=0) + 1e-3)
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=40).fit(x[:6000:4], y[:6000:4])
    return model.predict(x[6000:]), model.predict_proba(x[6000:]).max(axis=1), y[6000:], rng


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@privacies
@pytest.mark.parametrize("name", ["noaa_weather", "elec2", "mnist"])
def test_real_models_on_real_records_are_held(name, privacy):
    predicted, confidences, labels, rng = blocks_of(name)
    layout = ClassCounts(classes=int(labels.max()) + 1, publications=1)
    noise, runs = noise_of(layout, privacy), 300
    chosen = rng.integers(0, len(labels), (runs, SLOTS))
    counts = np.stack(
        [layout.count(labels[b], [Predictions(labels=predicted[b], confidences=confidences[b])]) for b in chosen]
    )
    missed = Counter()
    for each, block in zip((counts + draw(noise, counts.shape)).astype(float), chosen, strict=True):
        figure = figures(layout, each, noise, SLOTS).accuracy(0)
        missed["block"] += not figure.block.holds((predicted[block] == labels[block]).sum() / SLOTS)
        missed["population"] += not figure.population.holds((predicted == labels).mean())
    assert_held(missed, runs)


def test_privacies_are_those_that_are_promised():
    assert [str(delta) for _, delta in PRIVACY.values()] == ["0", "0.000001"]
    assert replace(QUIET, scale=2.0).deviation() > QUIET.deviation()


def test_the_noise_in_a_calibration_error_is_that_of_all_blocks_together():
    layout = ClassCounts(classes=2, publications=1)
    counts, widths = np.full(layout.size, 40.0), []
    for blocks in (1, 4):
        counted = CountLaw(noise=QUIET, slots=10**6, blocks=blocks)
        block = ClassFigures(layout=layout, counts=counts, counted=counted).calibration_error(0).block
        widths.append(block.high - block.low)
    assert widths[1] == pytest.approx(2 * widths[0])


def test_the_ends_of_a_calibration_error_follow_from_the_deviation_of_each_bin():
    """A block's has the noise in both counts of each bin, the population's also that of the sample."""
    layout, blocks, slots = ClassCounts(classes=2, publications=1), 3, 1000
    counted = CountLaw(noise=CountNoise(currency=Currency.ZCDP, scale=2.0, dimension=1), slots=slots, blocks=blocks)
    counts = np.arange(float(layout.size)) * 3
    bins, middles = layout.calibration(counts, 0).astype(float), layout.middles()
    figure = ClassFigures(layout=layout, counts=counts, counted=counted).calibration_error(0)
    noise = [4.0 * blocks * ((1 - middle) ** 2 + middle**2) for middle in middles]
    sampled = [sum(row) * middle * (1 - middle) for row, middle in zip(bins, middles, strict=True)]
    gaps = [abs(right * (1 - middle) - wrong * middle) for (right, wrong), middle in zip(bins, middles, strict=True)]
    for interval, variances in (
        (figure.block, noise),
        (figure.population, [a + b for a, b in zip(noise, sampled, strict=True)]),
    ):
        spread = math.sqrt(sum(variances))
        mean = sum(math.sqrt(2 / math.pi * each) for each in variances)
        assert interval.low == pytest.approx(max(0.0, sum(gaps) - mean - 1.959964 * spread) / slots, rel=1e-3)
        assert interval.high == pytest.approx((sum(gaps) + counted.deviations() * spread) / slots, rel=1e-3)
    assert figure.block.low > 0


def test_r_squared_may_be_missed_as_often_as_its_three_sums_together():
    """Each sum has a third of the probability; the block's interval is the farthest that their ends allow."""
    layout = ErrorSums(bound=2.0, publications=1, moments=True)
    counts = np.array([0.1, 0.02, 0.55, 0.4]) * 500 * UNIT
    noise = CountNoise(currency=Currency.ZCDP, scale=2.0 * UNIT, dimension=1)
    figure = ErrorFigures(layout=layout, counts=counts, counted=CountLaw(noise=noise, slots=500)).r_squared(0)
    third = CountLaw(noise=noise, slots=500, error=0.05 / 3)
    off, shifted, square = (third.mean(each, UNIT, 0.0).block for each in counts[1:])
    mean = shifted.scaled(2.0, -1.0)
    assert figure.block.low == pytest.approx(1 - 4 * off.high / (square.low - max(mean.low**2, mean.high**2)))
    assert figure.estimate == pytest.approx(1 - 4 * 0.02 / (0.4 - 0.1**2))


def test_how_much_errors_vary_is_taken_from_their_squares_and_rounded_up_by_the_noise():
    layout, counts = ErrorSums(bound=1.0, publications=1), np.array([0.3, 0.1]) * 500 * UNIT
    counted = CountLaw(noise=CountNoise(currency=Currency.ZCDP, scale=2.0 * UNIT, dimension=1), slots=500)
    off = 2 * counted.noise.deviation() / (500 * UNIT)
    expected = counted.mean(counts[0], UNIT, 0.1 + off - (0.3 - off) ** 2).scaled(2.0)
    figure = ErrorFigures(layout=layout, counts=counts, counted=counted).absolute_error(0)
    assert (figure.population.low, figure.population.high) == pytest.approx(
        (expected.population.low, expected.population.high)
    )


def test_how_much_errors_vary_is_bounded_by_the_noise_of_all_blocks_together():
    """Four blocks are as noisy as one whose noise is twice as long."""
    layout, counts = ErrorSums(bound=1.0, publications=1), np.full(2, 95.0 * UNIT)
    widths = []
    for scale, blocks in ((2.0, 4), (4.0, 1)):
        noise = CountNoise(currency=Currency.ZCDP, scale=scale * UNIT, dimension=1)
        counted = CountLaw(noise=noise, slots=100, blocks=blocks)
        figure = ErrorFigures(layout=layout, counts=counts, counted=counted).absolute_error(0)
        widths.append(figure.estimate - figure.population.low)
    assert widths[0] == pytest.approx(widths[1], rel=0.005)
