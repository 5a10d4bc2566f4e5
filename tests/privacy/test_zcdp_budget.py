"""A budget held in ρ: how much it is, what pure charges count, and that no order of Rényi divergence says more."""

from decimal import Decimal
from fractions import Fraction
from math import exp, isclose, log1p, sqrt, tanh

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting.budget import component
from service.privacy.accounting.zcdp_budget import capacity_of, pure_rho
from service.privacy.currency import capacity, round_down, round_up, zcdp_epsilon, zcdp_rho

ONE, DELTA = Decimal(1), Decimal("1e-6")
EPSILONS = st.fractions(Fraction(1, 10**6), 100)


def randomised_response(epsilon, order):
    """The Rényi divergence of order a > 1 of the worst pair that is ε-close."""
    logs = np.array([epsilon, -epsilon])
    likely = -log1p(exp(-epsilon)) + np.array([0.0, -epsilon])  # ln P; ln Q = ln P - logs
    terms = likely + (order - 1) * logs
    return float(np.logaddexp(*terms)) / (order - 1)


@pytest.mark.parametrize(("parts", "smaller"), [(2, 1.40), (3, 1.71), (5, 2.20), (10, 3.10)])
def test_so_much_smaller_is_the_noise_of_publications_that_share_a_budget(parts, smaller):
    """Than under basic composition, where each has (ε/k, δ/k)."""
    _, basic = capacity(ONE / parts, DELTA / parts)
    held = capacity_of(ONE, DELTA) / parts
    assert round(sqrt(held / basic), 2) == smaller


@pytest.mark.parametrize("delta", [Decimal("1e-6"), Decimal("1e-15"), Decimal("1e-17")])
def test_the_capacity_leaves_room_for_the_slack_that_is_admitted(delta):
    rho = capacity_of(ONE, delta)
    assert rho < zcdp_rho(1.0, float(delta))
    left = Fraction(delta) - Fraction(1, 2**60)
    assert zcdp_epsilon(float(rho), round_down(left)) <= 1
    assert zcdp_epsilon(float(rho) * (1 + 1e-9), float(left)) > 1


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 0), (1, "8.6e-19"), (0, "1e-6"), (1, 1.5)])
def test_a_budget_without_room_is_refused(epsilon, delta):
    with pytest.raises(ValueError, match="2\\^-60"):
        capacity_of(Decimal(epsilon), Decimal(delta))


@settings(deadline=None, derandomize=True)
@given(EPSILONS, st.floats(1e-6, 1e4))
def test_no_order_of_pure_loss_passes_what_it_counts(epsilon, above_one):
    order = 1.0 + above_one
    for units in (False, True):
        assert randomised_response(float(epsilon), order) <= order * pure_rho(epsilon, units=units) * (1 + 1e-7) + 1e-12


@settings(deadline=None, derandomize=True)
@given(EPSILONS)
def test_pure_loss_counts_epsilon_times_tanh_rounded_up(epsilon):
    counted = pure_rho(epsilon, units=False)
    assert isclose(counted, float(epsilon) * tanh(float(epsilon) / 2), rel_tol=1e-12)
    assert counted <= pure_rho(epsilon, units=True) == Fraction(round_up(epsilon**2 / 2))
    assert counted >= epsilon * (epsilon / 2 - (epsilon / 2) ** 3 / 3)  # tanh x ≥ x - x³/3


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_it_is_attained_as_the_order_approaches_one(epsilon):
    counted = pure_rho(Fraction(epsilon), units=False)
    assert isclose(randomised_response(epsilon, 1.0 + 1e-6), counted, rel_tol=1e-4)
    orders = 1.0 + np.geomspace(1e-5, 1e4, 2000)
    worst = max(randomised_response(epsilon, order) / order for order in orders)
    assert worst <= counted * (1 + 1e-6)


def test_nothing_counts_nothing():
    assert pure_rho(Fraction(0), units=False) == 0


def test_at_a_budget_of_one_a_pure_publication_hardly_fits():
    """ε ≤ 0.221, as the refusal says."""
    whole = capacity_of(ONE, DELTA)
    assert pure_rho(Fraction("0.221"), units=False) <= whole < pure_rho(Fraction("0.222"), units=False)


@settings(deadline=None, derandomize=True)
@given(st.lists(EPSILONS, min_size=1, max_size=6), st.booleans())
def test_charges_never_count_more_than_the_whole_that_was_reserved(parts, units):
    together = pure_rho(sum(parts), units=units)
    assert sum(pure_rho(each, units=units) for each in parts) <= together * (1 + Fraction(1, 2**50))


@settings(deadline=None, derandomize=True)
@given(st.lists(EPSILONS, min_size=1, max_size=6))
def test_unequal_pure_charges_of_a_unit_are_covered_by_its_squares(parts):
    together = pure_rho(sum(parts), units=False)
    assert together <= len(parts) * sum(pure_rho(each, units=True) for each in parts)


def delta_of_a_chosen_stop(epsilons, rho):
    """Return the δ that quoting `epsilons`[k] after k + 1 releases has, for who stops when the losses so far suit best.

    Each release costs the same record `rho`, by Gaussian noise: its loss is normal, of mean `rho` and variance 2·rho.
    The best stop is worked out backwards from the last release.
    """
    deviation = sqrt(2 * rho)
    step, end = deviation / 8, deviation * sqrt(len(epsilons))
    losses = np.arange(-3 * end, 9 * end, step)
    reach = np.arange(-72, 73) * step
    weights = np.exp(-((reach - rho) ** 2) / (4 * rho))
    weights /= weights.sum()
    best = np.zeros_like(losses)
    for epsilon in reversed(epsilons):
        best = np.maximum(best, np.maximum(0, -np.expm1(epsilon - losses)))
        padded = np.concatenate((np.full(72, best[0]), best, np.full(72, best[-1])))
        best = np.convolve(padded, weights[::-1], "valid")
    return float(np.interp(0, losses, best))


def test_a_gaussian_publication_keeps_its_promise_whenever_it_is_stopped():
    """The ε that its charges imply, quoted at a stop that was chosen by looking, has more than its δ."""
    currency, whole = capacity(ONE, DELTA)
    settings = {"identity": 1, "epsilon": ONE, "delta": DELTA, "currency": currency, "start": 0, "running": False}
    ended = component("zcdp", **settings)
    charged = [whole * releases / 32 for releases in range(1, 33)]

    def of(shown):
        return delta_of_a_chosen_stop([float(shown(amount).epsilon) for amount in charged], float(whole / 32))

    assert of(ended.alone) > 1.5 * float(DELTA)
    assert of(ended.held_alone) <= float(DELTA)
    assert not ended.held_alone(Fraction(0)).epsilon
