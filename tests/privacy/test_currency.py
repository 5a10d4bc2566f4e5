"""Losses convert exactly, or towards more privacy."""

import math
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from service.privacy.currency import Currency, capacity, round_down, round_up, zcdp_epsilon, zcdp_rho

RHOS = st.floats(1e-12, 1e4)
DELTAS = st.floats(1e-30, 0.5)


@settings(deadline=None, derandomize=True)
@given(st.fractions(min_value=-(10**9), max_value=10**9), st.integers(-300, 200))
def test_rounding_brackets_every_fraction_with_neighbouring_doubles(amount, exponent):
    amount *= Fraction(2) ** exponent
    down, up = round_down(amount), round_up(amount)
    assert Fraction(down) <= amount <= Fraction(up)
    assert up == down if Fraction(down) == amount else up == math.nextafter(down, math.inf)


@settings(deadline=None, derandomize=True)
@given(st.floats(-1e300, 1e300))
def test_doubles_are_left_as_they_are(value):
    assert round_down(Fraction(value)) == value == round_up(Fraction(value))


@settings(deadline=None, derandomize=True)
@given(RHOS, DELTAS)
def test_epsilon_is_the_minimum_over_all_orders_and_not_below_it(rho, delta):
    """Against the formula of paper-audit.md N3 in 50 digits, at the order that scipy finds best."""

    def bound(log_order):
        with localcontext(prec=50):
            order = Decimal(log_order).exp()  # a - 1
            entropy = (order / (1 + order)).ln() * order - (1 + order).ln() - Decimal(delta).ln()
            return float((1 + order) * Decimal(rho) + entropy / order)

    middle = 0.5 * math.log((math.log(1 / delta) + 1) / rho)
    best = optimize.minimize_scalar(bound, bounds=(middle - 12, middle + 4), method="bounded", options={"xatol": 1e-9})
    if best.fun > 0:
        assert best.fun * (1 - 1e-14) <= zcdp_epsilon(rho, delta) <= best.fun * (1 + 1e-9) + 1e-12
    else:
        assert zcdp_epsilon(rho, delta) == 0.0


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-4, 50.0), st.floats(1e-12, 0.1))
def test_the_gaussian_mechanism_keeps_what_its_rho_promises(rho, delta):
    """The exact (ε, δ) curve of one Gaussian of that ρ (Balle-Wang) lies below the conversion."""
    epsilon, shift = zcdp_epsilon(rho, delta), math.sqrt(2 * rho)
    exact = stats.norm.cdf(shift / 2 - epsilon / shift) - math.exp(
        epsilon + stats.norm.logcdf(-shift / 2 - epsilon / shift)
    )
    assert exact <= delta * (1 + 1e-9)


def test_known_values():
    """paper-audit.md N3: σ/Δ = 4.531 buys (1, 1e-6)."""
    assert 1 / math.sqrt(2 * zcdp_rho(1.0, 1e-6)) == pytest.approx(4.531, abs=5e-4)
    assert zcdp_epsilon(0.0, 1e-6) == 0.0


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-6, 1e3), DELTAS)
def test_rho_never_buys_more_than_it_may_and_wastes_nothing(epsilon, delta):
    rho = zcdp_rho(epsilon, delta)
    assert zcdp_epsilon(rho, delta) <= epsilon
    assert zcdp_epsilon(rho * (1 + 1e-6), delta) > epsilon * (1 - 1e-12)


@settings(deadline=None, derandomize=True)
@given(RHOS, st.floats(1.0001, 10.0), st.floats(1e-20, 0.05), st.floats(1.01, 5.0))
def test_more_rho_is_more_epsilon_and_more_delta_less(rho, factor, delta, wider):
    assert zcdp_epsilon(rho * factor, delta) >= zcdp_epsilon(rho, delta)
    assert zcdp_epsilon(rho, delta * wider) <= zcdp_epsilon(rho, delta)


@pytest.mark.parametrize(("rho", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (math.inf, 0.1), (1.0, 0.0), (1.0, 1.0)])
def test_nonsense_is_refused(rho, delta):
    with pytest.raises(ValueError, match="zcdp_epsilon needs"):
        zcdp_epsilon(rho, delta)
    with pytest.raises(ValueError, match="zcdp_rho needs"):
        zcdp_rho(rho if delta == 0.1 else 1.0, delta)


def test_a_pure_capacity_is_the_decimal_itself():
    assert capacity(Decimal("0.1"), Decimal(0)) == (Currency.PURE, Fraction(1, 10))


def test_a_zcdp_capacity_implies_the_epsilon_and_delta_as_written():
    currency, rho = capacity(Decimal("0.3"), Decimal("1e-6"))
    assert currency is Currency.ZCDP
    # The doubles nearest to 0.3 and 1e-6 may lie above; those used lie at or below.
    epsilon, delta = round_down(Fraction("0.3")), round_down(Fraction("1e-6"))
    assert zcdp_epsilon(float(rho), delta) <= epsilon
    assert Fraction(epsilon) <= Fraction(3, 10)


def test_the_order_search_survives_the_smallest_and_largest_arguments():
    for rho in (sys.float_info.min, 1e-200, 1e100):
        for delta in (1e-300, 1 - 2**-53):
            assert 0.0 <= zcdp_epsilon(rho, delta) < math.inf
