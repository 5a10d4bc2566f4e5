"""Algorithm 5: Example 1 and the table after it, the chain rule, and the constant that follows."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.currency import Currency
from service.schedules.sliding_window import SlidingWindow

# paper-audit.md 1.4, W = 7, w_0 = 1; records from 0, t is the newest one. The first five rows are Example 1.
TABLE = """
f[0]←f[1:2]←f[3:6]; f[7]←f[1:2]←f[3:6]; f[2]←f[7:8]←f[3:6]; f[9]←f[7:8]←f[3:6]; f[4]←f[5:6]←f[7:10];
f[11]←f[5:6]←f[7:10]; f[6]←f[11:12]←f[7:10]; f[13]←f[11:12]←f[7:10]; f[8]←f[9:10]←f[11:14]; f[15]←f[9:10]←f[11:14];
f[10]←f[15:16]←f[11:14]; f[17]←f[15:16]←f[11:14]; f[12]←f[13:14]←f[15:18]; f[19]←f[13:14]←f[15:18];
f[14]←f[19:20]←f[15:18]
"""


def chains(schedule, end):
    """The chain of fits after every time up to `end` that has any."""
    chain = []
    for time in range(end + 1):
        fits = schedule.fits(time)
        for fit in fits:
            chain = [*chain[: fit.depth], fit]
        if fits:
            yield time, chain, fits


def window(blocks, block=1, currency=Currency.PURE):
    return SlidingWindow(currency=currency, block=block, blocks=blocks)


def test_example_1_and_the_table():
    def written(fit):
        return f"f[{fit.start}]" if fit.end == fit.start + 1 else f"f[{fit.start}:{fit.end - 1}]"

    rows = ["←".join(written(fit) for fit in reversed(chain)) for _, chain, _ in chains(window(7), 21)]
    assert rows == [row.strip() for row in TABLE.split(";")]


def test_larger_blocks_are_the_same_schedule_stretched():
    for (time, chain, _), (stretched, longer, _) in zip(chains(window(7), 40), chains(window(7, 5), 200), strict=True):
        assert stretched == 5 * time
        assert [(5 * f.start, 5 * f.end, f.share) for f in chain] == [(f.start, f.end, f.share) for f in longer]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 70))
def test_buckets_partition_the_window_with_each_level_once(blocks):
    schedule = window(blocks)
    for time, chain, fits in chains(schedule, 4 * blocks + 10):
        start, end = time - blocks, time
        assert all(fit.window == (start, end) for fit in chain[-len(fits) :])
        covered = sorted((fit.start, fit.end) for fit in chain)
        assert covered[0][0] == start
        assert covered[-1][1] == end
        assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))
        assert [fit.depth for fit in chain] == list(range((blocks + 1).bit_length() - 1))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 70))
def test_only_a_suffix_of_the_chain_is_fitted_again(blocks):
    for _, chain, fits in chains(window(blocks), 4 * blocks + 10):
        assert tuple(chain[-len(fits) :]) == fits


def simulated(blocks):
    """paper-audit.md 1.4, run block by block: yields (first, end, level) of every fit of every slide."""
    levels = (blocks + 1).bit_length() - 1
    period = 2 ** (levels - 1)
    start = slide = 0
    while True:
        if slide == 0:
            yield [
                (start + period - 1, start + blocks, levels - 1),
                *((start + 2**i - 1, start + 2 ** (i + 1) - 1, i) for i in range(levels - 2, -1, -1)),
            ]
        else:
            level = (slide & -slide).bit_length() - 1
            now = start + slide
            yield [
                (now + blocks - 2**level, now + blocks, level),
                *((now + 2**i - 1, now + 2 ** (i + 1) - 1, i) for i in range(level - 1, -1, -1)),
            ]
        slide += 1
        if slide == period:
            start, slide = start + period, 0


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 130))
def test_it_is_the_chain_rule_run_block_by_block(blocks):
    schedule, levels = window(blocks), (blocks + 1).bit_length() - 1
    for position, expected in zip(range(3 * blocks + 5), simulated(blocks), strict=False):
        fits = schedule.fits(blocks + position)
        assert [(f.start, f.end, f.depth) for f in fits] == [(a, e, levels - 1 - level) for a, e, level in expected]
        before = {depth: depth - 1 for depth in range(1, levels)} | {0: None}
        assert [f.near for f in fits] == [before[f.depth] for f in fits], "each near the bucket before it"


def formula(blocks, m, currency):
    """paper-audit.md 1.4, general W: what a block that arrives as m-th of its epoch costs, in units of e_0."""
    levels = (blocks + 1).bit_length() - 1
    period = 2 ** (levels - 1)
    extra = blocks - (2 * period - 1)
    cost = [Fraction(1, 2 ** (i * currency.power())) for i in range(levels - 1)]
    big = Fraction(1, (period + extra) ** currency.power())
    incoming = sum((cost[i] for i in range(levels - 1) if not m >> i & 1), Fraction(0))
    outgoing = sum((cost[i] for i in range(levels - 1) if (m + extra) % period >> i & 1), Fraction(0))
    return incoming + outgoing + (1 + (extra + m) // period) * big


def check_constant(blocks, currency):
    """Against the formula, and against adding up every fit over five periods and a first window."""
    schedule, period = window(blocks, currency=currency), 2 ** ((blocks + 1).bit_length() - 2)
    constant = 1 / schedule.unit
    assert constant == max(formula(blocks, m, currency) for m in range(period))
    profile = ChargesByRecord.of(
        (fit.start, fit.end, fit.share)
        for time in range(blocks, 3 * blocks + 5 * period)
        for fit in schedule.fits(time)
    )
    assert profile.maximum() == 1
    assert profile.at(schedule.lifetime().record) == 1


@pytest.mark.more
@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("blocks", [*range(1, 34), 47, 63, 64, 100, 127, 128, 200, 255, 260])
def test_the_constant_is_that_of_the_worst_block(blocks, currency):
    check_constant(blocks, currency)


@pytest.mark.long
@pytest.mark.parametrize("currency", Currency)
def test_the_constant_is_that_of_the_worst_block_for_every_window_up_to_260(currency):
    for blocks in range(1, 261):
        check_constant(blocks, currency)


@pytest.mark.parametrize(
    ("blocks", "constant"), [(7, 1.75), (8, 2.7), (11, 1.75), (15, 1.875), (31, 1.9375), (47, 1.9375)]
)
def test_known_constants(blocks, constant):
    assert 1 / window(blocks).unit == Fraction(constant).limit_denominator(1000)


def test_known_constants_with_rounding():
    assert 1 / window(10).unit == pytest.approx(3.14, abs=0.005)
    assert 1 / window(16).unit == pytest.approx(2.86, abs=0.005)


@pytest.mark.parametrize("levels", range(1, 11))
def test_windows_of_the_papers_form_pay_for_one_bucket_of_each_size(levels):
    blocks = 2**levels - 1
    assert 1 / window(blocks).unit == 2 - Fraction(2, 2**levels)
    assert 1 / window(blocks, currency=Currency.ZCDP).unit == Fraction(4, 3) * (1 - Fraction(1, 4**levels))
    assert sorted(part.fits for part in window(blocks).lifetime().parts) == [1] * levels


def paper(blocks, currency=Currency.PURE):
    return SlidingWindow(currency=currency, block=1, blocks=blocks, shares="paper")


@pytest.mark.parametrize("levels", range(2, 9))
def test_the_papers_constants_are_valid_and_noisier(levels):
    """paper-audit.md 1.4: 6L/(αw_0ε) in every bucket but the big one, which is charged ε/3: ε(1 - 2^(2-k)/3) ≤ ε."""
    blocks = 2**levels - 1
    schedule = paper(blocks)
    fits = schedule.fits(blocks)
    assert [fit.share for fit in fits] == [Fraction(1, 3), *(Fraction(1, 3 * 2**i) for i in range(levels - 2, -1, -1))]
    lifetime = schedule.lifetime()
    assert lifetime.share == 1 - Fraction(4, 3 * 2**levels) < 1
    assert "equal" in lifetime.note
    assert 2 / schedule.unit == 6 > 2 / window(blocks).unit == 4 * (1 - Fraction(1, 2**levels))
    assert paper(blocks, Currency.ZCDP).lifetime().share == 1 - Fraction(4, 7 * 4 ** (levels - 1))


def worst(schedule):
    """Return what the worst record is charged, by adding up every fit over a first window and at least five periods."""
    period = 2 ** ((schedule.blocks + 1).bit_length() - 2)
    profile = ChargesByRecord.of(
        (fit.start, fit.end, fit.share)
        for block in range(1, 3 * schedule.blocks + 5 * period)
        for fit in schedule.fits(block * schedule.block)
    )
    assert profile.at(schedule.lifetime().record) == profile.maximum()
    return profile


@pytest.mark.more
@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("blocks", [*range(1, 34), 47, 63, 64, 100, 127, 128, 200, 255, 260])
def test_the_papers_constants_are_valid_for_every_window(blocks, currency):
    schedule = paper(blocks, currency)
    lifetime = schedule.lifetime()
    assert worst(schedule).maximum() == lifetime.share <= 1
    assert (lifetime.note is None) == (lifetime.share == 1)
    if blocks > 1:
        assert schedule.unit < window(blocks, currency=currency).unit


def warming(blocks, block=1, currency=Currency.PURE, shares="equal"):
    return SlidingWindow(currency=currency, block=block, blocks=blocks, shares=shares, warm_up=True)


def check_warm_up(blocks, currency, shares):
    """The worst record is exactly at the budget, and all that does not touch the first window is as without."""
    schedule = warming(blocks, currency=currency, shares=shares)
    cold = SlidingWindow(currency=currency, block=1, blocks=blocks, shares=shares)
    profile, before = worst(schedule), worst(cold)
    assert schedule.lifetime().share == profile.maximum()
    assert profile.maximum() == (1 if blocks > 1 else cold.lifetime().share)
    assert profile.maximum(0, blocks) == profile.maximum()
    for start, end, amount in profile.ranges():
        assert start < blocks or amount <= before.maximum(start, end)
    for time in range(blocks, 3 * blocks + 2):
        for fit, other in zip(schedule.fits(time), cold.fits(time), strict=True):
            assert (fit.start, fit.end, fit.near) == (other.start, other.end, other.near)
            assert 0 < fit.share <= other.share
            assert fit.start < blocks or fit.share == other.share


@pytest.mark.more
@pytest.mark.parametrize("currency", Currency)
@pytest.mark.parametrize("blocks", [*range(1, 20), 31, 47, 64, 100, 127])
def test_a_warm_up_is_paid_by_the_records_of_the_first_window(blocks, currency):
    check_warm_up(blocks, currency, "equal")
    check_warm_up(blocks, currency, "paper")


@pytest.mark.long
@pytest.mark.parametrize("currency", Currency)
def test_the_warm_up_and_the_papers_constants_of_windows_up_to_260(currency):
    for blocks in (*range(1, 66), *range(70, 261, 9), 127, 191, 255):
        for schedule in (warming(blocks, currency=currency), paper(blocks, currency)):
            assert worst(schedule).maximum() == schedule.lifetime().share <= 1


@pytest.mark.parametrize("block", [1, 5])
def test_a_warm_up_models_everything_so_far_after_every_block(block):
    schedule = warming(7, block)
    times = []
    while not times or times[-1] < 10 * block:
        times.append(schedule.next_time(times[-1] if times else 0))
    assert times == [block * position for position in range(1, 11)]
    reads = [[(fit.start // block, fit.end // block, fit.near) for fit in schedule.fits(time)] for time in times[:6]]
    assert reads == [[(0, 1, None)], [(0, 2, None)], [(2, 3, 0)], [(0, 4, None)], [(4, 5, 0)], [(4, 6, 0)]]
    for time in times[:6]:
        (fit,) = schedule.fits(time)
        assert (fit.role, fit.window) == ("model", (0, time))
        assert schedule.needs(time) == 0


@pytest.mark.parametrize("currency", Currency)
def test_the_warm_up_and_the_first_window_share_what_there_is_fairly(currency):
    """f·g is the largest of all sixteenths f, with g the most that f leaves; and nothing is starved."""
    for blocks in (3, 7, 8, 15, 31):
        schedule, cold = warming(blocks, currency=currency), window(blocks, currency=currency)
        both = [
            ChargesByRecord.of(
                (fit.start, fit.end, fit.share) for time in times for fit in each.fits(time) if fit.start < blocks
            )
            for each, times in ((cold, range(blocks, 2 * blocks)), (schedule, range(1, blocks)))
        ]
        got = schedule.fits(blocks)[0].share / cold.fits(blocks)[0].share

        def leaves(f, both=both, blocks=blocks):
            return min((1 - f * both[0].at(m)) / both[1].at(m) for m in range(blocks - 1))

        assert leaves(got) == 1
        assert got >= max(Fraction(n, 16) * leaves(Fraction(n, 16)) for n in range(1, 17))
        assert got >= Fraction(1, 4)


def test_nothing_before_the_first_full_window():
    schedule = window(5, 10)
    assert [time for time in range(200) if schedule.fits(time)] == list(range(50, 200, 10))


def test_roles():
    def roles(blocks, time):
        return [fit.role for fit in window(blocks).fits(time)]

    assert roles(7, 7) == ["base", "link", "model"]
    assert roles(7, 8) == ["model"]
    assert roles(7, 9) == ["link", "model"]
    assert roles(1, 1) == roles(2, 2) == ["model"]


@pytest.mark.parametrize("bad", [{"block": 0}, {"blocks": 0}])
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match="sliding window"):
        SlidingWindow(**({"currency": Currency.PURE, "block": 1, "blocks": 1} | bad))


@pytest.mark.parametrize("blocks", [1, 5, 7])
def test_only_the_first_bucket_of_a_chain_and_the_warm_up_are_fitted_near_the_origin(blocks):
    first, *later = window(blocks).patterns()
    assert first.near_origin
    assert not any(each.near_origin for each in later)
    assert warming(blocks).patterns()[-1].near_origin
