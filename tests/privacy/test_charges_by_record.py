"""A profile is a sum over ranges, exactly."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting.charges_by_record import ChargesByRecord

HORIZON = 40
RANGES = st.lists(
    st.tuples(
        st.integers(0, HORIZON),
        st.integers(0, HORIZON) | st.none(),
        st.sampled_from([Fraction(k, 3) for k in range(4)]),
    ).map(
        lambda piece: (min(piece[0], piece[1]), max(piece[0], piece[1]), piece[2]) if piece[1] is not None else piece
    ),
    max_size=12,
)


def brute(ranges):
    return [
        sum((a for s, e, a in ranges if s <= record and (e is None or record < e)), Fraction(0))
        for record in range(HORIZON + 5)
    ]


def one_by_one(ranges):
    profile = ChargesByRecord()
    for piece in ranges:
        profile = profile.add(*piece)
    return profile


@settings(deadline=None, derandomize=True, max_examples=200)
@given(RANGES)
def test_every_record_holds_the_sum_of_the_ranges_over_it(ranges):
    profile = one_by_one(ranges)
    assert [profile.at(record) for record in range(HORIZON + 5)] == brute(ranges)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(RANGES, RANGES)
def test_however_it_is_built_it_is_the_same(first, second):
    assert one_by_one(first) == ChargesByRecord.of(first)
    assert ChargesByRecord.of(first) + ChargesByRecord.of(second) == one_by_one(first + second)
    assert ChargesByRecord.sum(
        [ChargesByRecord.of(first), ChargesByRecord.of(second), ChargesByRecord()]
    ) == ChargesByRecord.of(second + first)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(RANGES, st.integers(0, HORIZON), st.integers(0, HORIZON) | st.none())
def test_maximum_is_the_worst_record_of_a_range(ranges, start, end):
    if end is not None and end < start:
        start, end = end, start
    amounts = brute(ranges)[start:end]
    assert ChargesByRecord.of(ranges).maximum(start, end) == max(amounts, default=Fraction(0))


@settings(deadline=None, derandomize=True)
@given(RANGES)
def test_its_ranges_cover_every_record_once_and_are_coalesced(ranges):
    pieces = list(one_by_one(ranges).ranges())
    assert pieces[0][0] == 0
    assert pieces[-1][1] is None
    assert all(a[1] == b[0] and a[2] != b[2] for a, b in itertools.pairwise(pieces))
    assert ChargesByRecord.of(pieces) == one_by_one(ranges)


def test_charges_as_doubles_add_up_exactly():
    profile = ChargesByRecord()
    for _ in range(10):
        profile = profile.add(3, 5, 0.1)
    assert profile.maximum() == 10 * Fraction(0.1) != Fraction(1)


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (4, 3)])
def test_impossible_ranges_are_refused(start, end):
    with pytest.raises(ValueError, match="a range of records"):
        ChargesByRecord().add(start, end, Fraction(1))
