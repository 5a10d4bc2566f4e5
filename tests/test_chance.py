"""Assertions on random draws notice what they are for, and take no sample that is too small to notice it."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from service.privacy.currency import Currency
from tests import chance

RANDOM = np.random.default_rng(7)
NORMAL = RANDOM.normal(size=(40, 10))
LAPLACE = RANDOM.normal(size=(40, 20))
LAPLACE *= RANDOM.gamma(20, size=(40, 1)) / np.linalg.norm(LAPLACE, axis=1, keepdims=True)
SIGNED = RANDOM.laplace(size=(800, 1))


def test_no_other_module_judges_random_draws():
    """By the names of scipy's tests, and of rates."""
    own = re.compile(r"kstest|ks_1samp|chisquare|binomtest|spearmanr|ttest_|\.pvalue|ALARM = ")
    files = set(Path(__file__).parent.rglob("*.py")) - {Path(__file__), Path(chance.__file__)}
    assert len(files) > 100
    assert [file.name for file in files if own.search(file.read_text())] == []


def test_noise_of_the_stated_law_passes():
    chance.assert_gaussian(3 * NORMAL, scale=3.0)
    chance.assert_spherical_laplace(3 * LAPLACE, scale=3.0)
    chance.assert_spherical_laplace(SIGNED)


@pytest.mark.parametrize(
    "wrong",
    [
        NORMAL * chance.TOO_SMALL,
        NORMAL * 1.5,
        np.repeat(NORMAL[::2], 2, axis=0),
        np.sign(NORMAL),
        NORMAL + 0.8,
        NORMAL * np.nan,
    ],
    ids=["too small", "too large", "drawn once for two", "two values", "off the middle", "no numbers"],
)
def test_what_is_not_white_noise_is_noticed(wrong):
    with chance.is_noticed():
        chance.assert_gaussian(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        LAPLACE * chance.TOO_SMALL,
        RANDOM.laplace(size=(40, 20)),
        np.abs(LAPLACE),
        np.repeat(LAPLACE[::2], 2, axis=0),
        np.abs(SIGNED),
        np.repeat(SIGNED[::2], 2, axis=0),
    ],
    ids=[
        "too small",
        "by coordinate",
        "on one side",
        "drawn once for two",
        "all positive",
        "a number drawn once for two",
    ],
)
def test_what_is_not_spherical_laplace_noise_is_noticed(wrong):
    with chance.is_noticed():
        chance.assert_spherical_laplace(wrong)


@pytest.mark.parametrize(
    ("assertion", "few"), [(chance.assert_gaussian, NORMAL[:32]), (chance.assert_spherical_laplace, LAPLACE[:31])]
)
def test_a_sample_too_small_to_notice_a_third_is_refused(assertion, few):
    with pytest.raises(ValueError, match="too small to notice"):
        assertion(few)


def test_the_rate_is_stated_when_an_assertion_fails():
    with pytest.raises(chance.Unlikely, match=r"probability at most 0\.001"):
        chance.assert_count(90, 100, 0.5, false_alarm=0.001)


@pytest.mark.parametrize("probability", [0.02, 0.5, 0.8])
def test_a_count_fails_no_more_often_than_stated(probability):
    """Summed up over all that can be drawn."""
    failing = {chance.assert_count: 0.0, chance.assert_no_more: 0.0}
    for seen in range(41):
        for assertion in failing:
            try:
                assertion(seen, 40, probability, false_alarm=0.01)
            except chance.Unlikely:
                failing[assertion] += stats.binom.pmf(seen, 40, probability)
    assert 0 < min(failing.values()) <= max(failing.values()) <= 0.01


def test_frequencies_are_looked_at_one_by_one_and_summed_up():
    chance.assert_frequencies([52, 48, 0], [0.5, 0.5, 0.0])
    for wrong in ([52, 47, 1], [90, 10, 0], [20] * 5 + [0] * 5):
        with chance.is_noticed():
            chance.assert_frequencies(wrong, [1 / len(wrong)] * len(wrong) if len(wrong) > 3 else [0.5, 0.5, 0.0])


@pytest.mark.more
@pytest.mark.parametrize("kind", Currency)
def test_a_bound_on_a_loss_is_wrong_no_more_often_than_stated(kind):
    """Try an attacker who is right with e/(1 + e), which is an ε of 1; or a Gaussian that shows as much."""
    truthful, count = np.e / (1 + np.e), 30
    true = 1.0 if kind is Currency.PURE else (2 * stats.norm.ppf(truthful)) ** 2 / 2
    runs = np.arange(count)
    wrong = sum(
        stats.binom.pmf(right, count, truthful) * stats.binom.pmf(false, count, 1 - truthful)
        for right in range(count + 1)
        for false in range(count + 1)
        if chance.least_loss(runs < right, runs < false, kind, false_alarm=0.05) > true
    )
    assert 0 < wrong < 0.05


@pytest.mark.more
@pytest.mark.parametrize("kind", Currency)
@pytest.mark.parametrize("bound", [chance.least_loss, chance.least_loss_without_gaussians])
def test_an_attack_ends_early_and_its_verdict_is_that_of_all_runs(kind, bound):
    choose, passed, failed = np.random.default_rng(7), [], 0
    for rate in np.tile([0.6, 0.8, 0.85, 0.9, 0.99], 10):
        hits, false_hits = choose.random((2, 300)) < [[rate], [1 - rate]]
        made, left = iter(hits), iter(false_hits)
        attack = made.__next__, left.__next__, 300, kind, 1.0
        if bound(hits, false_hits, kind) <= 1:
            chance.assert_tells_apart_no_better(*attack, bound=bound)
            passed.append(len(list(made)))
            assert passed[-1] == len(list(left))
        else:
            with chance.is_noticed():
                chance.assert_tells_apart_no_better(*attack, bound=bound)
            failed += 1
            assert not list(made)
    assert failed > 9
    assert max(passed) > 150, "many runs are left where little is seen"
    assert min(passed) < 100


@pytest.mark.parametrize(("runs", "more"), [(13, 317), (200, 130)])
def test_runs_that_are_left_hit_no_more_often_but_rarely_whatever_the_rate(runs, more):
    """Without the uncertainty of the rate, they would."""
    hits = np.arange(runs + 1)
    most = np.array([chance._at_most([True] * n + [False] * (runs - n), more) for n in hits])

    def largest(most):
        rates = np.linspace(0.001, 0.999, 200)
        return max(stats.binom.pmf(hits, runs, p) @ stats.binom.sf(most, more, p) for p in rates)

    assert largest(most) < chance.RARE < largest(stats.binom.isf(chance.RARE, more, hits / runs))


def test_what_was_measured_needs_a_margin_as_wide_as_its_rate_is_small():
    measured = {"mean": 0.95, "spread": 0.01, "runs": 200}
    chance.assert_above(0.93, 0.8, **measured)
    with pytest.raises(chance.Unlikely, match=r"in 200 runs it was 0.95 ± 0.01 .*at most 1e-06"):
        chance.assert_above(0.79, 0.8, **measured)
    with pytest.raises(ValueError, match=r"10\.0 spreads are too narrow"):
        chance.assert_above(0.93, 0.85, **measured)
    chance.assert_above(0.93, 0.85, **measured, false_alarm=1e-3)
    with chance.is_noticed():
        chance.assert_below(0.3, 0.25, mean=0.1, spread=0.01, runs=200)
