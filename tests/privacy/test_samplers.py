"""The samplers follow their laws exactly: decisions against an oracle in fractions, laws against sums of their weights.

Each statistical test has a twin: it rejects a scale that is a third too small.
"""

import math
import os
from contextlib import nullcontext
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from service.privacy.noise import samplers
from service.privacy.noise.samplers import (
    MARGIN,
    Candidates,
    Envelope,
    Uniform,
    below_exp,
    discrete_gaussian,
    discrete_laplace,
    discrete_laplaces,
    gamma,
)
from tests import chance

THIRD = pytest.mark.parametrize(
    ("planted", "verdict"),
    [(1, nullcontext), (Fraction(2, 3), chance.is_noticed)],
    ids=["right", "third"],
)
RNG = np.random.default_rng(5)  # of words that are looked at, not of any noise
VARIANCES = [Fraction(1, 5), Fraction(10, 3), Fraction(10**6, 7), Fraction(2**101, 3), Fraction(3**73, 2**17)]


def enclosed_exp(x, terms=60):
    """Two fractions with exp(-x) between them: an alternating series for x/64, then the 64th power."""
    small, term, total = x / 64, Fraction(1), Fraction(0)
    assert small < 1
    for k in range(terms):
        total += term
        term *= -small / (k + 1)
    return min(total, total + term) ** 64, max(total, total + term) ** 64


def words(n):
    return RNG.integers(0, 2**64, size=(3, n), dtype=np.uint64)


# Decisions


@pytest.mark.more
@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.fractions(Fraction(1, 1000), 40, max_denominator=10**9), st.integers(8, 160), st.integers(-2, 2))
def test_a_uniform_is_compared_with_an_exponential_as_exact_fractions_are(x, bits, off):
    low, high = enclosed_exp(x)
    assert int(low * 2**bits) == int(high * 2**bits), "the oracle is too weak"
    n = int(low * 2**bits) + off
    if 0 <= n < 2**bits:
        assert below_exp(n, bits, x) is {-1: True, 0: None, 1: False}[(off > 0) - (off < 0)]


def test_what_64_bits_leave_open_later_ones_decide(monkeypatch):
    """The next bits of the threshold itself leave it open again; one less or more does not."""
    x = Fraction(7, 5)
    low, _ = enclosed_exp(x)
    further = int(low * 2**192)
    tie, second, third = further >> 128, (further >> 64) & (2**64 - 1), further & (2**64 - 1)
    assert below_exp(tie, 64, x) is None
    for last, verdict in [(third - 1, True), (third + 1, False)]:
        bits = iter([second, last])
        monkeypatch.setattr(samplers, "_bits", lambda count, bits=bits: next(bits))
        assert Uniform(tie, 64).below_exp(x) is verdict
        assert next(bits, None) is None


def test_every_uniform_is_below_the_exponential_of_zero():
    assert below_exp(2**64 - 1, 64, Fraction(0)) is True


@pytest.mark.parametrize("x", [Fraction(1, 10**20), Fraction(2, 7), Fraction(5), Fraction(10**4)])
def test_what_doubles_decide_of_a_uniform_is_what_exact_arithmetic_decides(x):
    """At once, a margin away from the exponential and at twice the margin; and far from it."""
    at, margin = int(enclosed_exp(min(x, Fraction(40)))[0] * 2**64), int(MARGIN * 2**64)
    near = [at + off for off in (-2 * margin, -margin, -2, 2, margin, 2 * margin)]
    for word in [*near, *(int(word) for word in words(20)[0])]:
        if 0 < word < 2**64 - 1 and (exact := below_exp(word, 64, x)) is not None:
            assert Uniform(word, 64).below_exp(x) is exact


@pytest.mark.parametrize("rate", [Fraction(3), Fraction(1, 17), Fraction(1, 10**6)])
def test_a_geometric_is_the_logarithm_in_whole_rates(rate):
    for word in [*(int(word) for word in words(40)[0]), 0, 1, 2**64 - 1]:
        uniform = Uniform(word, 64)
        k = uniform.geometric(rate, float(rate))
        least, most = Fraction(uniform.numerator, 2**uniform.bits), Fraction(uniform.numerator + 1, 2**uniform.bits)
        # exp(-rate·(k + 1)) ≤ R < exp(-rate·k), as far as doubles can tell
        assert math.exp(-rate * (k + 1)) <= float(least) * (1 + 1e-12)
        assert float(most) <= math.exp(-rate * k) * (1 + 1e-12)


@pytest.mark.parametrize(("last", "less"), [(0, 0), (2**64 - 1, 1)], ids=["just below", "just above"])
@pytest.mark.parametrize("threshold", range(2, 12))
def test_a_geometric_at_a_threshold_reads_on(monkeypatch, threshold, last, less):
    """A threshold lies in either half of what 64 bits leave open, so that the first guess is right or wrong."""
    rate = Fraction(1, 3)
    tie = int(enclosed_exp(threshold * rate)[0] * 2**64)
    monkeypatch.setattr(samplers, "_bits", lambda count: last)
    assert Uniform(tie, 64).geometric(rate, float(rate)) == threshold - less


@pytest.mark.parametrize("variance", VARIANCES)
def test_what_doubles_settle_is_what_exact_arithmetic_settles(variance):
    """Also nearest to where they may: at twice the margin from the probability of acceptance."""
    envelope, some = Envelope(variance), words(600)
    # Where a candidate is accepted is found by bisection over the exact decision, then looked at from close by.
    close = []
    for place, block, _ in some[:, :12].T:
        low, high = 0, 2**64 - 1
        candidate = int(place) & (2**63 - 1)  # positive, so that zero counts
        while high - low > 1:
            middle = (low + high) // 2
            taken = envelope.settle_exactly(np.array([candidate, block, middle], dtype=np.uint64)) is not None
            low, high = (middle, high) if taken else (low, middle)
        margin = int(MARGIN * 2**64)
        close += [(candidate, block, low + off) for off in (-2 * margin, -1, 0, 1, 2 * margin) if 0 < low + off < 2**64]
    near = np.array(close, dtype=np.uint64).T
    for batch in (some, near):
        values, accepted, unsettled = envelope.settle(batch)
        for index in np.flatnonzero(~unsettled):
            exact = envelope.settle_exactly(batch[:, index])
            assert exact == (int(values[index]) if accepted[index] else None)
        assert not (accepted & unsettled).any()
    offsets = np.array([int(word) for word in near[2]], dtype=object)
    assert unsettled[np.isin(offsets, offsets[1::5])].all()
    assert 0 < unsettled.sum() < unsettled.size  # of the near ones: those at ±1 are, those at ±2 margins are not


def test_a_logarithm_near_a_whole_number_is_left_open():
    envelope = Envelope(Fraction(10**6))
    rate = 256 / (math.isqrt(int(2**16 * 10**6 / envelope.width**2)) + 1)
    blocks = [int(math.exp(-rate * 3) * (1 + off) * 2**64) for off in (-1e-6, -1e-12, 0.0, 1e-12, 1e-6)]
    batch = np.array([[5] * 6, [*blocks, 2**39], [2**20] * 5 + [2**63]], dtype=np.uint64)
    assert list(envelope.settle(batch).unsettled) == [False, True, True, True, False, True]


def test_numpys_exp_and_log_are_as_exact_as_the_margins_need():
    context = Context(prec=40)
    for x in np.concatenate((RNG.uniform(-30, 0, 300), -(2.0 ** RNG.uniform(-40, 4, 300)))):
        exact = context.exp(Decimal(float(x)))
        assert abs(Decimal(float(np.exp(x))) / exact - 1) < Decimal(2) ** -48
    for x in 2.0 ** RNG.uniform(-30, 0, 600):
        exact = context.ln(Decimal(float(x)))
        assert abs(Decimal(float(np.log(x))) / exact - 1) < Decimal(2) ** -48


# Laws


def assert_weights(sample, weight, reach):
    """Assert the weights of whole numbers within ±reach; all others weigh less than 1e-20."""
    support = np.arange(-reach, reach + 1)
    weights = np.array([weight(int(z)) for z in support])
    assert np.abs(sample).max() <= reach
    chance.assert_frequencies(np.bincount(sample + reach, minlength=len(support)), weights / weights.sum())


@THIRD
@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(2), Fraction(73, 10), Fraction(321)])
def test_the_discrete_gaussian_has_its_weights(variance, planted, verdict):
    sample = discrete_gaussian(variance * planted**2, 30_000)
    with verdict():
        assert_weights(sample, lambda z: math.exp(-z * z / (2 * variance)), 8 + int(12 * math.sqrt(variance)))


@THIRD
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(10, 3), Fraction(9)])
def test_the_discrete_laplace_has_its_weights(scale, planted, verdict):
    sample = np.array(discrete_laplaces(scale * planted, 6000))
    with verdict():
        assert_weights(sample, lambda z: math.exp(-abs(z) / scale), 500)


@pytest.mark.parametrize("variance", VARIANCES[-2:])
def test_a_wide_discrete_gaussian_is_normal_into_its_tails(variance):
    """The numbers are so large that two thirds of them are as good as drawn from the normal law."""
    sample = discrete_gaussian(variance, 200_000) / math.sqrt(variance)
    for numbers, verdict in ((sample, nullcontext), (sample * chance.TOO_SMALL, chance.is_noticed)):
        with verdict():
            chance.assert_follows(numbers, stats.norm)
        with verdict():
            beyond = int((np.abs(numbers) > 3.5).sum())
            chance.assert_count(beyond, len(sample), 2 * stats.norm.sf(3.5))


def test_a_wide_discrete_laplace_is_laplace():
    scale = Fraction(2**50, 3)
    sample = np.array(discrete_laplaces(scale, 1000), dtype=float)[:, np.newaxis]
    chance.assert_spherical_laplace(sample, scale=float(scale))


def test_low_bits_are_as_random_as_high_ones():
    """Where the last one is lost in a tenth of the numbers, that is noticed."""
    sample = discrete_gaussian(Fraction(2**101, 3), 50_000)
    for shift in (0, 20, 40):
        bits = (sample >> shift) & 15
        chance.assert_frequencies(np.bincount(bits, minlength=16), np.full(16, 1 / 16))
        chance.assert_count(int((bits & 1).sum()), len(sample), 0.5)
    sample[:5000] &= ~1
    with chance.is_noticed():
        chance.assert_count(int((sample & 1).sum()), len(sample), 0.5)


def test_about_three_candidates_in_four_are_taken():
    taken = int(Envelope(Fraction(2**100)).settle(words(40_000)).accepted.sum())
    chance.assert_no_more(taken, 40_000, 0.75)
    chance.assert_no_more(40_000 - taken, 40_000, 0.29)


@pytest.mark.more
@pytest.mark.parametrize("halves", [2, 3, 8, 101])
def test_gamma_is_gamma(halves):
    sample = np.array([float(gamma(halves)) for _ in range(2000)])
    chance.assert_follows(sample, stats.gamma(halves / 2))
    with chance.is_noticed():
        chance.assert_follows(sample * chance.TOO_SMALL, stats.gamma(halves / 2))


@pytest.mark.more
@pytest.mark.parametrize("halves", [2, 7, 2000])
def test_gamma_is_exact_to_130_bits(halves, monkeypatch):
    """The same bits, as many logarithms to 250 digits as there are exponentials."""
    drawn, true = [], os.urandom
    monkeypatch.setattr(os, "urandom", lambda count: drawn.append(true(count)) or drawn[-1])
    result = gamma(halves)
    whole = b"".join(drawn)
    middles = [Fraction(2 * int.from_bytes(whole[i : i + 48]) + 1, 2**385) for i in range(0, len(whole), 48)]
    context = Context(prec=250)

    def exponential(middle):
        return -Fraction(context.ln(context.divide(Decimal(middle.numerator), Decimal(middle.denominator))))

    exact = sum(exponential(middle) for middle in middles[: halves // 2])
    if halves % 2:
        *_, x, y, last = middles
        assert x**2 + y**2 <= 1
        exact += exponential(last) * x**2 / (x**2 + y**2)
    assert abs(result / exact - 1) < Fraction(1, 2**130)


@pytest.mark.parametrize("variance", [0, -1, 2**116])
def test_a_variance_is_positive_and_fits(variance):
    with pytest.raises(ValueError, match="variance"):
        discrete_gaussian(Fraction(variance), 1)


def test_a_scale_is_positive():
    with pytest.raises(ValueError, match="scale"):
        discrete_laplace(Fraction(0))


@pytest.mark.parametrize("variance", [Fraction(1, 5), Fraction(10**6, 7)])
def test_what_doubles_leave_open_is_drawn_by_the_same_law(monkeypatch, variance):
    """Whole numbers alone decide here about every candidate, as they do about the few that doubles cannot settle."""

    def nothing_settled(self, words):
        nothing = np.zeros(words.shape[1], dtype=bool)
        return Candidates(np.zeros(words.shape[1], dtype=np.int64), nothing, ~nothing)

    monkeypatch.setattr(Envelope, "settle", nothing_settled)
    drawn = discrete_gaussian(variance, 4000)
    chance.assert_count(int((drawn > 0).sum()), 4000, (1 - central(variance)) / 2)


def central(variance):
    """P(0), by the sum of the weights."""
    reach = math.ceil(40 * math.sqrt(variance)) + 2
    return 1 / math.fsum(math.exp(-(k**2) / (2 * float(variance))) for k in range(-reach, reach + 1))
