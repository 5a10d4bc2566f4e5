"""Pseudonyms of units, and the bound on their records: which slots count.

Statement. A stream with units bounds them (`UnitBound`): at most m slots of a unit count, each at least s slots after
the one before. Slot i counts if and only if fewer than m earlier slots of its unit count, and the last of these is
i - s or before. So which slots count depends on the pattern alone, the public order of pseudonyms: not on what is in a
slot, whether it came empty, or what becomes of it. Slots have the stream's numbers, which also count all other slots.

A unit is what has one `canonical` id. The service knows it by its pseudonym, HMAC-SHA-256 of that id under a secret of
the stream, cut to 16 bytes: without the secret nobody can tell which id has it. If two ids had one pseudonym (of 10^9
units with probability below 10^-20), they would be one unit, with m counting slots together: nobody is promised less.

Why `canonical` is one spelling for one unit, today and later. `1` and `"1"` are the same digits. Texts in Unicode's
normalisation form C are equal if they are canonically equivalent. Unicode promises that a text's form C never changes
once all its code points are assigned, so texts with others are refused: a newer version of Python could otherwise make
a second unit of one person. Fractions, truth values and null are refused: nobody can say whether 1.0 is 1.

`UnitState` is all that counting needs to know of a unit. `counting` is the law, slot by slot; `counting_slots` does the
same for many slots in numpy. Both are pure: their caller reads the states, and writes them in the transaction that
numbers the slots. A unit that is `erased` has counted m: nothing of it counts any more.
"""

from __future__ import annotations

import hmac
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from service.privacy.accounting.groups import UnitBound

SECRET_BYTES = 32
PSEUDONYM_BYTES = 16
MAX_ID_BYTES = 256
_MAX_ID_BITS = 4 * MAX_ID_BYTES  # a whole number of more has more digits than an id may have
NEVER = -1
"""`last` of a unit without counting slots"""


class InvalidUnit(ValueError):
    """Raised for an invalid id of a unit. Its message never repeats the id."""


def canonical(identifier: object) -> bytes:
    """Return the canonical spelling of a unit's id, 1 to `MAX_ID_BYTES` bytes of UTF-8. InvalidUnit if it is invalid.

    identifier: a text, or a whole number (numpy's too), which is the same unit as its decimal digits.
    """
    if isinstance(identifier, str):
        encoded = _encoded(identifier)
    elif isinstance(identifier, int | np.integer) and not isinstance(identifier, bool):
        number = int(identifier)
        encoded = str(number).encode() if number.bit_length() <= _MAX_ID_BITS else b""
    else:
        raise InvalidUnit("must be a text or a whole number")
    if not 1 <= len(encoded) <= MAX_ID_BYTES:
        raise InvalidUnit(f"must have 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return encoded


def _encoded(text: str) -> bytes:
    """Return UTF-8 of the text's form C, or nothing if the text is too long for an id."""
    if text.isascii():
        return text.encode()
    if len(text) > 4 * MAX_ID_BYTES:  # form C shortens a text to a quarter at most, and takes long where a text is long
        return b""
    if any(unicodedata.category(character) in ("Cn", "Cs") for character in text):
        raise InvalidUnit("must have characters that are assigned in Unicode, and no lone surrogates")
    return unicodedata.normalize("NFC", text).encode()


def pseudonym(secret: bytes, identifier: object) -> bytes:
    """Return a unit's 16 bytes. secret: 32 bytes of the stream; identifier: see `canonical`."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a stream's secret has {SECRET_BYTES} bytes")
    return hmac.digest(secret, canonical(identifier), "sha256")[:PSEUDONYM_BYTES]


def pseudonyms(secret: bytes, ids: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return the pseudonyms of units, (records, `PSEUDONYM_BYTES`). ids: see `canonical`, (records,)."""
    joined = b"".join([pseudonym(secret, identity) for identity in ids.tolist()])
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, PSEUDONYM_BYTES)


class UnitState(NamedTuple):
    """The state of a unit as its slots are counted."""

    counted: int = 0
    """how many of its slots count"""
    last: int = NEVER
    """the last of them"""


def counting(bound: UnitBound, state: UnitState, slot: int) -> UnitState:
    """Return a unit's state after `slot`, which is behind all its slots so far: the same if the slot does not count."""
    full = state.counted >= bound.max_records
    near = state.last != NEVER and slot - state.last < bound.min_separation
    return state if full or near else UnitState(counted=state.counted + 1, last=slot)


def erased(bound: UnitBound, state: UnitState) -> UnitState:
    """Return the state of an erased unit: no later slot counts."""
    return state._replace(counted=bound.max_records)


@dataclass(frozen=True, kw_only=True)
class UnitStates:
    """The states of some units, in an order of the caller's."""

    counted: NDArray[np.int64]
    last: NDArray[np.int64]

    @staticmethod
    def of(states: Iterable[UnitState]) -> UnitStates:
        both = np.array(list(states), dtype=np.int64).reshape(-1, 2)
        return UnitStates(counted=both[:, 0].copy(), last=both[:, 1].copy())

    def listed(self) -> list[UnitState]:
        return [UnitState(*pair) for pair in zip(self.counted.tolist(), self.last.tolist(), strict=True)]


def counting_slots(
    bound: UnitBound, states: UnitStates, units: NDArray[np.integer[Any]], first: int
) -> tuple[NDArray[np.bool_], UnitStates]:
    """Return which of the slots `first`, `first` + 1, … count, and the units' states behind them.

    units: of every slot the place of its unit in `states`, (slots,). Each round finds the next counting slot of all
    units at once, so that there are as many rounds as one unit has counting slots here.
    """
    slots = len(units)
    order = np.argsort(units, kind="stable")
    keys = units[order].astype(np.int64) * slots + order  # sorted by unit, and for a unit by slot
    counts = np.zeros(slots, dtype=np.bool_)
    counted, last = states.counted.copy(), states.last.copy()
    active = np.unique(units[order]).astype(np.int64) if slots else np.zeros(0, dtype=np.int64)
    while (active := active[counted[active] < bound.max_records]).size:
        free = np.where(last[active] == NEVER, first, last[active] + bound.min_separation)
        places = np.searchsorted(keys, active * slots + np.clip(free - first, 0, slots))
        is_there = places < np.searchsorted(keys, (active + 1) * slots)
        active, here = active[is_there], order[places[is_there]]
        counts[here] = True
        counted[active] += 1
        last[active] = first + here
    return counts, UnitStates(counted=counted, last=last)


def distinct(pseudonyms: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.intp]]:
    """Return the units among some slots, (units, `PSEUDONYM_BYTES`), and of every slot the place of its unit.

    pseudonyms: (slots, `PSEUDONYM_BYTES`), uint8.
    """
    halves = np.ascontiguousarray(pseudonyms).view(np.uint64)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    ordered = halves[order]
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    places = np.empty(len(order), dtype=np.intp)
    places[order] = np.cumsum(begins) - 1
    return pseudonyms[order[begins]], places


def set_aside(pseudonyms: NDArray[Any], period: int) -> NDArray[np.bool_]:
    """Return, as a mask, the slots whose unit is set aside: its pseudonym is k - 1 modulo k = `period`.

    pseudonyms: (slots, `PSEUDONYM_BYTES`), uint8, read as a number from the left; period: below 2^54. All slots of a
    unit are of one kind, by the public pattern, so that evaluations and all other publications read different units.
    """
    rest = np.zeros(len(pseudonyms), dtype=np.int64)
    for column in pseudonyms.T:
        rest = (256 * rest + column) % period
    return np.asarray(rest == period - 1)


def contributions(units: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return 1/k for every slot, rounded down; k is the number of given slots of the same unit.

    units: of every slot the place of its unit, as `distinct` returns it.
    """
    many = np.bincount(units)
    shares: NDArray[np.float64] = np.where(many == 1, 1.0, np.nextafter(1.0 / np.maximum(many, 1), 0.0))
    return np.asarray(shares[units])
