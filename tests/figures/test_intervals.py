"""Intervals hold what they say they hold: of shares exactly, by summing over all outcomes; of others in simulation."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from service.figures.intervals import CountLaw, Figure, Interval, added
from service.mechanisms.evaluation.noise_sums import FINENESS, total
from service.mechanisms.evaluation.tables import ClassCounts
from service.privacy.currency import Currency
from service.privacy.noise.counts import CountNoise
from tests import chance
from tests.figures.worlds import draw, noise_of, privacies

LAWS = [CountNoise(currency=kind, scale=scale, dimension=1) for kind in Currency for scale in (0.4, 2.0, 6.5)]
by_law = pytest.mark.parametrize("noise", LAWS, ids=lambda noise: f"{noise.currency}-{noise.scale}")
SLOTS = 100


def weights(noise, reach=4000):
    """The law of one draw, in whole numbers from -reach to reach."""
    z = np.arange(-reach, reach + 1)
    law = np.exp(-np.abs(z) / noise.scale if noise.currency is Currency.PURE else -(z**2) / (2 * noise.scale**2))
    return law / law.sum()


# The law of a sum


@by_law
@pytest.mark.parametrize("draws", [1, 3])
def test_a_sum_of_noise_has_the_law_of_convolving_its_draws(noise, draws):
    exact = weights(noise, 400)
    for _ in range(draws - 1):
        exact = np.convolve(exact, weights(noise, 400))
    middle, law = len(exact) // 2, total(noise, draws)
    for z in (-9, -1, 0, 1, 7, 30):
        assert float(law.above(z - 0.5)) == pytest.approx(exact[middle + z :].sum(), abs=1e-11)
    for probability in (0.3, 0.025, 5e-4):
        least = law.quantile(probability)
        assert exact[middle + int(least) + 1 :].sum() <= probability + 1e-11
        assert exact[middle + int(least) :].sum() > probability - 1e-11, "no wider than it must be"


@pytest.mark.parametrize("kind", Currency)
@pytest.mark.parametrize("draws", [1, 40])
def test_a_wide_law_is_the_continuous_one_and_a_step_more(kind, draws):
    noise = CountNoise(currency=kind, scale=1e7, dimension=1)
    law = total(noise, draws)
    for probability in (0.025, 5e-4):
        if kind is Currency.ZCDP:
            exact = stats.norm.isf(probability) * 1e7 * np.sqrt(draws)
        elif draws == 1:
            exact = -np.log(2 * probability) * 1e7
        else:
            continue
        assert exact <= law.quantile(probability) <= exact + 2.1e7 * np.sqrt(2) / FINENESS


@pytest.mark.parametrize("kind", Currency)
def test_a_normal_number_is_added_with_its_variance(kind):
    noise, variance = CountNoise(currency=kind, scale=3.0, dimension=1), 400.0
    law = total(noise, 2, variance)
    one = weights(noise, 300)
    z = np.arange(-600, 601)
    exact = np.convolve(one, one) @ stats.norm.sf((20.5 - z) / np.sqrt(variance))
    assert float(law.above(20.5)) == pytest.approx(exact, abs=2e-4)


@pytest.mark.parametrize("kind", Currency)
def test_a_normal_number_that_is_wide_beside_the_noise_takes_no_more_memory(kind):
    """Errors of a regression are of up to 2^20 slots, however little noise is added to them."""
    wide = 2.0**25
    law = total(CountNoise(currency=kind, scale=1e4, dimension=1), 1, wide**2)
    assert len(law.survival) < 2**20
    for probability in (0.025, 5e-4):
        exact = stats.norm.isf(probability) * wide
        assert exact <= law.quantile(probability) <= 1.0002 * exact


# Shares


@pytest.mark.more
@by_law
@pytest.mark.parametrize("cells", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(7, marks=pytest.mark.long)])
def test_every_share_is_held_with_the_stated_probability(noise, cells):
    """By summing over all records and all noise, without chance."""
    counted, spread = CountLaw(noise=noise, slots=SLOTS), int(4 * noise.scale * cells) + 40
    law = total(noise, cells)
    noisy = np.arange(-spread, SLOTS + spread + 1)
    shares = [counted.share(float(count), cells) for count in noisy]
    for p in (0.02, 0.5, 0.8, 0.95, 0.99, 1.0):
        records = stats.binom.pmf(np.arange(SLOTS + 1), SLOTS, p)
        chances = [float(records @ _mass(law, count - np.arange(SLOTS + 1))) for count in noisy]
        missed = sum(c for c, each in zip(chances, shares, strict=True) if not each.population.holds(p))
        assert missed <= counted.error + 1e-9
    for right in (0, 50, 80, 99, 100):
        missed = sum(
            float(_mass(law, count - right))
            for count, each in zip(noisy, shares, strict=True)
            if not each.block.holds(right / SLOTS)
        )
        assert missed <= counted.error + 1e-9


def _mass(law, z):
    return law.above(z - 0.5) - law.above(z + 0.5)


@pytest.mark.more
@privacies
@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("p", [0.5, 0.8, 0.99])
def test_of_a_thousand_intervals_at_least_914_hold_the_accuracy(privacy, classes, p):
    """Both intervals, of the block and of the population, hold it 95 times in 100; chance takes 36 once in 10⁶ runs."""
    noise, rng = noise_of(ClassCounts(classes=classes, publications=1), privacy), np.random.default_rng(int(100 * p))
    right = rng.binomial(SLOTS, p, size=1000)
    noisy = right + draw(noise, (1000, classes)).sum(axis=1)
    shares = [CountLaw(noise=noise, slots=SLOTS).share(float(count), classes) for count in noisy]
    chance.assert_no_more(sum(not f.block.holds(r / SLOTS) for f, r in zip(shares, right, strict=True)), 1000, 0.05)
    chance.assert_no_more(sum(not f.population.holds(p) for f in shares), 1000, 0.05)


def test_an_interval_that_forgets_the_noise_is_noticed():
    noise, rng = LAWS[-1], np.random.default_rng(4)
    right = rng.binomial(SLOTS, 0.8, size=1000)
    noisy = right + draw(noise, (1000, 2)).sum(axis=1)
    forgetful = CountLaw(noise=CountNoise(currency=noise.currency, scale=0.1, dimension=1), slots=SLOTS)
    missed = sum(not forgetful.share(float(count), 2).population.holds(0.8) for count in noisy)
    with chance.is_noticed():
        chance.assert_no_more(missed, 1000, 0.05)


@by_law
def test_a_share_narrows_with_records_and_widens_with_noise_and_with_what_may_be_missed(noise):
    few, many = CountLaw(noise=noise, slots=100), CountLaw(noise=noise, slots=10_000)

    def width(counted, cells=2):
        interval = counted.share(0.8 * counted.slots, cells).population
        return interval.high - interval.low

    assert width(many) < width(few) < width(few, 9)
    assert width(CountLaw(noise=noise, slots=100, error=0.5)) < width(few)
    assert width(CountLaw(noise=noise, slots=100, blocks=10)) > width(few)


# Differences and ratios


@pytest.mark.more
@by_law
@pytest.mark.parametrize(("plus", "minus"), [(0.1, 0.02), (0.3, 0.25), (0.03, 0.03)])
def test_a_difference_is_held_by_at_least_94_in_100_intervals(noise, plus, minus):
    rng, cells = np.random.default_rng(6), 2
    cells_seen = rng.multinomial(SLOTS, [plus, minus, 1 - plus - minus], size=1000)[:, :2]
    noisy = cells_seen + draw(noise, (1000, 2))
    counted = CountLaw(noise=noise, slots=SLOTS)
    differences = [counted.difference(float(a), float(b), cells) for a, b in noisy]
    gaps = (cells_seen[:, 0] - cells_seen[:, 1]) / SLOTS
    chance.assert_no_more(sum(not f.block.holds(g) for f, g in zip(differences, gaps, strict=True)), 1000, 0.05)
    chance.assert_no_more(sum(not f.population.holds(plus - minus) for f in differences), 1000, 0.06)


@by_law
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_ratio_is_held_by_at_least_94_in_100_intervals(noise, share):
    rng = np.random.default_rng(8)
    whole = rng.binomial(SLOTS, 0.6, size=1000)
    part = rng.binomial(whole, share)
    noisy = np.stack([part, whole - part], axis=1) + draw(noise, (1000, 2))
    ratios = [CountLaw(noise=noise, slots=SLOTS).ratio(float(a), float(b), 1, 1) for a, b in noisy]
    true = part / whole
    chance.assert_no_more(sum(not f.block.holds(t) for f, t in zip(ratios, true, strict=True)), 1000, 0.06)
    chance.assert_no_more(sum(not f.population.holds(share) for f in ratios), 1000, 0.06)


def test_a_ratio_of_what_may_not_be_there_is_anything():
    noise = CountNoise(currency=Currency.ZCDP, scale=6.5, dimension=1)
    for part, rest in ((0.0, 0.0), (-5.0, 2.0), (3.0, 1.0), (2.4, 21.6)):  # the last is there, and hardly more
        figure = CountLaw(noise=noise, slots=SLOTS).ratio(part, rest, 1, 1)
        assert figure == Figure(estimate=0.5, block=Interval(0.0, 1.0), population=Interval(0.0, 1.0))


def test_the_mean_of_ratios_is_theirs_together_where_one_may_not_be_there():
    noise = CountNoise(currency=Currency.ZCDP, scale=6.5, dimension=1)
    counted = CountLaw(noise=noise, slots=SLOTS)
    sure = counted.mean_ratio([400.0, 450.0], [100.0, 50.0], 1, 1)
    unsure = counted.mean_ratio([400.0, 2.0], [100.0, 1.0], 1, 1)
    assert sure.estimate == pytest.approx(0.85)
    assert sure.population.holds(0.85)
    assert unsure.population.low <= 0.4
    assert unsure.population.high >= 0.88
    assert sure.population.high - sure.population.low < 0.2


# Arithmetic


def test_figures_are_added_with_the_root_of_the_squares_of_their_ways():
    one = Figure(estimate=0.5, block=Interval(0.4, 0.9), population=Interval(0.2, 0.9))
    other = Figure(estimate=0.3, block=Interval(0.0, 0.4), population=Interval(0.0, 0.5))
    added_up = added([one, other], [1.0, -1.0])
    assert added_up.estimate == pytest.approx(0.2)
    assert added_up.block.low == pytest.approx(0.2 - np.hypot(0.1, 0.1))
    assert added_up.block.high == pytest.approx(0.2 + np.hypot(0.4, 0.3))


def test_a_figure_is_json():
    figure = Figure(estimate=0.5, block=Interval(0.25, 0.75), population=Interval(0.0, 1.0))
    assert figure.described() == {"estimate": 0.5, "block": [0.25, 0.75], "population": [0.0, 1.0]}
    assert figure.scaled(2.0, 1.0).block == Interval(1.5, 2.5)


def test_a_difference_counts_more_records_of_either_sign_than_it_saw():
    """One record in a hundred, and none of the other sign: the variance is that of five."""
    quiet = CountNoise(currency=Currency.PURE, scale=1e-3, dimension=1)
    figure = CountLaw(noise=quiet, slots=SLOTS).difference(1, 0, 2)
    half = stats.norm.ppf(0.975) * np.sqrt(5 / SLOTS**2)
    assert (figure.population.low, figure.population.high) == pytest.approx((0.01 - half, 0.01 + half), abs=1 / SLOTS)


def test_a_ratio_ends_where_its_parts_are_off_by_just_as_much_as_noise_and_sampling_allow():
    noise = CountNoise(currency=Currency.ZCDP, scale=6.5, dimension=1)
    counted = CountLaw(noise=noise, slots=2000)
    figure = counted.ratio(300.0, 200.0, 2, 3)
    for interval, records in ((figure.block, 0.0), (figure.population, 500.0)):
        for share in (interval.low, interval.high):
            variance = noise.deviation() ** 2 * (2 * (1 - share) ** 2 + 3 * share**2) + records * share * (1 - share)
            assert abs(300.0 - share * 500.0) == pytest.approx(counted.deviations() * np.sqrt(variance))


def test_noise_of_several_blocks_is_that_of_as_many_cells():
    noise = CountNoise(currency=Currency.ZCDP, scale=6.5, dimension=1)
    blocks, cells = CountLaw(noise=noise, slots=2000, blocks=4), CountLaw(noise=noise, slots=2000)
    assert blocks.difference(300.0, 200.0, 1) == cells.difference(300.0, 200.0, 4)
    assert blocks.share(300.0, 1) == cells.share(300.0, 4)
    mean = blocks.mean(1000.0, 1, 0.0)
    assert mean.population == mean.block, "numbers that are all alike leave the noise alone"


def test_each_of_several_ratios_has_its_part_of_what_may_be_missed_where_one_is_open():
    counted = CountLaw(noise=CountNoise(currency=Currency.ZCDP, scale=6.5, dimension=1), slots=SLOTS)
    both = counted.mean_ratio([400.0, 2.0], [100.0, 1.0], 1, 1)
    sure = replace(counted, error=counted.error / 2).ratio(400.0, 100.0, 1, 1)
    for mean, one in ((both.block, sure.block), (both.population, sure.population)):
        assert (mean.low, mean.high) == pytest.approx((one.low / 2, (one.high + 1) / 2))
