"""Units of streams: how many slots of each count, written in the transaction that numbers them.

Nothing here holds an id: units are known by pseudonyms (`streams.units`). The states are read before a segment is
written and moved when it is numbered. Between the two only an erasure can change them, and it moves `units_erased` on
the stream's row, which numbering compares: so no slot is counted twice or by a state that is not the newest.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select, text, update
from sqlalchemy.dialects.postgresql import insert

from service.privacy.accounting.groups import UnitBound
from service.store.tables import streams, units
from service.streams.units import NEVER, PSEUDONYM_BYTES, UnitState, UnitStates, erased


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitCounts:
    """The changes of units when a segment is numbered.

    units_erased: how many were erased when their states were read. states: of those that it changes, by `pseudonyms`;
    new: of these, which had no state. over: how many of its slots do not count.
    """

    units_erased: int
    pseudonyms: NDArray[np.uint8]
    states: UnitStates
    new: NDArray[np.bool_]
    over: int


# Pseudonyms are sent as one piece of bytes, and cut where they are used; states come as one piece, and go as one text:
# arrays and rows of so many take several times as long.
_READ = text(
    "SELECT string_agg(int4send(CAST(place AS int)) || int4send(counted) || int8send(last) || boolsend(erased), '') "
    "FROM generate_series(0, :many - 1) AS place JOIN units "
    "ON stream_id = :stream AND pseudonym = substr(:joined, CAST(place AS int) * :width + 1, :width)"
)
_ROW = np.dtype([("place", ">i4"), ("counted", ">i4"), ("last", ">i8"), ("erased", "?")])
_PSEUDONYM = "substr(:joined, (CAST(place AS int) - 1) * :width + 1, :width)"
_STATES = (
    "FROM unnest(CAST(:counted AS int[]), CAST(:last AS bigint[])) WITH ORDINALITY AS after(counted, last, place) "
)
_BEGIN = text(
    f"INSERT INTO units (stream_id, pseudonym, counted, last) SELECT :stream, {_PSEUDONYM}, counted, last {_STATES}"
)
_MOVE = text(
    f"UPDATE units SET counted = after.counted, last = after.last {_STATES}"  # noqa: S608 - constants
    f"WHERE stream_id = :stream AND pseudonym = {_PSEUDONYM}"
)


class UnitLost(Exception):
    """A unit whose state was read is not there any more, so that nobody knows how many of its slots count."""


def read(
    connection: Connection, stream: int, bound: UnitBound, pseudonyms: NDArray[np.uint8]
) -> tuple[int, UnitStates]:
    """Return how many units of a stream were erased, and the states of some units, in their order.

    pseudonyms: distinct, (units, `PSEUDONYM_BYTES`).
    """
    query = select(streams.c.units_erased).where(streams.c.id == stream)
    units_erased: int = connection.execute(query).scalar_one()  # first: what is erased after it is seen when numbering
    states = UnitStates.of([UnitState()] * len(pseudonyms))
    packed = connection.execute(_READ, {"stream": stream, "many": len(pseudonyms), **_joined(pseudonyms)}).scalar_one()
    rows = np.frombuffer(packed or b"", dtype=_ROW)
    full = erased(bound, UnitState()).counted
    states.counted[rows["place"]] = np.where(rows["erased"], full, rows["counted"])
    states.last[rows["place"]] = rows["last"]
    return units_erased, states


def write(connection: Connection, stream: int, counts: UnitCounts) -> None:
    """Write the states of units. The caller numbers the records that they are of, in the same transaction.

    Raises UnitLost if one of them had a state and has none.
    """
    for statement, which in ((_BEGIN, counts.new), (_MOVE, ~counts.new)):
        if not which.any():
            continue
        states = {"counted": _listed(counts.states.counted[which]), "last": _listed(counts.states.last[which])}
        written = connection.execute(statement, {"stream": stream, **_joined(counts.pseudonyms[which]), **states})
        if written.rowcount != which.sum():
            raise UnitLost(f"of {which.sum()} units, {written.rowcount} have a state")


def _listed(numbers: NDArray[np.int64]) -> str:
    return f"{{{','.join(map(str, numbers.tolist()))}}}"


def _joined(pseudonyms: NDArray[np.uint8]) -> dict[str, Any]:
    return {"joined": pseudonyms.tobytes(), "width": PSEUDONYM_BYTES}


def state(connection: Connection, stream: int, pseudonym: bytes) -> tuple[UnitState, bool]:
    """Return the state of a unit, and whether it was erased."""
    query = select(units.c.counted, units.c.last, units.c.erased).where(
        units.c.stream_id == stream, units.c.pseudonym == pseudonym
    )
    row = connection.execute(query).one_or_none()
    return (UnitState(), False) if row is None else (UnitState(row.counted, row.last), row.erased)


class UnitRow(NamedTuple):
    """A unit as it is written down."""

    counted: int
    last: int
    erased: bool


def number(connection: Connection, stream: int) -> int:
    """Return how many units of a stream there are."""
    return connection.execute(select(func.count()).where(units.c.stream_id == stream)).scalar_one()


def rows(connection: Connection, stream: int, part: int, parts: int) -> dict[bytes, UnitRow]:
    """Return the rows of the units that `part_of` puts into that part."""
    values = {"stream": stream, "part": part, "parts": parts}
    return {
        bytes(row.pseudonym): UnitRow(row.counted, row.last, row.erased) for row in connection.execute(_PART, values)
    }


_PART = text(
    "SELECT pseudonym, counted, last, erased FROM units WHERE stream_id = :stream "
    "AND (256 * get_byte(pseudonym, 0) + get_byte(pseudonym, 1)) % :parts = :part"
)


def part_of(pseudonyms: NDArray[np.uint8], parts: int) -> NDArray[np.int64]:
    """Return which of so many parts, at most 65,536, each pseudonym is in, by its first two bytes."""
    return (256 * pseudonyms[:, 0].astype(np.int64) + pseudonyms[:, 1]) % parts


def close(connection: Connection, stream: int, pseudonym: bytes) -> None:
    """Let no later slot of a unit count; closing twice is the same as once. The caller holds the stream's lock."""
    new = insert(units).values(stream_id=stream, pseudonym=pseudonym, counted=0, last=NEVER, erased=True)
    erase = new.on_conflict_do_update(
        index_elements=[units.c.stream_id, units.c.pseudonym], set_={"erased": True}, where=units.c.erased.is_(False)
    )
    if connection.execute(erase.returning(units.c.erased)).one_or_none() is not None:  # an INSERT has no `rowcount`
        one_more = streams.c.units_erased + 1
        connection.execute(update(streams).where(streams.c.id == stream).values(units_erased=one_more))
