"""The group factor: against all patterns of a small horizon, and against numbers that were computed by other means.

The columns c^(b) are measured, as in `test_several_records`: by how much a contribution to batch b moves what the code
adds each draw of noise to. Nothing here follows the closed forms of `carried_groups`.
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import combinations
from math import isclose, sqrt

import numpy as np
import pytest

from service.privacy.accounting import carried_groups
from service.privacy.accounting.carried_groups import carried, rounding_share, settled
from service.privacy.accounting.events import NoisyRunningSums
from service.privacy.accounting.groups import (
    MAX_RECORDS,
    Batching,
    UnitBound,
    group_factor,
    independent,
    shared,
    slot_capacity,
)
from service.privacy.accounting.unit_factors import factor_of
from service.privacy.currency import Currency, capacity
from service.privacy.noise.additive import Unaffordable, root
from service.privacy.noise.correlated import Blt, Toeplitz, Tree, calibrate
from service.privacy.noise.window_tree import WindowTree
from tests.privacy.test_several_records import moved

BATCHES = 12
BLT = Blt.decaying(0.97)
NOISES = {
    "independent": Toeplitz(bands=1, decay=1.0),
    "blt": BLT,
    "blt, short runs": Blt(decays=(0.9, 0.5), scales=(0.3, 0.4), steps=5),
    "toeplitz": Toeplitz.for_ever(0.9),
    "tree of 1": Tree(steps=1),
    "tree of 4": Tree(steps=4),
    "tree of 8": Tree(steps=8),
    "tree of 16": Tree(steps=16),
    "shared": None,
}
SIZES = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (2, 4), (3, 2), (3, 3)]  # B and s, in slots


def bound(records, separation=1):
    return UnitBound(max_records=records, min_separation=separation)


def batching(records, separation, batch, one=True):
    return Batching(bound=bound(records, separation), batch=batch, one_contribution=one)


def costs_of(noise, batches, **rounding):
    """Return what the code states of so many records as the bound says: the costs that decide g."""
    match noise:
        case "independent":
            return independent(batches)
        case "shared":
            return shared(batches.bound)
        case _:
            return carried(NOISES[noise], batches, **rounding)


def stated(noise, batches, **rounding):
    """Return T(1), …, T(m): of p records, as of a unit that has no more."""
    records = range(1, batches.bound.max_records + 1)
    bounds = {p: replace(batches, bound=replace(batches.bound, max_records=p)) for p in records}
    return tuple(costs_of(noise, bounds[p], **rounding)[p] for p in records)


@cache
def gram(noise):
    """The scalar products of the columns of 12 batches, over one column's own; of different runs they are 0."""
    factor = NOISES[noise]
    if factor is None:
        return np.ones((BATCHES, BATCHES))
    run = min(factor.steps or BATCHES, BATCHES)
    columns = moved(factor, np.eye(run))
    block = columns.T @ columns / float(factor.column.square)
    whole = np.kron(np.eye(-(-BATCHES // run)), block)
    return whole[:BATCHES, :BATCHES]


@cache
def patterns(batch, separation, records):
    """How many of so many slots of a unit are in each batch, in all ways that are possible."""
    slots = np.array(list(combinations(range(BATCHES * batch), records)))
    slots = slots[(np.diff(slots, axis=1) >= separation).all(axis=1)]
    counts = np.zeros((len(slots), BATCHES), dtype=np.int64)
    for column in slots.T:
        np.add.at(counts, (np.arange(len(slots)), column // batch), 1)
    return np.unique(counts, axis=0)


def worst(noise, batches, records):
    """Return what so many slots cost where they cost most, over one slot's charge."""
    patterns_seen = patterns(batches.batch, batches.bound.min_separation, records)
    patterns_seen = np.minimum(patterns_seen, 1) if batches.one_contribution else patterns_seen
    return ((patterns_seen @ gram(noise)) * patterns_seen).sum(axis=1).max()


def is_exact(noise, batches):
    """Return whether the modules say that the worst pattern costs as much as is stated."""
    batch, separation = batches.batch, batches.bound.min_separation
    if noise in ("independent", "shared", "tree of 1"):
        return True
    if noise == "blt, short runs":
        return False
    if separation < batch:
        return batches.one_contribution or batch % separation == 0
    apart, rest = divmod(separation, batch)
    return rest == 0 and (not noise.startswith("tree") or apart.bit_count() == 1)


def assert_worst(noise, batches):
    """Assert that no pattern costs more than is stated, and the worst as much where that is said to be exact."""
    costs = stated(noise, batches)
    seen = [worst(noise, batches, p) for p in range(1, len(costs) + 1)]
    for p, (most, cost) in enumerate(zip(seen, costs, strict=True), start=1):
        assert most <= float(cost) * (1 + 1e-6)
        assert cost <= p * p
        if is_exact(noise, batches):
            assert isclose(most, cost, rel_tol=1e-5)
    factor = max(len(costs) * most / p for p, most in enumerate(seen, start=1))
    stated_factor = group_factor(costs_of(noise, batches))
    assert isclose(stated_factor, max(len(costs) * cost / p for p, cost in enumerate(costs, start=1)), rel_tol=1e-15)
    assert factor <= float(stated_factor) * (1 + 1e-6)
    if is_exact(noise, batches):
        assert isclose(factor, stated_factor, rel_tol=1e-5)


@pytest.mark.parametrize("one", [True, False], ids=["one contribution", "each its own"])
@pytest.mark.parametrize(("batch", "separation"), SIZES)
@pytest.mark.parametrize("noise", NOISES)
def test_no_pattern_costs_more_than_is_stated_and_the_worst_as_much(noise, batch, separation, one):
    records = 3 if batch == 3 or separation == 4 * batch else 4  # as many as there is room for in 12 batches
    assert_worst(noise, batching(records, separation, batch, one))


@pytest.mark.long
@pytest.mark.parametrize("one", [True, False], ids=["one contribution", "each its own"])
@pytest.mark.parametrize("separation", range(1, 13))
@pytest.mark.parametrize("batch", [3, 4])
@pytest.mark.parametrize("noise", NOISES)
def test_so_it_is_in_longer_batches(noise, batch, separation, one):
    assert_worst(noise, batching(3 if separation > 11 else 4, separation, batch, one))


@pytest.mark.parametrize("noise", [each for each in NOISES if each != "shared"])
def test_pure_costs_are_m_times_one_records_and_no_more(noise):
    factor = NOISES[noise]
    columns = moved(factor, np.eye(min(factor.steps or BATCHES, BATCHES)))
    together = [columns[:, list(each)].sum() for each in combinations(range(min(4, columns.shape[1])), 2)]
    assert max(together, default=0.0) <= 2 * float(factor.column.total) * (1 + 1e-6)
    if noise in ("independent", "blt", "toeplitz"):
        assert isclose(max(together), 2 * factor.column.total, rel_tol=1e-5)


def test_batches_of_four_and_slots_six_apart():
    """Between what ⌈s/B⌉ and what ⌊s/B⌋ batches from one slot to the next would cost."""
    batches = batching(3, 6, 4)
    assert isclose(worst("blt", batches, 3), 6.26, abs_tol=0.005)
    assert isclose(carried(BLT, batches)[3], 6.46, abs_tol=0.005)
    assert isclose(carried(BLT, batching(3, 2, 1))[3], 5.94, abs_tol=0.005)  # ⌈6/4⌉
    assert isclose(carried(BLT, batching(3, 1, 1))[3], 6.61, abs_tol=0.005)  # ⌊6/4⌋


@pytest.mark.parametrize(("records", "times"), [(2, 3.27), (10, 50.7), (50, 595)])
def test_neighbouring_batches_of_a_decaying_blt(records, times):
    assert float(f"{float(group_factor(carried(BLT, batching(records, 1, 1)))):.3g}") == times


@pytest.mark.parametrize(("apart", "times"), [(1, 10.4), (16, 5.1), (64, 4.1)])
def test_noise_of_online_leader_for_sixteen_records_of_a_person(apart, times):
    """The roots of g; by m² it is 16 times the noise for one record, whatever the separation."""
    batch = 100
    factor = group_factor(carried(BLT, batching(16, apart * batch, batch)))
    assert round(sqrt(factor), 1) == times


def test_a_full_batch_and_a_rest_do_not_hide_what_a_stop_would_leave():
    """m = 5, c = 4: T(5) = 17. With T(5) for g, four slots cost 16/17, and a fifth elsewhere a fifth more."""
    batches = batching(5, 1, 4, one=False)
    costs, factor = stated("independent", batches), group_factor(independent(batches))
    assert [int(each) for each in costs] == [1, 4, 9, 16, 17]
    assert factor == 20
    elsewhere = Fraction(1, 5)
    assert isclose(costs[3] / costs[4] + elsewhere, 1.14, abs_tol=0.005)
    assert costs[3] / factor + elsewhere == 1


@pytest.mark.parametrize("noise", NOISES)
def test_any_slots_of_a_unit_cost_at_most_g_over_m_of_their_charges(noise):
    """Also if they are charged by two publications with such noise, one after the other."""
    batches = batching(7, 2, 5, one=False)
    costs = (Fraction(0), *stated(noise, batches))
    share = group_factor(costs_of(noise, batches)) / 7
    for first in range(8):
        for second in range(8 - first):
            assert costs[first] + costs[second] <= share * (first + second)


@pytest.mark.parametrize("noise", ["blt", "toeplitz", "tree of 8"])
@pytest.mark.parametrize("separation", [1, 3, 7, 50])
def test_more_slots_cost_more_each_and_slots_that_are_farther_apart_less(noise, separation):
    costs = stated(noise, batching(9, separation, 5))
    further = stated(noise, batching(9, separation + 3, 5))
    assert all(p <= each for p, each in enumerate(costs, start=1))
    assert list(costs) == sorted(costs)
    assert all(b <= a for a, b in zip(costs, further, strict=True))


@pytest.mark.more
@pytest.mark.parametrize("lag", [1, 2, 7, 100, 5000])
@pytest.mark.parametrize(
    "factor", [BLT, Blt.decaying(1.0), Toeplitz(bands=300, decay=0.99)], ids=lambda each: each.kind
)
def test_autocorrelations_are_rounded_up_by_very_little(factor, lag):
    """T(2) = 2 + 2·R(lag)/R(0), against a sum over steps; decays of BLT for ever are 0.99998, so 10^6 steps."""
    cost = carried(factor, batching(2, lag, 1))[2]
    column = np.zeros(2**20)
    if isinstance(factor, Blt):
        steps = np.arange(len(column) - 1)
        column[0] = 1.0
        column[1:] = sum(a * x**steps for a, x in zip(factor.scales, factor.decays, strict=True))
    else:
        column[: factor.bands] = factor.coefficients
    expected = 2 + 2 * (column[:-lag] @ column[lag:]) / float(factor.column.square)
    assert isclose(cost, expected, rel_tol=1e-9)
    assert float(cost) >= expected - 1e-9


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("lag", [1, 2, 7, 29, 30])
def test_no_autocorrelation_is_rounded_down(decay, lag):
    factor = Toeplitz(bands=30, decay=decay)
    exact = [Fraction(c) for c in factor.coefficients]
    apart = sum((a * b for a, b in zip(exact[:-lag], exact[lag:], strict=True)), start=Fraction(0))
    assert carried(factor, batching(2, lag, 1))[2] >= 2 + 2 * apart / factor.column.square


@pytest.mark.parametrize("charge", [1e-1, 1e-5, 1e-9])
@pytest.mark.parametrize("noise", ["blt", "toeplitz", "tree of 16"])
def test_rounding_is_counted_for_every_slot(noise, charge):
    factor, batches, whole = NOISES[noise], batching(8, 1, 1), Fraction(charge)

    def law(group):
        return calibrate(
            Currency.ZCDP, factor=factor, sensitivity=2.0, largest=2000.0, charge=float(whole / group), dimension=10**6
        )

    group = settled(factor, batches, lambda factor_tried: rounding_share(law(factor_tried), 2.0))
    assert group >= group_factor(carried(factor, batches))
    noise_law = law(group)
    norm = root(factor.column.square) * 2
    moved_by_rounding = root(2 * Fraction(noise_law.noise.scale) ** 2 * Fraction(noise_law.charge(2.0))) - norm
    assert moved_by_rounding > 0
    exact = stated(noise, batches)
    for slots, cost in enumerate(exact, start=1):
        moved_by_all = root(cost) * norm + slots * moved_by_rounding
        paid = moved_by_all**2 / (2 * Fraction(noise_law.noise.scale) ** 2)
        assert paid <= whole * (group / 8 * slots / group) * (1 + Fraction(1, 2**40))


def test_rounding_in_the_share_of_pure_noise_is_counted_too():
    law = calibrate(Currency.PURE, factor=BLT, sensitivity=2.0, largest=2000.0, charge=0.1, dimension=1000)
    share = rounding_share(law, 2.0)
    exact = (Fraction(law.charge(2.0)) * Fraction(law.noise.scale) - 2 * BLT.column.total) / 2
    assert 0 < share <= exact
    assert share * root(BLT.column.square) >= exact * (1 - Fraction(1, 2**40))


def test_no_noise_is_taken_whose_rounding_costs_a_sixteenth():
    with pytest.raises(Unaffordable, match="rounding would cost"):
        settled(BLT, batching(4, 1, 1), lambda _: Fraction(1, 15))


def test_a_slot_is_charged_a_share_of_the_publications_capacity():
    epsilon, delta = Decimal(1), Decimal("1e-6")
    group = group_factor(carried(BLT, batching(4, 1, 10)))
    assert slot_capacity(epsilon, Decimal(0), bound=bound(4), factor=group) == (Currency.PURE, Fraction(1, 4))
    kind, share = slot_capacity(epsilon, delta, bound=bound(4), factor=group)
    assert kind is Currency.ZCDP
    assert share * group == capacity(epsilon, delta)[1]


def test_a_window_that_declassifies_is_refused():
    with pytest.raises(ValueError, match="declassifies"):
        carried(WindowTree(window=8, expiry="block"), batching(2, 1, 1))


def test_a_tree_for_too_many_records_has_the_bound_that_is_always_enough():
    assert carried(Tree(steps=8), batching(5000, 1, 1)) == {5000: 5000**2}


@pytest.mark.parametrize("separation", [1, 150])
@pytest.mark.parametrize("factor", [BLT, Blt.decaying(1.0), Toeplitz.for_ever(0.99), Tree(steps=2**40)], ids=repr)
def test_a_request_makes_the_processor_add_up_once_for_each_record_at_most(factor, separation, monkeypatch):
    """Each plan of a stream with units asks for g, with several roundings; m² steps, or roots of m costs, took 48 s."""
    calls = Counter()

    def counted(name):
        real = getattr(carried_groups, name)

        def call(*args):
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(carried_groups, name, call)

    for name in ("root", "_power", "_up", "_shared_out"):
        counted(name)
    records = 4096 if isinstance(factor, Tree) else MAX_RECORDS
    least = settled(factor, batching(records, separation, 100), lambda _: Fraction(1, 2**5))
    assert records <= least <= records**2
    assert calls["root"] < 200, "a few costs decide, whatever the rounding"
    assert calls["_power"] <= 20
    assert calls["_up"] <= 1000
    assert calls["_shared_out"] <= 30


@pytest.mark.parametrize(("records", "separation"), [(0, 1), (MAX_RECORDS + 1, 1), (1, 0)])
def test_bounds_of_units_are_within_limits(records, separation):
    with pytest.raises(ValueError, match="must be"):
        bound(records, separation)


def test_a_batch_has_a_slot():
    with pytest.raises(ValueError, match="batch is 0"):
        batching(1, 1, 0)


def test_of_rounding_each_slot_has_its_own_part():
    batches, rounding = batching(3, 2, 1), Fraction(1, 1000)
    pairs = zip(stated("blt", batches), stated("blt", batches, rounding=rounding), strict=True)
    for slots, (exact, rounded) in enumerate(pairs, start=1):
        assert isclose(rounded, ((sqrt(exact) + slots * rounding) / (1 + rounding)) ** 2, rel_tol=1e-12)


@pytest.mark.parametrize("noise", ["blt", "toeplitz", "tree of 16"])
def test_what_a_verifier_makes_of_a_release_counts_its_rounding_too(noise):
    factor, batches = NOISES[noise], batching(8, 1, 10)
    sums = {"factor": factor, "largest": 1e9}
    law = calibrate(Currency.ZCDP, sensitivity=1.0, charge=0.01, dimension=10, **sums)
    event = NoisyRunningSums(noise=law.noise, sensitivity=1.0, **sums)
    exact = group_factor(carried(factor, batches))
    assert exact < factor_of(event, Currency.ZCDP, batches.bound, 10) < exact * (1 + Fraction(1, 1000))
