"""Ids, pseudonyms and counting slots of units."""

import unicodedata
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.privacy.accounting.groups import UnitBound
from service.streams.units import (
    MAX_ID_BYTES,
    NEVER,
    InvalidUnit,
    UnitState,
    UnitStates,
    canonical,
    contributions,
    counting,
    counting_slots,
    distinct,
    erased,
    pseudonym,
    set_aside,
)

SECRET = bytes(range(32))
SECRET_ID = "somebody@example.org"
PATTERNS = st.lists(st.integers(0, 4), max_size=60)
COMPOSED = "a1e\u0301\u0308\u0327\u00e9\u212b\u1100\u1161\u11a8\uac00\u1f82\u0378"
BOUNDS = st.builds(UnitBound, max_records=st.integers(1, 6), min_separation=st.integers(1, 9))


def counted_by_definition(bound, pattern, first=0):
    """Which slots count: fewer than m earlier slots of the unit do, and the last of these is s or more before."""
    slots_of = {}
    for slot, unit in enumerate(pattern, start=first):
        earlier = slots_of.setdefault(unit, [])
        if len(earlier) < bound.max_records and (not earlier or slot - earlier[-1] >= bound.min_separation):
            earlier.append(slot)
    return {slot for slots in slots_of.values() for slot in slots}


def nobody(units=5):
    return UnitStates.of([UnitState()] * units)


@settings(deadline=None, derandomize=True)
@given(PATTERNS, BOUNDS, st.integers(0, 2**40))
def test_slot_by_slot_it_is_the_definition(pattern, bound, first):
    states, counted = dict.fromkeys(range(5), UnitState()), set()
    for slot, unit in enumerate(pattern, start=first):
        after = counting(bound, states[unit], slot)
        if after != states[unit]:
            counted.add(slot)
        states[unit] = after
    assert counted == counted_by_definition(bound, pattern, first)


@settings(deadline=None, derandomize=True)
@given(PATTERNS, BOUNDS, st.integers(0, 2**40), st.integers(0, 60))
def test_in_batches_it_is_the_definition_wherever_they_are_cut(pattern, bound, first, cut):
    states, counted = nobody(), set()
    for begin, part in ((first, pattern[:cut]), (first + len(pattern[:cut]), pattern[cut:])):
        counts, states = counting_slots(bound, states, np.array(part, dtype=np.int32), begin)
        counted |= {begin + int(place) for place in np.flatnonzero(counts)}
    assert counted == counted_by_definition(bound, pattern, first)
    for unit, state in enumerate(states.listed()):
        slots = [slot for slot in sorted(counted) if pattern[slot - first] == unit]
        assert state == UnitState(counted=len(slots), last=slots[-1] if slots else NEVER)


@settings(deadline=None, derandomize=True)
@given(PATTERNS, BOUNDS)
def test_no_unit_has_more_counting_slots_or_nearer_ones_than_its_bound(pattern, bound):
    counts, _ = counting_slots(bound, nobody(), np.array(pattern, dtype=np.int64), 0)
    for unit in range(5):
        slots = [slot for slot, each in enumerate(pattern) if each == unit and counts[slot]]
        assert len(slots) <= bound.max_records
        assert all(b - a >= bound.min_separation for a, b in pairwise(slots))


def test_separation_is_in_slots_of_the_stream():
    """Slots of others, and slots that do not count, are between as well."""
    bound = UnitBound(max_records=9, min_separation=3)
    pattern = [0, 0, 1, 0, 0, 1, 0]
    counts, _ = counting_slots(bound, nobody(), np.array(pattern), 0)
    assert np.flatnonzero(counts).tolist() == [0, 2, 3, 5, 6]


def test_a_state_is_not_changed_in_place():
    before = nobody()
    counting_slots(UnitBound(max_records=1), before, np.array([0]), 0)
    assert before.listed() == [UnitState()] * 5


def test_nothing_of_an_erased_unit_counts():
    bound = UnitBound(max_records=3)
    gone = erased(bound, UnitState(counted=1, last=7))
    assert counting(bound, gone, 1000) == gone == UnitState(counted=3, last=7)
    counts, _ = counting_slots(bound, UnitStates.of([gone, UnitState()]), np.array([0, 1, 0]), 8)
    assert counts.tolist() == [False, True, False]


def test_a_person_with_two_hundred_records_counts_sixteen_times():
    bound = UnitBound(max_records=16)
    pattern = np.tile([0, 1, 2], 200)
    counts, _ = counting_slots(bound, nobody(), pattern, 0)
    assert [int(counts[pattern == unit].sum()) for unit in range(3)] == [16] * 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (-7, "-7"),
        (0, "0"),
        (2**64 - 1, str(2**64 - 1)),
        (np.int64(5), 5),
        (np.uint8(5), "5"),
        ("Zo\u00eb", "Zoe\u0308"),
        ("\uac00", "\u1100\u1161"),
        ("\u212b", "\u00c5"),
    ],
)
def test_one_unit(one, other):
    assert canonical(one) == canonical(other)
    assert pseudonym(SECRET, one) == pseudonym(SECRET, other)


@pytest.mark.parametrize(
    ("one", "other"), [("1", "01"), ("a", "A"), ("1", " 1"), ("1", "+1"), ("1", "\uff11"), ("1", "1\0")]
)
def test_two_units(one, other):
    assert pseudonym(SECRET, one) != pseudonym(SECRET, other)


@pytest.mark.parametrize(
    "other",
    [
        None,
        True,
        np.True_,
        1.0,
        np.float64(1),
        float("nan"),
        b"1",
        ["1"],
        {},
        "",
        "x" * (MAX_ID_BYTES + 1),
        "\u00e9" * (MAX_ID_BYTES // 2 + 1),
        "\u0301" * 10**6,
        10**MAX_ID_BYTES,
        10**5000,
        "\ud800",
        "a\uffff",
        "\u0378",
    ],
    ids=lambda each: type(each).__name__,
)
def test_no_unit(other):
    with pytest.raises(InvalidUnit, match=r"^must "):
        canonical(other)


def test_ids_of_the_greatest_length_are_taken():
    assert len(canonical("x" * MAX_ID_BYTES)) == len(canonical(10 ** (MAX_ID_BYTES - 1))) == MAX_ID_BYTES
    assert canonical("e\u0301" * (MAX_ID_BYTES // 2)) == ("\u00e9" * (MAX_ID_BYTES // 2)).encode()


def test_errors_do_not_repeat_ids():
    with pytest.raises(InvalidUnit) as refused:
        canonical(SECRET_ID + "\ud800")
    assert SECRET_ID not in str(refused.value)


@settings(deadline=None, derandomize=True)
@given(st.text(st.sampled_from(COMPOSED), min_size=1, max_size=20))
def test_canonically_equivalent_texts_are_one_unit(text):
    try:
        name = canonical(text)
    except InvalidUnit:
        return
    for form in ("NFC", "NFD"):
        assert canonical(unicodedata.normalize(form, text)) == name


def test_a_pseudonym_is_the_stated_one():
    """A vector by another implementation: `printf 'unit-1' | openssl dgst -sha256 -mac HMAC -macopt hexkey:…`."""
    assert pseudonym(SECRET, "unit-1").hex() == "6a680739e5adb062ff38f227367f4d32"


def test_another_secret_makes_other_pseudonyms():
    assert pseudonym(SECRET, 1) != pseudonym(bytes(32), 1)


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33)])
def test_a_secret_has_32_bytes(secret):
    with pytest.raises(ValueError, match="32 bytes"):
        pseudonym(secret, 1)


@pytest.mark.parametrize("period", [2, 3, 20, 2**31])
def test_every_kth_unit_is_set_aside_by_the_number_that_its_pseudonym_is(period):
    names = [pseudonym(SECRET, each) for each in range(2000)]
    names[:2] = [(period * 10**9 + period - 1).to_bytes(16), (period - 1).to_bytes(16)]
    columns = set_aside(np.frombuffer(b"".join(names), dtype=np.uint8).reshape(-1, 16), period)
    assert columns.tolist() == [int.from_bytes(each) % period == period - 1 for each in names]
    assert columns[:2].all()


def test_the_shares_of_a_units_records_add_up_to_one_at_most():
    """Exactly: a unit would have more of a say than it is charged for if 1/10 was rounded up."""
    many = np.arange(1, 100)
    shares = contributions(np.repeat(np.arange(len(many)), many))[np.cumsum(many) - 1]
    sums = [Fraction(share) * records for share, records in zip(shares.tolist(), many.tolist(), strict=True)]
    assert sums[0] == 1
    assert all(1 - Fraction(1, 2**50) < each <= 1 for each in sums)


def test_units_are_told_apart_whichever_half_of_their_pseudonyms_they_share():
    halves = [b"8 bytes.", b"8 others"]
    names = [one + other for one in halves for other in halves]
    slots = [0, 3, 1, 2, 0, 3, 2, 1, 0]
    pseudonyms = np.frombuffer(b"".join(names[each] for each in slots), dtype=np.uint8).reshape(len(slots), -1)
    units, places = distinct(pseudonyms)
    assert len(units) == 4
    assert np.array_equal(units[places], pseudonyms)
