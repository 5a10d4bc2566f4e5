"""Units of streams: how many slots of each count, written in the transaction that numbers them.

Nothing here holds an id: units are known by pseudonyms (`streams.units`). The states are read before a segment is
written and moved when it is numbered. Between the two only an erasure can change them, and it moves `units_erased` on
the stream's row, which numbering compares: so no slot is counted twice or by a state that is not the newest.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select, text, update
from sqlalchemy.dialects.postgresql import insert

from service.privacy.accounting.groups import UnitBound
from service.store.tables import streams, units
from service.streams.units import NEVER, PSEUDONYM_BYTES, UnitState, UnitStates, erased


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitCounts:
    """The changes of units when a segment is numbered.

    units_erased: how many were erased when their states were read. states: of those that it changes, by `pseudonyms`.
    over: how many of its slots do not count.
    """

    units_erased: int
    pseudonyms: NDArray[np.uint8]
    states: UnitStates
    over: int


# Pseudonyms are sent as one piece of bytes, and cut where they are used: an array of so many takes long.
_READ = text(
    "SELECT place, counted, last, erased FROM generate_series(0, :many - 1) AS place JOIN units "
    "ON stream_id = :stream AND pseudonym = substr(:joined, place * :width + 1, :width)"
)
_WRITE = text(
    "INSERT INTO units (stream_id, pseudonym, counted, last) "
    "SELECT :stream, substr(:joined, (CAST(place AS int) - 1) * :width + 1, :width), counted, last "
    "FROM unnest(CAST(:counted AS int[]), CAST(:last AS bigint[])) WITH ORDINALITY AS new(counted, last, place) "
    "ON CONFLICT (stream_id, pseudonym) DO UPDATE SET counted = excluded.counted, last = excluded.last"
)


def read(
    connection: Connection, stream: int, bound: UnitBound, pseudonyms: NDArray[np.uint8]
) -> tuple[int, UnitStates]:
    """Return how many units of a stream were erased, and the states of some units, in their order.

    pseudonyms: distinct, (units, `PSEUDONYM_BYTES`).
    """
    query = select(streams.c.units_erased).where(streams.c.id == stream)
    units_erased: int = connection.execute(query).scalar_one()  # first: what is erased after it is seen when numbering
    states = UnitStates.of([UnitState()] * len(pseudonyms))
    values = {"stream": stream, "many": len(pseudonyms), **_joined(pseudonyms)}
    for place, counted, last, gone in connection.execute(_READ, values):
        state = UnitState(counted=counted, last=last)
        states.counted[place], states.last[place] = erased(bound, state) if gone else state
    return units_erased, states


def write(connection: Connection, stream: int, counts: UnitCounts) -> None:
    """Write the states of units. The caller numbers the records that they are of, in the same transaction."""
    listed = {"counted": counts.states.counted.tolist(), "last": counts.states.last.tolist()}
    if listed["last"]:
        connection.execute(_WRITE, {"stream": stream, **_joined(counts.pseudonyms), **listed})


def _joined(pseudonyms: NDArray[np.uint8]) -> dict[str, Any]:
    return {"joined": pseudonyms.tobytes(), "width": PSEUDONYM_BYTES}


def state(connection: Connection, stream: int, pseudonym: bytes) -> tuple[UnitState, bool]:
    """Return the state of a unit, and whether it was erased."""
    query = select(units.c.counted, units.c.last, units.c.erased).where(
        units.c.stream_id == stream, units.c.pseudonym == pseudonym
    )
    row = connection.execute(query).one_or_none()
    return (UnitState(), False) if row is None else (UnitState(row.counted, row.last), row.erased)


def close(connection: Connection, stream: int, pseudonym: bytes) -> None:
    """Let no later slot of a unit count. The caller holds the stream's lock."""
    new = insert(units).values(stream_id=stream, pseudonym=pseudonym, counted=0, last=NEVER, erased=True)
    erase = new.on_conflict_do_update(
        index_elements=[units.c.stream_id, units.c.pseudonym], set_={"erased": True}, where=units.c.erased.is_(False)
    )
    more = connection.execute(erase).rowcount
    connection.execute(update(streams).where(streams.c.id == stream).values(units_erased=streams.c.units_erased + more))
