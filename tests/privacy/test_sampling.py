"""A secret sample costs each slot what the formula says: by brute force never more, and sometimes just as much."""

import math
import os
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy import sampling
from tests import chance

EMPTY, FIRST, SECOND = range(3)
CONTENTS = EMPTY, FIRST, SECOND
SIZES = [(1, 2), (1, 4), (2, 3), (2, 4), (3, 4)]
CHARGES = st.floats(1e-12, 400)
RANGES = st.tuples(st.integers(1, 10**6), st.integers(1, 10**9)).map(lambda pair: (pair[0], sum(pair)))


def samples(slots, drawn):
    """Return the contents of every sample, each as likely as the others, as multisets."""
    return [tuple(sorted(slots[each] for each in chosen)) for chosen in combinations(range(len(slots)), drawn)]


def samples_of_those_present(slots, drawn):
    """Return the same where records are drawn and empty slots are not."""
    present = [each for each in slots if each != EMPTY]
    return samples(present, min(drawn, len(present)))


def worst_ratio(laws, neighbours):
    """Return the largest P(E)/P′(E) of two neighbours' laws: that of a single outcome, in fractions."""
    return max(one / other for a, b in neighbours for one, other in zip(laws[a], laws[b], strict=True))


def released(base, slots, drawn, drawing):
    """Return the law of what is released of slots, when `base` says it of each sample."""
    each = [base[contents] for contents in drawing(slots, drawn)]
    return [sum(outcomes) / len(each) for outcomes in zip(*each, strict=True)]


def neighbours_among(sets):
    """Return the pairs that differ in one place, ordered both ways."""
    return [
        (a, b) for a, b in product(sets, repeat=2) if sum(one != other for one, other in zip(a, b, strict=True)) == 1
    ]


def multiset_neighbours(drawn):
    """Return the pairs of samples, as multisets, that differ in one content."""
    pairs = neighbours_among(list(product(CONTENTS, repeat=drawn)))
    return {(tuple(sorted(a)), tuple(sorted(b))) for a, b in pairs if sorted(a) != sorted(b)}


def losses(base, drawn, slots, drawing=samples):
    """Return e^ε_h of a mechanism on samples, and e^ε of the same on all slots, both exactly."""
    sets = list(product(CONTENTS, repeat=slots))
    laws = {each: released(base, each, drawn, drawing) for each in sets}
    return worst_ratio(base, multiset_neighbours(drawn)), worst_ratio(laws, neighbours_among(sets))


def bound(of_sample, drawn, slots):
    return 1 + Fraction(drawn, slots) * (of_sample - 1)


def whether_it_is_there(drawn, odds=5):
    """A mechanism that says so with `odds` times the probability where a sample holds the one content."""
    likely = {each: Fraction(odds if FIRST in each else 1, 20) for each in multisets(drawn)}
    return {each: [probability, 1 - probability] for each, probability in likely.items()}


def multisets(drawn):
    return list(combinations_with_replacement(CONTENTS, drawn))


@pytest.mark.parametrize(("drawn", "slots"), SIZES)
def test_a_mechanism_that_tells_whether_a_record_is_there_loses_just_as_much(drawn, slots):
    of_sample, of_all = losses(whether_it_is_there(drawn), drawn, slots)
    assert of_sample == 5
    assert of_all == bound(of_sample, drawn, slots)


@pytest.mark.more
@pytest.mark.parametrize(("drawn", "slots"), SIZES)
def test_no_mechanism_loses_more(drawn, slots):
    """Laws of three outcomes, made up for every multiset: none of them has a structure that helps."""
    random = np.random.default_rng(drawn * 10 + slots)
    for _ in range(15):
        weights = {each: random.integers(1, 30, 3).tolist() for each in multisets(drawn)}
        base = {each: [Fraction(one, sum(counts)) for one in counts] for each, counts in weights.items()}
        of_sample, of_all = losses(base, drawn, slots)
        assert of_all <= bound(of_sample, drawn, slots)


def test_drawing_among_the_records_that_are_there_loses_more():
    """A lone record is then always drawn, and all that hides it is the noise of the sample."""
    base = whether_it_is_there(1) | {(): [Fraction(1, 20), Fraction(19, 20)]}
    of_sample, of_all = losses(base, 1, 4, samples_of_those_present)
    assert of_all == of_sample > bound(of_sample, 1, 4)


@settings(deadline=None, derandomize=True)
@given(CHARGES, RANGES)
def test_a_sample_spends_all_of_a_charge_and_no_more(charge, sizes):
    epsilon = sampling.epsilon_of_sample(charge, *sizes)
    assert charge <= epsilon <= sampling._LARGE
    assert sampling.cost_of_sample(Fraction(epsilon), *sizes) <= charge
    more = Fraction(epsilon) * (1 + Fraction(1, 2**50))
    assert epsilon > sampling._LARGE * (1 - 1e-12) or sampling.cost_of_sample(more, *sizes) > charge


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-6, 30), RANGES)
def test_the_cost_is_the_formulas(epsilon, sizes):
    drawn, slots = sizes
    cost = sampling.cost_of_sample(Fraction(epsilon), drawn, slots)
    assert float(cost) == pytest.approx(math.log1p(drawn / slots * math.expm1(epsilon)), rel=1e-12)
    assert 0 < cost <= epsilon


@pytest.mark.parametrize("charge", [512.0, 1000.0])
def test_of_a_charge_that_protects_nothing_a_sample_saves_nothing(charge):
    assert sampling.epsilon_of_sample(charge, 1, 10) == charge
    assert sampling.cost_of_sample(Fraction(charge), 1, 10) == charge


@pytest.mark.parametrize(("drawn", "slots"), [(0, 3), (3, 3), (4, 3)])
def test_a_sample_is_part_of_its_range(drawn, slots):
    for refusing in (
        lambda: sampling.draw(drawn, slots),
        lambda: sampling.cost_of_sample(Fraction(1), drawn, slots),
        lambda: sampling.epsilon_of_sample(1.0, drawn, slots),
    ):
        with pytest.raises(ValueError, match="sample"):
            refusing()


@pytest.mark.more
@pytest.mark.parametrize(("drawn", "slots"), [(1, 4), (2, 5), (4, 5), (3, 6)])
def test_every_set_of_slots_is_drawn_equally_often(drawn, slots):
    sets = {each: number for number, each in enumerate(combinations(range(slots), drawn))}
    seen = np.zeros(len(sets))
    for _ in range(4000):
        seen[sets[tuple(sampling.draw(drawn, slots).tolist())]] += 1
    chance.assert_frequencies(seen, np.full(len(sets), 1 / len(sets)))


def test_slots_of_a_long_range_are_drawn_alike_and_rise():
    drawn = sampling.draw(30_000, 3 * 2**40)
    assert (np.diff(drawn) > 0).all()
    seen = np.bincount(drawn // 2**38, minlength=12)
    chance.assert_frequencies(seen, np.full(12, 1 / 12))


def test_a_word_that_would_favour_small_numbers_is_drawn_again(monkeypatch):
    """2^64 words do not fall on three numbers equally often: the last of them is one too many."""
    words = iter([2**64 - 1, 2**64 - 2, 5, 4])
    monkeypatch.setattr(os, "urandom", lambda count: next(words).to_bytes(count, "little"))
    assert [sampling._uniform(3, 1).tolist() for _ in range(3)] == [[2], [2], [1]]
