"""Algorithm 2: every dyadic block once, and what that costs a record."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting.charges_by_record import ChargesByRecord
from service.privacy.currency import Currency
from service.schedules.multi_resolution import MultiResolution


@settings(deadline=None, derandomize=True)
@given(st.sampled_from(Currency), st.integers(1, 9))
def test_every_dyadic_block_is_fitted_once_when_it_ends_the_largest_last(currency, base):
    schedule = MultiResolution(currency=currency, base=base)
    expected = [
        (q * 2**k * base, (q - 1) * 2**k * base, k) for k in range(7) for q in range(1, 64 // 2**k + 1)
    ]  # paper A's (k, q)
    got = []
    for time in range(64 * base + 1):
        fits = schedule.fits(time)
        assert [fit.end - fit.start for fit in fits] == [base << level for level in range(len(fits))]
        for level, fit in enumerate(fits):
            got.append((fit.end, fit.start, level))
            assert fit.window == (fit.start, fit.end) == (fit.start, time)
            assert (fit.near, fit.role) == (None, "model")
            assert fit.share == schedule.patterns()[0].share / 2 ** (level * currency.power())
    assert sorted(got) == sorted(expected)


@pytest.mark.parametrize("odd", [1, 3, 5, 7, 101])
@pytest.mark.parametrize("k", range(6))
def test_k_plus_1_models_at_2_to_the_k_odd_b(k, odd):
    assert len(MultiResolution(currency=Currency.PURE, base=10).fits(2**k * odd * 10)) == k + 1


@pytest.mark.parametrize(("currency", "first"), [(Currency.PURE, Fraction(1, 2)), (Currency.ZCDP, Fraction(3, 4))])
@pytest.mark.parametrize("base", [1, 3, 8])
def test_every_record_is_charged_the_whole_budget_and_no_more(currency, first, base):
    """Theorem 1: Σ e_b·2^-k = 2e_b, Σ ρ_b·4^-k = (4/3)ρ_b."""
    schedule = MultiResolution(currency=currency, base=base)
    assert schedule.fits(base)[0].share == first
    end = base << 9
    profile = ChargesByRecord.of(
        (fit.start, fit.end, fit.share) for time in range(end + 1) for fit in schedule.fits(time)
    )
    larger = sum(schedule.fits(base << level)[-1].share for level in range(10, 90))
    assert set(profile.amounts[:-1]) == {profile.at(0)}
    assert profile.starts[-1] == end
    assert 1 - Fraction(1, 2**80) < profile.at(0) + larger < 1


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="multi-resolution"):
        MultiResolution(currency=Currency.PURE, base=0)
