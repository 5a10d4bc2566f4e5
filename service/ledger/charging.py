"""The ledger: an append-only list of charges per stream, chained by hashes. Their sums are in `spending`.

Where the chain ends is kept on the stream's row too, so that one that was cut is found out at the next charge.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, true

from service.ledger import spending
from service.ledger.errors import LedgerBroken
from service.ledger.spending import Counted
from service.privacy.currency import Currency
from service.store import digests, tables
from service.store.charges import AS_SERVED, digest, intact, served
from service.store.database import read_together, write
from service.store.publications import Publication
from service.store.step_records import NewCharge
from service.store.streams import Stream

# The newest charge of a stream, all null if there is none, and the time by the only clock that all workers share.
_newest = (
    AS_SERVED.where(tables.charges.c.stream_id == bindparam("stream"))
    .order_by(tables.charges.c.id.desc())
    .limit(1)
    .subquery()
)
_clock = select(func.clock_timestamp().label("moment")).subquery()
_LAST = select(_newest, _clock.c.moment).select_from(_clock.outerjoin(_newest, true()))
_INSERT = insert(tables.charges)


@dataclass(frozen=True, kw_only=True)
class Charged:
    """The new charges as they are served, when they were made, and what that changes elsewhere."""

    stream: Stream
    publication: Publication
    charges: list[dict[str, Any]]
    at: datetime
    counted: Counted


def charge(
    connection: Connection,
    stream: Stream,
    publication: Publication,
    most: Fraction,
    new: Sequence[NewCharge],
    at: datetime | None,
) -> Charged:
    """Makes the charges for the fits of one step, for `append` to write.

    The caller holds the stream's lock, under which `stream` was read; `most` is what the publication may charge any
    record in all; `at` is the tick at which the step is published, None for now.

    Raises:
        LedgerBroken: the chain does not end as it did after the last charge; nothing is charged.
        OverBudget: a record would pay more than `most` in all; nothing is charged.
    """
    ranges = [(each.start, each.stop, Fraction(each.amount)) for each in new]
    (last,), *before = read_together(
        connection, (_LAST, {"stream": stream.id}), *spending.needed(stream, publication.slots, ranges)
    )
    if last.id is not None and not intact(served(last)):
        raise LedgerBroken(f"charge {last.id}: its hash is not that of its content")
    if (last.id or 0, last.hash) != (stream.charges, stream.head):
        raise LedgerBroken(f"its newest charge is not number {stream.charges}, as it was left")
    counted = spending.count(stream, publication, most, ranges, *before)
    pure = publication.kind == Currency.PURE
    identity, previous = stream.charges, stream.head
    rows: list[dict[str, Any]] = []
    for charge in new:
        identity += 1
        row: dict[str, Any] = {
            "id": identity,
            "start": charge.start,
            "end": charge.stop,
            "publication": publication.name,
            "version": charge.version,
            "epsilon": charge.amount if pure else None,
            "delta": 0.0 if pure else None,
            "rho": None if pure else charge.amount,
            "charged_at": digests.timestamp(at or last.moment),
            "previous_hash": previous,
        }
        previous = row["hash"] = digest(row)
        rows.append(row)
    return Charged(stream=stream, publication=publication, charges=rows, at=at or last.moment, counted=counted)


def now(connection: Connection) -> datetime:
    """The time by the only clock that all workers share."""
    moment: datetime = connection.execute(select(_clock.c.moment)).scalar_one()
    return moment


def append(connection: Connection, charged: Charged) -> Stream:
    """Writes charges down, in the transaction that made them; nothing is read.

    Returns the stream with the chain's new end, for `streams.move` to write.
    """
    of = {"stream_id": charged.stream.id, "publication_id": charged.publication.id, "charged_at": charged.at}
    stored = [
        {name: value for name, value in row.items() if name not in ("publication", "end")} | of | {"stop": row["end"]}
        for row in charged.charges
    ]
    write(connection, _INSERT, *stored)
    for statement, changed in charged.counted.writes:
        write(connection, statement, *changed)
    newest = charged.charges[-1]
    stream = charged.stream.redrawn(charged.publication.slots, charged.counted.grain)
    return replace(stream, charges=newest["id"], head=newest["hash"])
