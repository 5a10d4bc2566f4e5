"""The ledger: an append-only list of charges per stream, chained by hashes. What they add up to is in `spending`.

Where the chain ends is kept on the stream's row too, so that one that was cut is found out at the next charge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, true

from service.ledger import spending
from service.ledger.spending import Counted
from service.privacy.loss import Kind
from service.store import digests, tables
from service.store.database import read_together
from service.store.publications import Publication
from service.store.streams import Stream
from service.store.tables import publications


class LedgerBroken(Exception):
    """What the ledger of a stream says is not what was written there. Nothing may be published on it."""


@dataclass(frozen=True, kw_only=True)
class NewCharge:
    """What every record of [start, stop) pays for one fit, in its publication's currency: ε if pure, ρ if not."""

    start: int
    stop: int
    version: int | None
    amount: float


def _shown() -> Select[Any]:
    return select(tables.charges, publications.c.name.label("publication")).join(
        publications, publications.c.id == tables.charges.c.publication_id
    )


# The newest charge of a stream, all null if there is none, and the time by the only clock that all workers share.
_newest = (
    _shown()
    .where(tables.charges.c.stream_id == bindparam("stream"))
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
    (last,), *before = read_together(connection, (_LAST, {"stream": stream.id}), *spending.needed(stream, ranges))
    if last.id is not None and not intact(_served(last)):
        raise LedgerBroken(f"charge {last.id}: its hash is not that of its content")
    if (last.id or 0, last.hash) != (stream.charges, stream.head):
        raise LedgerBroken(f"its newest charge is not number {stream.charges}, as it was left")
    counted = spending.count(stream, publication, most, ranges, *before)
    pure = publication.kind == Kind.PURE
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


def newest(connection: Connection, publication: Publication) -> dict[str, Any] | None:
    """The newest charge of a publication, as it is served."""
    query = _shown().where(
        tables.charges.c.stream_id == publication.stream_id, tables.charges.c.publication_id == publication.id
    )
    row = connection.execute(query.order_by(tables.charges.c.id.desc()).limit(1)).one_or_none()
    return None if row is None else _served(row)


def append(connection: Connection, charged: Charged) -> Stream:
    """Writes charges down, in the transaction that made them; nothing is read.

    Returns the stream with the chain's new end, for `streams.move` to write.
    """
    of = {"stream_id": charged.stream.id, "publication_id": charged.publication.id, "charged_at": charged.at}
    stored = [
        {name: value for name, value in row.items() if name not in ("publication", "end")} | of | {"stop": row["end"]}
        for row in charged.charges
    ]
    connection.execute(_INSERT, stored)
    for statement, changed in charged.counted.writes:
        connection.execute(statement, changed)
    newest = charged.charges[-1]
    return replace(charged.stream, charges=newest["id"], head=newest["hash"], grain=charged.counted.grain)


def walk(connection: Connection, stream: int) -> Iterator[dict[str, Any]]:
    """Every charge of a stream as it is served and hashed, oldest first; however many, they take no memory."""
    query = _shown().where(tables.charges.c.stream_id == stream).order_by(tables.charges.c.id)
    with connection.execute(query, execution_options={"yield_per": 1000}) as rows:
        for row in rows:
            yield _served(row)


def page(connection: Connection, stream: int, *, limit: int, before: int | None) -> list[dict[str, Any]]:
    """Charges as they are served and hashed, newest first; only those that are confirmed."""
    confirmed = select(tables.streams.c.confirmed_charges).where(tables.streams.c.id == stream).scalar_subquery()
    query = (
        _shown()
        .where(tables.charges.c.stream_id == stream, tables.charges.c.id <= confirmed)
        .order_by(tables.charges.c.id.desc())
        .limit(limit)
    )
    if before is not None:
        query = query.where(tables.charges.c.id < before)
    return [_served(row) for row in connection.execute(query)]


def charges(connection: Connection, stream: int, identities: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Some charges of a stream, by their ids."""
    query = _shown().where(tables.charges.c.stream_id == stream, tables.charges.c.id.in_(identities))
    return {row.id: _served(row) for row in connection.execute(query)}


def _served(row: Row[Any]) -> dict[str, Any]:
    """A charge as the API shows it; its hash is over just this, without `hash`."""
    return {
        "id": row.id,
        "start": row.start,
        "end": row.stop,
        "publication": row.publication,
        "version": row.version,
        "epsilon": row.epsilon,
        "delta": row.delta,
        "rho": row.rho,
        "charged_at": digests.timestamp(row.charged_at),
        "hash": row.hash,
        "previous_hash": row.previous_hash,
    }


def digest(charge: dict[str, Any]) -> str:
    """SHA-256 over the RFC 8785 JSON of a charge without its `hash`, in hexadecimal."""
    return digests.of({name: value for name, value in charge.items() if name != "hash"})


def intact(charge: dict[str, Any]) -> bool:
    """Whether it is what its hash says. What has no RFC 8785 JSON, like NaN, was never written by `append`."""
    try:
        return bool(charge["hash"] == digest(charge))
    except ValueError:
        return False
